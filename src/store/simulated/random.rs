//! Chance that repeats: every random choice of a simulation comes from one seed.

/// Pseudo-random numbers: `SplitMix64` (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
/// Good enough to choose delays by, and nothing else.
#[derive(Clone, Debug)]
pub struct Random(u64);

// === impl Random ===

impl Random {
    /// Numbers that are the same for the same `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Numbers of their own, for a part that must not disturb the others by how many it draws.
    #[must_use]
    pub const fn fork(&mut self) -> Self {
        Self(self.draw())
    }

    /// 64 bits.
    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Evenly from 0 up to, but not including, 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are just what a double holds")]
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Whether something happens that does with a probability of `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        // draws none for what never happens, so that a network without faults draws as many as it needs and no more
        p > 0.0 && self.unit() < p
    }

    /// The time until something happens that does once in `mean` on average, whenever it happened last.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_numbers_and_another_others() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..8).map(|_| random.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn numbers_are_spread_as_they_say() {
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
