//! What came of a simulation, against what the limit promises.

use super::{Outcome, Scenario, SimulatedDecision};
use crate::limit::{
    Algorithm, Direction, Hits, OverLimitPolicy, Period, Tier, Timestamp, algorithm::CounterState, decide,
};

/// What came of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulationMetrics {
    /// How far the limit was exceeded where it was exceeded most, as a share of what it admits: 0.17 is 17 % too many.
    /// Below zero if it was never reached. Of fixed windows it is told by the window, of the others by any interval.
    pub overshoot: f64,
    /// What was admitted as a share of what one counter for all would have admitted of the same requests, 1 at most: in
    /// fixed windows in the one where it is least, else over the whole time, for intervals that are not aligned to anything
    /// cannot be told apart.
    pub used: f64,
    /// Calls to the store for each decision.
    pub calls: f64,
    /// The share of decisions that waited for the store.
    pub waited: f64,
    /// How long those waited: half of them at most so long.
    pub typical_wait: Period,
    /// The longest of them.
    pub longest_wait: Period,
    /// The share of decisions that were made without the store, since it did not answer in time.
    pub fallback: f64,
    /// The share of requests that were not decided.
    pub undecided: f64,
}

/// What was admitted over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Seconds since the begin, and what was admitted: in the present window, or in the last period where windows slide.
    pub points: Vec<(f64, u64)>,
    /// What may be admitted at most.
    pub bound: u64,
    /// The length of a period, in seconds.
    pub period: f64,
}

/// What was admitted, in order of time.
struct Admitted {
    /// When each came.
    came: Vec<Timestamp>,
    /// When each was decided.
    decided: Vec<Timestamp>,
}

// === impl SimulationMetrics ===

impl SimulationMetrics {
    /// The figures of `outcome`, which is what came of `scenario`.
    #[must_use]
    pub fn of(scenario: &Scenario, outcome: &Outcome) -> Self {
        let decisions = &outcome.decisions;
        let share = |n: usize| n as f64 / decisions.len().max(1) as f64;
        let admitted = Admitted::of(decisions);
        let mut waits: Vec<Period> =
            decisions.iter().map(|decision| decision.decided.since(decision.came)).collect();
        waits.retain(|wait| *wait > Period::default());
        waits.sort_unstable();
        Self {
            overshoot: admitted.overshoot(scenario),
            used: admitted.used(scenario, decisions),
            calls: outcome.calls as f64 / decisions.len().max(1) as f64,
            waited: share(waits.len()),
            typical_wait: waits.get(waits.len().saturating_sub(1) / 2).copied().unwrap_or_default(),
            longest_wait: waits.last().copied().unwrap_or_default(),
            fallback: outcome.fallbacks as f64 / decisions.len().max(1) as f64,
            undecided: share(decisions.iter().filter(|decision| decision.passed.is_none()).count()),
        }
    }
}

// === impl Admitted ===

impl Admitted {
    fn of(decisions: &[SimulatedDecision]) -> Self {
        let admitted = || decisions.iter().filter(|decision| decision.passed == Some(true));
        let mut came: Vec<Timestamp> = admitted().map(|decision| decision.came).collect();
        let mut decided: Vec<Timestamp> = admitted().map(|decision| decision.decided).collect();
        came.sort_unstable();
        decided.sort_unstable();
        Self { came, decided }
    }

    /// How many both came and were decided from `from` up to, but not including, `to`. Somewhere between the two the store
    /// counted them: what only touches an interval may belong to the one beside it.
    fn within(&self, from: Timestamp, to: Timestamp) -> u64 {
        let before = self.came.partition_point(|came| *came < from);
        let by_then = self.decided.partition_point(|decided| *decided < to);
        by_then.saturating_sub(before) as u64
    }

    /// How many came or were decided within.
    fn touching(&self, from: Timestamp, to: Timestamp) -> u64 {
        let before = self.decided.partition_point(|decided| *decided < from);
        let by_then = self.came.partition_point(|came| *came < to);
        by_then.saturating_sub(before) as u64
    }

    fn overshoot(&self, scenario: &Scenario) -> f64 {
        let tier = &scenario.tier;
        let limit = f64::from(tier.requests);
        let over = |most: u64| most as f64 / limit - 1.0;
        match tier.algorithm {
            Algorithm::FixedWindow => {
                over(windows(scenario).map(|(from, to)| self.within(from, to)).max().unwrap_or(0))
            }
            Algorithm::SlidingWindow => {
                let most = self.came.iter().map(|from| self.within(*from, from.after(tier.period))).max();
                over(most.unwrap_or(0))
            }
            Algorithm::TokenBucket(bucket) => self.most_above_inflow(tier) / f64::from(bucket.burst) - 1.0,
        }
    }

    /// The most that was admitted in any interval above what flowed in meanwhile. A bucket promises its burst.
    fn most_above_inflow(&self, tier: &Tier) -> f64 {
        let rate = f64::from(tier.requests) / tier.period.as_nanos() as f64;
        let Some(begin) = self.came.first().copied() else { return 0.0 };
        let inflow = |at: Timestamp| rate * at.since(begin).as_nanos() as f64;
        // from `from`, the first that came then, to `to`, the last that was decided then: the best `from` so far for each
        let (mut most, mut best_from, mut i) = (0.0_f64, 0.0_f64, 0);
        for (j, to) in self.decided.iter().enumerate() {
            while i < self.came.len() && self.came[i] <= *to {
                best_from = best_from.max(inflow(self.came[i]) - i as f64);
                i += 1;
            }
            most = most.max((j + 1) as f64 - inflow(*to) + best_from);
        }
        most
    }

    fn used(&self, scenario: &Scenario, decisions: &[SimulatedDecision]) -> f64 {
        let mut came: Vec<Timestamp> = decisions.iter().map(|decision| decision.came).collect();
        came.sort_unstable();
        let share = |admitted: u64, possible: u64| (admitted as f64 / possible.max(1) as f64).min(1.0);
        if scenario.tier.algorithm != Algorithm::FixedWindow {
            return share(self.came.len() as u64, by_one_counter(&scenario.tier, &came));
        }
        let used = windows(scenario).map(|(from, to)| {
            let offered = came.partition_point(|came| *came < to) - came.partition_point(|came| *came < from);
            let possible = (offered as u64).min(scenario.tier.requests.into());
            if possible == 0 { 1.0 } else { share(self.touching(from, to), possible) }
        });
        used.fold(1.0, f64::min)
    }
}

/// How many of the requests that `came` then one counter for all would have admitted.
fn by_one_counter(tier: &Tier, came: &[Timestamp]) -> u64 {
    let Some(begin) = came.first() else { return 0 };
    let mut counter = [CounterState::unused(tier, *begin)];
    let admits = |at: &&Timestamp| {
        !decide(
            std::slice::from_ref(tier),
            &mut counter,
            OverLimitPolicy::Ignore,
            Direction::Take,
            Hits(1),
            **at,
        )
        .over
    };
    came.iter().filter(admits).count() as u64
}

/// The periods of a scenario, laid as fixed windows are.
fn windows(scenario: &Scenario) -> impl Iterator<Item = (Timestamp, Timestamp)> {
    let period = scenario.tier.period;
    (0..scenario.windows).scan(scenario.begin(), move |from, _| {
        let window = (*from, from.after(period));
        *from = window.1;
        Some(window)
    })
}

// === impl Series ===

impl Series {
    /// What was admitted over time, in up to `steps` steps.
    #[must_use]
    pub fn of(scenario: &Scenario, outcome: &Outcome, steps: u32) -> Self {
        let Scenario { tier, .. } = scenario;
        let admitted = Admitted::of(&outcome.decisions);
        let begin = scenario.begin();
        let whole = scenario.end().since(begin).as_nanos();
        let point = |step: u32| {
            let after = u128::from(whole) * u128::from(step) / u128::from(steps.max(1));
            let after = Period::from_nanos(u64::try_from(after).unwrap_or(u64::MAX));
            let now = begin.after(after);
            let from = match tier.algorithm {
                Algorithm::FixedWindow => now.window_end(tier.period).as_nanos(),
                _ => now.as_nanos().saturating_add(1),
            };
            let from = Timestamp::from_nanos(from.saturating_sub(tier.period.as_nanos()));
            (after.as_nanos() as f64 / 1e9, admitted.within(from, Timestamp::from_nanos(now.as_nanos() + 1)))
        };
        let inflow = match tier.algorithm {
            Algorithm::TokenBucket(_) => tier.requests,
            Algorithm::FixedWindow | Algorithm::SlidingWindow => 0,
        };
        Self {
            points: (0..steps).map(point).collect(),
            bound: u64::from(tier.capacity()) + u64::from(inflow),
            period: tier.period.as_nanos() as f64 / 1e9,
        }
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "halves and quarters are exact")]
mod tests {
    use super::*;
    use crate::{
        limit::{Bucket, Refill},
        simulate::Skew,
        store::simulated::Network,
    };

    const LIMIT: u32 = 4;

    fn scenario(algorithm: Algorithm) -> Scenario {
        Scenario {
            instances: 1,
            tier: Tier { requests: LIMIT, period: Period::from_secs(1), algorithm },
            load: 2.0,
            skew: Skew::Even,
            network: Network::default(),
            clock_skew: Period::default(),
            windows: 2,
            seed: 1,
        }
    }

    /// What came at these milliseconds and was decided at those.
    fn outcome(scenario: &Scenario, admitted: &[(u64, u64)]) -> Outcome {
        let at = |millis| scenario.begin().after(Period::from_millis(millis));
        let decision =
            |&(came, decided)| SimulatedDecision { came: at(came), decided: at(decided), passed: Some(true) };
        Outcome { decisions: admitted.iter().map(decision).collect(), calls: 3, fallbacks: 1 }
    }

    fn figures(algorithm: Algorithm, admitted: &[(u64, u64)]) -> SimulationMetrics {
        let scenario = scenario(algorithm);
        SimulationMetrics::of(&scenario, &outcome(&scenario, admitted))
    }

    /// As [`figures`], where requests that came at the milliseconds `refused` were refused.
    fn used(algorithm: Algorithm, admitted: &[(u64, u64)], refused: &[u64]) -> f64 {
        let scenario = scenario(algorithm);
        let refused: Vec<(u64, u64)> = refused.iter().map(|&millis| (millis, millis)).collect();
        let mut all = outcome(&scenario, admitted);
        let refused = outcome(&scenario, &refused).decisions.into_iter();
        all.decisions.extend(refused.map(|decision| SimulatedDecision { passed: Some(false), ..decision }));
        SimulationMetrics::of(&scenario, &all).used
    }

    fn at_once<const N: usize>(millis: [u64; N]) -> [(u64, u64); N] {
        millis.map(|millis| (millis, millis))
    }

    #[test]
    fn fixed_windows_are_judged_one_by_one() {
        let figures =
            figures(Algorithm::FixedWindow, &at_once([900, 950, 990, 1_000, 1_001, 1_002, 1_003, 1_999]));
        assert_eq!((figures.overshoot, figures.used), (0.25, 1.0));
    }

    #[test]
    fn what_is_used_is_told_by_what_one_counter_would_have_admitted() {
        // of four that fit into the first window three were let pass, and all that came in the second one
        let admitted = at_once([100, 200, 300, 1_500]);
        assert_eq!(used(Algorithm::FixedWindow, &admitted, &[400, 500]), 0.75);
        // one counter would have admitted four at the begin, and all three that come a second later
        let admitted = at_once([100, 1_100, 1_500]);
        assert_eq!(used(Algorithm::SlidingWindow, &admitted, &[100, 100, 100, 100, 1_150]), 3.0 / 7.0);
        // two of the burst, and one that has flowed in by then
        let bucket = Bucket { burst: 2, refill: Refill::Continuous, strict: false };
        assert_eq!(used(Algorithm::TokenBucket(bucket), &at_once([100, 350]), &[100, 100, 100]), 2.0 / 3.0);
        assert_eq!(used(Algorithm::FixedWindow, &[], &[]), 1.0);
    }

    #[test]
    fn what_waits_over_a_windows_end_may_belong_to_either() {
        let admitted = [(100, 100), (200, 200), (300, 300), (400, 400), (999, 1_001)];
        let figures = figures(Algorithm::FixedWindow, &admitted);
        assert_eq!((figures.overshoot, figures.used), (0.0, 1.0));
        assert_eq!((figures.waited, figures.calls, figures.fallback), (0.2, 0.6, 0.2));
        assert_eq!(figures.longest_wait, Period::from_millis(2));
    }

    #[test]
    fn sliding_windows_are_judged_wherever_they_begin() {
        let spread = at_once([500, 600, 700, 800, 1_500, 1_600, 1_700, 1_800]);
        assert_eq!(figures(Algorithm::SlidingWindow, &spread).overshoot, 0.0);
        let close = at_once([500, 600, 700, 800, 1_499, 1_600, 1_700, 1_800]);
        assert_eq!(figures(Algorithm::SlidingWindow, &close).overshoot, 0.25);
    }

    #[test]
    fn buckets_are_judged_by_what_flows_in() {
        let algorithm =
            Algorithm::TokenBucket(Bucket { burst: 2, refill: Refill::Continuous, strict: false });
        let right = at_once([500, 500, 750, 1_000, 1_250]);
        assert_eq!(figures(algorithm, &right).overshoot, 0.0);
        let over = at_once([500, 500, 750, 1_000, 1_000]);
        assert_eq!(figures(algorithm, &over).overshoot, 0.5);
    }

    #[test]
    fn a_series_starts_again_with_each_window() {
        let scenario = scenario(Algorithm::FixedWindow);
        let outcome = outcome(&scenario, &at_once([100, 600, 700, 1_100]));
        let series = Series::of(&scenario, &outcome, 4);
        assert_eq!(series.points, [(0.0, 0), (0.5, 1), (1.0, 0), (1.5, 1)]);
        assert_eq!(series.bound, u64::from(LIMIT));
        let nothing = Outcome { decisions: Vec::new(), calls: 0, fallbacks: 0 };
        assert_eq!(SimulationMetrics::of(&scenario, &nothing).overshoot, -1.0);
    }
}
