//! What the store is to count for an ask.

use crate::{limit::LimitCheck, store::remote::Target};

impl Target {
    /// What the store is to count for `ask`.
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
            tiers: check.tiers().into(),
            over_limit_policy: check.over_limit_policy(),
        }
    }

    /// Whether it is what the store is to count for `ask`, whose key it has.
    pub(super) fn is_of(&self, check: &LimitCheck<'_>) -> bool {
        *self.tiers == *check.tiers() && self.over_limit_policy == check.over_limit_policy()
    }
}
