//! A histogram of durations with fixed buckets. Recording costs two atomic additions and takes no lock.

use std::time::Duration;

pub use super::buckets::{BOUNDS, Bucket, Distribution};
use super::{buckets::AtomicBucket, sharded::Sharded};

use {
    super::refined::{Refined, Refinement, Times},
    std::time::Instant,
};

/// Counts durations by length.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: Sharded<[AtomicBucket; BOUNDS.len() + 1]>,
    refined: Option<Box<Refined>>,
}

// === impl Histogram ===

impl Histogram {
    /// Returns an empty histogram that also has the buckets of `refinement`.
    #[must_use]
    pub fn refined(refinement: &Refinement) -> Self {
        Self { refined: Some(Box::new(Refined::new(refinement))), ..Self::default() }
    }

    /// Records one duration.
    pub fn record(&self, took: Duration) {
        self.record_many(1, took);
    }

    /// Records `n` durations of `took` each.
    pub fn record_many(&self, n: u64, took: Duration) {
        if n == 0 {
            return;
        }
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if let Some(refined) = &self.refined {
            return refined.bucket(nanos).add(n, nanos);
        }
        self.buckets.own()[BOUNDS.partition_point(|bound| *bound < took)].add(n, nanos);
    }

    /// Returns the current contents.
    #[must_use]
    pub fn get(&self) -> Distribution {
        if let Some(refined) = &self.refined {
            return refined.fixed();
        }
        let mut all = Distribution::default();
        for place in self.buckets.all() {
            for (sum, bucket) in all.buckets.iter_mut().zip(place) {
                *sum = sum.plus(bucket.get());
            }
        }
        all
    }

    /// What it has counted.
    #[must_use]
    pub fn times(&self) -> Times {
        self.refined.as_ref().map_or_else(|| Times::from(&self.get()), |refined| refined.times())
    }

    /// Returns all durations if the buckets are not refined.
    #[must_use]
    pub fn recent(&self, within: Duration, now: Instant) -> Times {
        self.refined.as_ref().map_or_else(|| self.times(), |refined| refined.recent(within, now))
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
        let snapshot = histogram.get();
        let counts = snapshot.buckets.map(|bucket| bucket.count);
        assert_eq!((counts[0], counts[1], counts[19], counts[20]), (2, 1, 1, 1));
        assert_eq!((snapshot.count(), snapshot.sum().as_nanos()), (5, 20_000_010_002));
    }

    #[test]
    fn the_bounds_ascend() {
        assert!(BOUNDS.is_sorted_by(|a, b| a < b));
    }
}
