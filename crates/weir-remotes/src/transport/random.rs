//! Fast random numbers that are not secret: they spread expiries and reconnects.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::atomic::{AtomicU64, Ordering},
};

/// `SplitMix64` (Steele, Lea and Flood, 2014).
#[derive(Debug)]
pub(crate) struct RandomGenerator(AtomicU64);

impl RandomGenerator {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(RandomState::new().hash_one(0)))
    }

    pub(crate) fn next(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut x = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}
