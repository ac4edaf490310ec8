//! The limits whose decisions are measured.

use weir_limit::{
    Algorithm, Bucket, Decision, Direction, Hits, OverLimitPolicy, Period, Refill, Tier, Timestamp,
    algorithm::CounterState, decide,
};

/// One rule's counters, in use.
#[derive(Clone)]
pub struct Case {
    pub tiers: Vec<Tier>,
    pub counters: Vec<CounterState>,
    pub now: Timestamp,
}

fn tier(requests: u32, seconds: u64, algorithm: Algorithm) -> Tier {
    Tier::new(requests, Period::from_secs(seconds), algorithm)
}

fn tiers(name: &str) -> Vec<Tier> {
    let bucket = |refill, strict| {
        vec![tier(1_000_000, 1, Algorithm::TokenBucket(Bucket { burst: 2_000_000_000, refill, strict }))]
    };
    match name {
        "sliding_window" => vec![tier(2_000_000_000, 10, Algorithm::SlidingWindow)],
        "token_bucket" => bucket(Refill::Continuous, false),
        "token_bucket_step" => bucket(Refill::Step, false),
        "token_bucket_strict" => bucket(Refill::Continuous, true),
        "two_tiers" => {
            vec![
                tier(2_000_000_000, 10, Algorithm::FixedWindow),
                tier(4_000_000_000, 3_600, Algorithm::FixedWindow),
            ]
        }
        "over_limit" => vec![tier(1, 10, Algorithm::FixedWindow)],
        _ => vec![tier(2_000_000_000, 10, Algorithm::FixedWindow)],
    }
}

impl Case {
    /// Creates the case `name`, after 15 seconds of hits.
    pub fn new(name: &str) -> Self {
        let tiers = tiers(name);
        let now = Timestamp::from_secs(1_700_000_000);
        let counters = tiers.iter().map(|tier| CounterState::unused(tier, now)).collect();
        let mut case = Self { tiers, counters, now };
        for _ in 0..1_500 {
            case.now = case.now.after(Period::from_millis(10));
            case.decide();
        }
        case
    }

    /// Decides one hit.
    // as in the program that measures it
    #[inline]
    pub fn decide(&mut self) -> Decision {
        decide(&self.tiers, &mut self.counters, OverLimitPolicy::Ignore, Direction::Take, Hits(1), self.now)
    }
}
