//! The line for places of requests in flight. Nobody knows when a request ends, so it has no plan: callers wait, first in,
//! first out, until their deadline.
//!
//! It asks whoever keeps the places, once at a time and for several waiters at once: at each end here, and besides at
//! growing intervals, since requests also end elsewhere. The line and callers that cannot wait take places in turn: for
//! each place that the line gets after it was preferred to such a caller, another one is left to them for a while.

use std::{
    collections::BTreeMap,
    task::{Poll, Waker},
};

use super::{
    answer::{Answer, QueuePosition, Rejection},
    waiters::{Left, Waiters},
};
use crate::{
    place::PlaceName,
    units::{Period, Timestamp},
};

/// The most waiters that one ask is for.
const MOST_ASKED: usize = 16;

/// The most places that are left to callers that cannot wait.
const MOST_OWED: u32 = 16;

/// The first pause between two asks without an end here, and the time for which places are left to callers that cannot
/// wait.
const PAUSE: Period = Period::from_millis(100);

const LONGEST_PAUSE: Period = Period::from_secs(1);

/// A store that is elsewhere may hear of an end a little later than of the ask that follows it.
const AFTER_END: Period = Period::from_millis(5);

const NEVER: Timestamp = Timestamp::from_nanos(u64::MAX);

/// The callers that wait for a place of one counter.
#[derive(Debug, Default)]
pub struct PlaceQueue {
    waiters: Waiters,
    /// The places of waiters that have not collected their answers.
    granted: BTreeMap<QueuePosition, PlaceName>,
    is_asking: bool,
    /// When to ask. While an ask is on its way, [`NEVER`] unless a request has ended since.
    next: Timestamp,
    /// From the next ask without success to the one after it.
    pause: Period,
    others: OtherCallers,
}

/// Callers that cannot wait.
#[derive(Clone, Copy, Debug, Default)]
struct OtherCallers {
    /// How many were refused and have no place left to them yet.
    refused: u32,
    /// The places that are left to them.
    owed: u32,
    /// Until when, once these are free.
    until: Option<Timestamp>,
}

/// What a line asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceAsks {
    /// The most places.
    pub places: usize,
    /// The places that must be left to others.
    pub leaves: u32,
}

/// What became of [`PlaceAsks`].
#[derive(Clone, Debug, Default)]
pub struct PlaceSupply {
    /// The places that were taken.
    pub names: Vec<PlaceName>,
    /// Those that are left then, also to others; none if this is not known.
    pub left: Option<u32>,
}

// === impl PlaceQueue ===

impl PlaceQueue {
    /// When to ask again, for callers that are refused: a hint, as nobody knows when a request ends.
    pub const RETRY: Period = Period::from_secs(1);

    /// Returns the number of callers that are not answered.
    pub const fn waiting(&self) -> usize {
        self.waiters.waiting()
    }

    /// Returns whether nobody waits or has an answer to collect, and no reply is awaited.
    pub fn is_unused(&self) -> bool {
        self.waiters.is_unused() && self.granted.is_empty() && !self.is_asking
    }

    /// Keeps a caller until `now` and `max_wait`. It must [poll](Self::poll) for its answer or [leave](Self::leave).
    pub fn enter(&mut self, now: Timestamp, max_wait: Period) -> QueuePosition {
        if self.waiting() == 0 {
            // a request may have ended after the caller was refused
            self.note_end(now);
            self.others = OtherCallers::default();
        }
        self.waiters.push(1, now.after(max_wait))
    }

    /// Tells those whose deadline has passed, and returns what to ask for now.
    pub fn turn(&mut self, now: Timestamp, woken: &mut Vec<Waker>) -> Option<PlaceAsks> {
        while let Some(late) = self.waiters.late(now) {
            let rejection = Rejection::Timeout { retry_after: Self::RETRY };
            self.waiters.answer(late.position, Answer::Rejected(rejection), woken);
        }
        if self.waiting() == 0 || self.is_asking || self.next > now {
            return None;
        }
        if self.others.until.is_some_and(|until| until <= now) {
            self.others = OtherCallers::default();
        }
        (self.is_asking, self.next) = (true, NEVER);
        let OtherCallers { refused, owed, .. } = self.others;
        // one by one, so that others have as many
        let most = if refused + owed > 0 { 1 } else { MOST_ASKED };
        Some(PlaceAsks { places: self.waiting().min(most), leaves: owed })
    }

    /// Gives the places that were asked for to the waiters. Returns those that nobody needs any more.
    pub fn supply(&mut self, supply: PlaceSupply, now: Timestamp, woken: &mut Vec<Waker>) -> Vec<PlaceName> {
        self.is_asking = false;
        let PlaceSupply { mut names, left } = supply;
        let mut served = 0;
        while let Some(first) = self.waiters.first()
            && served < names.len()
        {
            self.granted.insert(first.position, names[served]);
            self.waiters.answer(first.position, Answer::Admitted(now), woken);
            served += 1;
        }
        let others = &mut self.others;
        if served > 0 {
            self.pause = PAUSE;
            if others.refused > 0 && others.owed < MOST_OWED {
                others.owed += 1;
                others.refused -= 1;
            }
        }
        if self.next == NEVER {
            self.next = match left {
                // their time begins once there are places
                Some(left) if left > 0 && left <= others.owed => {
                    *others.until.get_or_insert(now.after(PAUSE))
                }
                Some(left) if left > others.owed => now,
                _ => {
                    let pause = self.pause;
                    self.pause = (pause + pause).clamp(PAUSE, LONGEST_PAUSE);
                    now.after(pause)
                }
            };
        }
        names.split_off(served)
    }

    /// Notes that a place may be free.
    pub const fn note_end(&mut self, now: Timestamp) {
        (self.next, self.pause) = (now, AFTER_END);
    }

    /// Whether a caller that cannot wait may ask for a place. If it may, it has one of those that are left to others.
    pub fn admits_other(&mut self) -> bool {
        let OtherCallers { refused, owed, until } = &mut self.others;
        let is_admitted = self.waiters.waiting() == 0 || *owed > 0;
        if is_admitted {
            *owed = owed.saturating_sub(1);
        } else {
            *refused = (*refused + 1).min(MOST_OWED);
        }
        if *owed == 0 {
            *until = None;
        }
        is_admitted
    }

    /// Notes that an admitted one found no place.
    pub fn refuse_other(&mut self) {
        self.others.owed = (self.others.owed + 1).min(MOST_OWED);
    }

    /// Returns when the next [turn](Self::turn) is due. None while nothing has to be done.
    pub fn timer(&mut self) -> Option<Timestamp> {
        if self.waiting() == 0 {
            return None;
        }
        let next = (!self.is_asking).then_some(self.next);
        [next, self.waiters.next_late()].into_iter().flatten().min()
    }

    /// Returns the answer to the waiter at `position`, once; or has `waker` woken when there is one.
    pub fn poll(&mut self, position: QueuePosition, waker: &Waker) -> Poll<Answer> {
        self.waiters.poll(position, waker)
    }

    /// Returns the place of an admitted waiter, once.
    pub fn collect(&mut self, position: QueuePosition) -> Option<PlaceName> {
        self.granted.remove(&position)
    }

    /// Removes the waiter at `position`. Returns the place that it has and does not use.
    pub fn leave(&mut self, position: QueuePosition) -> Option<PlaceName> {
        match self.waiters.leave(position) {
            Left::Nothing | Left::Waiting => None,
            Left::Admitted(..) => self.collect(position),
        }
    }

    /// Answers all that wait.
    pub fn answer_all(&mut self, answer: Answer, woken: &mut Vec<Waker>) {
        self.waiters.answer_all(answer, woken);
    }
}
