//! What the store is to count for an ask.

use crate::{limit::Ask, store::remote::Target};

impl Target {
    /// What the store is to count for `ask`.
    pub(super) fn of(ask: &Ask<'_>) -> Self {
        let mut path = format!("{}_", ask.domain);
        for (i, entry) in ask.entries.iter().enumerate() {
            path.push_str(entry.key);
            path.push('_');
            path.push_str(ask.shared(i).unwrap_or(entry.value));
            path.push('_');
        }
        Self { path: path.into(), tiers: ask.tiers().into(), refused: ask.refused() }
    }

    /// Whether it is what the store is to count for `ask`, whose key it has.
    pub(super) fn is_of(&self, ask: &Ask<'_>) -> bool {
        *self.tiers == *ask.tiers() && self.refused == ask.refused()
    }
}
