//! The number of instances over time, by which they split limits.
//!
//! A larger number counts as soon as it is heard, a smaller one later, since the others may not have heard of it yet.
//! Who starts has a part when all others must have heard of it. So the parts of all instances are the limit at most.

use std::num::NonZeroU32;

use crate::limit::{OnStoreFailure, Period, Timestamp, part::Place};

/// The numbers that are remembered. What is longer ago has no part.
const MOST: usize = 4_096;

/// How long after its first heartbeat an instance has a part: two heartbeats of all others, and their replies.
const NEWCOMER: Period = Period::from_secs(4);

/// How long after a smaller number was heard it counts: until then an instance that the store has removed may use its
/// part.
const FEWER: Period = Period::from_secs(6);

/// The number of instances, as this one has heard.
#[derive(Clone, Debug)]
pub(in super::super) struct InstanceNumbers {
    /// Each counts from its instant until the next one does.
    counting: Vec<(Timestamp, NonZeroU32)>,
    /// When this instance has a part for the first time. None until the store has replied.
    begins: Option<Timestamp>,
    /// The same for limits that stop while the number may be another one: if it was, they begin again.
    begins_anew: Timestamp,
    /// When the last heartbeat that the store has replied to was sent; before the first one, when this instance began.
    heard: Timestamp,
    /// The time between two heartbeats.
    period: Period,
    /// The place of this instance among all; none until the store has replied with one.
    place: Option<Place>,
}

// === impl InstanceNumbers ===

impl InstanceNumbers {
    /// Creates those of an instance that begins at `now` and sends a heartbeat in each `period`.
    pub(super) const fn new(period: Period, now: Timestamp) -> Self {
        Self { counting: Vec::new(), begins: None, begins_anew: now, heard: now, period, place: None }
    }

    /// Returns whether the store has ever replied.
    pub(in super::super) const fn is_answered(&self) -> bool {
        self.begins.is_some()
    }

    /// Returns whether the number is known for what begins at the instant `at`: under `deny` as long as no newcomer can
    /// have a part then that this instance has not heard of, otherwise as long as the store may still count this one.
    pub(in super::super) fn is_certain(&self, at: Timestamp, failure: OnStoreFailure) -> bool {
        let removed = 2 * self.period.as_nanos();
        let certain = match failure {
            OnStoreFailure::Deny => Period::from_nanos(removed),
            OnStoreFailure::Local | OnStoreFailure::Allow => {
                Period::from_nanos(removed.saturating_add(NEWCOMER.as_nanos() / 2))
            }
        };
        at < self.heard.after(certain)
    }

    /// Returns when this instance has a part for the first time.
    pub(in super::super) fn begins(&self, failure: OnStoreFailure) -> Option<Timestamp> {
        let begins = self.begins?;
        Some(if failure == OnStoreFailure::Deny { begins.max(self.begins_anew) } else { begins })
    }

    /// Returns the numbers that count at some time from `from` to `to`.
    pub(in super::super) fn between(
        &self,
        from: Timestamp,
        to: Timestamp,
    ) -> impl Iterator<Item = NonZeroU32> {
        let begun = |at| self.counting.partition_point(|(since, _)| *since <= at);
        let (first, last) = (begun(from).saturating_sub(1), begun(to));
        self.counting[first..last.max(first)].iter().map(|(_, number)| *number)
    }

    /// Returns the place of this instance among all, as of the last reply; none before the first one.
    pub(super) const fn place(&self) -> Option<Place> {
        self.place
    }

    /// Follows a reply to a heartbeat that was sent at `sent` and says the `place` of this instance. `now` is the present
    /// instant, all on the store's clock.
    pub(super) fn follow(&mut self, place: Place, sent: Timestamp, now: Timestamp) {
        let number = place.instances;
        self.place = Some(place);
        let newcomer = now.after(NEWCOMER);
        let heard = self.counting.last().map(|(_, number)| *number);
        // the others may have shared out the part of one that was silent
        let is_other = heard != Some(number) || now.since(self.heard) >= FEWER;
        if self.begins.is_none() || (is_other && !self.is_certain(now, OnStoreFailure::Deny)) {
            self.begins_anew = newcomer;
        }
        self.begins.get_or_insert(newcomer);
        self.heard = self.heard.max(sent);
        // what has not come yet and is less than there are now does not come
        while self.counting.pop_if(|(from, fewer)| *from > now && *fewer < number).is_some() {}
        let last = self.counting.last().map(|(_, number)| *number);
        if last != Some(number) {
            let counts = if last.is_some_and(|last| number < last) { now.after(FEWER) } else { now };
            self.counting.push((counts, number));
        }
        self.counting.drain(..self.counting.len().saturating_sub(MOST));
    }
}
