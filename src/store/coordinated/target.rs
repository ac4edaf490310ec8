//! The store's target for a check.

use crate::{
    limit::{LimitCheck, OverLimitPolicy},
    store::{
        path::{PathValue, path, shortened},
        remote::Target,
    },
};

impl Target {
    /// Creates the target that the store counts for `check`.
    pub(super) fn of(check: &LimitCheck<'_>) -> Self {
        let entries = check.entries.iter().enumerate().map(|(i, entry)| {
            (entry.key, check.shared(i).map_or(PathValue::Own(entry.value), PathValue::Shared))
        });
        let (path, over_limit_policy) = (path(check.domain, entries), check.over_limit_policy());
        let path = match over_limit_policy {
            // the key in the store is made of all of it
            OverLimitPolicy::Count => path,
            OverLimitPolicy::Ignore => shortened(path),
        };
        Self { path, tiers: check.shared_tiers(), over_limit_policy }
    }

    /// Returns whether it is the target of `check`, which has the same key.
    pub(super) fn is_of(&self, check: &LimitCheck<'_>) -> bool {
        *self.tiers == *check.tiers() && self.over_limit_policy == check.over_limit_policy()
    }
}
