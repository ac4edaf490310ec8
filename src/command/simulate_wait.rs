//! `weir simulate --wait`: callers that wait, in a line at each instance.

use std::{
    fs,
    io::{self, Write},
    path::Path,
    time::Duration,
};

use super::simulate::{Progress, STEPS, Simulate, SimulateError, period, svg_error};
use crate::{
    limit::{Coordination, Period, RuleCoordination},
    simulate::{
        Panel, Scenario, WaitMetrics, WaitingOutcome, chart, run_waiting, wait_legend, wait_table,
        waiting_series,
    },
    store::MemoryStore,
};

/// The name of what all modes are compared with.
const ONE_LINE: &str = "one line for all";

/// Simulates callers that wait for up to `max_wait`, in each of the `chosen` modes, and prints the results to `out`, with a chart to `svg`.
pub(super) fn simulate_waiting(
    args: &Simulate,
    scenario: &Scenario,
    max_wait: Duration,
    chosen: &[Coordination],
    svg: Option<(&Path, fs::File)>,
    out: &mut impl Write,
) -> Result<(), SimulateError> {
    let best = run_one_line(scenario, period(max_wait)).map_err(SimulateError::Run)?;
    let mut outcomes = vec![(ONE_LINE, best)];
    let part = 1.0 / f64::from(u8::try_from(chosen.len()).unwrap_or(u8::MAX));
    let mut completed = 0.0;
    for &mode in chosen {
        let outcome = run_mode(args, scenario, max_wait, mode, (completed, part));
        outcomes.push((mode.name(), outcome.map_err(SimulateError::Run)?));
        completed += part;
    }
    let best = &outcomes[0].1;
    let metrics: Vec<(&str, WaitMetrics)> = outcomes
        .iter()
        .map(|(name, outcome)| (*name, WaitMetrics::of(scenario, period(max_wait), outcome, best)))
        .collect();
    let title = format!("{}, waiting up to {max_wait:?}", scenario.title());
    let network = format!("{:?} round trip, seed {}", args.round_trip, scenario.seed);
    write!(out, "{title}\n{network}\n\n{}\n{}", wait_table(&metrics), wait_legend())
        .map_err(SimulateError::Print)?;
    if let Some((path, mut file)) = svg {
        let panel =
            |((name, metrics), (_, outcome)): (&(&str, WaitMetrics), &(&str, WaitingOutcome))| Panel {
                name: (*name).to_owned(),
                summary: metrics.summary(),
                series: waiting_series(scenario, outcome, STEPS),
            };
        let panels: Vec<Panel> = metrics.iter().zip(&outcomes).map(panel).collect();
        file.write_all(chart(scenario, &title, &panels).as_bytes()).map_err(svg_error(path))?;
    }
    Ok(())
}

/// Runs one line for all callers, in memory.
fn run_one_line(scenario: &Scenario, max_wait: Period) -> io::Result<WaitingOutcome> {
    let scenario = Scenario { instances: 1, clock_skew: Period::default(), ..scenario.clone() };
    let counters = 2 * scenario.keys.max(512);
    let mut progress = Progress::new(ONE_LINE);
    let rules = || scenario.rule_set(RuleCoordination::default());
    let make = |_| MemoryStore::new(counters);
    let outcome = run_waiting(&scenario, max_wait, rules, make, |_| 0, |done| progress.show(done));
    progress.end();
    outcome
}

/// Runs the lines of the instances in one mode, with the code that the service runs.
fn run_mode(
    args: &Simulate,
    scenario: &Scenario,
    max_wait: Duration,
    mode: Coordination,
    (completed, part): (f64, f64),
) -> io::Result<WaitingOutcome> {
    let mut progress = Progress::new(mode.name());
    let rules = || scenario.rule_set(RuleCoordination { mode: Some(mode), ..RuleCoordination::default() });
    let outcome = run_waiting(
        scenario,
        period(max_wait),
        rules,
        |instance| args.store(scenario, instance),
        |store| store.coordination_metrics().fallback.get(),
        |done| progress.show(completed + part * done),
    );
    progress.end();
    outcome
}
