//! What a shared store counts: the tiers of one rule for one list of entries.

#[cfg(feature = "coordinated")]
use crate::limit::Tier;
use crate::limit::{Algorithm, OverLimitPolicy, SharedTiers};

/// The tiers of one rule for one list of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The domain, keys and values, such as `shop|tenant=acme`; where values share a counter, `~` and their pattern
    /// replace `=` and the value. No two lists of entries have the same path. A long one is a hash, unless the key of
    /// envoyproxy/ratelimit is made of it. The store adds its prefix, and a suffix for the tier and the window.
    pub path: Box<str>,
    /// The tiers, at least one.
    pub tiers: SharedTiers,
    /// [`OverLimitPolicy::Count`] marks a rule in the format of envoyproxy/ratelimit: one fixed window, with the same key and
    /// count as there, so that both services can share a store.
    pub over_limit_policy: OverLimitPolicy,
}

// === impl Target ===

impl Target {
    /// Returns whether a [version](super::remote::Reply::version) exists: whether a tier is a sliding window or a
    /// bucket.
    #[must_use]
    pub fn is_versioned(&self) -> bool {
        self.tiers.iter().any(|tier| tier.algorithm != Algorithm::FixedWindow)
    }

    /// Returns whether rejected hits count.
    #[cfg(feature = "coordinated")]
    pub(super) fn counts_rejected(&self) -> bool {
        self.over_limit_policy == OverLimitPolicy::Count
    }

    /// Returns whether it counts in the counter of `tier` of the same entries.
    #[cfg(feature = "coordinated")]
    pub(super) fn counts_in(&self, tier: &Tier) -> bool {
        self.tiers.iter().any(|own| own.shares_counter(tier))
    }

    /// Returns whether it counts in one of the counters of `other`, which has the same entries.
    #[cfg(feature = "coordinated")]
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || other.tiers.iter().any(|tier| self.counts_in(tier))
    }

    /// Returns whether it has the same counters as `other`, which has the same entries, in the same order.
    #[cfg(feature = "coordinated")]
    pub(super) fn has_counters_of(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
            || self.tiers.len() == other.tiers.len()
                && self.tiers.iter().zip(&*other.tiers).all(|(own, other)| own.shares_counter(other))
    }
}
