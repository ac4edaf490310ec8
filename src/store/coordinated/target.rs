//! The store's target for a check.

use crate::{
    limit::LimitCheck,
    store::{
        path::{PathValue, path},
        remote::Target,
    },
};

impl Target {
    /// Creates the target that the store counts for `check`.
    pub(super) fn of(check: &LimitCheck<'_>) -> Self {
        let entries = check.entries.iter().enumerate().map(|(i, entry)| {
            (entry.key, check.shared(i).map_or(PathValue::Own(entry.value), PathValue::Shared))
        });
        Self {
            path: path(check.domain, entries),
            tiers: check.shared_tiers(),
            over_limit_policy: check.over_limit_policy(),
        }
    }

    /// Returns whether it is the target of `check`, which has the same key.
    pub(super) fn is_of(&self, check: &LimitCheck<'_>) -> bool {
        *self.tiers == *check.tiers() && self.over_limit_policy == check.over_limit_policy()
    }
}
