//! Counters and gauges. Requests write both, so neither takes a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use super::sharded::Sharded;

/// A value that only grows. It stays at 2^64 - 1: requests choose their hits, and a wrap would look like a restart.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

/// A counter of every decision, to which each thread adds in a place of its own.
#[derive(Debug, Default)]
pub struct BusyCounter(Sharded<Counter>);

#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

// === impl Counter ===

impl Counter {
    /// Adds `n`, up to 2^64 - 1 in all.
    pub fn add(&self, n: u64) {
        // most counters of a request do not change, and a write invalidates the other cores' copy of the cache line
        if n != 0 {
            self.0.update(Ordering::Relaxed, Ordering::Relaxed, |value| value.saturating_add(n));
        }
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

// === impl BusyCounter ===

impl BusyCounter {
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.own().add(n);
    }

    pub fn get(&self) -> u64 {
        self.0.all().map(Counter::get).fold(0, u64::saturating_add)
    }
}

// === impl Gauge ===

impl Gauge {
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
