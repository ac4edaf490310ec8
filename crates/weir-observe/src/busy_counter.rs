//! A counter of every decision.

use super::{counter::Counter, sharded::Sharded};

/// A value that only grows, as a [`Counter`] does, to which each thread adds in a place of its own.
#[derive(Debug, Default)]
pub struct BusyCounter(Sharded<Counter>);

// === impl BusyCounter ===

impl BusyCounter {
    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.own().add(n);
    }

    /// Returns the current value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.all().map(Counter::get).fold(0, u64::saturating_add)
    }
}
