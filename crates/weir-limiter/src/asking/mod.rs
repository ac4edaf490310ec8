//! The lines of keys whose counters are elsewhere: in a store that instances share, or on disk. `places.rs` has the lines
//! for requests in flight, wherever their places are.

mod keyed;
pub(super) mod places;
mod run;

use std::{
    future::poll_fn,
    hash::BuildHasher as _,
    mem,
    sync::{Arc, OnceLock},
    task::{Poll, Waker},
};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::runtime::Handle;

pub(super) use self::run::serve;
use self::{
    keyed::{KeyedLine, KeyedLines},
    places::PlaceLines,
};
use weir_limit::{
    CounterKey, LimitCheck, Named, Period, SharedTiers, Timestamp,
    line::{Answer, Ask, AskingLine, Entered, Estimate, Rejection, Supply, Turns, Unused},
    part,
};
use weir_store::{Ticket, WaitRoom, WaitingLines};

/// The lines whose hits are asked of the store, and when each has something to do.
#[derive(Debug)]
pub(super) struct AskingLines {
    state: Mutex<LineState>,
    room: Arc<WaitRoom>,
    pub(super) places: PlaceLines,
    /// Of what serves the lines.
    runtime: OnceLock<Handle>,
    /// Chooses the turns of this process among the instances.
    seed: u64,
}

#[derive(Debug, Default)]
struct LineState {
    lines: KeyedLines<AskingLine>,
    /// Hits of permits that were not used.
    returns: Vec<Work>,
    /// What carries the work out, while it sleeps.
    sleeper: Option<Waker>,
    is_rung: bool,
    is_closed: bool,
}

/// What a line needs of the store.
#[derive(Debug)]
pub(super) enum Work {
    /// Hits for its waiters. The reply has to be [supplied](AskingLines::supply).
    Ask(CounterKey, Arc<Named>, Ask),
    Return(CounterKey, Arc<Named>, Unused),
}

// === impl AskingLines ===

impl AskingLines {
    pub(super) fn new(room: Arc<WaitRoom>) -> Self {
        // a random number, since each state of this kind has one
        let seed = RandomState::default().hash_one(0_u8);
        let places = PlaceLines::new(Arc::clone(&room));
        Self { state: Mutex::default(), room, places, runtime: OnceLock::new(), seed }
    }

    pub(super) fn runtime(&self) -> Option<&Handle> {
        self.runtime.get()
    }

    pub(super) const fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// Those in memory included, and those that have an answer to collect.
    pub(super) fn waiters(&self) -> usize {
        self.room.waiters()
    }

    /// Returns the part of `max_wait` that a call may wait at most, in however many lines.
    pub(super) fn cut(&self, max_wait: Period) -> Period {
        self.room.cut(max_wait)
    }

    fn turns(&self, key: CounterKey, instance: part::InstanceRank) -> Turns {
        Turns { instance, seed: self.seed.wrapping_add(key.hash()) }
    }

    pub(super) fn has_line(&self, key: CounterKey) -> bool {
        self.room.waiters() > 0
            && self.state.lock().lines.get(key).is_some_and(|line| line.line.waiting() > 0)
    }

    pub(super) fn enter(
        &self,
        check: &LimitCheck<'_>,
        max_wait: Period,
        known: (Option<Estimate>, Period),
        instance: part::InstanceRank,
        now: Timestamp,
    ) -> Result<Ticket, Rejection> {
        let key = check.key;
        let turns = self.turns(key, instance);
        let entered = self.with_line(key, now, Some(check), |line, _| {
            // under the lock, which whoever closes the lines takes after it has closed the room
            let max_wait = self.room.longest(max_wait);
            let room = self.room.has_room(line.waiting());
            line.set_turns(turns);
            line.enter(now, check.hits, max_wait, room, known)
        });
        match entered {
            Some(Entered::Waits(position)) => {
                self.room.keep();
                Ok(Ticket { key, position })
            }
            Some(Entered::Rejected(rejection)) => Err(self.room.reject(rejection)),
            // neither happens: the line was made, and it admits nobody on arrival
            Some(Entered::Admitted) | None => Err(self.room.reject(Rejection::Closed)),
        }
    }

    /// Makes the turns that are due at `now`, and returns what the lines need then.
    pub(super) fn due(&self, now: Timestamp) -> Vec<Work> {
        let mut work = mem::take(&mut self.state.lock().returns);
        loop {
            let due = self.state.lock().lines.first().filter(|(instant, _)| *instant <= now);
            let Some((_, key)) = due else { return work };
            let needed = self.with_named_line(key, now, None, |line, names, woken| {
                let ask = line.turn(now, woken).map(|ask| Work::Ask(key, Arc::clone(names), ask));
                let unused = line.take_unused().into_iter();
                let unused = unused.map(|unused| Work::Return(key, Arc::clone(names), unused));
                ask.into_iter().chain(unused).collect::<Vec<_>>()
            });
            work.extend(needed.into_iter().flatten());
        }
    }

    /// `supply` is none if the ask has failed.
    pub(super) fn supply(
        &self,
        key: CounterKey,
        supply: Option<(Supply, part::InstanceRank)>,
        now: Timestamp,
    ) {
        let (supply, instance) = supply.unzip();
        self.with_line(key, now, None, |line, woken| {
            if let Some(instance) = instance {
                line.set_turns(self.turns(key, instance));
            }
            line.supply(supply, now, woken);
        });
    }

    pub(super) fn give_back(&self, key: CounterKey, names: Arc<Named>, unused: Unused) {
        let mut state = self.state.lock();
        state.returns.push(Work::Return(key, names, unused));
        state.ring();
    }

    /// `find` returns the key and tiers for which callers of these names wait now. For another key, they ask again.
    pub(super) fn reload(&self, now: Timestamp, find: impl Fn(&Named) -> Option<(CounterKey, SharedTiers)>) {
        let keys = self.state.lock().lines.keys();
        for key in keys {
            self.with_named_line(key, now, None, |line, names, woken| match find(names) {
                Some((found, tiers)) if found == key => {
                    if *line.tiers() != tiers {
                        line.change_tiers(tiers, now, woken);
                    }
                }
                _ => line.answer_all(Answer::AskAgain, now, woken),
            });
        }
    }

    /// Has the line of `key` ask at once, since hits have become free that no estimate knows of.
    pub(super) fn ask_now(&self, key: CounterKey, now: Timestamp) {
        self.with_line(key, now, None, |line, woken| line.change_tiers(line.tiers().clone(), now, woken));
    }

    pub(super) fn close(&self, now: Timestamp) {
        self.room.close();
        self.places.close(now);
        let keys = self.state.lock().lines.keys();
        for key in keys {
            self.with_line(key, now, None, |line, woken| {
                line.answer_all(Answer::Rejected(Rejection::Closed), now, woken);
            });
        }
    }

    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.ring();
    }

    pub(super) fn ring(&self) {
        self.state.lock().ring();
    }

    fn next(&self) -> Option<Timestamp> {
        self.state.lock().lines.first().map(|(instant, _)| instant)
    }

    /// Waits for work that has come up sooner than the next timer. Returns false once there will be none.
    async fn rung(&self) -> bool {
        poll_fn(|context| {
            let mut state = self.state.lock();
            if state.is_closed {
                return Poll::Ready(false);
            }
            if mem::take(&mut state.is_rung) {
                return Poll::Ready(true);
            }
            state.sleeper = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn with_line<T>(
        &self,
        key: CounterKey,
        now: Timestamp,
        make: Option<&LimitCheck<'_>>,
        act: impl FnOnce(&mut AskingLine, &mut Vec<Waker>) -> T,
    ) -> Option<T> {
        self.with_named_line(key, now, make, |line, _, woken| act(line, woken))
    }

    /// Makes the line for `make` if there is none, and sets its timer. Callers are woken once the lock is free.
    fn with_named_line<T>(
        &self,
        key: CounterKey,
        now: Timestamp,
        make: Option<&LimitCheck<'_>>,
        act: impl FnOnce(&mut AskingLine, &Arc<Named>, &mut Vec<Waker>) -> T,
    ) -> Option<T> {
        let mut woken = Vec::new();
        let mut state = self.state.lock();
        let LineState { lines, returns, .. } = &mut *state;
        if let Some(check) = make {
            let names = || Named::new(check.domain, check.entries);
            lines.make(key, || (AskingLine::new(check.shared_tiers()), names()));
        }
        let KeyedLine { line, names, .. } = lines.get(key)?;
        let done = act(line, names, &mut woken);
        let unused = line.take_unused().into_iter();
        returns.extend(unused.map(|unused| Work::Return(key, Arc::clone(names), unused)));
        let (timer, is_unused) = (line.timer().map(|timer| timer.max(now)), line.is_unused());
        lines.settle(key, timer, is_unused);
        let is_first = lines.first().is_some_and(|(_, first)| first == key);
        if is_first || !state.returns.is_empty() {
            state.ring();
        }
        drop(state);
        for waker in woken {
            waker.wake();
        }
        Some(done)
    }
}

impl WaitingLines for AskingLines {
    fn poll_place(&self, ticket: &Ticket, waker: &Waker) -> Poll<Answer> {
        let mut state = self.state.lock();
        let Some(line) = state.lines.get(ticket.key) else { return Poll::Ready(Answer::AskAgain) };
        let answer = line.line.poll(ticket.position, waker);
        if line.line.is_unused() {
            state.lines.remove(ticket.key);
        }
        drop(state);
        if let Poll::Ready(answer) = answer {
            self.room.answer(answer);
        }
        answer
    }

    fn leave(&self, Ticket { key, position }: Ticket, now: Timestamp) {
        self.with_line(key, now, None, |line, woken| line.leave(position, now, woken));
        self.room.leave();
    }
}

// === impl LineState ===

impl LineState {
    fn ring(&mut self) {
        self.is_rung = true;
        if let Some(sleeper) = self.sleeper.take() {
            sleeper.wake();
        }
    }
}
