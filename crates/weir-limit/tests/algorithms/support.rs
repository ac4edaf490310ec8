//! Random tiers and traffic, and a rule with its counters.

use proptest::{collection::vec, prelude::*, sample::select};
use weir_limit::{
    Algorithm, Bucket, Decision, Direction, Hits, OverLimitPolicy, Period, Refill, Tier, Timestamp,
    algorithm::CounterState, decide,
};

/// Periods from a tenth of a second to a year, some of which are not divisible into equal spans.
pub(crate) const PERIODS: [u64; 7] = [
    100_000_000,
    333_333_333,
    1_000_000_000,
    7_000_000_001,
    10_000_000_000,
    3_600_000_000_000,
    31_536_000_000_000_000,
];

pub(crate) fn algorithm() -> impl Strategy<Value = Algorithm> {
    let bucket = |strict| {
        (1..20_u32, select(&[Refill::Continuous, Refill::Step][..]))
            .prop_map(move |(burst, refill)| Algorithm::TokenBucket(Bucket { burst, refill, strict }))
    };
    prop_oneof![Just(Algorithm::FixedWindow), Just(Algorithm::SlidingWindow), bucket(false), bucket(true)]
}

pub(crate) fn tier() -> impl Strategy<Value = Tier> {
    (1..20_u32, select(&PERIODS[..]), algorithm())
        .prop_map(|(requests, period, algorithm)| Tier::new(requests, Period::from_nanos(period), algorithm))
}

/// A request for `hits`, `later` periods after the previous one. Most follow each other closely.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Try {
    pub(crate) later: f64,
    pub(crate) hits: u64,
}

pub(crate) fn tries(most: usize) -> impl Strategy<Value = Vec<Try>> {
    let later = prop_oneof![5 => 0.0..0.05, 2 => 0.0..0.5, 1 => 0.0..2.5, 1 => Just(0.0), 1 => Just(1.0)];
    let hits = prop_oneof![6 => Just(1), 2 => 1..6_u64, 1 => 1..25_u64];
    vec((later, hits).prop_map(|(later, hits)| Try { later, hits }), 1..most)
}

/// The same, but the clock steps back now and then, by up to two periods.
pub(crate) fn tries_with_steps_back(most: usize) -> impl Strategy<Value = Vec<Try>> {
    let back = prop_oneof![3 => -0.2..0.0, 1 => -2.0..0.0];
    (tries(most), vec(prop_oneof![4 => Just(None), 1 => back.prop_map(Some)], most)).prop_map(
        |(mut tries, steps)| {
            for (each, step) in tries.iter_mut().zip(steps) {
                each.later = step.unwrap_or(each.later);
            }
            tries
        },
    )
}

/// Returns the instant that is `share` periods after `now`, before it if negative.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(crate) fn later(now: Timestamp, tier: &Tier, share: f64) -> Timestamp {
    let nanos = (tier.period.as_nanos() as f64 * share.abs()) as u64;
    if share < 0.0 {
        return Timestamp::from_nanos(now.as_nanos() - nanos);
    }
    now.after(Period::from_nanos(nanos))
}

/// A rule with its counters.
#[derive(Clone)]
pub(crate) struct Rule {
    pub(crate) tiers: Vec<Tier>,
    pub(crate) counters: Vec<CounterState>,
}

impl Rule {
    pub(crate) fn new(tiers: Vec<Tier>, now: Timestamp) -> Self {
        let counters = tiers.iter().map(|tier| CounterState::unused(tier, now)).collect();
        Self { tiers, counters }
    }

    pub(crate) fn decide(&mut self, direction: Direction, hits: u64, now: Timestamp) -> Decision {
        decide(&self.tiers, &mut self.counters, OverLimitPolicy::Ignore, direction, Hits(hits), now)
    }

    pub(crate) fn take(&mut self, hits: u64, now: Timestamp) -> Decision {
        self.decide(Direction::Take, hits, now)
    }

    /// Returns whether `hits` would be admitted, without counting them.
    pub(crate) fn would_pass(&self, hits: u64, now: Timestamp) -> bool {
        !self.clone().take(hits, now).over
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.tiers.iter().map(|tier| u64::from(tier.capacity())).min().unwrap_or_default()
    }
}

pub(crate) const START: Timestamp = Timestamp::from_secs(1_700_000_000);

/// The admitted requests: the instant and the hits of each.
pub(crate) type Log = Vec<(Timestamp, u64)>;

/// Runs `tries` on `rule`, and returns the admitted requests.
pub(crate) fn run(rule: &mut Rule, tries: &[Try]) -> Log {
    let mut now = START;
    let mut admitted = Log::new();
    for Try { later: share, hits } in tries {
        now = later(now, &rule.tiers[0].clone(), *share);
        if !rule.take(*hits, now).over {
            admitted.push((now, *hits));
        }
    }
    admitted
}
