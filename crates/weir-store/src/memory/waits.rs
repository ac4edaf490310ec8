//! Callers that wait for counters in memory.

use std::{
    sync::Arc,
    task::{Poll, Waker},
};

use super::{
    MemoryStore,
    lines::{Arrival, KeyLine, Receipt},
    notes::Notes,
    shard::Shard,
    timers::Timers,
};
use crate::{
    brief_lock,
    wait_room::{Ticket, WaitRoom, WaitingLines},
};
use weir_limit::{
    CounterKey, LimitCheck, Named, Period, SharedTiers, Tier, Tiers, Timestamp,
    algorithm::CounterState,
    line::{self, Answer, Entered, Line, Rejection},
};

impl<N: Notes> Shard<N> {
    #[inline]
    pub(super) fn has_line(&mut self, key: CounterKey, tiers: &[Tier]) -> bool {
        // a line that the reload has not reached yet counts in other tiers
        !self.lines.table.is_empty() && self.lines.find(key).is_some_and(|line| **line.line.tiers() == *tiers)
    }

    pub(super) fn with_line<T>(
        &mut self,
        key: CounterKey,
        now: Timestamp,
        act: impl FnOnce(&mut Line, &mut [CounterState], &mut Vec<Waker>) -> T,
    ) -> Option<T> {
        let mut line = self.lines.take(key)?;
        let tiers = line.line.tiers().clone();
        let done = self.act_on(&mut line, &tiers, now, act);
        self.lines.put(line, now);
        Some(done)
    }

    fn act_on<T>(
        &mut self,
        line: &mut KeyLine,
        tiers: &[Tier],
        now: Timestamp,
        act: impl FnOnce(&mut Line, &mut [CounterState], &mut Vec<Waker>) -> T,
    ) -> T {
        let mut woken = std::mem::take(&mut self.lines.woken);
        let done =
            self.update(line.key, None, tiers, now, |_, counters| act(&mut line.line, counters, &mut woken));
        self.lines.woken = woken;
        done
    }

    /// Call it after hits were given back.
    pub(super) fn serve_line_of(&mut self, key: CounterKey, now: Timestamp) {
        if !self.lines.table.is_empty() {
            self.with_line(key, now, |line, counters, woken| line.note_room(counters, now, woken));
        }
    }

    pub(super) fn take_woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.lines.woken)
    }

    fn has_woken(&self) -> bool {
        !self.lines.woken.is_empty()
    }
}

impl MemoryStore {
    /// Takes the hits of `check`, at least one, now or in turn within `max_wait`; its tiers [allow](line::can_wait) it.
    pub fn enter(&self, check: &LimitCheck<'_>, max_wait: Period, now: Timestamp) -> Arrival {
        let (key, hits) = (check.key, check.hits);
        let arrival = self.on_shard(key, |shard| {
            let enter = |line: &mut Line, counters: &mut [CounterState], woken: &mut Vec<Waker>| {
                // under the lock, which whoever closes the lines takes after it has closed the room
                let max_wait = self.wait_room.longest(max_wait);
                let room = self.wait_room.has_room(line.waiting());
                line.enter(counters, now, hits, max_wait, room, woken)
            };
            let mut line = shard.lines.take(key).unwrap_or_else(|| Box::new(KeyLine::new(check)));
            let tiers = line.line.tiers().clone();
            let entered = shard.act_on(&mut line, &tiers, now, enter);
            shard.lines.put(line, now);
            entered
        });
        match arrival {
            Entered::Admitted => {
                self.bound(key, now);
                Arrival::Admitted
            }
            Entered::Waits(position) => {
                self.wait_room.keep();
                Arrival::Waits(Ticket { key, position })
            }
            Entered::Rejected(rejection) => Arrival::Rejected(self.wait_room.reject(rejection)),
        }
    }

    /// Gives the hits of `receipt` back, as far as they still count: to a window that is open, and to a bucket less
    /// what has flowed in since; nothing to a bucket whose rule `is_old`.
    pub fn put_back(&self, receipt: Receipt, is_old: bool, now: Timestamp) {
        let Receipt { key, tiers, hits, taken_at, .. } = receipt;
        let tiers: Tiers = tiers.iter().filter(|tier| !(is_old && tier.refills())).cloned().collect();
        self.on_shard(key, |shard| {
            shard.update(key, None, &tiers, now, |tiers, counters| {
                line::put_back(tiers, counters, taken_at, hits, now);
            });
            shard.serve_line_of(key, now);
        });
    }

    pub fn serve_lines(&self, now: Timestamp) {
        while let Some((instant, key)) = self.timers.due(now) {
            self.on_shard(key, |shard| {
                let turned = shard.with_line(key, now, |line, counters, woken| {
                    line.turn(counters, now, woken);
                });
                if turned.is_none() {
                    // before another caller makes a line, whose timer may have the same instant
                    self.timers.set(key, Some(instant), None);
                }
            });
        }
    }

    /// Applies new rules to all lines. `find` returns the key and the tiers for which callers of a line of these names
    /// would wait now. They stay if it is the line's key; otherwise they must ask again.
    pub fn reload_lines(&self, now: Timestamp, find: impl Fn(&Named) -> Option<(CounterKey, SharedTiers)>) {
        for shard in &self.shards {
            let keys: Vec<CounterKey> = shard.lock().lines.table.iter().map(|line| line.key).collect();
            for key in keys {
                self.on_shard(key, |shard| {
                    let Some(line) = shard.lines.find(key) else { return };
                    match find(&line.names) {
                        Some((found, tiers)) if found == key => Self::change_tiers(shard, key, &tiers, now),
                        _ => Self::answer_all(shard, key, Answer::AskAgain, now),
                    }
                });
            }
        }
    }

    /// Rejects all callers that wait, and from now on those that would have to, because the service stops.
    pub fn close_lines(&self, now: Timestamp) {
        self.wait_room.close();
        for shard in &self.shards {
            let keys: Vec<CounterKey> = shard.lock().lines.table.iter().map(|line| line.key).collect();
            for key in keys {
                let closed = Answer::Rejected(Rejection::Closed);
                self.on_shard(key, |shard| Self::answer_all(shard, key, closed, now));
            }
        }
    }

    pub fn timers(&self) -> &Arc<Timers> {
        &self.timers
    }

    /// Returns when [`MemoryStore::serve_lines`] has something to do next. None while nobody waits.
    pub fn next_turn(&self) -> Option<Timestamp> {
        self.timers.next()
    }

    /// Returns the number of callers that wait or have an answer to collect.
    pub fn waiters(&self) -> usize {
        self.wait_room.waiters()
    }

    fn change_tiers(shard: &mut Shard<()>, key: CounterKey, tiers: &SharedTiers, now: Timestamp) {
        // what was due before the change
        shard.with_line(key, now, |line, counters, woken| line.turn(counters, now, woken));
        let Some(mut line) = shard.lines.take(key) else { return };
        if line.line.tiers() != tiers {
            shard.act_on(&mut line, tiers, now, |line, counters, woken| {
                line.change_tiers(tiers.clone(), counters, now, woken);
            });
        }
        shard.lines.put(line, now);
    }

    fn answer_all(shard: &mut Shard<()>, key: CounterKey, answer: Answer, now: Timestamp) {
        shard.with_line(key, now, |line, _, woken| line.answer_all(answer, woken));
    }
}

impl WaitingLines for MemoryStore {
    fn poll_place(&self, ticket: &Ticket, waker: &Waker) -> Poll<Answer> {
        let key = ticket.key;
        let mut shard = self.shards[self.index(key)].lock();
        let Some(line) = shard.lines.find(key) else { return Poll::Ready(Answer::AskAgain) };
        let answer = line.line.poll(ticket.position, waker);
        if line.line.is_unused() {
            // its timer ended with the last wait
            shard.lines.take(key);
        }
        drop(shard);
        if let Poll::Ready(answer) = answer {
            self.wait_room.answer(answer);
        }
        answer
    }

    fn leave(&self, Ticket { key, position }: Ticket, now: Timestamp) {
        self.on_shard(key, |shard| {
            shard.with_line(key, now, |line, counters, woken| line.leave(counters, position, now, woken));
        });
        self.wait_room.leave();
    }
}

impl<N: Notes> MemoryStore<N> {
    /// Returns the callers that wait, those for other stores of the process included.
    pub const fn wait_room(&self) -> &Arc<WaitRoom> {
        &self.wait_room
    }

    /// Runs `act` on the shard of `key`, and wakes the callers that it has answered once the lock is free.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    pub(super) fn on_shard<T>(&self, key: CounterKey, act: impl FnOnce(&mut Shard<N>) -> T) -> T {
        let mut shard = brief_lock::lock(&self.shards[self.index(key)]);
        let done = self.counting(&mut shard, act);
        if shard.has_woken() {
            let woken = shard.take_woken();
            drop(shard);
            woken.into_iter().for_each(Waker::wake);
        }
        done
    }
}
