//! `weir simulate --wait`: callers that wait, in a line at each instance.

use std::{io, iter, time::Duration};

use weir_coordinate::{Coordinated, simulated::SimulatedRemote};
use weir_limit::{Coordination, Period, RuleCoordination};
use weir_store::MemoryStore;

use super::progress::run_all;
use crate::simulate::{
    Instance, Scenario, WaitMetrics, WaitingOutcome, run_waiting, wait_legend, wait_table,
};

/// The name of what all modes are compared with.
const ONE_LINE: &str = "one line for all";

/// Returns the text. One line for all callers comes first, to compare with.
pub(super) fn simulate_waiting(
    scenario: &Scenario,
    (max_wait, longest): (Duration, Period),
    round_trip: Duration,
    chosen: &[RuleCoordination],
    make: impl Fn(Instance) -> Coordinated<SimulatedRemote> + Sync,
) -> io::Result<String> {
    let lines: Vec<Option<&RuleCoordination>> = iter::once(None).chain(chosen.iter().map(Some)).collect();
    let outcomes = run_all(&lines, |coordination, progress| {
        Ok(match coordination {
            None => (ONE_LINE, run_one_line(scenario, longest, progress)?),
            Some(coordination) => {
                let name = coordination.mode.map_or("", Coordination::name);
                (name, run_mode(scenario, longest, coordination, &make, progress)?)
            }
        })
    });
    let outcomes = outcomes.into_iter().collect::<io::Result<Vec<_>>>()?;
    let best = &outcomes[0].1;
    let metrics: Vec<(&str, WaitMetrics)> = outcomes
        .iter()
        .map(|(name, outcome)| (*name, WaitMetrics::of(scenario, longest, outcome, best)))
        .collect();
    let title = format!("{}, waiting up to {max_wait:?}", scenario.title());
    let (table, legend, seed) = (wait_table(&metrics), wait_legend(), scenario.seed);
    Ok(format!("{title}\n{round_trip:?} round trip, seed {seed}\n\n{table}\n{legend}"))
}

fn run_one_line(
    scenario: &Scenario,
    max_wait: Period,
    progress: impl FnMut(f64),
) -> io::Result<WaitingOutcome> {
    let scenario = Scenario { instances: 1, clock_skew: Period::default(), ..scenario.clone() };
    let counters = 2 * scenario.keys.max(512);
    let rules = || scenario.rule_set(RuleCoordination::default());
    run_waiting(&scenario, max_wait, rules, |_| MemoryStore::new(counters), |_| 0, progress)
}

fn run_mode(
    scenario: &Scenario,
    max_wait: Period,
    coordination: &RuleCoordination,
    make: impl Fn(Instance) -> Coordinated<SimulatedRemote>,
    progress: impl FnMut(f64),
) -> io::Result<WaitingOutcome> {
    let rules = || scenario.rule_set(*coordination);
    let fallbacks = |store: &Coordinated<_>| store.coordination_metrics().decisions.fallback.get();
    run_waiting(scenario, max_wait, rules, make, fallbacks, progress)
}
