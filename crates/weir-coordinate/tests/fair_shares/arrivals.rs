//! Arrival patterns of the members of a pool, in cycles of 10 s.

use weir_limit::{
    Period, Timestamp,
    share::{Pool, PoolRule, Sharing},
};

pub(crate) const CYCLE: Period = Period::from_secs(10);

/// The milliseconds of a cycle.
pub(crate) const MILLIS: u32 = 10_000;

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 up to 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns the instants of a Poisson process of `rate` hits a cycle, from `from` until `until`.
    pub(crate) fn poisson(&mut self, rate: f64, from: f64, until: f64) -> Vec<u32> {
        let (mut at, mut instants) = (from, Vec::new());
        if rate <= 0.0 {
            return instants;
        }
        loop {
            at -= (1.0 - self.fraction()).ln() * f64::from(MILLIS) / rate;
            if at >= until {
                return instants;
            }
            instants.push(at as u32);
        }
    }
}

/// How a member sends its hits in each cycle.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrivals {
    /// At random, at this mean.
    Steady(f64),
    /// Evenly.
    Even(u32),
    /// This mean, and ten times as many in three of ten cycles.
    Spikes(f64),
    /// At random, in every second cycle.
    OnOff(f64),
    /// All within half a second at this part of the cycle; none: anywhere.
    Burst(u32, Option<f64>),
    /// The first in every fourth cycle, else the second.
    Rises(f64, f64),
    /// From half of this cycle on.
    From(u64, f64),
    /// These in each cycle, evenly.
    Each([u32; 5]),
}

impl Arrivals {
    pub(crate) fn of(self, random: &mut Random, cycle: u64) -> Vec<u32> {
        let whole = f64::from(MILLIS);
        match self {
            Self::Steady(rate) => random.poisson(rate, 0.0, whole),
            Self::Even(count) => (0..count)
                .map(|i| ((f64::from(i) + random.fraction()) * whole / f64::from(count)) as u32)
                .collect(),
            Self::Each(counts) => {
                Self::Even(counts.get(cycle as usize).copied().unwrap_or_default()).of(random, cycle)
            }
            Self::Spikes(rate) => {
                let times = if random.fraction() < 0.3 { 10.0 } else { 1.0 };
                random.poisson(rate * times, 0.0, whole)
            }
            Self::OnOff(rate) if cycle.is_multiple_of(2) => random.poisson(rate, 0.0, whole),
            Self::OnOff(_) => Vec::new(),
            Self::Burst(count, at) => {
                let at = at.unwrap_or_else(|| random.fraction() * 0.95);
                (0..count).map(|_| ((at + random.fraction() * 0.05) * whole) as u32).collect()
            }
            Self::Rises(high, low) => random.poisson(if cycle % 4 == 3 { high } else { low }, 0.0, whole),
            Self::From(first, _) if cycle < first => Vec::new(),
            Self::From(first, rate) => {
                random.poisson(rate, if cycle == first { whole / 2.0 } else { 0.0 }, whole)
            }
        }
    }
}

/// What happened in one cycle: for each member the hits that it asked for, and those that were admitted.
pub(crate) type Cycle = Vec<(u32, u32)>;

/// Runs a pool with this demand.
pub(crate) fn run(
    sharing: &Sharing,
    capacity: u32,
    members: &[(&str, Arrivals)],
    cycles: u64,
    seed: u64,
) -> Vec<Cycle> {
    let (mut random, mut pool) = (Random(seed), Pool::default());
    let rule = PoolRule { capacity, cycle: CYCLE, sharing };
    let mut ran = Vec::new();
    for cycle in 0..cycles {
        let mut events: Vec<(u32, u64, usize)> = Vec::new();
        for (i, (_, arrivals)) in members.iter().enumerate() {
            let instants = arrivals.of(&mut random, cycle);
            events.extend(instants.into_iter().map(|at| (at.min(MILLIS - 1), random.next(), i)));
        }
        events.sort_unstable();
        let mut counts: Cycle = vec![(0, 0); members.len()];
        for (at, _, i) in events {
            let now = Timestamp::from_millis(cycle * u64::from(MILLIS) + u64::from(at));
            let decision = pool.decide(&rule, members[i].0, 1, true, now);
            counts[i].0 += 1;
            counts[i].1 += u32::from(decision.is_admitted);
        }
        ran.push(counts);
    }
    ran
}
