//! How long things took: how many fell into each of a few fixed spans. Two atomic additions each, no lock.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// The upper bounds of the buckets, each included in its own; what is above the last one has a bucket too.
///
/// These are the bounds of `statsd_exporter`, which the reference's histograms have, read both as seconds (5 ms to 10 s)
/// and as milliseconds (5 us to 10 ms): the reference can be told to report either, and a decision that does not leave
/// the process takes microseconds.
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

/// Counts durations by their length.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [Cell; BOUNDS.len() + 1],
}

/// The sum is kept for each bucket, not once: it costs the same, and what is sent on bucket by bucket stays exact.
#[derive(Debug, Default)]
struct Cell {
    count: AtomicU64,
    nanos: AtomicU64,
}

/// What a [`Histogram`] held at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// One for each of [`BOUNDS`], then one for what is longer.
    pub buckets: [Bucket; BOUNDS.len() + 1],
}

/// The durations of one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// How many.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub nanos: u64,
}

// === impl Histogram ===

impl Histogram {
    /// Counts one more, which took `took`.
    pub fn record(&self, took: Duration) {
        self.record_many(1, took);
    }

    /// Counts `n` more, each of which took `took`.
    pub fn record_many(&self, n: u64, took: Duration) {
        if n == 0 {
            return;
        }
        let cell = &self.buckets[BOUNDS.partition_point(|bound| *bound < took)];
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        cell.count.fetch_add(n, Ordering::Relaxed);
        cell.nanos.fetch_add(nanos.saturating_mul(n), Ordering::Relaxed);
    }

    /// What it holds now.
    #[must_use]
    pub fn get(&self) -> Distribution {
        let read = |cell: &Cell| Bucket {
            count: cell.count.load(Ordering::Relaxed),
            nanos: cell.nanos.load(Ordering::Relaxed),
        };
        Distribution { buckets: std::array::from_fn(|i| read(&self.buckets[i])) }
    }
}

// === impl Distribution ===

impl Distribution {
    /// How many there are in all buckets.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.count).sum()
    }

    /// How long all of them took together.
    #[must_use]
    pub fn sum(&self) -> Duration {
        self.buckets.iter().map(|bucket| Duration::from_nanos(bucket.nanos)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_own_bucket() {
        let histogram = Histogram::default();
        for nanos in [0, 5_000, 5_001, 10_000_000_000, 10_000_000_001] {
            histogram.record(Duration::from_nanos(nanos));
        }
        let held = histogram.get();
        let counts = held.buckets.map(|bucket| bucket.count);
        assert_eq!((counts[0], counts[1], counts[19], counts[20]), (2, 1, 1, 1));
        assert_eq!((held.count(), held.sum().as_nanos()), (5, 20_000_010_002));
    }

    #[test]
    fn the_bounds_ascend() {
        assert!(BOUNDS.is_sorted_by(|a, b| a < b));
    }
}
