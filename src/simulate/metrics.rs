use weir_limit::{Period, Tier, Timestamp};

use super::{
    Scenario, SimulatedDecision, SimulationOutcome,
    one_counter::{by_one_counter, rejected_early},
};

/// The outcome of a simulation, compared with the limit's bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulationMetrics {
    /// The worst excess over the limit, as a share of it: 0.17 is 17 % too many. Below zero if the limit was never
    /// reached. Measured per window for fixed windows, otherwise over any interval. Of several keys the worst.
    pub overshoot: f64,
    /// The admitted requests, as a share of those that one counter for all instances would have admitted; at most 1.
    /// The lowest of any fixed window or key; otherwise of the whole time, since other intervals have no load of their
    /// own.
    pub used: f64,
    /// The share of requests that were rejected although one counter for all instances would have admitted them.
    pub rejected_early: f64,
    /// Calls to the store per decision.
    pub calls: f64,
    /// The share of decisions that waited for the store.
    pub waited: f64,
    pub typical_wait: Period,
    pub longest_wait: Period,
    /// The share of decisions made without the store, since it did not reply in time.
    pub fallback: f64,
    /// The share of requests that were not decided.
    pub undecided: f64,
}

struct Admitted {
    /// Both are sorted.
    arrived: Vec<Timestamp>,
    decided: Vec<Timestamp>,
}

// === impl SimulationMetrics ===

impl SimulationMetrics {
    pub fn of(scenario: &Scenario, outcome: &SimulationOutcome) -> Self {
        let decisions = &outcome.decisions;
        let share = |n: usize| n as f64 / decisions.len().max(1) as f64;
        let by_key = by_key(decisions);
        let keys = || by_key.iter().map(|decisions| (Admitted::of(decisions), decisions));
        let early = by_key.iter().map(|decisions| rejected_early(&scenario.tier, decisions)).sum();
        let mut waits: Vec<Period> =
            decisions.iter().map(|decision| decision.decided.since(decision.arrived)).collect();
        waits.retain(|wait| *wait > Period::default());
        waits.sort_unstable();
        Self {
            overshoot: keys().map(|(admitted, _)| admitted.overshoot(scenario)).fold(-1.0, f64::max),
            used: keys().map(|(admitted, all)| admitted.used(scenario, all)).fold(1.0, f64::min),
            rejected_early: share(early),
            calls: outcome.calls as f64 / decisions.len().max(1) as f64,
            waited: share(waits.len()),
            typical_wait: waits.get(waits.len().saturating_sub(1) / 2).copied().unwrap_or_default(),
            longest_wait: waits.last().copied().unwrap_or_default(),
            fallback: outcome.fallbacks as f64 / decisions.len().max(1) as f64,
            undecided: share(decisions.iter().filter(|decision| decision.admitted.is_none()).count()),
        }
    }
}

pub(super) fn overshoot_of(scenario: &Scenario, decisions: &[SimulatedDecision]) -> f64 {
    let by_key = by_key(decisions);
    by_key.iter().map(|decisions| Admitted::of(decisions).overshoot(scenario)).fold(-1.0, f64::max)
}

// === impl Admitted ===

impl Admitted {
    fn of(decisions: &[SimulatedDecision]) -> Self {
        let admitted = || decisions.iter().filter(|decision| decision.admitted == Some(true));
        let mut arrived: Vec<Timestamp> = admitted().map(|decision| decision.arrived).collect();
        let mut decided: Vec<Timestamp> = admitted().map(|decision| decision.decided).collect();
        arrived.sort_unstable();
        decided.sort_unstable();
        Self { arrived, decided }
    }

    /// Counts what arrived and was decided in `from..to`. A request that only overlaps may belong to a neighbor.
    fn within(&self, from: Timestamp, to: Timestamp) -> u64 {
        let before = self.arrived.partition_point(|arrived| *arrived < from);
        let by_then = self.decided.partition_point(|decided| *decided < to);
        by_then.saturating_sub(before) as u64
    }

    fn overlapping(&self, from: Timestamp, to: Timestamp) -> u64 {
        let before = self.decided.partition_point(|decided| *decided < from);
        let by_then = self.arrived.partition_point(|arrived| *arrived < to);
        by_then.saturating_sub(before) as u64
    }

    fn overshoot(&self, scenario: &Scenario) -> f64 {
        let tier = &scenario.tier;
        let limit = f64::from(tier.requests);
        let over = |most: u64| most as f64 / limit - 1.0;
        if tier.has_windows() {
            over(windows(scenario).map(|(from, to)| self.within(from, to)).max().unwrap_or(0))
        } else if tier.refills() {
            self.most_above_inflow(tier) / f64::from(tier.capacity()) - 1.0
        } else {
            let most = self.arrived.iter().map(|from| self.within(*from, from.after(tier.period))).max();
            over(most.unwrap_or(0))
        }
    }

    /// Returns the most requests of any interval beyond its inflow. The bound is the bucket's burst.
    fn most_above_inflow(&self, tier: &Tier) -> f64 {
        let rate = f64::from(tier.requests) / tier.period.as_nanos() as f64;
        let Some(begin) = self.arrived.first().copied() else { return 0.0 };
        let inflow = |at: Timestamp| rate * at.since(begin).as_nanos() as f64;
        // intervals begin with an arrival and end with a decision, `to`; `best_from` is the best begin for that end
        let (mut most, mut best_from, mut i) = (0.0_f64, 0.0_f64, 0);
        for (j, to) in self.decided.iter().enumerate() {
            while i < self.arrived.len() && self.arrived[i] <= *to {
                best_from = best_from.max(inflow(self.arrived[i]) - i as f64);
                i += 1;
            }
            most = most.max((j + 1) as f64 - inflow(*to) + best_from);
        }
        most
    }

    fn used(&self, scenario: &Scenario, decisions: &[SimulatedDecision]) -> f64 {
        let mut arrived: Vec<Timestamp> = decisions.iter().map(|decision| decision.arrived).collect();
        arrived.sort_unstable();
        let share = |admitted: u64, possible: u64| (admitted as f64 / possible.max(1) as f64).min(1.0);
        if !scenario.tier.has_windows() || scenario.keys > 1 {
            return share(self.arrived.len() as u64, by_one_counter(&scenario.tier, decisions));
        }
        let used = windows(scenario).map(|(from, to)| {
            let offered = arrived.partition_point(|arrived| *arrived < to)
                - arrived.partition_point(|arrived| *arrived < from);
            let possible = (offered as u64).min(scenario.tier.requests.into());
            if possible == 0 { 1.0 } else { share(self.overlapping(from, to), possible) }
        });
        used.fold(1.0, f64::min)
    }
}

fn by_key(decisions: &[SimulatedDecision]) -> Vec<Vec<SimulatedDecision>> {
    let keys = decisions.iter().map(|decision| decision.key as usize + 1).max().unwrap_or(0);
    let mut by_key = vec![Vec::new(); keys];
    for decision in decisions {
        by_key[decision.key as usize].push(*decision);
    }
    by_key
}

fn windows(scenario: &Scenario) -> impl Iterator<Item = (Timestamp, Timestamp)> {
    let period = scenario.tier.period;
    (0..scenario.windows).scan(scenario.begin(), move |from, _| {
        let window = (*from, from.after(period));
        *from = window.1;
        Some(window)
    })
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "halves and quarters are exact")]
mod tests {
    use super::*;
    use crate::simulate::{Arrivals, Skew};
    use weir_coordinate::simulated::Network;
    use weir_limit::Bucket;

    const LIMIT: u32 = 4;

    const SECOND: Period = Period::from_secs(1);

    const FIXED: Tier = Tier::fixed_window(LIMIT, SECOND);

    const SLIDING: Tier = Tier::sliding_window(LIMIT, SECOND);

    const BUCKET: Tier = Tier::token_bucket(LIMIT, SECOND, Bucket::of(2));

    fn scenario(tier: Tier) -> Scenario {
        Scenario {
            instances: 1,
            keys: 1,
            tier,
            load: 2.0,
            arrivals: Arrivals::Random,
            skew: Skew::Even,
            network: Network::default(),
            clock_skew: Period::default(),
            windows: 2,
            seed: 1,
        }
    }

    /// Admitted requests by arrival and decision, in milliseconds.
    fn outcome(scenario: &Scenario, admitted: &[(u64, u64)]) -> SimulationOutcome {
        let at = |millis| scenario.begin().after(Period::from_millis(millis));
        let decision = |&(arrived, decided)| SimulatedDecision {
            key: 0,
            arrived: at(arrived),
            decided: at(decided),
            admitted: Some(true),
        };
        SimulationOutcome { decisions: admitted.iter().map(decision).collect(), calls: 3, fallbacks: 1 }
    }

    fn metrics(tier: Tier, admitted: &[(u64, u64)]) -> SimulationMetrics {
        let scenario = scenario(tier);
        SimulationMetrics::of(&scenario, &outcome(&scenario, admitted))
    }

    /// Returns the used share, with further requests that were rejected at the milliseconds `rejected`.
    fn used(tier: Tier, admitted: &[(u64, u64)], rejected: &[u64]) -> f64 {
        let scenario = scenario(tier);
        let rejected: Vec<(u64, u64)> = rejected.iter().map(|&millis| (millis, millis)).collect();
        let mut all = outcome(&scenario, admitted);
        let rejected = outcome(&scenario, &rejected).decisions.into_iter();
        all.decisions
            .extend(rejected.map(|decision| SimulatedDecision { admitted: Some(false), ..decision }));
        SimulationMetrics::of(&scenario, &all).used
    }

    fn at_once<const N: usize>(millis: [u64; N]) -> [(u64, u64); N] {
        millis.map(|millis| (millis, millis))
    }

    #[test]
    fn overshoot_of_fixed_windows_is_measured_in_each_window() {
        let metrics = metrics(FIXED, &at_once([900, 950, 990, 1_000, 1_001, 1_002, 1_003, 1_999]));
        assert_eq!((metrics.overshoot, metrics.used), (0.25, 1.0));
    }

    #[test]
    fn the_used_share_is_relative_to_one_counter_for_all_instances() {
        // three of four requests that fit the first window were admitted, and all of the second
        let admitted = at_once([100, 200, 300, 1_500]);
        assert_eq!(used(FIXED, &admitted, &[400, 500]), 0.75);
        // one counter would have admitted four at the start, and all three that arrive a second later
        let admitted = at_once([100, 1_100, 1_500]);
        assert_eq!(used(SLIDING, &admitted, &[100, 100, 100, 100, 1_150]), 3.0 / 7.0);
        // two from the burst, and one from the inflow by then
        assert_eq!(used(BUCKET, &at_once([100, 350]), &[100, 100, 100]), 2.0 / 3.0);
        assert_eq!(used(FIXED, &[], &[]), 1.0);
    }

    #[test]
    fn each_key_is_compared_with_the_limit_by_itself() {
        let scenario = Scenario { keys: 2, ..scenario(FIXED) };
        let mut both = outcome(&scenario, &at_once([100, 200, 300, 400, 500]));
        let other = outcome(&scenario, &at_once([100, 1_100])).decisions;
        let rejected = outcome(&scenario, &at_once([200])).decisions;
        let of_key_1 =
            |decision, admitted| SimulatedDecision { key: 1, admitted: Some(admitted), ..decision };
        both.decisions.extend(other.into_iter().map(|decision| of_key_1(decision, true)));
        both.decisions.extend(rejected.into_iter().map(|decision| of_key_1(decision, false)));
        let metrics = SimulationMetrics::of(&scenario, &both);
        assert_eq!((metrics.overshoot, metrics.used, metrics.rejected_early), (0.25, 2.0 / 3.0, 0.125));
    }

    #[test]
    fn a_rejection_is_early_while_quota_is_left() {
        let early = |rejected: (u64, u64), tier| {
            let scenario = scenario(tier);
            let admitted = outcome(&scenario, &at_once([100, 200, 300, 400])).decisions;
            let rejected = outcome(&scenario, &[rejected]).decisions;
            let rejected = rejected.into_iter().map(|d| SimulatedDecision { admitted: Some(false), ..d });
            rejected_early(&scenario.tier, &admitted.into_iter().chain(rejected).collect::<Vec<_>>())
        };
        assert_eq!(
            (early((300, 300), FIXED), early((400, 400), FIXED), early((1_000, 1_001), FIXED)),
            (1, 0, 1)
        );
        assert_eq!((early((1_050, 1_052), SLIDING), early((1_150, 1_152), SLIDING)), (0, 1));
        // it may have been decided after the last hit, or in the old window
        assert_eq!((early((399, 401), FIXED), early((999, 1_001), FIXED)), (0, 0));
    }

    #[test]
    fn a_request_that_waits_across_a_windows_end_may_count_in_either_window() {
        let admitted = [(100, 100), (200, 200), (300, 300), (400, 400), (999, 1_001)];
        let metrics = metrics(FIXED, &admitted);
        assert_eq!((metrics.overshoot, metrics.used), (0.0, 1.0));
        assert_eq!((metrics.waited, metrics.calls, metrics.fallback), (0.2, 0.6, 0.2));
        assert_eq!(metrics.longest_wait, Period::from_millis(2));
    }

    #[test]
    fn overshoot_of_sliding_windows_is_measured_over_any_interval() {
        let spread = at_once([500, 600, 700, 800, 1_500, 1_600, 1_700, 1_800]);
        assert_eq!(metrics(SLIDING, &spread).overshoot, 0.0);
        let close = at_once([500, 600, 700, 800, 1_499, 1_600, 1_700, 1_800]);
        assert_eq!(metrics(SLIDING, &close).overshoot, 0.25);
    }

    #[test]
    fn overshoot_of_buckets_is_measured_above_the_inflow() {
        let within = at_once([500, 500, 750, 1_000, 1_250]);
        assert_eq!(metrics(BUCKET, &within).overshoot, 0.0);
        let over = at_once([500, 500, 750, 1_000, 1_000]);
        assert_eq!(metrics(BUCKET, &over).overshoot, 0.5);
    }

    #[test]
    fn nothing_admitted_is_all_of_the_limit_below_it() {
        assert_eq!(metrics(FIXED, &[]).overshoot, -1.0);
    }
}
