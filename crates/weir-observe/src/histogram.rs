//! A histogram of durations. Recording costs one search and two atomic additions, and takes no lock.
//!
//! A mapper file with buckets of its own or with quantiles needs finer buckets than the fixed ones; their bounds include
//! the fixed ones. For quantiles there is a bound every 2 %: the mean of the durations between two of them is off by
//! less, whatever the quantile. Recording knows no time; the page that shows quantiles keeps earlier contents, and
//! subtracts those of the beginning of its window.

use std::{
    collections::VecDeque,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{counter::Counter, sharded::Sharded};

/// The inclusive upper bounds of buckets that every histogram has; one more holds longer durations. They are those of
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

/// [`BOUNDS`] in nanoseconds.
static FIXED: LazyLock<Arc<[u64]>> = LazyLock::new(|| BOUNDS.map(nanos).into());

/// The shortest and the longest duration with bounds for quantiles, in nanoseconds.
const QUANTILES: (u64, u64) = (1_000, 600_000_000_000);

const MAX_EARLIER: u32 = 60;

#[derive(Debug)]
pub struct Histogram {
    refinement: Refinement,
    buckets: Sharded<Box<[AtomicBucket]>>,
    /// What [`Histogram::recent`] has seen, the oldest first.
    earlier: Mutex<VecDeque<(Instant, Distribution)>>,
}

/// What a mapper file needs of durations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refinement {
    /// Inclusive upper bounds in nanoseconds, ascending, [`BOUNDS`] among them.
    bounds: Arc<[u64]>,
    window: Window,
}

/// For how long earlier contents are kept, and the time between two of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Window {
    longest: Duration,
    step: Duration,
}

/// Each bucket has its own sum: it costs the same as one sum, and buckets that are reported one by one stay exact.
#[derive(Debug, Default)]
struct AtomicBucket {
    count: Counter,
    nanos: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    bounds: Arc<[u64]>,
    /// One for each bound, then one for longer durations.
    pub buckets: Box<[Bucket]>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    pub count: u64,
    /// Their sum in nanoseconds.
    pub nanos: u64,
}

/// A duration in nanoseconds, at most 2^64 - 1.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

// === impl Histogram ===

impl Default for Histogram {
    fn default() -> Self {
        Self::refined(&Refinement { bounds: Arc::clone(&FIXED), window: Window::default() })
    }
}

impl Histogram {
    pub fn refined(refinement: &Refinement) -> Self {
        let empty = || (0..=refinement.bounds.len()).map(|_| AtomicBucket::default()).collect();
        Self { refinement: refinement.clone(), buckets: Sharded::of(empty), earlier: Mutex::default() }
    }

    pub fn record(&self, took: Duration) {
        self.record_many(1, took);
    }

    pub fn record_many(&self, n: u64, took: Duration) {
        let nanos = nanos(took);
        let bucket = self.refinement.bounds.partition_point(|bound| *bound < nanos);
        let AtomicBucket { count, nanos: sum } = &self.buckets.own()[bucket];
        count.add(n);
        sum.add(nanos.saturating_mul(n));
    }

    pub fn get(&self) -> Distribution {
        let mut buckets = vec![Bucket::default(); self.refinement.bounds.len() + 1];
        for place in self.buckets.all() {
            for (sum, AtomicBucket { count, nanos }) in buckets.iter_mut().zip(place) {
                *sum = sum.plus(Bucket { count: count.get(), nanos: nanos.get() });
            }
        }
        Distribution { bounds: Arc::clone(&self.refinement.bounds), buckets: buckets.into() }
    }

    /// Returns the durations of the last time `within`. They may cover up to a step more, and more if the page was not
    /// asked for meanwhile.
    pub fn recent(&self, within: Duration, now: Instant) -> Distribution {
        let all = self.get();
        let mut recent = all.clone();
        let Window { longest, step } = self.refinement.window;
        let mut earlier = self.earlier.lock();
        let age = |at: Instant| now.saturating_duration_since(at);
        if let Some((_, since)) = earlier.iter().rev().find(|(at, _)| age(*at) >= within) {
            for (bucket, since) in recent.buckets.iter_mut().zip(&since.buckets) {
                *bucket = bucket.minus(*since);
            }
        }
        if earlier.back().is_none_or(|(at, _)| age(*at) >= step) {
            earlier.push_back((now, all));
        }
        // the one before the window is its beginning
        while earlier.get(1).is_some_and(|(at, _)| age(*at) >= longest) {
            earlier.pop_front();
        }
        recent
    }
}

// === impl Refinement ===

impl Refinement {
    /// Takes bounds in nanoseconds, and of each summary its time and steps. None if the fixed buckets do.
    pub fn new(bounds: &[u64], summaries: &[(Duration, u32)]) -> Option<Self> {
        let mut all = [bounds, &FIXED].concat();
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
        (all.len() > FIXED.len()).then(|| Self { bounds: all.into(), window })
    }
}

// === impl Bucket ===

impl Bucket {
    /// The sum stays at 2^64 - 1: many callers that wait at once reach that in days.
    pub const fn plus(self, other: Self) -> Self {
        Self {
            count: self.count.saturating_add(other.count),
            nanos: self.nanos.saturating_add(other.nanos),
        }
    }

    pub const fn minus(self, earlier: Self) -> Self {
        Self {
            count: self.count.saturating_sub(earlier.count),
            nanos: self.nanos.saturating_sub(earlier.nanos),
        }
    }
}

// === impl Distribution ===

impl Distribution {
    /// Returns the number of durations up to `bound`, one of the bounds in nanoseconds.
    pub fn at_most(&self, bound: u64) -> u64 {
        count(&self.buckets[..self.bounds.partition_point(|own| *own <= bound)])
    }

    pub fn count(&self) -> u64 {
        count(&self.buckets)
    }

    pub fn sum(&self) -> Duration {
        self.buckets.iter().map(|bucket| Duration::from_nanos(bucket.nanos)).sum()
    }

    /// Returns the duration of a quantile from 0 to 1, in nanoseconds; none without durations. Off by 2 % at most, if
    /// there are bounds for quantiles.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank is a share of a count, and a mean is rounded"
    )]
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

    pub fn add(&mut self, more: &Self) {
        if self.bounds != more.bounds {
            return;
        }
        for (bucket, more) in self.buckets.iter_mut().zip(&more.buckets) {
            *bucket = bucket.plus(*more);
        }
    }
}

fn count(buckets: &[Bucket]) -> u64 {
    buckets.iter().fold(0, |sum, bucket| sum.saturating_add(bucket.count))
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
        let counts: Vec<u64> = snapshot.buckets.iter().map(|bucket| bucket.count).collect();
        assert_eq!((counts[0], counts[1], counts[19], counts[20]), (2, 1, 1, 1));
        assert_eq!((snapshot.count(), snapshot.sum().as_nanos()), (5, 20_000_010_002));
    }

    #[test]
    fn the_bounds_ascend() {
        assert!(BOUNDS.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn finer_buckets_are_there_besides_the_fixed_ones() {
        let refinement = Refinement::new(&[3_000_000, 1_000, u64::MAX], &[]).expect("other bounds");
        let refined = Histogram::refined(&refinement);
        for micros in [1, 2, 5, 2_999, 3_000, 3_001, 5_000, 20_000_000] {
            refined.record(Duration::from_micros(micros));
        }
        let times = refined.get();
        assert_eq!((times.count(), times.sum()), (8, Duration::from_micros(20_014_008)));
        for (bound, count) in [(1_000, 1), (3_000_000, 5), (5_000_000, 7), (u64::MAX, 8)] {
            assert_eq!(times.at_most(bound), count, "{bound}");
        }
        assert_eq!(Refinement::new(&[5_000, 1_000_000], &[]), None, "the fixed buckets do");
    }

    #[test]
    fn quantiles_are_within_two_percent() {
        let refinement = Refinement::new(&[], &[(Duration::from_mins(10), 5)]).expect("bounds for quantiles");
        let refined = Histogram::refined(&refinement);
        assert!(refined.get().quantile(0.5).is_none());
        // 7 us to 70 ms, longer ones less often
        let mut all: Vec<u64> = (1..=10_000_u64).map(|i| 7_000 * i).collect();
        all.extend((1..=1_000).map(|i| i * i));
        for nanos in &all {
            refined.record(Duration::from_nanos(*nanos));
        }
        all.sort_unstable();
        for (quantile, rank) in
            [(0.0, 0), (0.1, 1_099), (0.5, 5_499), (0.9, 9_899), (0.99, 10_889), (1.0, 10_999)]
        {
            let found = refined.get().quantile(quantile).expect("durations");
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
        let (refined, begin) = (Histogram::refined(&refinement), Instant::now());
        let counts = |at: u64| {
            let now = begin + minutes(at);
            (refined.recent(minutes(10), now).count(), refined.recent(minutes(4), now).count())
        };
        assert_eq!(counts(0), (0, 0));
        // one in each minute
        for minute in 1..=60 {
            refined.record(Duration::from_millis(1));
            let (long, short) = counts(minute);
            assert!((minute.min(10)..=minute.min(12)).contains(&long), "{long} in minute {minute}");
            assert!((minute.min(4)..=minute.min(6)).contains(&short), "{short} in minute {minute}");
        }
        assert!(refined.earlier.lock().len() <= 7);
        // after an hour without a page, what came since the last one
        refined.record(Duration::from_millis(1));
        assert_eq!(counts(120), (1, 1));
        assert_eq!(counts(240), (0, 0));
        assert_eq!(refined.get().count(), 61);
    }
}
