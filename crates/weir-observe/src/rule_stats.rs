use std::{
    fmt::Display,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{counter::Counter, place_stats::PlaceStats, sharded::Sharded};

/// The reference's name of the hits that callers gave back.
pub const NEGATIVE_HITS: &str = "total_negative_hits";

#[derive(Debug)]
pub struct RuleStats {
    name: Arc<[Box<str>]>,
    /// Whether a rule has the name, and no caller has created it.
    is_declared: bool,
    counters: Sharded<OwnCounts>,
    /// Shared by all threads, as few requests count here.
    rare: RareCounters,
    /// Of a rule that limits requests in flight, or did.
    places: OnceLock<Arc<PlaceStats>>,
    /// Whether requests of no hits were decided: their costs may follow.
    begins_with_none: AtomicBool,
    has_lost: AtomicBool,
}

/// Declares counts of hits, what each means, and their counters.
macro_rules! counts {
    ($(#[$doc:meta])* $counts:ident, $counters:ident { $($field:ident: $help:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $counts {
            $(#[doc = $help] pub $field: u64,)*
        }

        impl $counts {
            /// Each count's name and meaning.
            pub const NAMES: &[(&str, &str)] = &[$((stringify!($field), $help)),*];

            /// Returns the counts in the order of their names.
            pub fn values(self) -> impl Iterator<Item = u64> {
                [$(self.$field),*].into_iter()
            }

            /// Returns the sum with `other`: rules whose names sanitize to the same one are reported as one.
            pub const fn plus(self, other: Self) -> Self {
                Self { $($field: self.$field.saturating_add(other.$field),)* }
            }
        }

        #[derive(Debug, Default)]
        struct $counters {
            $($field: Counter,)*
        }

        impl $counters {
            #[inline]
            fn add(&self, counts: $counts) {
                $(self.$field.add(counts.$field);)*
            }

            fn get(&self) -> $counts {
                $counts { $($field: self.$field.get(),)* }
            }
        }
    };
}

counts! {
    /// Hits of one rule: those of one request, or all that [`RuleStats`] hold. Named as in envoyproxy/ratelimit.
    RuleCounts, RuleCounters {
        total_hits: "Hits of the rule.",
        over_limit: "Hits past the limit.",
        near_limit: "Hits within the limit, but past the near-limit threshold.",
        over_limit_with_local_cache: "Hits past the limit that were rejected without a call to the store.",
        within_limit: "Hits that the rule itself admitted, also of requests that another rule rejected.",
        shadow_mode: "Hits past the limit that were admitted because the rule is in shadow mode.",
    }
}

counts! {
    /// Hits of one rule by what the limit in its shadow would have done with them.
    ShadowCounts, ShadowCounters {
        within_limit: "Hits of the rule that the limit in its shadow would have admitted.",
        over_limit: "Hits of the rule that the limit in its shadow would have rejected.",
    }
}

counts! {
    /// Hits of one rule that few requests have, and values.
    RareCounts, RareCounters {
        over_without_store: "Hits past the limit that were rejected because the store did not reply.",
        returned: "Hits of the rule that callers gave back.",
        return_denied: "Hits that callers would have given back, had the rule not denied it.",
        cost_lost: "Hits of costs that were rejected, and so not counted: the rule has no reserve.",
        addresses_invalid: "Values that the networks of the rule do not match since they are no addresses.",
    }
}

/// What one thread has counted of a rule. A request writes one cache line of it.
#[derive(Debug, Default)]
pub struct OwnCounts {
    hits: RuleCounters,
    shadow: ShadowCounters,
}

// === impl RuleStats ===

impl RuleStats {
    pub(super) fn new(name: Arc<[Box<str>]>) -> Self {
        Self::of(name, true, Sharded::default())
    }

    /// Makes stats for one of the many names that callers create: all threads share their counters.
    pub(super) fn dynamic(name: Arc<[Box<str>]>) -> Self {
        Self::of(name, false, Sharded::single())
    }

    fn of(name: Arc<[Box<str>]>, is_declared: bool, counters: Sharded<OwnCounts>) -> Self {
        let (begins_with_none, has_lost) = Default::default();
        let (rare, places) = Default::default();
        Self { name, is_declared, counters, rare, places, begins_with_none, has_lost }
    }

    /// Returns the name's parts: the domain, then the steps below it. Never empty.
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
        std::hint::black_box(counts.hits.total_hits.get());
        counts
    }

    #[inline]
    pub fn add(&self, counts: RuleCounts) {
        self.counters.own().add(counts);
    }

    pub fn add_shadow(&self, counts: ShadowCounts) {
        self.counters.own().shadow.add(counts);
    }

    #[cold]
    pub fn add_rare(&self, counts: RareCounts) {
        self.rare.add(counts);
    }

    pub fn note_none(&self) {
        // a write would take the cache line from other cores
        if !self.begins_with_none.load(Ordering::Relaxed) {
            self.begins_with_none.store(true, Ordering::Relaxed);
        }
    }

    /// Adds the `hits` of a rejected request that do not count, if they may be the cost of one of no hits. The first ones
    /// are logged; the rule is declared at `origin`.
    pub fn lose_cost(&self, hits: u64, origin: &dyn Display) {
        if !self.begins_with_none.load(Ordering::Relaxed) {
            return;
        }
        self.rare.cost_lost.add(hits);
        if !self.has_lost.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                rule = %self.name.join("."), at = %origin, hits,
                "a cost above the rest of the limit was rejected, so it does not count, and requests of 0 hits pass as \
                 before; write 'reserve: 0' in this rate_limit (weir_hits_cost_lost_total counts such hits)"
            );
        }
    }

    /// Returns the stats of its limit on requests in flight, creating them if needed.
    pub fn places(&self) -> &Arc<PlaceStats> {
        self.places.get_or_init(|| Arc::new(PlaceStats::new(self.shared_name())))
    }

    /// Returns the stats of its limit on requests in flight, if it ever had one.
    pub fn known_places(&self) -> Option<&Arc<PlaceStats>> {
        self.places.get()
    }

    pub fn rare(&self) -> RareCounts {
        self.rare.get()
    }

    pub fn shadow(&self) -> ShadowCounts {
        self.counters.all().fold(ShadowCounts::default(), |sum, counters| sum.plus(counters.shadow.get()))
    }

    pub fn get(&self) -> RuleCounts {
        self.counters.all().fold(RuleCounts::default(), |sum, counters| sum.plus(counters.hits.get()))
    }
}

// === impl OwnCounts ===

impl OwnCounts {
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    pub fn add(&self, counts: RuleCounts) {
        self.hits.add(counts);
    }
}
