//! What a shared store counts: the tiers of one rule for one list of entries.

use weir_limit::{LimitCheck, OverLimitPolicy, SharedTiers, Tier};

use crate::path::{Sha256, path_of, shortened};

/// The tiers of one rule for one list of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The domain, keys and values, such as `shop|tenant=acme`; where values share a counter, `~` and their pattern
    /// replace `=` and the value. No two lists of entries have the same path. A long one is a hash, unless the key of
    /// envoyproxy/ratelimit is made of it. The store adds its prefix, and a suffix for the tier and the window.
    pub path: Box<str>,
    /// The tiers, at least one.
    pub tiers: SharedTiers,
    /// [`OverLimitPolicy::Count`]: a rule with the key and the count of envoyproxy/ratelimit, to share a store with it.
    pub over_limit_policy: OverLimitPolicy,
}

// === impl Target ===

impl Target {
    /// Returns that of `check`; `sha256` shortens a long path.
    #[must_use]
    pub fn of(check: &LimitCheck<'_>, sha256: Sha256) -> Self {
        let (path, over_limit_policy) = (path_of(check), check.over_limit_policy());
        let path = match over_limit_policy {
            // the key in the store is made of all of it
            OverLimitPolicy::Count if !check.rule.is_shadow() => path,
            OverLimitPolicy::Count | OverLimitPolicy::Ignore => shortened(path, sha256),
        };
        Self { path, tiers: check.shared_tiers(), over_limit_policy }
    }

    /// Returns whether they have a counter in common in the store.
    #[must_use]
    pub fn shares_counters(&self, other: &Self) -> bool {
        let is_of_other = |tier: &Tier| other.tiers.iter().any(|its| its.shares_counter(tier));
        let have_own_keys = self.counts_rejected() || other.counts_rejected();
        self.path == other.path && !have_own_keys && self.tiers.iter().any(is_of_other)
    }

    /// Returns whether it is that of `check`, which must have the same key.
    #[must_use]
    pub fn is_of(&self, check: &LimitCheck<'_>) -> bool {
        *self.tiers == *check.tiers() && self.over_limit_policy == check.over_limit_policy()
    }

    /// Whether rejected hits count.
    #[must_use]
    pub fn counts_rejected(&self) -> bool {
        self.over_limit_policy == OverLimitPolicy::Count
    }
}
