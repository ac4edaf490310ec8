//! What a shared store counts: the tiers of one rule for one list of entries.

use crate::limit::{OverLimitPolicy, SharedTiers};

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
    #[cfg(feature = "coordinated")]
    pub(super) fn counts_rejected(&self) -> bool {
        self.over_limit_policy == OverLimitPolicy::Count
    }
}
