//! What is counted for one rule.

use std::sync::Arc;

use super::counter::Counter;
use crate::limit::{Hits, RulePath, Tally};

/// What is counted for one rule, in hits. Aligned, so that a request touches one cache line of it.
#[derive(Debug)]
#[repr(align(64))]
pub struct RuleStats {
    /// The rule.
    pub path: Arc<RulePath>,
    /// All hits.
    pub total_hits: Counter,
    /// Hits past the limit.
    pub over_limit: Counter,
    /// Hits within the limit, but past the near-limit threshold.
    pub near_limit: Counter,
    /// Hits past the limit that were answered without asking the store.
    pub over_limit_with_local_cache: Counter,
    /// Hits of requests that were admitted.
    pub within_limit: Counter,
    /// Hits past the limit that were admitted because the rule is in shadow mode.
    pub shadow_mode: Counter,
}

/// What [`RuleStats`] held at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// In the order of [`RuleCounts::NAMES`].
    pub values: [u64; 6],
}

// === impl RuleStats ===

impl RuleStats {
    pub(super) fn new(path: Arc<RulePath>) -> Self {
        Self {
            path,
            total_hits: Counter::default(),
            over_limit: Counter::default(),
            near_limit: Counter::default(),
            over_limit_with_local_cache: Counter::default(),
            within_limit: Counter::default(),
            shadow_mode: Counter::default(),
        }
    }

    /// Has them fetched from memory, to be there when they are counted up: among thousands of rules most are in no cache.
    pub fn fetch(&self) {
        // the processor does not wait for what nobody needs yet
        std::hint::black_box(self.total_hits.get());
    }

    /// Notes `hits`, which fared as `tally` says; if `cached`, by what was known before; and if `shadowed`, were let through
    /// all the same.
    pub fn record(&self, hits: Hits, tally: Tally, cached: bool, shadowed: bool) {
        if cached {
            self.over_limit_with_local_cache.add(tally.over_limit);
        }
        self.total_hits.add(hits.0);
        self.over_limit.add(tally.over_limit);
        self.near_limit.add(tally.near_limit);
        self.within_limit.add(tally.within_limit);
        if shadowed {
            self.shadow_mode.add(tally.over_limit);
        }
    }

    /// What they hold now.
    #[must_use]
    pub fn get(&self) -> RuleCounts {
        RuleCounts {
            values: [
                self.total_hits.get(),
                self.over_limit.get(),
                self.near_limit.get(),
                self.over_limit_with_local_cache.get(),
                self.within_limit.get(),
                self.shadow_mode.get(),
            ],
        }
    }
}

// === impl RuleCounts ===

impl RuleCounts {
    /// What the reference calls each of them.
    pub const NAMES: [&str; 6] = [
        "total_hits",
        "over_limit",
        "near_limit",
        "over_limit_with_local_cache",
        "within_limit",
        "shadow_mode",
    ];

    /// Adds `more`: two rules whose names come out the same are told of as one.
    pub fn add(&mut self, more: Self) {
        for (value, more) in self.values.iter_mut().zip(more.values) {
            *value = value.saturating_add(more);
        }
    }

    /// Each with its name.
    pub fn named(self) -> impl Iterator<Item = (&'static str, u64)> {
        Self::NAMES.into_iter().zip(self.values)
    }
}
