//! What became of the hits that a rule's requests have reserved for their costs.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use super::counter::Counter;

/// So many requests may end before one has a cost, or the log says that costs may be missing.
const UNSETTLED: u64 = 100;

/// The hits that the requests of a rule have reserved, and what they cost.
#[derive(Debug, Default)]
pub struct ReserveStats {
    rule: Arc<[Box<str>]>,
    /// Opaque here: what the limiter has learned of the rule, which outlives a reload with these stats.
    learned: AtomicU64,
    now: AtomicU64,
    reserved: Counter,
    settled: Counter,
    beyond: Counter,
    unused: Counter,
    given_up: Counter,
    unmatched: Counter,
    without_cost: Counter,
    is_unsettled_told: AtomicBool,
}

// === impl ReserveStats ===

impl ReserveStats {
    /// The name of each count in metrics, and its meaning. The first goes up and down.
    pub const NAMES: [(&str, &str); 7] = [
        ("weir.reserve_hits", "Hits that the next request of the rule reserves, by what others have cost."),
        ("weir.reserve_reserved_hits", "Hits that requests have reserved when they began."),
        ("weir.reserve_settled_hits", "Hits of reported costs."),
        ("weir.reserve_beyond_hits", "Hits of costs beyond what their requests had reserved."),
        ("weir.reserve_unused_hits", "Reserved hits that were given back."),
        ("weir.reserve_given_up", "Requests without an end whose reserved hits were given back."),
        ("weir.reserve_unmatched", "Costs of requests of which nothing was reserved any more."),
    ];

    pub(super) fn new(rule: Arc<[Box<str>]>) -> Self {
        Self { rule, ..Self::default() }
    }

    /// Returns what was [stored](ReserveStats::learn); 0 at first.
    pub fn learned(&self) -> u64 {
        self.learned.load(Ordering::Relaxed)
    }

    /// Replaces what was learned, and returns the new value.
    pub fn learn(&self, mut change: impl FnMut(u64) -> u64) -> u64 {
        let before = self.learned.update(Ordering::Relaxed, Ordering::Relaxed, &mut change);
        change(before)
    }

    /// Shows what a request reserves from now on.
    pub fn show(&self, hits: u64) {
        self.now.store(hits, Ordering::Relaxed);
    }

    /// Counts hits that a request has reserved.
    pub fn reserve(&self, hits: u64) {
        self.reserved.add(hits);
    }

    /// Counts a request that has ended with a `cost`, or without; none of its `reserved` hits if they are not known.
    pub fn settle(&self, cost: Option<u64>, reserved: Option<u64>) {
        let (used, had) = (cost.unwrap_or_default(), reserved.unwrap_or_default());
        self.settled.add(used);
        self.beyond.add(used.saturating_sub(had));
        self.unmatched.add(u64::from(cost.is_some() && reserved.is_none()));
        if cost.is_none() && reserved.is_some() {
            self.without_cost.add(1);
            if self.without_cost.get() >= UNSETTLED
                && self.settled.get() == 0
                && !self.is_unsettled_told.swap(true, Ordering::Relaxed)
            {
                tracing::warn!(
                    rule = %self.rule.join("."),
                    "{UNSETTLED} requests have ended and none has had a cost: is 'hits_addend' in typed_per_filter_config?"
                );
            }
        }
    }

    /// Counts reserved hits that go back.
    pub fn give_back(&self, hits: u64) {
        self.unused.add(hits);
    }

    /// Counts a request that was given up.
    pub fn give_up(&self) {
        self.given_up.add(1);
    }

    pub(super) fn values(&self) -> [u64; Self::NAMES.len()] {
        let Self { now, reserved, settled, beyond, unused, given_up, unmatched, .. } = self;
        let mut values = [now.load(Ordering::Relaxed); Self::NAMES.len()];
        let counts = [reserved, settled, beyond, unused, given_up, unmatched].map(Counter::get);
        values[1..].copy_from_slice(&counts);
        values
    }
}
