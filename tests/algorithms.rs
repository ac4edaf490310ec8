//! The algorithms and tiers, held against their bounds and against slow models, on random traffic.

use proptest::{collection::vec, prelude::*, sample::select};
use weir::limit::{
    Algorithm, Bucket, Decision, Direction, Hits, OverLimitPolicy, Period, Refill, Tier, Timestamp,
    algorithm::CounterState, decide,
};

/// Periods from a tenth of a second to a year, some of which no number of slices divides.
const PERIODS: [u64; 7] = [
    100_000_000,
    333_333_333,
    1_000_000_000,
    7_000_000_001,
    10_000_000_000,
    3_600_000_000_000,
    31_536_000_000_000_000,
];

fn algorithm() -> impl Strategy<Value = Algorithm> {
    let bucket = |strict| {
        (1..20_u32, select(&[Refill::Continuous, Refill::Step][..]))
            .prop_map(move |(burst, refill)| Algorithm::TokenBucket(Bucket { burst, refill, strict }))
    };
    prop_oneof![Just(Algorithm::FixedWindow), Just(Algorithm::SlidingWindow), bucket(false), bucket(true)]
}

fn tier() -> impl Strategy<Value = Tier> {
    (1..20_u32, select(&PERIODS[..]), algorithm()).prop_map(|(requests, period, algorithm)| Tier {
        requests,
        period: Period::from_nanos(period),
        algorithm,
    })
}

/// A try: so much of the period later, for so many hits. Most tries follow each other closely.
#[derive(Clone, Copy, Debug)]
struct Try {
    later: f64,
    hits: u64,
}

fn tries(most: usize) -> impl Strategy<Value = Vec<Try>> {
    let later = prop_oneof![5 => 0.0..0.05, 2 => 0.0..0.5, 1 => 0.0..2.5, 1 => Just(0.0), 1 => Just(1.0)];
    let hits = prop_oneof![6 => Just(1), 2 => 1..6_u64, 1 => 1..25_u64];
    vec((later, hits).prop_map(|(later, hits)| Try { later, hits }), 1..most)
}

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn later(now: Timestamp, tier: &Tier, share: f64) -> Timestamp {
    now.after(Period::from_nanos((tier.period.as_nanos() as f64 * share) as u64))
}

/// One rule's counters.
#[derive(Clone)]
struct Rule {
    tiers: Vec<Tier>,
    counters: Vec<CounterState>,
}

impl Rule {
    fn new(tiers: Vec<Tier>, now: Timestamp) -> Self {
        let counters = tiers.iter().map(|tier| CounterState::unused(tier, now)).collect();
        Self { tiers, counters }
    }

    fn decide(&mut self, direction: Direction, hits: u64, now: Timestamp) -> Decision {
        decide(&self.tiers, &mut self.counters, OverLimitPolicy::Ignore, direction, Hits(hits), now)
    }

    fn take(&mut self, hits: u64, now: Timestamp) -> Decision {
        self.decide(Direction::Take, hits, now)
    }

    /// Whether `hits` would pass, without any effect.
    fn would_pass(&self, hits: u64, now: Timestamp) -> bool {
        !self.clone().take(hits, now).over
    }

    fn capacity(&self) -> u64 {
        self.tiers.iter().map(|tier| u64::from(tier.capacity())).min().unwrap_or_default()
    }
}

const START: Timestamp = Timestamp::from_secs(1_700_000_000);

/// Everything that was admitted: when, and how many hits.
type Log = Vec<(Timestamp, u64)>;

/// Runs the tries on one tier; asserts nothing.
fn run(rule: &mut Rule, tries: &[Try]) -> Log {
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

/// The bound of the specification, in every interval that begins and ends with something admitted.
fn check_bound(tier: &Tier, admitted: &Log) -> Result<(), TestCaseError> {
    let period = u128::from(tier.period.as_nanos());
    for (first, (begin, _)) in admitted.iter().enumerate() {
        let mut sum = 0_u128;
        for (end, hits) in &admitted[first..] {
            sum += u128::from(*hits);
            let lasted = u128::from(end.since(*begin).as_nanos());
            let (requests, capacity) = (u128::from(tier.requests), u128::from(tier.capacity()));
            match tier.algorithm {
                Algorithm::FixedWindow => {
                    if begin.window_end(tier.period) == end.window_end(tier.period) {
                        prop_assert!(sum <= requests, "{sum} in one window");
                    }
                }
                Algorithm::SlidingWindow => {
                    if lasted < period {
                        prop_assert!(sum <= requests, "{sum} in {lasted} ns");
                    }
                }
                Algorithm::TokenBucket(Bucket { refill: Refill::Continuous, .. }) => {
                    prop_assert!(
                        sum * period <= capacity * period + requests * lasted,
                        "{sum} in {lasted} ns"
                    );
                }
                Algorithm::TokenBucket(Bucket { refill: Refill::Step, .. }) => {
                    prop_assert!(sum <= capacity + requests * (lasted / period + 1), "{sum} in {lasted} ns");
                }
            }
        }
    }
    Ok(())
}

/// Whether a model that remembers everything that was admitted would admit `hits` too. `slack` makes it the most
/// forgiving (true) or the strictest (false) that the algorithm's docs allow.
fn model_admits(tier: &Tier, admitted: &Log, hits: u64, now: Timestamp, slack: bool) -> bool {
    let period = tier.period.as_nanos();
    match tier.algorithm {
        Algorithm::FixedWindow => {
            let window = now.window_end(tier.period);
            let in_window = admitted.iter().filter(|(at, _)| at.window_end(tier.period) == window);
            in_window.map(|(_, hits)| hits).sum::<u64>() + hits <= u64::from(tier.requests)
        }
        Algorithm::SlidingWindow => {
            // a hit counts for one period at least, and for a twelfth (in whole nanoseconds) more at most
            let counts_for = if slack { period } else { period + period.div_ceil(12) };
            let counting = admitted.iter().filter(|(at, _)| now.since(*at).as_nanos() < counts_for);
            counting.map(|(_, hits)| hits).sum::<u64>() + hits <= u64::from(tier.requests)
        }
        Algorithm::TokenBucket(bucket) => {
            // the level, in tokens times nanoseconds of the period: exact
            let unit = u128::from(period);
            let full = u128::from(bucket.burst) * unit;
            let mut level = full;
            let mut as_of = START;
            let mut refill = |level: &mut u128, at: Timestamp| {
                let elapsed = at.since(as_of).as_nanos();
                let lasted = match bucket.refill {
                    Refill::Continuous => elapsed,
                    Refill::Step => elapsed / period * period,
                };
                as_of = as_of.after(Period::from_nanos(lasted));
                *level = full.min(*level + u128::from(lasted) * u128::from(tier.requests));
            };
            for (at, hits) in admitted {
                refill(&mut level, *at);
                level -= u128::from(*hits) * unit;
            }
            refill(&mut level, now);
            // ours may lack a quarter of a billionth of a token for each hit that it admitted
            let lacking = if slack { 0 } else { 1 + ((admitted.len() as u128 * unit) >> 32) };
            level >= u128::from(hits) * unit + lacking
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_bound_holds_in_every_interval(tier in tier(), tries in tries(150)) {
        let admitted = run(&mut Rule::new(vec![tier.clone()], START), &tries);
        check_bound(&tier, &admitted)?;
    }

    #[test]
    fn agrees_with_a_model_that_remembers_everything(mut tier in tier(), tries in tries(100)) {
        // a strict bucket forgets time on purpose; it has properties of its own
        if let Algorithm::TokenBucket(bucket) = &mut tier.algorithm {
            bucket.strict = false;
        }
        let mut rule = Rule::new(vec![tier.clone()], START);
        let (mut now, mut admitted) = (START, Log::new());
        for Try { later: share, hits } in tries {
            now = later(now, &tier, share);
            let over = rule.take(hits, now).over;
            if over {
                prop_assert!(!model_admits(&tier, &admitted, hits, now, false), "denied {hits} at {now:?}");
            } else {
                prop_assert!(model_admits(&tier, &admitted, hits, now, true), "admitted {hits} at {now:?}");
                admitted.push((now, hits));
            }
        }
    }

    #[test]
    fn a_denied_request_passes_at_the_promised_instant_and_not_before(
        tiers in vec(tier(), 1..4),
        tries in tries(60),
    ) {
        let mut rule = Rule::new(tiers, START);
        let mut now = START;
        for Try { later: share, hits } in tries {
            now = later(now, &rule.tiers[0].clone(), share);
            let taken = rule.take(hits, now);
            if taken.over && hits <= rule.capacity() {
                let wait = taken.reset.as_nanos();
                prop_assert!(wait > 0);
                prop_assert!(rule.would_pass(hits, now.after(taken.reset)), "promised after {wait} ns");
                let early = now.after(Period::from_nanos(wait - 1));
                prop_assert!(!rule.would_pass(hits, early), "it could have passed before {wait} ns");
            }
        }
    }

    #[test]
    fn what_remains_is_what_passes(tiers in vec(tier(), 1..3), tries in tries(60)) {
        let mut rule = Rule::new(tiers, START);
        let mut now = START;
        for Try { later: share, hits } in tries {
            now = later(now, &rule.tiers[0].clone(), share);
            let taken = rule.take(hits, now);
            if rule.tiers.len() == 1 {
                let remaining = u64::from(taken.remaining);
                prop_assert!(remaining == 0 || rule.would_pass(remaining, now));
                prop_assert!(!rule.would_pass(remaining + 1, now));
            }
        }
    }

    #[test]
    fn tiers_are_all_or_nothing(tiers in vec(tier(), 2..4), tries in tries(80)) {
        let mut rule = Rule::new(tiers.clone(), START);
        // each tier by itself, told only of what all of them admitted
        let mut alone: Vec<Rule> = tiers.iter().map(|tier| Rule::new(vec![tier.clone()], START)).collect();
        let (mut now, mut admitted) = (START, Log::new());
        for Try { later: share, hits } in tries {
            now = later(now, &tiers[0], share);
            let all_admit = alone.iter().all(|rule| rule.would_pass(hits, now));
            let taken = rule.take(hits, now);
            prop_assert_eq!(!taken.over, all_admit);
            for rule in &mut alone {
                // a tier that admits is not told of a refusal by another
                if all_admit || !rule.would_pass(hits, now) {
                    rule.take(hits, now);
                }
            }
            if all_admit {
                admitted.push((now, hits));
            }
        }
        for tier in &tiers {
            check_bound(tier, &admitted)?;
        }
    }

    #[test]
    fn a_refund_undoes_a_take_and_a_peek_does_nothing(
        tier in tier(),
        before in tries(40),
        hits in 1..20_u64,
    ) {
        let mut rule = Rule::new(vec![tier.clone()], START);
        run(&mut rule, &before);
        let now = before.iter().fold(START, |now, each| later(now, &tier, each.later));
        let as_it_was = rule.clone();

        rule.take(0, now);
        prop_assert_eq!(&rule.counters, &as_it_was.counters, "a peek");

        if !rule.take(hits, now).over {
            rule.decide(Direction::GiveBack, hits, now);
        }
        for probe in 0..=u64::from(tier.capacity()) + 1 {
            prop_assert_eq!(
                rule.would_pass(probe, now), as_it_was.would_pass(probe, now), "{} after take and refund", probe
            );
        }
        rule.decide(Direction::GiveBack, u64::MAX, now);
        prop_assert!(rule.would_pass(u64::from(tier.capacity()), now), "all given back");
        prop_assert!(!rule.would_pass(u64::from(tier.capacity()) + 1, now), "but never past full");
    }

    #[test]
    fn a_changed_limit_applies_at_once_and_sanely(
        first in tier(),
        steps in vec((1..20_u32, 1..20_u32, 0.0..0.7_f64, 1..8_u64), 1..40),
    ) {
        let mut rule = Rule::new(vec![first.clone()], START);
        let mut now = START;
        for (requests, burst, share, hits) in steps {
            now = later(now, &first, share);
            let used = rule.take(0, now).before.0;
            let held = rule.counters[0].used().0;
            let tier = &mut rule.tiers[0];
            tier.requests = requests;
            if let Algorithm::TokenBucket(bucket) = &mut tier.algorithm {
                bucket.burst = burst;
            }
            let (tier, capacity) = (tier.clone(), u64::from(tier.capacity()));

            let after = rule.clone().take(0, now);
            prop_assert!(u64::from(after.remaining) <= capacity);
            match tier.algorithm {
                // exactly what the new limit leaves: more at once if raised, none if lowered below what is used
                Algorithm::FixedWindow | Algorithm::SlidingWindow => {
                    prop_assert_eq!(u64::from(after.remaining), capacity.saturating_sub(used));
                }
                Algorithm::TokenBucket(_) => {
                    prop_assert!(u64::from(after.remaining) >= capacity.saturating_sub(held));
                }
            }
            let taken = rule.take(hits, now);
            prop_assert!(taken.over || hits <= u64::from(after.remaining), "a stale grant");
            if taken.over && hits <= capacity {
                let period = tier.period.as_nanos();
                let longest = match tier.algorithm {
                    Algorithm::FixedWindow | Algorithm::SlidingWindow => period,
                    Algorithm::TokenBucket(Bucket { refill: Refill::Continuous, .. }) => {
                        (hits * period).div_ceil(requests.into())
                    }
                    Algorithm::TokenBucket(Bucket { refill: Refill::Step, .. }) => {
                        hits.div_ceil(requests.into()) * period
                    }
                };
                prop_assert!(taken.reset.as_nanos() <= longest, "{:?} of {longest}", taken.reset);
            }
        }
    }

    /// Whoever tries a strict bucket more often than a token flows in gets what is there and then nothing.
    #[test]
    fn a_strict_bucket_starves_who_does_not_wait(
        burst in 1..10_u32,
        refill in select(&[Refill::Continuous, Refill::Step][..]),
        shares in vec(0.01..0.99_f64, 20..60),
    ) {
        let bucket = Bucket { burst, refill, strict: true };
        let tier = Tier { requests: 1, period: Period::from_secs(10), algorithm: Algorithm::TokenBucket(bucket) };
        let mut rule = Rule::new(vec![tier.clone()], START);
        prop_assert!(!rule.take(burst.into(), START).over);
        let mut now = START;
        for share in shares {
            now = later(now, &tier, share);
            prop_assert!(rule.take(1, now).over);
        }
        prop_assert!(!rule.take(1, now.after(tier.period)).over);
    }

    #[test]
    fn under_steady_overload_the_limit_is_used(
        requests in 1..50_u32,
        period in select(&PERIODS[..6]),
        algorithm in algorithm(),
        overload in 2..10_u64,
        offset in 0.0..1.0_f64,
    ) {
        let mut tier = Tier { requests, period: Period::from_nanos(period), algorithm };
        if let Algorithm::TokenBucket(bucket) = &mut tier.algorithm {
            // steps that do not fit into the bucket are lost, and who keeps trying a strict one gets nothing: both by
            // definition
            bucket.burst = bucket.burst.max(requests);
            bucket.strict = false;
        }
        let periods = 30;
        let start = later(START, &tier, offset);
        let mut rule = Rule::new(vec![tier.clone()], start);
        let every = period / (u64::from(requests) * overload) + 1;
        let mut admitted = 0;
        for i in 0.. {
            let now = start.after(Period::from_nanos(every * i));
            if now.since(start).as_nanos() >= periods * period {
                break;
            }
            admitted += u64::from(!rule.take(1, now).over);
        }
        let all = periods * u64::from(requests);
        let share = if tier.algorithm == Algorithm::SlidingWindow { 90 } else { 99 };
        // the last window, step or token may still be under way
        let due = (all - u64::from(requests)) * share / 100;
        prop_assert!(admitted >= due, "{admitted} of {all}");
    }
}

#[test]
fn the_largest_limits_and_hits_are_exact() {
    for algorithm in [
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket(Bucket { burst: u32::MAX, refill: Refill::Continuous, strict: false }),
        Algorithm::TokenBucket(Bucket { burst: u32::MAX, refill: Refill::Step, strict: true }),
    ] {
        for period in [Period::from_millis(100), Period::from_secs(365 * 86_400)] {
            let all = u64::from(u32::MAX);
            let mut rule = Rule::new(vec![Tier { requests: u32::MAX, period, algorithm }], START);
            assert_eq!(rule.take(all - 1, START).remaining, 1, "{algorithm:?}");
            assert!(rule.take(2, START).over);
            assert!(!rule.take(1, START).over);
            assert!(rule.take(1, START).over);
            assert!(rule.take(u64::MAX, START).over);
            rule.decide(Direction::GiveBack, all, START);
            assert_eq!(rule.take(0, START).remaining, u32::MAX);
        }
    }
}
