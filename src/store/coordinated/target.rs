//! The store's target for a check.

use crate::{limit::LimitCheck, store::remote::Target};

impl Target {
    /// Creates the target that the store counts for `check`.
    pub(super) fn of(check: &LimitCheck<'_>) -> Self {
        let mut path = format!("{}_", check.domain);
        for (i, entry) in check.entries.iter().enumerate() {
            path.push_str(entry.key);
            path.push('_');
            path.push_str(check.shared(i).unwrap_or(entry.value));
            path.push('_');
        }
        Self {
            path: path.into(),
            tiers: check.shared_tiers(),
            over_limit_policy: check.over_limit_policy(),
        }
    }

    /// Returns whether it is the target of `check`, which has the same key.
    pub(super) fn is_of(&self, check: &LimitCheck<'_>) -> bool {
        *self.tiers == *check.tiers() && self.over_limit_policy == check.over_limit_policy()
    }
}
