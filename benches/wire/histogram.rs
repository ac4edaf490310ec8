//! Latencies, counted in buckets that are 3 % wide at most, so that millions of them cost neither memory nor sorting.

use std::time::Duration;

/// A power of two is cut into so many buckets, as a power of two itself.
const FINENESS: u32 = 5;

const BUCKETS: usize = 64 << FINENESS;

/// How many answers took how long.
#[derive(Clone)]
pub(crate) struct Histogram {
    counts: Box<[u64]>,
    total: u64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self { counts: vec![0; BUCKETS].into(), total: 0 }
    }

    pub(crate) fn add(&mut self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)] += 1;
        self.total += 1;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
    }

    /// The latency that `per_mille` of a thousand answers did not exceed, rounded up to the end of its bucket; zero when
    /// there were no answers.
    pub(crate) fn at(&self, per_mille: u64) -> Duration {
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

/// The highest bits of the value, and how far they were shifted.
fn bucket(nanos: u64) -> usize {
    let shift = (u64::BITS - nanos.leading_zeros()).saturating_sub(FINENESS + 1);
    let highest = usize::try_from(nanos >> shift).unwrap_or(usize::MAX);
    (usize::try_from(shift).unwrap_or(usize::MAX) << FINENESS) + highest
}

/// The largest value of the bucket.
fn end(bucket: usize) -> u64 {
    let shift = (bucket >> FINENESS).saturating_sub(1);
    let highest = u64::try_from(bucket - (shift << FINENESS)).unwrap_or(u64::MAX);
    ((highest + 1) << shift) - 1
}
