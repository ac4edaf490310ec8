//! Durations in finer buckets than the fixed ones, for a mapper file with buckets of its own or with quantiles.
//!
//! The finer bounds include the fixed ones, so that a duration is still recorded by one search and two additions. For
//! quantiles there is a bound every 2 %: the mean of the durations between two of them is off by less, whatever the
//! quantile. Recording knows no time; the page that shows quantiles keeps earlier counts, and subtracts those of the
//! beginning of its window.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::buckets::{AtomicBucket, BOUNDS, Bucket, Distribution};

/// The shortest and the longest duration with bounds for quantiles, in nanoseconds.
const QUANTILES: (u64, u64) = (1_000, 600_000_000_000);

const MAX_EARLIER: u32 = 60;

/// What a mapper file needs of durations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refinement {
    /// Inclusive upper bounds in nanoseconds, ascending, [`BOUNDS`] among them.
    bounds: Arc<[u64]>,
    window: Window,
}

/// For how long earlier counts are kept, and the time between two of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Window {
    longest: Duration,
    step: Duration,
}

#[derive(Debug)]
pub(super) struct Refined {
    refinement: Refinement,
    buckets: Box<[AtomicBucket]>,
    /// The oldest first.
    earlier: Mutex<VecDeque<(Instant, Vec<Bucket>)>>,
}

/// Durations, by buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times {
    /// One for each bucket but the last, which holds longer durations.
    pub(super) bounds: Arc<[u64]>,
    pub(super) buckets: Vec<Bucket>,
}

// === impl Refinement ===

impl Refinement {
    /// Takes bounds in nanoseconds, and of each summary its time and steps. None if the fixed buckets do.
    #[must_use]
    pub fn new(bounds: &[u64], summaries: &[(Duration, u32)]) -> Option<Self> {
        let fixed = fixed();
        let mut all = [bounds, &fixed].concat();
        let window = summaries.iter().fold(None, |window: Option<Window>, (within, steps)| {
            let step = *within / (*steps).clamp(1, MAX_EARLIER);
            Some(window.map_or(Window { longest: *within, step }, |window| Window {
                longest: window.longest.max(*within),
                step: window.step.min(step),
            }))
        });
        if window.is_some() {
            let (mut bound, last) = QUANTILES;
            while bound < last {
                all.push(bound);
                bound += bound / 50;
            }
        }
        all.sort_unstable();
        all.dedup();
        let window = window.unwrap_or_default();
        let window = Window { step: window.step.max(window.longest / MAX_EARLIER), ..window };
        (all.len() > fixed.len()).then(|| Self { bounds: all.into(), window })
    }
}

fn fixed() -> [u64; BOUNDS.len()] {
    BOUNDS.map(nanos)
}

/// A duration in nanoseconds, at most 2^64 - 1.
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

// === impl Refined ===

impl Refined {
    pub(super) fn new(refinement: &Refinement) -> Self {
        Self {
            buckets: (0..=refinement.bounds.len()).map(|_| AtomicBucket::default()).collect(),
            refinement: refinement.clone(),
            earlier: Mutex::default(),
        }
    }

    pub(super) fn bucket(&self, nanos: u64) -> &AtomicBucket {
        &self.buckets[self.refinement.bounds.partition_point(|bound| *bound < nanos)]
    }

    pub(super) fn fixed(&self) -> Distribution {
        let (fixed, mut distribution) = (fixed(), Distribution::default());
        for (i, bucket) in self.buckets.iter().enumerate() {
            let index = match self.refinement.bounds.get(i) {
                Some(bound) => fixed.partition_point(|fixed| fixed < bound),
                None => fixed.len(),
            };
            distribution.buckets[index] = distribution.buckets[index].plus(bucket.get());
        }
        distribution
    }

    pub(super) fn times(&self) -> Times {
        Times { bounds: Arc::clone(&self.refinement.bounds), buckets: self.now() }
    }

    fn now(&self) -> Vec<Bucket> {
        self.buckets.iter().map(AtomicBucket::get).collect()
    }

    /// May cover up to a step more than `within`, and more if the page was not asked for meanwhile.
    pub(super) fn recent(&self, within: Duration, now: Instant) -> Times {
        let mut times = self.times();
        let Window { longest, step } = self.refinement.window;
        let mut earlier = self.earlier.lock();
        let age = |at: Instant| now.saturating_duration_since(at);
        if let Some((_, since)) = earlier.iter().rev().find(|(at, _)| age(*at) >= within) {
            for (bucket, since) in times.buckets.iter_mut().zip(since) {
                bucket.count = bucket.count.saturating_sub(since.count);
                bucket.nanos = bucket.nanos.saturating_sub(since.nanos);
            }
        }
        if earlier.back().is_none_or(|(at, _)| age(*at) >= step) {
            earlier.push_back((now, self.now()));
        }
        // the one before the window is its beginning
        while earlier.get(1).is_some_and(|(at, _)| age(*at) >= longest) {
            earlier.pop_front();
        }
        times
    }
}

// === impl Times ===

impl Times {
    /// `bound` is in nanoseconds, and one of the bounds.
    #[must_use]
    pub fn at_most(&self, bound: u64) -> u64 {
        let below = self.bounds.partition_point(|own| *own <= bound);
        self.buckets[..below].iter().fold(0, |sum, bucket| sum.saturating_add(bucket.count))
    }

    /// The number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, bucket| sum.saturating_add(bucket.count))
    }

    /// Their sum, in nanoseconds.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, bucket| sum.saturating_add(bucket.nanos))
    }

    /// In nanoseconds; none without durations. Off by 2 % at most, if there are bounds for quantiles.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank is a share of a count, and a mean is rounded"
    )]
    /// The duration of a quantile from 0 to 1, in nanoseconds. None without durations.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        let mut rank = ((self.count() as f64 * quantile).ceil() as u64).max(1);
        let holds = |bucket: &&Bucket| match rank.checked_sub(bucket.count) {
            None | Some(0) => true,
            Some(rest) => {
                rank = rest;
                false
            }
        };
        let bucket = self.buckets.iter().find(holds).filter(|bucket| bucket.count > 0)?;
        Some(bucket.nanos as f64 / bucket.count as f64)
    }

    /// Adds `more`.
    pub fn add(&mut self, more: &Self) {
        if self.bounds != more.bounds {
            return;
        }
        for (bucket, more) in self.buckets.iter_mut().zip(&more.buckets) {
            *bucket = bucket.plus(*more);
        }
    }
}

impl From<&Distribution> for Times {
    fn from(distribution: &Distribution) -> Self {
        Self { bounds: fixed().into(), buckets: distribution.buckets.to_vec() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(refined: &Refined, duration: Duration) {
        refined.bucket(nanos(duration)).add(1, nanos(duration));
    }

    #[test]
    fn finer_buckets_add_up_to_the_fixed_ones() {
        let refinement = Refinement::new(&[3_000_000, 1_000, u64::MAX], &[]).expect("other bounds");
        let refined = Refined::new(&refinement);
        for micros in [1, 2, 5, 2_999, 3_000, 3_001, 5_000, 20_000_000] {
            record(&refined, Duration::from_micros(micros));
        }
        let fixed = refined.fixed();
        let counts: Vec<u64> = fixed.buckets.iter().map(|bucket| bucket.count).collect();
        assert_eq!((counts[0], counts[9], counts[20]), (3, 4, 1), "{counts:?}");
        assert_eq!((fixed.count(), fixed.sum()), (8, Duration::from_micros(20_014_008)));
        let times = refined.times();
        for (bound, count) in [(1_000, 1), (3_000_000, 5), (5_000_000, 7), (u64::MAX, 8)] {
            assert_eq!(times.at_most(bound), count, "{bound}");
        }
        assert_eq!(Refinement::new(&[5_000, 1_000_000], &[]), None, "the fixed buckets do");
    }

    #[test]
    fn quantiles_are_within_two_percent() {
        let refinement = Refinement::new(&[], &[(Duration::from_mins(10), 5)]).expect("bounds for quantiles");
        let refined = Refined::new(&refinement);
        assert!(refined.times().quantile(0.5).is_none());
        // 7 us to 70 ms, longer ones less often
        let mut all: Vec<u64> = (1..=10_000_u64).map(|i| 7_000 * i).collect();
        all.extend((1..=1_000).map(|i| i * i));
        for nanos in &all {
            record(&refined, Duration::from_nanos(*nanos));
        }
        all.sort_unstable();
        for (quantile, rank) in
            [(0.0, 0), (0.1, 1_099), (0.5, 5_499), (0.9, 9_899), (0.99, 10_889), (1.0, 10_999)]
        {
            let found = refined.times().quantile(quantile).expect("durations");
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let exact = all[rank] as f64;
            // below the first bound, all are one
            assert!((found - exact).abs() <= (exact * 0.02).max(1_000.0), "{quantile}: {found} {exact}");
        }
    }

    #[test]
    fn a_window_forgets_what_is_older() {
        let minutes = Duration::from_mins;
        let refinement = Refinement::new(&[], &[(minutes(10), 5), (minutes(4), 2)]).expect("a window");
        let (refined, begin) = (Refined::new(&refinement), Instant::now());
        let counts = |at: u64| {
            let now = begin + minutes(at);
            (refined.recent(minutes(10), now).count(), refined.recent(minutes(4), now).count())
        };
        assert_eq!(counts(0), (0, 0));
        // one in each minute
        for minute in 1..=60 {
            record(&refined, Duration::from_millis(1));
            let (long, short) = counts(minute);
            assert!((minute.min(10)..=minute.min(12)).contains(&long), "{long} in minute {minute}");
            assert!((minute.min(4)..=minute.min(6)).contains(&short), "{short} in minute {minute}");
        }
        assert!(refined.earlier.lock().len() <= 7);
        // after an hour without a page, what came since the last one
        record(&refined, Duration::from_millis(1));
        assert_eq!(counts(120), (1, 1));
        assert_eq!(counts(240), (0, 0));
        assert_eq!(refined.times().count(), 61);
    }
}
