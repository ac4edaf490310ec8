//! Which counters the disk may have, in memory: so that a counter that is new is decided about at once, and no read of
//! it holds up those of counters that the disk has.
//!
//! It is a Bloom filter (Bloom, "Space/Time Trade-offs in Hash Coding with Allowable Errors", 1970) whose bits for one
//! name are in one cache line (Putze, Sanders, Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", 2007). It
//! never misses a name that is there. Names that expire stay in it until it is filled anew.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwapOption;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Cache lines of 64 bytes: 16 MiB. 13 million names make 2 % of others seem to be there, and 50 million make it half.
const LINES: u64 = 1 << 18;

const WORDS: u64 = 8;

const BITS: u32 = 6;

#[derive(Debug)]
pub(super) struct KeyFilter {
    /// Clients choose names, and must not find any that have the same bits.
    seed: u64,
    /// None until all records have been found: then the disk may have every name.
    current: ArcSwapOption<Bits>,
    /// Takes the place of `current` once all records have been found.
    next: ArcSwapOption<Bits>,
}

#[derive(Debug)]
struct Bits(Box<[AtomicU64]>);

impl Default for KeyFilter {
    fn default() -> Self {
        let seed = RandomState::new().hash_one(0_u8);
        Self { seed, current: ArcSwapOption::empty(), next: ArcSwapOption::empty() }
    }
}

impl KeyFilter {
    pub(super) fn may_have(&self, name: &[u8]) -> bool {
        self.current.load().as_ref().is_none_or(|bits| bits.have(self.hash(name)))
    }

    /// Call it between the write and the eviction: whoever fills the next filter finds the record or this call.
    pub(super) fn insert(&self, name: &[u8]) {
        let hash = self.hash(name);
        // in this order, since the next one becomes the current one before it is taken away
        for bits in [&self.next, &self.current] {
            if let Some(bits) = bits.load().as_ref() {
                bits.insert(hash);
            }
        }
    }

    /// Begins to fill the next filter, with [`KeyFilter::insert`], of all records that are written.
    pub(super) fn begin(&self) {
        let words = (0..LINES * WORDS).map(|_| AtomicU64::new(0));
        self.next.store(Some(Arc::new(Bits(words.collect()))));
    }

    /// The next filter is used from now on if it has all records, and dropped otherwise.
    pub(super) fn end(&self, is_complete: bool) {
        if is_complete {
            self.current.store(self.next.load_full());
        }
        self.next.store(None);
    }

    fn hash(&self, name: &[u8]) -> u64 {
        xxh3_64_with_seed(name, self.seed)
    }
}

impl Bits {
    fn insert(&self, hash: u64) {
        for (word, bit) in places(hash) {
            self.0[word].fetch_or(bit, Ordering::Relaxed);
        }
    }

    fn have(&self, hash: u64) -> bool {
        places(hash).all(|(word, bit)| self.0[word].load(Ordering::Relaxed) & bit != 0)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a filter has few words")]
fn places(hash: u64) -> impl Iterator<Item = (usize, u64)> {
    let line = (hash >> 46) % LINES;
    // the lower 46 bits: six positions of which the first 5 have 9 bits each, and the last one a mix of all
    (0..BITS).map(move |i| {
        let position = if i < 5 { hash >> (9 * i) } else { hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 55 };
        let position = position % (WORDS * u64::from(u64::BITS));
        ((line * WORDS + position / 64) as usize, 1 << (position % 64))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(i: u32) -> [u8; 4] {
        i.to_be_bytes()
    }

    #[test]
    fn every_name_that_was_added_is_there_and_few_others_seem_to_be() {
        let filter = KeyFilter::default();
        assert!(filter.may_have(&name(1)), "nobody knows yet");
        filter.begin();
        (0..200_000).for_each(|i| filter.insert(&name(i)));
        assert!(filter.may_have(&name(1_000_000)), "nobody knows yet");
        filter.end(true);
        assert!((0..200_000).all(|i| filter.may_have(&name(i))));
        let wrong = (200_000..400_000).filter(|i| filter.may_have(&name(*i))).count();
        assert!(wrong < 20, "{wrong}");
    }

    #[test]
    fn what_is_written_while_a_filter_is_filled_is_in_both() {
        let filter = KeyFilter::default();
        filter.begin();
        filter.end(true);
        filter.insert(&name(1));
        filter.begin();
        filter.insert(&name(2));
        assert!(filter.may_have(&name(1)) && filter.may_have(&name(2)));
        filter.end(true);
        assert!(!filter.may_have(&name(1)) && filter.may_have(&name(2)));
        // one that lacks records is not used
        filter.begin();
        filter.end(false);
        assert!(filter.may_have(&name(2)));
    }
}
