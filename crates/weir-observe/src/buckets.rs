//! The buckets of durations that every histogram has, and what is in them.

use std::time::Duration;

use super::counter::Counter;

/// The inclusive upper bounds of the buckets; one more bucket holds longer durations. They are those of
/// `statsd_exporter`, which envoyproxy/ratelimit uses, read as seconds and as milliseconds: a decision in the process
/// takes microseconds.
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
    count: Counter,
    nanos: Counter,
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
    pub(super) fn add(&self, n: u64, nanos: u64) {
        self.count.add(n);
        self.nanos.add(nanos.saturating_mul(n));
    }

    pub(super) fn get(&self) -> Bucket {
        Bucket { count: self.count.get(), nanos: self.nanos.get() }
    }
}

// === impl Bucket ===

impl Bucket {
    /// The sum stays at 2^64 - 1: many callers that wait at once reach that in days.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            count: self.count.saturating_add(other.count),
            nanos: self.nanos.saturating_add(other.nanos),
        }
    }
}

// === impl Distribution ===

impl Distribution {
    /// Returns the number of durations in all buckets.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, bucket| sum.saturating_add(bucket.count))
    }

    /// Returns the sum of all durations.
    #[must_use]
    pub fn sum(&self) -> Duration {
        self.buckets.iter().map(|bucket| Duration::from_nanos(bucket.nanos)).sum()
    }
}
