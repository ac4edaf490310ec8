//! The stats of one rule.

use std::sync::Arc;

use super::{counter::Counter, sharded::Sharded};

/// The reference's name of the hits that callers gave back.
pub const NEGATIVE_HITS: &str = "total_negative_hits";

/// The stats of one rule, in hits.
#[derive(Debug)]
pub struct RuleStats {
    name: Arc<[Box<str>]>,
    /// Whether a rule has the name, and no caller has created it.
    is_declared: bool,
    counters: Sharded<OwnCounts>,
    /// Shared by all threads, as few requests count here.
    rare: RareCounters,
}

/// What one thread has counted of a rule. A request writes one cache line of it.
#[derive(Debug, Default)]
pub struct OwnCounts {
    total_hits: Counter,
    over_limit: Counter,
    near_limit: Counter,
    over_limit_with_local_cache: Counter,
    within_limit: Counter,
    shadow_mode: Counter,
    shadow_within_limit: Counter,
    shadow_over_limit: Counter,
}

#[derive(Debug, Default)]
struct RareCounters {
    over_without_store: Counter,
    returned: Counter,
    return_denied: Counter,
}

/// Hits of one rule that few requests have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RareCounts {
    /// Those of [`RuleCounts::over_limit`] that were rejected because the store did not reply.
    pub over_without_store: u64,
    /// Hits that callers gave back.
    pub returned: u64,
    /// Hits that callers may not give back, because the rule says so.
    pub return_denied: u64,
}

/// Hits of one rule by what the limit in its shadow would have done with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShadowCounts {
    /// Hits that it would have admitted.
    pub within_limit: u64,
    /// Hits that it would have rejected.
    pub over_limit: u64,
}

/// Hits of one rule: those of one request, or all that [`RuleStats`] hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// All hits.
    pub total_hits: u64,
    /// Hits past the limit.
    pub over_limit: u64,
    /// Hits within the limit, but past the near-limit threshold.
    pub near_limit: u64,
    /// Hits past the limit that were rejected without a call to the store.
    pub over_limit_with_local_cache: u64,
    /// Hits that the rule itself admitted, also of requests that another rule rejected.
    pub within_limit: u64,
    /// Hits past the limit that were admitted because the rule is in shadow mode.
    pub shadow_mode: u64,
}

// === impl RuleStats ===

impl RuleStats {
    pub(super) fn new(name: Arc<[Box<str>]>) -> Self {
        Self { name, is_declared: true, counters: Sharded::default(), rare: RareCounters::default() }
    }

    /// Makes stats for one of the many names that callers create: all threads share their counters.
    pub(super) fn dynamic(name: Arc<[Box<str>]>) -> Self {
        Self { name, is_declared: false, counters: Sharded::single(), rare: RareCounters::default() }
    }

    /// Returns the name's parts: the domain, then the steps below it. Never empty.
    #[must_use]
    pub fn name(&self) -> &[Box<str>] {
        &self.name
    }

    pub(super) const fn is_declared(&self) -> bool {
        self.is_declared
    }

    pub(super) fn shared_name(&self) -> Arc<[Box<str>]> {
        Arc::clone(&self.name)
    }

    /// Loads what this thread counts into the processor's cache, where most of thousands of rules are not.
    #[inline]
    pub fn prefetch(&self) -> &OwnCounts {
        let counts = self.counters.own();
        // the processor does not wait for a load whose result is unused
        std::hint::black_box(counts.total_hits.get());
        counts
    }

    /// Adds the hits of a request.
    #[inline]
    pub fn add(&self, counts: RuleCounts) {
        self.counters.own().add(counts);
    }

    /// Adds hits that were counted in the shadow of the rule.
    pub fn add_shadow(&self, counts: ShadowCounts) {
        let counters = self.counters.own();
        counters.shadow_within_limit.add(counts.within_limit);
        counters.shadow_over_limit.add(counts.over_limit);
    }

    /// Adds hits of the kinds that few requests have.
    #[cold]
    pub fn add_rare(&self, counts: RareCounts) {
        self.rare.over_without_store.add(counts.over_without_store);
        self.rare.returned.add(counts.returned);
        self.rare.return_denied.add(counts.return_denied);
    }

    /// Returns the current counts of hits that few requests have.
    #[must_use]
    pub fn rare(&self) -> RareCounts {
        RareCounts {
            over_without_store: self.rare.over_without_store.get(),
            returned: self.rare.returned.get(),
            return_denied: self.rare.return_denied.get(),
        }
    }

    /// Returns the current counts of all threads in the shadow of the rule.
    #[must_use]
    pub fn shadow(&self) -> ShadowCounts {
        self.counters.all().fold(ShadowCounts::default(), |sum, counters| {
            sum.plus(ShadowCounts {
                within_limit: counters.shadow_within_limit.get(),
                over_limit: counters.shadow_over_limit.get(),
            })
        })
    }

    /// Returns the current counts of all threads.
    #[must_use]
    pub fn get(&self) -> RuleCounts {
        self.counters.all().fold(RuleCounts::default(), |sum, counters| sum.plus(counters.get()))
    }
}

// === impl OwnCounts ===

impl OwnCounts {
    /// Adds the hits of a request.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    pub fn add(&self, counts: RuleCounts) {
        self.total_hits.add(counts.total_hits);
        self.within_limit.add(counts.within_limit);
        self.near_limit.add(counts.near_limit);
        // of most requests, none
        if counts.over_limit != 0 {
            self.over_limit.add(counts.over_limit);
            self.over_limit_with_local_cache.add(counts.over_limit_with_local_cache);
            self.shadow_mode.add(counts.shadow_mode);
        }
    }

    fn get(&self) -> RuleCounts {
        RuleCounts {
            total_hits: self.total_hits.get(),
            over_limit: self.over_limit.get(),
            near_limit: self.near_limit.get(),
            over_limit_with_local_cache: self.over_limit_with_local_cache.get(),
            within_limit: self.within_limit.get(),
            shadow_mode: self.shadow_mode.get(),
        }
    }
}

// === impl RareCounts ===

impl RareCounts {
    /// Returns the sum with `other`.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            over_without_store: self.over_without_store.saturating_add(other.over_without_store),
            returned: self.returned.saturating_add(other.returned),
            return_denied: self.return_denied.saturating_add(other.return_denied),
        }
    }
}

// === impl ShadowCounts ===

impl ShadowCounts {
    /// Returns the counts with the dotted names of their metrics.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, u64); 2] {
        [("weir.shadow_within_limit", self.within_limit), ("weir.shadow_over_limit", self.over_limit)]
    }

    /// Returns the sum with `other`.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            within_limit: self.within_limit.saturating_add(other.within_limit),
            over_limit: self.over_limit.saturating_add(other.over_limit),
        }
    }
}

// === impl RuleCounts ===

impl RuleCounts {
    /// The names that envoyproxy/ratelimit gives the counts.
    pub const NAMES: [&str; 6] = [
        "total_hits",
        "over_limit",
        "near_limit",
        "over_limit_with_local_cache",
        "within_limit",
        "shadow_mode",
    ];

    /// Returns the counts in the order of [`RuleCounts::NAMES`].
    #[must_use]
    pub const fn values(&self) -> [u64; 6] {
        [
            self.total_hits,
            self.over_limit,
            self.near_limit,
            self.over_limit_with_local_cache,
            self.within_limit,
            self.shadow_mode,
        ]
    }

    /// Returns the sum with `other`: rules whose names sanitize to the same one are reported as one.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            total_hits: self.total_hits.saturating_add(other.total_hits),
            over_limit: self.over_limit.saturating_add(other.over_limit),
            near_limit: self.near_limit.saturating_add(other.near_limit),
            over_limit_with_local_cache: self
                .over_limit_with_local_cache
                .saturating_add(other.over_limit_with_local_cache),
            within_limit: self.within_limit.saturating_add(other.within_limit),
            shadow_mode: self.shadow_mode.saturating_add(other.shadow_mode),
        }
    }
}
