//! Random numbers for what only has to be spread, such as expiries: quick, and nobody's secret.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::atomic::{AtomicU64, Ordering},
};

/// A source of random numbers: SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Debug)]
pub(super) struct RandomGenerator(AtomicU64);

impl RandomGenerator {
    /// A source like no other.
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(RandomState::new().hash_one(0)))
    }

    /// The next number.
    pub(super) fn next(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut x = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}
