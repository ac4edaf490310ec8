//! The number of instances over time, by which they split limits.
//!
//! A larger number counts as soon as it is heard, a smaller one later, since the others may not have heard of it yet.
//! Who starts has a part when all others must have heard of it. So the parts of all instances are the limit at most.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use arc_swap::{ArcSwap, Guard};

use crate::limit::{OnStoreFailure, Period, Timestamp, part::Place};

/// The numbers that are remembered. What is longer ago has no part.
const MOST: usize = 4_096;

/// How long after its first heartbeat an instance has a part: two heartbeats of all others, and their replies.
const NEWCOMER: Period = Period::from_secs(4);

/// How long after it was heard a smaller number counts: until then a removed instance may use its part.
const FEWER: Period = Period::from_secs(6);

/// The registration of this instance among those that share the store.
#[derive(Debug)]
pub(in super::super) struct Membership {
    /// This one included. Zero until it is known.
    pub(super) instances: AtomicUsize,
    /// In the last heartbeats.
    pub(super) most_lately: AtomicUsize,
    pub(super) numbers: ArcSwap<InstanceNumbers>,
    pub(super) has_left: AtomicBool,
}

#[derive(Clone, Debug)]
pub(in super::super) struct InstanceNumbers {
    /// Each counts from its instant until the next one does.
    counting: Vec<(Timestamp, NonZeroU32)>,
    /// When this instance has a part for the first time. None until the store has replied.
    begins: Option<Timestamp>,
    /// The same for limits that stop while the number may be another one: if it was, they begin again.
    begins_anew: Timestamp,
    /// When the last heartbeat with a reply was sent; before the first one, when this instance began.
    heard: Timestamp,
    period: Period,
    place: Option<Place>,
}

// === impl Membership ===

impl Membership {
    pub(super) fn new(period: Period, now: Timestamp) -> Self {
        Self {
            instances: AtomicUsize::new(0),
            most_lately: AtomicUsize::new(0),
            numbers: ArcSwap::from_pointee(InstanceNumbers::new(period, now)),
            has_left: AtomicBool::new(false),
        }
    }

    /// This one included; at least 1.
    pub(super) fn instances(&self) -> usize {
        self.instances.load(Ordering::Relaxed).max(1)
    }

    /// None until a heartbeat was replied to.
    pub(in super::super) fn most_instances_lately(&self) -> Option<usize> {
        Some(self.most_lately.load(Ordering::Relaxed)).filter(|most| *most > 0)
    }

    pub(in super::super) fn numbers(&self) -> Guard<Arc<InstanceNumbers>> {
        self.numbers.load()
    }
}

// === impl InstanceNumbers ===

impl InstanceNumbers {
    pub(super) const fn new(period: Period, now: Timestamp) -> Self {
        Self { counting: Vec::new(), begins: None, begins_anew: now, heard: now, period, place: None }
    }

    pub(in super::super) const fn is_answered(&self) -> bool {
        self.begins.is_some()
    }

    /// Returns whether the number is known for what begins at `at`: under `deny` as long as no newcomer that this
    /// instance has not heard of can have a part then, otherwise as long as the store may still count this one.
    pub(in super::super) fn is_certain(&self, at: Timestamp, failure: OnStoreFailure) -> bool {
        let removed = 2 * self.period.as_nanos();
        let more = if failure == OnStoreFailure::Deny { 0 } else { NEWCOMER.as_nanos() / 2 };
        at < self.heard.after(Period::from_nanos(removed.saturating_add(more)))
    }

    pub(in super::super) fn begins(&self, failure: OnStoreFailure) -> Option<Timestamp> {
        let begins = self.begins?;
        Some(if failure == OnStoreFailure::Deny { begins.max(self.begins_anew) } else { begins })
    }

    pub(in super::super) fn between(
        &self,
        from: Timestamp,
        to: Timestamp,
    ) -> impl Iterator<Item = NonZeroU32> {
        let begun = |at| self.counting.partition_point(|(since, _)| *since <= at);
        let (first, last) = (begun(from).saturating_sub(1), begun(to));
        self.counting[first..last.max(first)].iter().map(|(_, number)| *number)
    }

    pub(super) const fn place(&self) -> Option<Place> {
        self.place
    }

    /// `place` is the reply to a heartbeat of the instant `sent`. Both instants are on the store's clock.
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
