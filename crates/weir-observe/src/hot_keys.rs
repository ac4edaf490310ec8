//! The counters with the most hits and rejections of the last minutes, from a sample of the decisions, in bounded
//! memory.
//!
//! A sample of a decision stands for all decisions since the one before it. The samples go to sketches of the kind
//! Space-Saving (Metwally, Agrawal and El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data
//! Streams", 2005): a full sketch gives the place of its smallest counter to a new one, with that count as its possible
//! error. Each sketch is about 20 seconds.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::sharded::Sharded;

/// The time of a sketch, in nanoseconds.
const SLICE: u64 = 20_000_000_000;

/// The sketches kept: ten minutes and the current one.
const SLICES: usize = 31;

/// The counters of a sketch. With the names, all sketches take at most 8 MB.
const COUNTERS: usize = 128;

/// The samples of a slice after which the gap between samples doubles, up to [`MAX_GAP`].
const STEP: u32 = 256;

/// The mean number of decisions for each sample when there are many.
const MAX_GAP: u32 = 128;

/// `WEIR_HOT_KEYS`: whether hot keys are found, and how they are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HotKeyValues {
    #[default]
    Off,
    /// Values are replaced by a mark.
    Masked,
    Shown,
}

#[derive(Debug)]
pub struct HotKeys {
    lanes: Sharded<Lane>,
    gap: AtomicU32,
    slices: Mutex<Slices>,
}

/// A thread's way to its next sample: the decisions until then in the low half, those that it stands for in the high
/// half. Threads that share a lane may lose a decision between two samples.
#[derive(Debug, Default)]
struct Lane(AtomicU64);

#[derive(Debug, Default)]
struct Slices {
    /// By the number of the slice since the epoch, modulo their number.
    ring: Vec<Slice>,
    /// The state of the random numbers of gaps; not 0.
    random: u64,
}

#[derive(Debug, Default)]
struct Slice {
    number: u64,
    samples: u32,
    hits: Sketch,
    rejections: Sketch,
}

#[derive(Debug, Default)]
struct Sketch {
    counters: Vec<HotKey>,
    places: HashMap<Key, usize, foldhash::fast::RandomState>,
}

/// The identity of a counter: uniformly distributed bits.
pub type Key = [u64; 2];

#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The decisions that it stands for, itself included.
    pub weight: u32,
    pub key: Key,
    pub hits: u64,
    pub is_rejected: bool,
    /// The share of the limit that is used, from 0 to 1.
    pub used: f32,
    /// The time, in nanoseconds since the epoch.
    pub at: u64,
}

/// A counter with its estimated hits.
#[derive(Clone, Debug)]
pub struct HotKey {
    pub key: Key,
    pub name: Arc<HotName>,
    pub hits: u64,
    /// How many of them may be those of other counters.
    pub of_others: u64,
    variance: f64,
    /// The share of the limit that was used at the last sample, from 0 to 1.
    pub used: f32,
}

/// The keys and values of a descriptor.
pub type HotEntries = Box<[(Box<str>, Box<str>)]>;

/// What names a counter to a person.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HotName {
    /// Its rule and its entries, shortened.
    pub text: Box<str>,
    /// Its entries, shortened.
    pub entries_text: Box<str>,
    /// None for a limit that came with the request.
    pub rule: Option<Box<str>>,
    pub domain: Box<str>,
    /// The keys and values; none if they are too long to be kept.
    pub entries: Option<HotEntries>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Hits,
    Rejections,
}

// === impl HotKeys ===

impl Default for HotKeys {
    fn default() -> Self {
        Self {
            lanes: Sharded::default(),
            gap: AtomicU32::new(1),
            slices: Mutex::new(Slices { ring: Vec::new(), random: 0x9e37_79b9_7f4a_7c15 }),
        }
    }
}

impl HotKeys {
    /// Counts a decision. Returns the number of decisions that it stands for if it is sampled.
    #[inline]
    pub fn sampled(&self) -> Option<u32> {
        let lane = &self.lanes.own().0;
        let state = lane.load(Ordering::Relaxed);
        #[expect(clippy::cast_possible_truncation, reason = "it is the low half")]
        let left = state as u32;
        if left > 1 {
            // a load and a store: a decision that another thread of the lane counts meanwhile may get lost
            lane.store(state - 1, Ordering::Relaxed);
            return None;
        }
        Some(u32::try_from(state >> 32).unwrap_or(u32::MAX).max(1))
    }

    #[cold]
    pub fn add(&self, sample: Sample, name: impl FnOnce() -> HotName) {
        let mut slices = self.slices.lock();
        let (number, mut name) = (sample.at / SLICE, Some(name));
        let slice = slices.at(number);
        slice.samples = slice.samples.saturating_add(1);
        let doublings = (slice.samples / STEP).min(MAX_GAP.ilog2());
        let mut text = None;
        let mut named = || -> Arc<HotName> {
            Arc::clone(
                text.get_or_insert_with(|| Arc::new(name.take().map(|name| name()).unwrap_or_default())),
            )
        };
        slice.hits.add(&sample, &mut named);
        if sample.is_rejected {
            slice.rejections.add(&sample, &mut named);
        }
        let gap = 1 << doublings;
        self.gap.store(gap, Ordering::Relaxed);
        // from 1 to twice the mean, so that no rhythm of the requests is always or never met
        let next = 1 + slices.random() % u64::from(2 * gap - 1);
        self.lanes.own().0.store(u64::from(gap) << 32 | next, Ordering::Relaxed);
    }

    /// Returns the hits and the rejected hits of `key` in each slice of the last `nanos` before `now`, the oldest first.
    /// None if it has no counter in any.
    pub fn history(&self, key: Key, nanos: u64, now: u64) -> Option<Vec<[u64; 2]>> {
        let (last, count) = (now / SLICE, nanos.div_ceil(SLICE));
        let slices = self.slices.lock();
        let of = |sketch: &Sketch| sketch.places.get(&key).map(|place| sketch.counters[*place].hits);
        let mut history = Vec::new();
        let mut is_known = false;
        for number in (last + 1).saturating_sub(count)..=last {
            let slice = slices.ring.iter().find(|slice| slice.number == number);
            let hits = slice.and_then(|slice| of(&slice.hits));
            is_known |= hits.is_some();
            let rejected = slice.and_then(|slice| of(&slice.rejections)).unwrap_or_default();
            history.push([hits.unwrap_or_default(), rejected]);
        }
        is_known.then_some(history)
    }

    /// Returns the mean number of decisions for each sample at present.
    pub fn gap(&self) -> u32 {
        self.gap.load(Ordering::Relaxed)
    }

    /// Returns up to `most` counters with the most hits of the last `nanos` before `now`, and of up to 20 seconds more.
    pub fn top(&self, by: By, nanos: u64, now: u64, most: usize) -> Vec<HotKey> {
        let (last, count) = (now / SLICE, nanos.div_ceil(SLICE) + 1);
        let slices = self.slices.lock();
        let sketches: Vec<&Sketch> = slices
            .ring
            .iter()
            .filter(|slice| slice.number <= last && slice.number + count > last)
            .map(|slice| match by {
                By::Hits => &slice.hits,
                By::Rejections => &slice.rejections,
            })
            .collect();
        let mut merged: HashMap<Key, (HotKey, u64), foldhash::fast::RandomState> = HashMap::default();
        let uncounted = sketches.iter().fold(0, |sum: u64, sketch| sum.saturating_add(sketch.least()));
        for sketch in sketches {
            let of_uncounted = sketch.least();
            for counter in &sketch.counters {
                let (all, absent) = merged.entry(counter.key).or_insert_with(|| {
                    (HotKey { hits: 0, of_others: 0, variance: 0.0, ..counter.clone() }, uncounted)
                });
                all.hits = all.hits.saturating_add(counter.hits);
                all.of_others = all.of_others.saturating_add(counter.of_others);
                all.variance += counter.variance;
                all.used = counter.used;
                // where it has a counter, nothing is missing
                *absent = absent.saturating_sub(of_uncounted);
            }
        }
        drop(slices);
        let missing = |(mut key, absent): (HotKey, u64)| {
            key.of_others = key.of_others.saturating_add(absent);
            key
        };
        let mut top: Vec<HotKey> = merged.into_values().map(missing).collect();
        top.sort_unstable_by(|a, b| b.hits.cmp(&a.hits).then_with(|| a.name.text.cmp(&b.name.text)));
        top.truncate(most);
        top
    }
}

// === impl Slices ===

impl Slices {
    fn at(&mut self, number: u64) -> &mut Slice {
        if self.ring.is_empty() {
            self.ring.resize_with(SLICES, Slice::default);
        }
        let place = usize::try_from(number % SLICES as u64).unwrap_or_default();
        let slice = &mut self.ring[place];
        // a later one if the clock has stepped back by all slices
        if slice.number != number {
            *slice = Slice { number, ..Slice::default() };
        }
        slice
    }

    /// xorshift64.
    const fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

// === impl Sketch ===

impl Sketch {
    fn add(&mut self, sample: &Sample, name: &mut impl FnMut() -> Arc<HotName>) {
        let hits = sample.hits.saturating_mul(sample.weight.into());
        let place = match self.places.get(&sample.key) {
            Some(place) => *place,
            None => self.place_of_new(sample.key, name()),
        };
        let counter = &mut self.counters[place];
        counter.hits = counter.hits.saturating_add(hits);
        counter.used = sample.used;
        if sample.weight > 1 {
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let hits = hits as f64;
            counter.variance += hits * hits;
        }
    }

    fn place_of_new(&mut self, key: Key, name: Arc<HotName>) -> usize {
        let new = HotKey { key, name, hits: 0, of_others: 0, variance: 0.0, used: 0.0 };
        let smallest = (0..self.counters.len()).min_by_key(|place| self.counters[*place].hits);
        let place = match smallest {
            Some(place) if self.counters.len() >= COUNTERS => {
                let replaced = std::mem::replace(&mut self.counters[place], new);
                self.places.remove(&replaced.key);
                let counter = &mut self.counters[place];
                (counter.hits, counter.of_others) = (replaced.hits, replaced.hits);
                place
            }
            _ => {
                self.counters.push(new);
                self.counters.len() - 1
            }
        };
        self.places.insert(key, place);
        place
    }

    /// Returns the most hits that a key without a counter may have.
    fn least(&self) -> u64 {
        if self.counters.len() < COUNTERS {
            return 0;
        }
        self.counters.iter().map(|counter| counter.hits).min().unwrap_or_default()
    }
}

// === impl HotKey ===

impl HotKey {
    /// By how many hits the estimate may be wrong: what sampling adds with 95 % probability, and the hits of others.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an estimate above 0")]
    pub fn error(&self) -> u64 {
        self.of_others.saturating_add((2.0 * self.variance.sqrt()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000_000;
    const NOW: u64 = 1_700_000_000_000_000_000;

    fn named(text: &str) -> HotName {
        HotName { text: text.into(), ..HotName::default() }
    }

    fn decide(hot: &HotKeys, key: u64, is_rejected: bool, at: u64) {
        if let Some(weight) = hot.sampled() {
            let sample = Sample { weight, key: [key, key], hits: 1, is_rejected, used: 0.5, at };
            hot.add(sample, || named(&format!("k{key}")));
        }
    }

    #[test]
    fn few_decisions_are_counted_exactly() {
        let hot = HotKeys::default();
        for i in 0..100 {
            decide(&hot, i % 3, i % 3 == 1, NOW);
        }
        let top: Vec<_> =
            hot.top(By::Hits, MINUTE, NOW, 2).into_iter().map(|key| (key.hits, key.error())).collect();
        assert_eq!(top, [(34, 0), (33, 0)]);
        let rejected = hot.top(By::Rejections, MINUTE, NOW, 9);
        assert_eq!((rejected.len(), &*rejected[0].name.text, rejected[0].hits), (1, "k1", 33));
    }

    /// A third of the hits is one key's, and the others are a flood of keys that nobody asks for twice.
    #[test]
    fn a_hot_key_is_found_in_a_flood_within_the_printed_error() {
        let hot = HotKeys::default();
        let decisions = 300_000_u64;
        for i in 0..decisions {
            decide(&hot, if i % 3 == 0 { 7 } else { 1_000 + i }, false, NOW + i * 100_000);
        }
        let end = NOW + decisions * 100_000;
        let top = hot.top(By::Hits, MINUTE, end, 1);
        let (hits, error) = (top[0].hits, top[0].error());
        assert_eq!(&*top[0].name.text, "k7");
        let off = hits.abs_diff(decisions / 3);
        assert!(off <= error && error < decisions / 6, "{hits} of {}, error {error}", decisions / 3);
        // what is older is no longer of this minute
        assert!(hot.top(By::Hits, MINUTE, end + 2 * MINUTE, 1).is_empty());
        assert_eq!(hot.top(By::Hits, 10 * MINUTE, end + 2 * MINUTE, 1)[0].hits, hits);
        assert!(hot.top(By::Hits, 10 * MINUTE, end + 12 * MINUTE, 1).is_empty());
    }

    #[test]
    fn the_last_decisions_are_there_after_the_clock_has_stepped_back() {
        let hot = HotKeys::default();
        for slice in 0..SLICES as u64 {
            decide(&hot, 1, false, NOW + slice * SLICE);
        }
        let before = NOW - 60 * MINUTE;
        decide(&hot, 2, false, before);
        let top = hot.top(By::Hits, MINUTE, before, 2);
        assert_eq!((top.len(), &*top[0].name.text), (1, "k2"));
    }

    /// A request chooses how many hits it has.
    #[test]
    fn as_many_hits_as_there_can_be_stay_on_top() {
        let hot = HotKeys::default();
        for (key, hits) in [(1, u64::MAX), (2, 5), (1, 7)] {
            let at = NOW + hits % 2 * SLICE;
            let sample = Sample { weight: 1, key: [key, key], hits, is_rejected: false, used: 1.0, at };
            hot.add(sample, || named(&format!("k{key}")));
            let sample = Sample { weight: 1, key: [key, key], hits, is_rejected: false, used: 1.0, at: NOW };
            hot.add(sample, || named(&format!("k{key}")));
        }
        let top = hot.top(By::Hits, MINUTE, NOW + SLICE, 1);
        assert_eq!((&*top[0].name.text, top[0].hits), ("k1", u64::MAX));
    }

    #[test]
    fn memory_is_bounded_whatever_keys_there_are() {
        let hot = HotKeys::default();
        for i in 0..200_000 {
            let sample = Sample {
                weight: 1,
                key: [i, i],
                hits: 1,
                is_rejected: true,
                used: 1.0,
                at: NOW + i * 10_000_000,
            };
            hot.add(sample, HotName::default);
        }
        let slices = hot.slices.lock();
        let held: usize =
            slices.ring.iter().map(|slice| slice.hits.counters.len() + slice.rejections.counters.len()).sum();
        assert_eq!(held, 2 * SLICES * COUNTERS);
        assert!(slices.ring.iter().all(|slice| slice.hits.places.len() == COUNTERS));
    }
}
