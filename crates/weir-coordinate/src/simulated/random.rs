//! Reproducible random numbers: every random choice of a simulation comes from one seed.

/// `SplitMix64` (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014); not for secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

// === impl Random ===

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns an independent generator, for a part of a simulation that must not affect the numbers of other parts.
    pub const fn fork(&mut self) -> Self {
        Self(self.next())
    }

    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Returns a number that is uniform in [0, 1).
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact in a double")]
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn chance(&mut self, p: f64) -> bool {
        // uses no number for a probability of zero, so that unused faults do not change a run
        p > 0.0 && self.unit() < p
    }

    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_seed_others() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            (0..8).map(|_| random.next()).collect::<Vec<_>>()
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
    }

    #[test]
    fn numbers_have_the_stated_distributions() {
        let mut random = Random::new(1);
        let n = 100_000;
        let mean = |sum: f64| sum / f64::from(n);
        let units = mean((0..n).map(|_| random.unit()).sum());
        assert!((units - 0.5).abs() < 0.01, "{units}");
        let waits = mean((0..n).map(|_| random.exponential(3.0)).sum());
        assert!((waits - 3.0).abs() < 0.1, "{waits}");
        let happened = (0..n).filter(|_| random.chance(0.2)).count();
        assert!((19_000..21_000).contains(&happened), "{happened}");
    }
}
