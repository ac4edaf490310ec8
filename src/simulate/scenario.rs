use std::sync::Arc;

use clap::ValueEnum;
use weir_coordinate::simulated::{Network, Random};
use weir_limit::{
    Domain, KeyHasher, Limit, OverLimitPolicy, Period, Rule, RuleCoordination, RuleNode, RuleSet, Tier,
    Timestamp, Values,
};

/// The requests of all modes together: a mode takes some seconds for a million.
const MAX_REQUESTS: f64 = 6e6;

/// Bounds the memory of a mode: every decision is kept until the end.
const MAX_REQUESTS_OF_MODE: f64 = 3e6;

/// How often all instances do one kind of background work in a mode, which takes seconds.
const MAX_STEPS: f64 = 1e6;

const FEWEST_WINDOWS: u32 = 2;

/// The least limit for each instance: enough for each mode to do as it does with a larger one.
const LEAST_LIMIT: usize = 500;

/// The longest sleep of what makes the turns of lines in memory.
pub(super) const LONGEST_SLEEP: Period = Period::from_millis(100);

pub(super) const DOMAIN: &str = "simulated";

const MAX_INSTANCES: usize = 1_000;

const HEARTBEAT: Period = Period::from_secs(1);

const WARM_UP: u64 = 10;

/// For longer periods, heartbeats and sweeps become rarer: in the windows of a day there would be millions.
const LONG: Period = Period::from_secs(3_600);

#[derive(Clone, Debug)]
pub struct Scenario {
    /// Instances of weir, 1 to 1,000.
    pub instances: usize,
    /// The number of keys, at least 1. Each has the limit for itself.
    pub keys: usize,
    /// The limit that they share. Admits at least one request.
    pub tier: Tier,
    /// The offered load of each key on average, as a multiple of what the limit admits. Above 0.
    pub load: f64,
    pub arrivals: Arrivals,
    pub skew: Skew,
    pub network: Network,
    /// The largest error of the instances' clocks, in either direction.
    pub clock_skew: Period,
    /// The number of periods of the limit during which requests arrive, at least 1.
    pub windows: u32,
    /// Seeds the random number generator: equal seeds give equal simulations.
    pub seed: u64,
}

/// When requests arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Arrivals {
    /// At random and independently, each for a random key.
    #[default]
    Random,
    /// All requests of one key and period at once, at a random time in the period.
    AtOnce,
    /// In equal gaps.
    Steady,
    /// At random, with three times the average rate in the middle fifth of the time, and half of it otherwise.
    Peak,
}

/// How requests are spread over instances. Each request goes to a random instance, as with a load balancer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Skew {
    /// Each instance gets an equal share.
    #[default]
    Even,
    /// The second gets half as many as the first, the third a third, and so on.
    Zipf,
    /// The first tenth of the instances gets 90 % of the requests in the first half of the time, then the last tenth.
    Moving,
}

// === impl Scenario ===

impl Scenario {
    /// Returns why the scenario cannot be simulated, if so.
    pub fn check(&self) -> Result<(), &'static str> {
        if !(1..=MAX_INSTANCES).contains(&self.instances) {
            Err("1 to 1000 instances can be simulated")
        } else if self.tier.requests == 0 || self.tier.capacity() == 0 {
            Err("a limit of 0 admits nothing: there is nothing to simulate")
        } else if !self.load.is_finite() || self.load <= 0.0 {
            Err("the load must be above 0, such as 2 for twice the limit")
        } else if self.keys == 0 {
            Err("at least one key must be simulated")
        } else if self.windows == 0 {
            Err("at least one window must be simulated")
        } else {
            Ok(())
        }
    }

    /// Returns fewer periods, then fewer keys, then a smaller limit, then less load: `modes` take less than a minute.
    pub fn shortened(&self, modes: usize) -> Self {
        let most = (MAX_REQUESTS / modes.max(1) as f64).min(MAX_REQUESTS_OF_MODE);
        let mut part = self.clone();
        let excess = |part: &Self| part.requests() / most;
        let fewer = excess(&part).max(part.steps(part.by_period(HEARTBEAT)) / MAX_STEPS);
        if fewer > 1.0 {
            let windows = (f64::from(self.windows) / fewer) as u32;
            part.windows = windows.max(FEWEST_WINDOWS.min(self.windows));
        }
        if excess(&part) > 1.0 {
            part.keys = ((self.keys as f64 / excess(&part)) as usize).max(1);
        }
        if excess(&part) > 1.0 {
            let least = u32::try_from(LEAST_LIMIT * self.instances).unwrap_or(u32::MAX);
            let requests = (f64::from(self.tier.requests) / excess(&part)) as u32;
            part.tier = reduced(&self.tier, requests.max(least));
        }
        part.load /= excess(&part).max(1.0);
        part
    }

    /// Says what of it `part` has, if that is less than all of it.
    pub fn shortened_to(&self, part: &Self) -> Option<String> {
        let mut less = Vec::new();
        if part.windows < self.windows {
            less.push(format!("{} periods instead of {}", part.windows, self.windows));
        }
        if part.keys < self.keys {
            less.push(format!("{} keys instead of {}", part.keys, self.keys));
        }
        if part.tier.requests < self.tier.requests {
            let (requests, whole) = (part.tier.requests, self.tier.requests);
            less.push(format!("a limit of {requests} instead of {whole}, and its requests in proportion"));
        }
        if part.load < self.load {
            let (load, whole) = (significant(part.load), significant(self.load));
            less.push(format!("{load} times the limit offered instead of {whole} times"));
        }
        (!less.is_empty()).then(|| {
            format!("scaled down, since all of it could take longer than a minute: {}", less.join("; "))
        })
    }

    /// How often all instances do what each does once in `interval`.
    fn steps(&self, interval: Period) -> f64 {
        let time = self.tier.period.as_nanos() as f64 * f64::from(self.windows);
        time / interval.as_nanos().max(1) as f64 * self.instances as f64
    }

    fn requests(&self) -> f64 {
        self.keys as f64 * f64::from(self.tier.requests) * self.load * f64::from(self.windows)
    }

    /// Says what is simulated: instances, limit, offered load and how it is spread.
    pub fn title(&self) -> String {
        let Self { instances, tier, keys, load, .. } = self;
        let plural = if *instances == 1 { "" } else { "s" };
        let keys = if *keys == 1 { String::new() } else { format!(" for each of {keys} keys") };
        let arrivals = match self.arrivals {
            Arrivals::Random => "",
            Arrivals::AtOnce => " at once",
            Arrivals::Steady => " in equal gaps",
            Arrivals::Peak => " on average, with a peak",
        };
        let spread = match self.skew {
            Skew::Even => "evenly",
            Skew::Zipf => "by Zipf's law",
            Skew::Moving => "by a tenth of them that gets 90 %, others from half of the time on",
        };
        let (load, rate) = (significant(*load), significant(self.rate() / self.keys as f64));
        format!(
            "{instances} instance{plural}, {tier}{keys}, {load} times the limit offered{arrivals} ({rate} a second), \
             spread {spread}"
        )
    }

    /// Per second, of all keys.
    pub(super) fn rate(&self) -> f64 {
        let seconds = self.tier.period.as_nanos() as f64 / 1e9;
        self.keys as f64 * f64::from(self.tier.requests) * self.load / seconds
    }

    /// The start of a window, late enough after the epoch for skewed clocks.
    pub(super) const fn begin(&self) -> Timestamp {
        Timestamp::from_secs(1_700_000_000).window_end(self.tier.period)
    }

    /// The time between two heartbeats, sweeps or the like, which is `interval` outside simulations. It is longer, in
    /// proportion, for limits of more than an hour, or where many instances would do the work millions of times.
    pub fn rarer(&self, interval: Period) -> Period {
        let by_period = self.by_period(interval);
        times(by_period, (self.steps(by_period) / MAX_STEPS).ceil() as u64)
    }

    fn by_period(&self, interval: Period) -> Period {
        times(interval, self.tier.period.as_nanos() / LONG.as_nanos())
    }

    /// The instances run for this time before the first request, so that they discover each other.
    pub(super) fn warm_up(&self) -> Period {
        times(self.rarer(HEARTBEAT), WARM_UP)
    }

    pub(super) const fn end(&self) -> Timestamp {
        let all = self.tier.period.as_nanos().saturating_mul(self.windows as u64);
        self.begin().after(Period::from_nanos(all))
    }

    pub fn rules(&self, coordination: RuleCoordination) -> Arc<RuleSet> {
        Arc::new(self.rule_set(coordination))
    }

    /// As [`Scenario::rules`], for one owner.
    pub fn rule_set(&self, coordination: RuleCoordination) -> RuleSet {
        let limit =
            Limit::Tiers { tiers: [self.tier.clone()].into(), over_limit_policy: OverLimitPolicy::Ignore };
        let rule = Rule { coordination, ..Rule::new(limit) };
        let node = RuleNode { rule: Some(rule), ..RuleNode::new("key", Values::Any) };
        let domain = Domain::new(DOMAIN, vec![node]);
        RuleSet::new(&[domain], KeyHasher::with_secret([self.seed, 0]))
    }
}

fn times(period: Period, factor: u64) -> Period {
    period * factor.max(1)
}

fn reduced(tier: &Tier, requests: u32) -> Tier {
    let requests = requests.min(tier.requests);
    let in_proportion = |burst: u32| {
        let reduced = u64::from(burst) * u64::from(requests) / u64::from(tier.requests.max(1));
        u32::try_from(reduced).unwrap_or(u32::MAX).max(1)
    };
    tier.with_limits(requests, in_proportion(tier.capacity()))
}

/// With three significant digits, or as many as it has before the point.
pub(super) fn significant(number: f64) -> String {
    let digits = (2.0 - number.abs().max(f64::MIN_POSITIVE).log10().floor()).clamp(0.0, 9.0) as usize;
    let text = format!("{number:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    text.to_owned()
}

// === impl Skew ===

impl Skew {
    /// Cumulative weights, for [`choose`]. `is_late` is the second half of the time.
    pub(super) fn spread(self, instances: usize, is_late: bool) -> Vec<f64> {
        let hot = (instances / 10).max(1);
        let is_hot = |i: usize| if is_late { i + hot >= instances } else { i < hot };
        let weight = |i: usize| match self {
            Self::Even => 1.0,
            Self::Zipf => 1.0 / (i + 1) as f64,
            Self::Moving if is_hot(i) => 0.9 / hot as f64,
            Self::Moving => 0.1 / (instances - hot) as f64,
        };
        let sums = (0..instances).scan(0.0, |sum, i| {
            *sum += weight(i);
            Some(*sum)
        });
        sums.collect()
    }
}

pub(super) fn choose(spread: &[f64], random: &mut Random) -> usize {
    let at = random.unit() * spread.last().copied().unwrap_or(0.0);
    spread.partition_point(|sum| *sum <= at).min(spread.len().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_limit::Bucket;

    fn scenario() -> Scenario {
        Scenario {
            instances: 3,
            keys: 1,
            tier: Tier::fixed_window(1_000, Period::from_secs(1)),
            load: 2.0,
            arrivals: Arrivals::Random,
            skew: Skew::Even,
            network: Network::default(),
            clock_skew: Period::default(),
            windows: 10,
            seed: 1,
        }
    }

    #[test]
    fn a_window_has_no_more_heartbeats_than_one_of_two_hours() {
        let day = 86_400;
        for (seconds, expected) in [(1, 1), (3_600, 1), (7_199, 1), (7_200, 2), (day, 24), (365 * day, 8_760)]
        {
            let tier = Tier { period: Period::from_secs(seconds), ..scenario().tier };
            let rarer = Scenario { tier, ..scenario() }.rarer(Period::from_secs(1));
            assert_eq!(rarer, Period::from_secs(expected), "{seconds} s");
            assert!(seconds / expected < 7_200, "{seconds} s");
        }
    }

    #[test]
    fn invalid_scenarios_are_rejected() {
        assert_eq!(scenario().check(), Ok(()));
        let none = Tier { requests: 0, ..scenario().tier };
        for (scenario, expected) in [
            (Scenario { instances: 0, ..scenario() }, "1 to 1000 instances"),
            (Scenario { instances: 1_001, ..scenario() }, "1 to 1000 instances"),
            (Scenario { load: 0.0, ..scenario() }, "the load must be above 0"),
            (Scenario { load: -1.0, ..scenario() }, "the load must be above 0"),
            (Scenario { load: f64::NAN, ..scenario() }, "the load must be above 0"),
            (Scenario { load: f64::INFINITY, ..scenario() }, "the load must be above 0"),
            (Scenario { keys: 0, ..scenario() }, "at least one key"),
            (Scenario { windows: 0, ..scenario() }, "at least one window"),
            (Scenario { tier: none, ..scenario() }, "a limit of 0"),
        ] {
            assert!(scenario.check().expect_err("it is invalid").starts_with(expected), "{expected}");
        }
    }

    fn shortened(scenario: Scenario) -> (Scenario, Scenario) {
        let part = scenario.shortened(5);
        assert!(part.requests() <= MAX_REQUESTS / 5.0 * 1.001, "{part:?}");
        assert!(part.steps(part.rarer(HEARTBEAT)) <= MAX_STEPS, "{part:?}");
        assert_eq!(part.check(), Ok(()));
        (scenario, part)
    }

    #[test]
    fn what_takes_long_is_shortened_and_the_answer_says_in_what() {
        let less = |scenario| {
            let (scenario, part) = shortened(scenario);
            scenario.shortened_to(&part)
        };
        let of = |requests, days: u64| Tier::fixed_window(requests, Period::from_secs(days * 86_400));
        assert_eq!(less(scenario()), None);
        let all = "scaled down, since all of it could take longer than a minute: ";
        for (scenario, expected) in [
            (
                Scenario { tier: of(1_000_000, 30), ..scenario() },
                "2 periods instead of 10; a limit of 300000 instead of 1000000, and its requests in proportion",
            ),
            (Scenario { keys: 250, ..scenario() }, "2 periods instead of 10"),
            (Scenario { keys: 20_000, ..scenario() }, "2 periods instead of 10; 300 keys instead of 20000"),
            (
                Scenario { load: 1e6, windows: 1, ..scenario() },
                "1200 times the limit offered instead of 1000000 times",
            ),
            // the heartbeats of as many instances
            (Scenario { tier: of(10, 1), windows: 900, ..scenario() }, "92 periods instead of 900"),
        ] {
            assert_eq!(less(scenario), Some(format!("{all}{expected}")));
        }
        let many = Scenario { instances: 1_000, tier: of(u32::MAX, 365), keys: 1_000_000, ..scenario() };
        shortened(Scenario { load: 1e9, windows: u32::MAX, ..many });
    }

    #[test]
    fn a_burst_is_reduced_as_its_limit_is() {
        let second = Period::from_secs(1);
        let bucket = |requests, burst| Tier::token_bucket(requests, second, Bucket::of(burst));
        for (tier, expected) in [
            (bucket(400, 200), bucket(100, 50)),
            (bucket(400, 1), bucket(100, 1)),
            (Tier::sliding_window(400, second), Tier::sliding_window(100, second)),
        ] {
            assert_eq!(reduced(&tier, 100), expected);
        }
        assert_eq!(reduced(&bucket(4, 2), 1_500), bucket(4, 2));
    }

    #[test]
    fn numbers_have_three_significant_digits() {
        for (number, text) in [
            (2.0, "2"),
            (0.2, "0.2"),
            (1.0 / 3.0, "0.333"),
            (83_333.4, "83333"),
            (12.345, "12.3"),
            (0.001, "0.001"),
        ] {
            assert_eq!(significant(number), text);
        }
    }

    #[test]
    fn requests_are_spread_according_to_the_skew() {
        let mut random = Random::new(1);
        let mut count = |skew: Skew, is_late: bool| {
            let (spread, mut counts) = (skew.spread(3, is_late), [0; 3]);
            for _ in 0..11_000 {
                counts[choose(&spread, &mut random)] += 1;
            }
            counts
        };
        for (got, expected) in count(Skew::Even, false).into_iter().zip([3_667_i32, 3_667, 3_667]) {
            assert!((got - expected).abs() < 200, "{got} {expected}");
        }
        for (got, expected) in count(Skew::Zipf, true).into_iter().zip([6_000_i32, 3_000, 2_000]) {
            assert!((got - expected).abs() < 200, "{got} {expected}");
        }
        for (got, expected) in count(Skew::Moving, false).into_iter().zip([9_900_i32, 550, 550]) {
            assert!((got - expected).abs() < 200, "{got} {expected}");
        }
        for (got, expected) in count(Skew::Moving, true).into_iter().zip([550_i32, 550, 9_900]) {
            assert!((got - expected).abs() < 200, "{got} {expected}");
        }
    }
}
