//! The cells that numbers are kept in. Both are written on the way of a request, so neither takes a lock.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

/// A number that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

// === impl Counter ===

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        // most counters of a request do not change, and a write costs the other cores their copy of the cache line
        if n != 0 {
            self.0.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// Its value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

// === impl Gauge ===

impl Gauge {
    /// Makes it `value`.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Its value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
