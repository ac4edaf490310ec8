//! A histogram of latencies with buckets of at most 3 % width.

use std::time::Duration;

/// The binary logarithm of the number of buckets per power of two.
const PRECISION_BITS: u32 = 5;

const BUCKETS: usize = 64 << PRECISION_BITS;

/// Counts latencies by length.
#[derive(Clone)]
pub struct Histogram {
    counts: Box<[u64]>,
    total: u64,
}

impl Histogram {
    pub fn new() -> Self {
        Self { counts: vec![0; BUCKETS].into(), total: 0 }
    }

    pub fn add(&mut self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)] += 1;
        self.total += 1;
    }

    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
    }

    /// Returns the latency that `per_mille` of a thousand responses did not exceed, rounded up to the end of its
    /// bucket; zero without responses.
    pub fn at(&self, per_mille: u64) -> Duration {
        let wanted = (self.total * per_mille).div_ceil(1_000).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Duration::from_nanos(end(bucket));
            }
        }
        Duration::ZERO
    }
}

/// Returns the bucket of a value: its highest bits, and their shift.
fn bucket(nanos: u64) -> usize {
    let shift = (u64::BITS - nanos.leading_zeros()).saturating_sub(PRECISION_BITS + 1);
    let highest = usize::try_from(nanos >> shift).unwrap_or(usize::MAX);
    (usize::try_from(shift).unwrap_or(usize::MAX) << PRECISION_BITS) + highest
}

/// Returns the largest value of a bucket.
fn end(bucket: usize) -> u64 {
    let shift = (bucket >> PRECISION_BITS).saturating_sub(1);
    let highest = u64::try_from(bucket - (shift << PRECISION_BITS)).unwrap_or(u64::MAX);
    ((highest + 1) << shift) - 1
}
