//! The parameters of a simulation.

use std::sync::Arc;

use crate::{
    limit::{
        Domain, KeyHasher, Limit, OverLimitPolicy, Period, Rule, RuleCoordination, RuleNode, RuleSet, Tier,
        Timestamp, Values,
    },
    store::simulated::{Network, Random},
};

/// The most requests of one simulation, which bounds its memory: every decision is kept until the end.
const MAX_REQUESTS: f64 = 20e6;

/// The most steps of background work of all instances in one simulation, of which a mode takes minutes.
const MAX_STEPS: f64 = 5e6;

/// The longest time that is simulated, in nanoseconds: 500 years, which leaves room to the end of timestamps.
const MAX_TIME: f64 = 500.0 * 365.0 * 86_400e9;

/// The longest sleep of what makes the turns of lines in memory.
pub(super) const LONGEST_SLEEP: Period = Period::from_millis(100);

/// The domain of the simulated limit.
pub(super) const DOMAIN: &str = "simulated";

/// The most instances.
const MAX_INSTANCES: usize = 1_000;

/// The time of ten heartbeats.
const WARM_UP: Period = Period::from_secs(10);

/// The period of a limit from which heartbeats and sweeps become rarer, in proportion: in the windows of a day there
/// would be millions.
const LONG: Period = Period::from_secs(3_600);

/// The parameters of a simulation.
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
    /// When requests arrive.
    pub arrivals: Arrivals,
    /// How requests are spread over the instances.
    pub skew: Skew,
    /// The network between each instance and the store.
    pub network: Network,
    /// The largest error of the instances' clocks, in either direction.
    pub clock_skew: Period,
    /// The number of periods of the limit during which requests arrive, at least 1.
    pub windows: u32,
    /// Seeds the random number generator: equal seeds give equal simulations.
    pub seed: u64,
}

/// When requests arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrivals {
    /// At random and independently, each for a random key.
    #[default]
    Random,
    /// All requests of one key and period at once, at a random time in the period.
    AtOnce,
    /// In equal gaps.
    Steady,
    /// At random, three times as often as on average in the middle fifth of the time, and half as often before and
    /// after.
    Peak,
}

/// How requests are spread over instances. Each request goes to a random instance, as with a load balancer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Skew {
    /// Each instance gets an equal share.
    #[default]
    Even,
    /// The second gets half as many as the first, the third a third, and so on.
    Zipf,
    /// The first tenth of the instances gets 90 % of the requests in the first half of the time, and the last tenth in
    /// the second.
    Moving,
}

/// The reason why a scenario cannot be simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScenarioError {
    /// Too few or too many instances.
    #[error("{0} instances cannot be simulated, only 1 to {MAX_INSTANCES}")]
    Instances(usize),
    /// A limit of zero.
    #[error("a limit of 0 admits nothing: there is nothing to simulate")]
    NoLimit,
    /// The load is zero, negative or not finite.
    #[error("the load must be above 0, such as 2 for twice the limit")]
    NoLoad,
    /// No keys.
    #[error("at least one key must be simulated")]
    NoKeys,
    /// No windows.
    #[error("at least one window must be simulated")]
    NoWindows,
    /// More requests than can be simulated.
    #[error(
        "{0:.0} requests are too many, at most {MAX_REQUESTS:.0} can be simulated: take fewer windows, fewer keys, or a smaller limit"
    )]
    TooMany(f64),
    /// Takes too long.
    #[error(
        "{windows} periods of {period} take too long to simulate, of {instances} instances: take fewer or shorter ones"
    )]
    TooLong {
        /// The number of periods.
        windows: u32,
        /// The limit's period.
        period: Period,
        /// The number of instances.
        instances: usize,
    },
}

// === impl Scenario ===

impl Scenario {
    /// Checks that the scenario can be simulated.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let requests = self.requests();
        if !(1..=MAX_INSTANCES).contains(&self.instances) {
            Err(ScenarioError::Instances(self.instances))
        } else if self.tier.requests == 0 || self.tier.capacity() == 0 {
            Err(ScenarioError::NoLimit)
        } else if !self.load.is_finite() || self.load <= 0.0 {
            Err(ScenarioError::NoLoad)
        } else if self.keys == 0 {
            Err(ScenarioError::NoKeys)
        } else if self.windows == 0 {
            Err(ScenarioError::NoWindows)
        } else if requests > MAX_REQUESTS {
            Err(ScenarioError::TooMany(requests))
        } else {
            // its heartbeats
            self.check_steps(self.rarer(Period::from_secs(1)))
        }
    }

    /// Checks that the scenario can be simulated with callers that wait, whose lines are looked at often.
    pub fn check_waiting(&self) -> Result<(), ScenarioError> {
        self.check().and_then(|()| self.check_steps(LONGEST_SLEEP))
    }

    /// Checks that the scenario does not take too long if each instance works once in every `interval`.
    fn check_steps(&self, interval: Period) -> Result<(), ScenarioError> {
        let (windows, period, instances) = (self.windows, self.tier.period, self.instances);
        let time = period.as_nanos() as f64 * f64::from(windows);
        let steps = time / interval.as_nanos() as f64 * instances as f64;
        if time <= MAX_TIME && steps <= MAX_STEPS {
            Ok(())
        } else {
            Err(ScenarioError::TooLong { windows, period, instances })
        }
    }

    /// Returns the number of requests, on average.
    fn requests(&self) -> f64 {
        self.keys as f64 * f64::from(self.tier.requests) * self.load * f64::from(self.windows)
    }

    /// Says what is simulated: instances, limit, offered load and how it is spread.
    #[must_use]
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

    /// Returns the requests per second, of all keys.
    pub(super) fn rate(&self) -> f64 {
        let seconds = self.tier.period.as_nanos() as f64 / 1e9;
        self.keys as f64 * f64::from(self.tier.requests) * self.load / seconds
    }

    /// Returns the earliest arrival: the start of a window, late enough after the epoch for skewed clocks.
    pub(super) const fn begin(&self) -> Timestamp {
        Timestamp::from_secs(1_700_000_000).window_end(self.tier.period)
    }

    /// Returns the time between two heartbeats, or sweeps, that are `interval` apart outside simulations: as long, or
    /// in the proportion in which the limit's period is longer than an hour.
    #[must_use]
    pub fn rarer(&self, interval: Period) -> Period {
        let factor = (self.tier.period.as_nanos() / LONG.as_nanos()).max(1);
        Period::from_nanos(interval.as_nanos().saturating_mul(factor))
    }

    /// Returns the time for which the instances run before the first request, so that they discover each other.
    pub(super) fn warm_up(&self) -> Period {
        self.rarer(WARM_UP)
    }

    /// Returns the end of arrivals.
    pub(super) const fn end(&self) -> Timestamp {
        let all = self.tier.period.as_nanos().saturating_mul(self.windows as u64);
        self.begin().after(Period::from_nanos(all))
    }

    /// Returns rules with the limit, coordinated by `coordination`.
    #[must_use]
    pub fn rules(&self, coordination: RuleCoordination) -> Arc<RuleSet> {
        Arc::new(self.rule_set(coordination))
    }

    /// As [`Scenario::rules`], for one owner.
    #[must_use]
    pub fn rule_set(&self, coordination: RuleCoordination) -> RuleSet {
        let limit =
            Limit::Tiers { tiers: [self.tier.clone()].into(), over_limit_policy: OverLimitPolicy::Ignore };
        let rule = Rule { coordination, ..Rule::new(limit) };
        let node = RuleNode { rule: Some(rule), ..RuleNode::new("key", Values::Any) };
        let domain = Domain::new(DOMAIN, vec![node]);
        RuleSet::new(&[domain], KeyHasher::with_secret([self.seed, 0]))
    }
}

/// Formats a number with three significant digits, or as many as it has before the point.
pub(super) fn significant(number: f64) -> String {
    let digits = (2.0 - number.abs().max(f64::MIN_POSITIVE).log10().floor()).clamp(0.0, 9.0) as usize;
    let text = format!("{number:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    text.to_owned()
}

// === impl Skew ===

impl Skew {
    /// Returns the cumulative weights of `instances`, for [`choose`]; in the second half of the time if `is_late`.
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

/// Returns the instance for the next request, from cumulative weights.
pub(super) fn choose(spread: &[f64], random: &mut Random) -> usize {
    let at = random.unit() * spread.last().copied().unwrap_or(0.0);
    spread.partition_point(|sum| *sum <= at).min(spread.len().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Algorithm;

    fn scenario() -> Scenario {
        Scenario {
            instances: 3,
            keys: 1,
            tier: Tier { requests: 1_000, period: Period::from_secs(1), algorithm: Algorithm::FixedWindow },
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
        let instances = |instances| Scenario { instances, ..scenario() }.check();
        assert_eq!(instances(0), Err(ScenarioError::Instances(0)));
        assert_eq!(instances(1_001), Err(ScenarioError::Instances(1_001)));
        let load = |load| Scenario { load, ..scenario() }.check();
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(load(wrong), Err(ScenarioError::NoLoad));
        }
        assert!(matches!(load(1e6), Err(ScenarioError::TooMany(_))));
        assert!(matches!(Scenario { keys: 2_000, ..scenario() }.check(), Err(ScenarioError::TooMany(_))));
        assert_eq!(Scenario { keys: 0, ..scenario() }.check(), Err(ScenarioError::NoKeys));
        assert_eq!(Scenario { windows: 0, ..scenario() }.check(), Err(ScenarioError::NoWindows));
        let days = |days: u64, windows, instances| {
            let tier = Tier { requests: 1, period: Period::from_secs(days * 86_400), ..scenario().tier };
            Scenario { instances, tier, windows, ..scenario() }.check()
        };
        assert_eq!((days(365, 10, 3), days(365, 400, 3), days(1, 10, 96)), (Ok(()), Ok(()), Ok(())));
        for (windows, instances) in [(900, 3), (501, 1), (10, 1_000)] {
            assert!(matches!(days(365, windows, instances), Err(ScenarioError::TooLong { .. })), "{windows}");
        }
        let none = Tier { requests: 0, ..scenario().tier };
        assert_eq!(Scenario { tier: none, ..scenario() }.check(), Err(ScenarioError::NoLimit));
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
