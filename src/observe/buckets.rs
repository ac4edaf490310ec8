//! The buckets of durations that every histogram has, and what is in them.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// The inclusive upper bounds of the buckets; one more bucket holds longer durations.
///
/// These are the bounds of `statsd_exporter`, which envoyproxy/ratelimit uses, read both as seconds (5 ms to 10 s) and
/// as milliseconds (5 us to 10 ms): the reference can report either, and a decision within the process takes
/// microseconds.
pub const BOUNDS: [Duration; 20] = [
    Duration::from_micros(5),
    Duration::from_micros(10),
    Duration::from_micros(25),
    Duration::from_micros(50),
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2_500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
    Duration::from_secs(5),
    Duration::from_secs(10),
];

/// Each bucket has its own sum: it costs the same as one sum, and buckets that are reported one by one stay exact.
#[derive(Debug, Default)]
pub(super) struct AtomicBucket {
    count: AtomicU64,
    nanos: AtomicU64,
}

/// A snapshot of a [`Histogram`](super::histogram::Histogram).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// One for each of [`BOUNDS`], then one for longer durations.
    pub buckets: [Bucket; BOUNDS.len() + 1],
}

/// The durations of one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Their number.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub nanos: u64,
}

// === impl AtomicBucket ===

impl AtomicBucket {
    /// Adds `n` durations of `nanos` nanoseconds each.
    pub(super) fn add(&self, n: u64, nanos: u64) {
        self.count.fetch_add(n, Ordering::Relaxed);
        self.nanos.fetch_add(nanos.saturating_mul(n), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Bucket {
        Bucket { count: self.count.load(Ordering::Relaxed), nanos: self.nanos.load(Ordering::Relaxed) }
    }
}

// === impl Distribution ===

impl Distribution {
    /// Returns the number of durations in all buckets.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.count).sum()
    }

    /// Returns the sum of all durations.
    #[must_use]
    pub fn sum(&self) -> Duration {
        self.buckets.iter().map(|bucket| Duration::from_nanos(bucket.nanos)).sum()
    }
}
