//! How many members a pool has, and of which weights.

use std::collections::BTreeMap;

use super::{OTHER, Sharing};

/// What the rule says of a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) weight: u32,
    /// Whether it has a place in any case.
    pub(super) is_named: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Census {
    /// Members by weight.
    pub(super) weights: BTreeMap<u32, u32>,
    pub(super) unnamed: u32,
}

// === impl Standing ===

impl Standing {
    pub(super) fn of(name: &str, sharing: &Sharing) -> Self {
        let weight = sharing.weights.get(name).copied();
        Self { weight: weight.unwrap_or(1), is_named: weight.is_some() || name == OTHER }
    }
}

// === impl Census ===

impl Census {
    pub(super) fn add(&mut self, Standing { weight, is_named }: Standing) {
        *self.weights.entry(weight).or_default() += 1;
        self.unnamed += u32::from(!is_named);
    }

    pub(super) fn remove(&mut self, Standing { weight, is_named }: Standing) {
        if let Some(count) = self.weights.get_mut(&weight) {
            *count -= 1;
            if *count == 0 {
                self.weights.remove(&weight);
            }
        }
        self.unnamed -= u32::from(!is_named);
    }

    pub(super) fn weight(&self) -> u32 {
        self.weights.iter().fold(0, |sum, (weight, count)| sum.saturating_add(weight.saturating_mul(*count)))
    }
}
