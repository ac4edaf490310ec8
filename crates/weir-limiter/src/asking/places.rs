//! The lines for places of requests in flight, wherever these are kept.

use std::{
    future::{Future as _, poll_fn},
    mem,
    sync::Arc,
    task::{Poll, Waker},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use weir_limit::{
    CounterKey, Hits, InFlight, Matched, Modes, Named, Period, PlaceAsk, PlaceCheck, PlaceDecision,
    PlaceName, Timestamp,
    line::{Answer, PlaceAsks, PlaceQueue, PlaceSupply, QueuePosition, Rejection},
};
use weir_store::{
    EndedPlace, PlaceRequest, Store, StoreError, TakeOptions, Ticket, WaitRoom, WaitingLines, clock::Clock,
};

use super::keyed::{KeyedLine, KeyedLines};
use crate::{Limiter, LoadedRules};

/// The lines for places, and when each has something to do.
#[derive(Debug)]
pub(crate) struct PlaceLines {
    state: Mutex<PlaceLineState>,
    room: Arc<WaitRoom>,
    rung: Notify,
}

#[derive(Debug, Default)]
struct PlaceLineState {
    lines: KeyedLines<PlaceQueue>,
    /// Places of callers that left with their answer.
    unused: Vec<PlaceWork>,
}

/// What a line needs of the store.
#[derive(Debug)]
pub(super) enum PlaceWork {
    Ask(CounterKey, Arc<Named>, PlaceAsks),
    End(CounterKey, Arc<Named>, Vec<PlaceName>),
}

// === impl PlaceLines ===

impl PlaceLines {
    pub(super) fn new(room: Arc<WaitRoom>) -> Self {
        Self { state: Mutex::default(), room, rung: Notify::new() }
    }

    pub(crate) fn has_line(&self, key: CounterKey) -> bool {
        self.with_existing(key, |line| line.line.waiting() > 0)
    }

    /// Whether a caller that cannot wait may ask for a place, beside those that wait.
    pub(crate) fn admits_other(&self, key: CounterKey) -> bool {
        !self.with_existing(key, |line| !line.line.admits_other())
    }

    /// Such a caller has found no place.
    pub(crate) fn refuse_other(&self, key: CounterKey) {
        self.with_existing(key, |line| {
            line.line.refuse_other();
            false
        });
    }

    fn with_existing(&self, key: CounterKey, act: impl FnOnce(&mut KeyedLine<PlaceQueue>) -> bool) -> bool {
        self.room.waiters() > 0 && self.state.lock().lines.get(key).is_some_and(act)
    }

    pub(crate) fn enter(
        &self,
        check: &PlaceCheck<'_>,
        max_wait: Period,
        now: Timestamp,
    ) -> Result<Ticket, Rejection> {
        let key = check.key;
        let entered = self.with_line(key, now, Some(check), |line, _| {
            // under the lock, which whoever closes the lines takes after it has closed the room
            let max_wait = self.room.longest(max_wait);
            if max_wait == Period::default() {
                return Err(Rejection::Timeout { retry_after: PlaceQueue::RETRY });
            }
            if !self.room.has_room(line.line.waiting()) {
                return Err(Rejection::Full { retry_after: PlaceQueue::RETRY });
            }
            Ok(line.line.enter(now, max_wait))
        });
        match entered.unwrap_or(Err(Rejection::Closed)) {
            Ok(position) => {
                self.room.keep();
                Ok(Ticket { key, position })
            }
            Err(rejection) => Err(self.room.reject(rejection)),
        }
    }

    /// A place of `key` may be free.
    pub(crate) fn note_end(&self, key: CounterKey, now: Timestamp) {
        if self.room.waiters() > 0 {
            self.with_line(key, now, None, |line, _| line.line.note_end(now));
        }
    }

    /// Makes the turns that are due at `now`, and returns what the lines need then.
    pub(super) fn due(&self, now: Timestamp) -> Vec<PlaceWork> {
        let mut work = mem::take(&mut self.state.lock().unused);
        loop {
            let due = self.state.lock().lines.first().filter(|(instant, _)| *instant <= now);
            let Some((_, key)) = due else { return work };
            let asks = self.with_line(key, now, None, |line, woken| {
                let asks = line.line.turn(now, woken)?;
                Some(PlaceWork::Ask(key, Arc::clone(&line.names), asks))
            });
            work.extend(asks.flatten());
        }
    }

    fn supply(&self, key: CounterKey, supply: PlaceSupply, now: Timestamp) -> Vec<PlaceName> {
        let unused = self.with_line(key, now, None, |line, woken| line.line.supply(supply, now, woken));
        unused.unwrap_or_default()
    }

    /// Returns the place of the admitted caller at `position`.
    pub(crate) fn collect(
        &self,
        key: CounterKey,
        position: QueuePosition,
        now: Timestamp,
    ) -> Option<PlaceName> {
        self.with_line(key, now, None, |line, _| line.line.collect(position))?
    }

    /// `has_places` says whether callers of these names wait for places of this key.
    pub(crate) fn reload(&self, now: Timestamp, has_places: impl Fn(CounterKey, &Named) -> bool) {
        self.with_all(now, |key, line, woken| {
            if has_places(key, &line.names) {
                line.line.note_end(now);
            } else {
                line.line.answer_all(Answer::AskAgain, woken);
            }
        });
    }

    /// The room is closed.
    pub(super) fn close(&self, now: Timestamp) {
        let closed = Answer::Rejected(Rejection::Closed);
        self.with_all(now, |_, line, woken| line.line.answer_all(closed, woken));
    }

    fn with_all(
        &self,
        now: Timestamp,
        act: impl Fn(CounterKey, &mut KeyedLine<PlaceQueue>, &mut Vec<Waker>),
    ) {
        let keys = self.state.lock().lines.keys();
        for key in keys {
            self.with_line(key, now, None, |line, woken| act(key, line, woken));
        }
    }

    pub(super) fn next(&self) -> Option<Timestamp> {
        self.state.lock().lines.first().map(|(instant, _)| instant)
    }

    /// Waits until there is work sooner than the next timer.
    pub(super) async fn rung(&self) {
        self.rung.notified().await;
    }

    /// Makes the line for `make` if there is none, and sets its timer. Callers are woken once the lock is free.
    fn with_line<T>(
        &self,
        key: CounterKey,
        now: Timestamp,
        make: Option<&PlaceCheck<'_>>,
        act: impl FnOnce(&mut KeyedLine<PlaceQueue>, &mut Vec<Waker>) -> T,
    ) -> Option<T> {
        let mut woken = Vec::new();
        let mut state = self.state.lock();
        let PlaceLineState { lines, unused } = &mut *state;
        if let Some(check) = make {
            lines.make(key, || (PlaceQueue::default(), Named::new(check.domain, check.entries)));
        }
        let line = lines.get(key)?;
        let done = act(line, &mut woken);
        let (timer, is_unused) = (line.line.timer().map(|timer| timer.max(now)), line.line.is_unused());
        lines.settle(key, timer, is_unused);
        if !unused.is_empty() || lines.first().is_some_and(|(_, first)| first == key) {
            self.rung.notify_one();
        }
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        Some(done)
    }
}

impl WaitingLines for PlaceLines {
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
        let mut state = self.state.lock();
        if let Some(line) = state.lines.get(key)
            && let Some(name) = line.line.leave(position)
        {
            let work = PlaceWork::End(key, Arc::clone(&line.names), vec![name]);
            state.unused.push(work);
        }
        drop(state);
        self.with_line(key, now, None, |_, _| ());
        self.room.leave();
    }
}

impl<S: Store> Limiter<S> {
    pub(super) async fn carry_out_places(&self, work: PlaceWork, clock: &(impl Clock + ?Sized)) {
        match work {
            PlaceWork::Ask(key, names, asks) => {
                let supply = self.ask_places(key, &names, asks, clock).await.unwrap_or_default();
                let unused = self.asking.places.supply(key, supply, clock.now());
                self.undo_places(key, &names, unused, clock.now()).await;
            }
            PlaceWork::End(key, names, unused) => self.undo_places(key, &names, unused, clock.now()).await,
        }
    }

    /// The first waiter asks alone: its reply says for how many others there are places. None without a reply.
    async fn ask_places(
        &self,
        key: CounterKey,
        names: &Named,
        PlaceAsks { places, leaves }: PlaceAsks,
        clock: &(impl Clock + ?Sized),
    ) -> Option<PlaceSupply> {
        let loaded = self.loaded.load_full()?;
        let request = names.request(Hits(1));
        let matched = Matched::new(&loaded.rules, &request);
        // otherwise a reload has taken the rule away, and its callers are about to be told
        let check = awaited(&matched, &self.settings.modes).filter(|check| check.key == key)?;
        let most = check.limit.most;
        let limit = InFlight { most: most.saturating_sub(leaves), ..check.limit };
        let asked = PlaceCheck { limit, ..*check };
        let (mut taken, mut left) = (Vec::new(), u32::MAX);
        let mut add = |(name, decision): (PlaceName, PlaceDecision)| {
            left = left.min(decision.left(most, true));
            if !decision.over {
                taken.push(name);
            }
        };
        let take = || self.take_place(&loaded, &asked, clock.now());
        let first = take().await.ok()?;
        add(first);
        let others = (first.1.left(limit.most, true) as usize).min(places - 1);
        let mut pending: Vec<_> = (0..others).map(|_| Box::pin(take())).collect();
        poll_fn(|context| {
            pending.retain_mut(|take| match take.as_mut().poll(context) {
                Poll::Ready(one) => {
                    one.into_iter().for_each(&mut add);
                    false
                }
                Poll::Pending => true,
            });
            if pending.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        Some(PlaceSupply { names: taken, left: Some(left) })
    }

    /// Asks for one place.
    pub(crate) async fn take_place(
        &self,
        loaded: &LoadedRules,
        check: &PlaceCheck<'_>,
        now: Timestamp,
    ) -> Result<(PlaceName, PlaceDecision), StoreError> {
        let stats = loaded.places(check);
        let request = PlaceRequest { check, stats, reserved: Hits(0) };
        let options = TakeOptions { takes_names: true, ..TakeOptions::default() };
        let taken = self.store.take_places(&[request], self.serials.next(), now, options).await?;
        Ok((taken.name, taken.decisions[0]))
    }

    /// Ends places whose callers have left.
    async fn undo_places(&self, key: CounterKey, names: &Named, unused: Vec<PlaceName>, now: Timestamp) {
        let (Some(loaded), entries) = (self.loaded.load_full(), names.entries()) else { return };
        let Some(check) = loaded.rules.place(names.domain(), &entries).filter(|check| check.key == key)
        else {
            return;
        };
        let stats = loaded.places(&check);
        for name in unused {
            let ended = EndedPlace { check: &check, stats, name: Some(name), awaits: false, is_undone: true };
            // a store that does not reply gives the place up
            let _ = self.store.end_places(&[ended], now).await;
            self.asking.places.note_end(key, now);
        }
    }
}

/// Returns the only place that a request asks for, if it may wait for it.
pub(crate) fn awaited<'m, 'a>(matched: &'m Matched<'a>, modes: &Modes) -> Option<&'m PlaceCheck<'a>> {
    let [(_, check)] = &*matched.places else { return None };
    // what a request reserves is decided at once
    let is_plain = check.is_limited() && check.rule.reserve().is_none();
    let waits = is_plain && check.ask == PlaceAsk::Take && check.rejects(modes.quota) && !modes.shadow;
    waits.then_some(check)
}
