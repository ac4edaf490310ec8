//! The waiters of a line, in the order of their arrival.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    mem,
    task::{Poll, Waker},
};

use super::answer::{Answer, QueuePosition, Rejection};
use crate::{
    tier::{Tier, capacity},
    units::{Hits, Period, Timestamp},
};

/// Deadlines take effect this late: timers have a resolution, and waiters are often served exactly at their deadline.
pub(super) const GRACE: Period = Period::from_millis(1);

/// Below this number of slots, none are reclaimed early.
const FEW: usize = 64;

/// Slots are in the order of arrival, so that walking the line reads memory in order. A slot whose caller has left
/// stays until the slots before it have gone, or until half of all slots are such.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiters {
    slots: VecDeque<WaiterSlot>,
    /// The index of the first slot that waits; the number of slots if none does.
    first: usize,
    arrivals: u64,
    waiting: usize,
    /// Answers that were not collected.
    answered: usize,
    /// Waiters of more than one hit.
    heavy: usize,
    hits: u64,
    /// Earliest first. Entries of waiters that wait no more are dropped when they come up, or are half of all.
    deadlines: BinaryHeap<Reverse<(Timestamp, QueuePosition)>>,
}

/// 40 bytes.
#[derive(Clone, Debug)]
struct WaiterSlot {
    position: QueuePosition,
    /// The deadline; of an answer, the instant of the admission, or the retry time in nanoseconds.
    number: u64,
    hits: u32,
    state: WaiterState,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaiterState {
    Waits,
    Admitted,
    Late,
    Full,
    Never,
    Closed,
    AskAgain,
    /// The caller has its answer, or has left.
    Gone,
}

/// A waiter that is not answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) position: QueuePosition,
    pub(super) hits: Hits,
    pub(super) deadline: Timestamp,
}

/// What a caller left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Waiting,
    /// It was admitted at this instant, and has not collected the answer.
    Admitted(Timestamp, Hits),
    /// It holds no hits.
    Nothing,
}

/// None if `tiers` never admit so many hits at once.
pub(super) fn weight(tiers: &[Tier], hits: Hits) -> Option<u32> {
    u32::try_from(hits.0).ok().filter(|weight| u64::from(*weight) <= capacity(tiers))
}

// === impl Waiters ===

impl Waiters {
    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) const fn hits(&self) -> u64 {
        self.hits
    }

    pub(super) const fn is_unused(&self) -> bool {
        self.waiting == 0 && self.answered == 0
    }

    pub(super) const fn are_single(&self) -> bool {
        self.heavy == 0
    }

    pub(super) fn push(&mut self, hits: u32, deadline: Timestamp) -> QueuePosition {
        let position = QueuePosition(self.arrivals);
        self.arrivals += 1;
        self.slots.push_back(WaiterSlot {
            position,
            number: deadline.as_nanos(),
            hits,
            state: WaiterState::Waits,
            waker: None,
        });
        self.waiting += 1;
        self.hits += u64::from(hits);
        self.heavy += usize::from(hits > 1);
        if self.deadlines.len() > FEW + 2 * self.waiting {
            let waiting = self.slots.iter().filter_map(WaiterSlot::waiter);
            self.deadlines = waiting.map(|waiter| Reverse((waiter.deadline, waiter.position))).collect();
        } else {
            self.deadlines.push(Reverse((deadline, position)));
        }
        position
    }

    pub(super) fn first(&self) -> Option<Waiter> {
        self.slots.get(self.first)?.waiter()
    }

    pub(super) fn first_from(&self, from: QueuePosition) -> Option<Waiter> {
        let start = self.slots.partition_point(|slot| slot.position < from).max(self.first);
        self.slots.range(start..).find_map(WaiterSlot::waiter)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Waiter> {
        self.slots.range(self.first..).filter_map(WaiterSlot::waiter)
    }

    /// The first instant at which a waiter must be told that its deadline has passed.
    pub(super) fn next_late(&mut self) -> Option<Timestamp> {
        while let Some(Reverse((deadline, position))) = self.deadlines.peek() {
            if self.find(*position).is_some_and(|index| self.slots[index].state == WaiterState::Waits) {
                return Some(deadline.after(GRACE));
            }
            self.deadlines.pop();
        }
        None
    }

    pub(super) fn late(&mut self, now: Timestamp) -> Option<Waiter> {
        self.next_late().filter(|instant| *instant <= now)?;
        let Reverse((_, position)) = self.deadlines.peek()?;
        self.slots[self.find(*position)?].waiter()
    }

    pub(super) fn answer(&mut self, position: QueuePosition, answer: Answer, woken: &mut Vec<Waker>) {
        let Some(index) = self.find(position) else { return };
        if self.slots[index].state != WaiterState::Waits {
            return;
        }
        self.end_wait(index);
        let slot = &mut self.slots[index];
        (slot.state, slot.number) = match answer {
            Answer::Admitted(instant) => (WaiterState::Admitted, instant.as_nanos()),
            Answer::Rejected(Rejection::Timeout { retry_after }) => {
                (WaiterState::Late, retry_after.as_nanos())
            }
            Answer::Rejected(Rejection::Full { retry_after }) => (WaiterState::Full, retry_after.as_nanos()),
            Answer::Rejected(Rejection::Never) => (WaiterState::Never, 0),
            Answer::Rejected(Rejection::Closed) => (WaiterState::Closed, 0),
            Answer::AskAgain => (WaiterState::AskAgain, 0),
        };
        woken.extend(slot.waker.take());
        self.answered += 1;
        self.skip_answered();
    }

    pub(super) fn answer_all(&mut self, answer: Answer, woken: &mut Vec<Waker>) {
        while let Some(waiter) = self.first() {
            self.answer(waiter.position, answer, woken);
        }
    }

    /// Rejects those that `tiers` never admit.
    pub(super) fn reject_too_heavy(&mut self, tiers: &[Tier], woken: &mut Vec<Waker>) {
        let most = capacity(tiers);
        let too_heavy = self.iter().filter(|waiter| waiter.hits.0 > most);
        for position in too_heavy.map(|waiter| waiter.position).collect::<Vec<_>>() {
            self.answer(position, Answer::Rejected(Rejection::Never), woken);
        }
    }

    /// Forgets the answer that it returns; `waker` is woken when there is one.
    pub(super) fn poll(&mut self, position: QueuePosition, waker: &Waker) -> Poll<Answer> {
        let Some(index) = self.find(position) else { return Poll::Ready(Answer::AskAgain) };
        let slot = &mut self.slots[index];
        let instant = Timestamp::from_nanos(slot.number);
        let retry_after = Period::from_nanos(slot.number);
        let answer = match slot.state {
            WaiterState::Waits => {
                match &mut slot.waker {
                    Some(kept) => kept.clone_from(waker),
                    none => *none = Some(waker.clone()),
                }
                return Poll::Pending;
            }
            WaiterState::Admitted => Answer::Admitted(instant),
            WaiterState::Late => Answer::Rejected(Rejection::Timeout { retry_after }),
            WaiterState::Full => Answer::Rejected(Rejection::Full { retry_after }),
            WaiterState::Never => Answer::Rejected(Rejection::Never),
            WaiterState::Closed => Answer::Rejected(Rejection::Closed),
            WaiterState::AskAgain | WaiterState::Gone => Answer::AskAgain,
        };
        self.forget(index);
        Poll::Ready(answer)
    }

    pub(super) fn leave(&mut self, position: QueuePosition) -> Left {
        let Some(index) = self.find(position) else { return Left::Nothing };
        let slot = &self.slots[index];
        let left = match slot.state {
            WaiterState::Waits => Left::Waiting,
            WaiterState::Admitted => {
                Left::Admitted(Timestamp::from_nanos(slot.number), Hits(slot.hits.into()))
            }
            _ => Left::Nothing,
        };
        if left == Left::Waiting {
            self.end_wait(index);
            self.answered += 1;
        }
        self.forget(index);
        left
    }

    fn end_wait(&mut self, index: usize) {
        let hits = self.slots[index].hits;
        self.waiting -= 1;
        self.hits -= u64::from(hits);
        self.heavy -= usize::from(hits > 1);
        if self.waiting == 0 {
            // one by one, they would have to be sorted
            self.deadlines.clear();
        }
    }

    fn forget(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if mem::replace(&mut slot.state, WaiterState::Gone) == WaiterState::Gone {
            return;
        }
        slot.waker = None;
        self.answered -= 1;
        self.skip_answered();
        while self.slots.front().is_some_and(|slot| slot.state == WaiterState::Gone) {
            self.slots.pop_front();
            self.first = self.first.saturating_sub(1);
        }
        let used = self.waiting + self.answered;
        if self.slots.len() > FEW + 2 * used {
            self.slots.retain(|slot| slot.state != WaiterState::Gone);
            self.first = 0;
            self.skip_answered();
        }
        if self.slots.capacity() > FEW + 4 * self.slots.len() {
            self.slots.shrink_to(2 * self.slots.len());
        }
    }

    fn skip_answered(&mut self) {
        while self.slots.get(self.first).is_some_and(|slot| slot.state != WaiterState::Waits) {
            self.first += 1;
        }
    }

    /// The slot is as many after the first one as callers came between, unless some of these were removed.
    fn find(&self, position: QueuePosition) -> Option<usize> {
        let between = position.0.checked_sub(self.slots.front()?.position.0)?;
        let last = usize::try_from(between).ok()?.min(self.slots.len() - 1);
        if self.slots[last].position == position {
            return Some(last);
        }
        self.slots.binary_search_by_key(&position, |slot| slot.position).ok()
    }

    pub(super) fn check_invariants(&self) {
        let waiting: Vec<&WaiterSlot> =
            self.slots.iter().filter(|slot| slot.state == WaiterState::Waits).collect();
        assert_eq!(waiting.len(), self.waiting);
        assert_eq!(waiting.iter().map(|slot| u64::from(slot.hits)).sum::<u64>(), self.hits);
        assert_eq!(waiting.iter().filter(|slot| slot.hits > 1).count(), self.heavy);
        let gone = self.slots.iter().filter(|slot| slot.state == WaiterState::Gone).count();
        assert_eq!(self.slots.len() - gone - waiting.len(), self.answered);
        assert!(self.slots.len() <= FEW + 2 * (self.waiting + self.answered) + 1);
        assert_eq!(self.first, self.slots.iter().take_while(|slot| slot.state != WaiterState::Waits).count());
        for slot in waiting {
            let entry = Reverse((Timestamp::from_nanos(slot.number), slot.position));
            assert!(self.deadlines.iter().any(|deadline| *deadline == entry));
        }
    }
}

// === impl WaiterSlot ===

impl WaiterSlot {
    fn waiter(&self) -> Option<Waiter> {
        (self.state == WaiterState::Waits).then(|| Waiter {
            position: self.position,
            hits: Hits(self.hits.into()),
            deadline: Timestamp::from_nanos(self.number),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_has_forty_bytes_and_sixteen_of_a_deadline() {
        assert_eq!((size_of::<WaiterSlot>(), size_of::<Reverse<(Timestamp, QueuePosition)>>()), (40, 16));
    }

    #[test]
    fn slots_of_callers_that_left_are_reclaimed() {
        let mut waiters = Waiters::default();
        let stays = waiters.push(1, Timestamp::from_secs(1));
        for round in 0..20 {
            let positions: Vec<QueuePosition> =
                (0..1_000).map(|_| waiters.push(2, Timestamp::from_secs(2))).collect();
            for position in positions {
                assert_eq!(waiters.leave(position), Left::Waiting);
            }
            waiters.check_invariants();
            assert!(waiters.slots.capacity() <= 4 * FEW, "{round}: {}", waiters.slots.capacity());
            assert!(waiters.deadlines.len() <= 1_100, "{round}: {}", waiters.deadlines.len());
        }
        assert_eq!(waiters.first().map(|waiter| waiter.position), Some(stays));
        assert_eq!((waiters.waiting(), waiters.hits(), waiters.are_single()), (1, 1, true));
    }
}
