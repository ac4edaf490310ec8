use weir_limit::{Period, Timestamp};

use super::{
    Scenario, SimulatedDecision, SimulationOutcome, WaitingOutcome,
    metrics::overshoot_of,
    table::{calls, columns, legend_of, overshoot, percent},
};

/// The columns after the name of the mode, and what they are.
const COLUMNS: [(&str, &str); 7] = [
    (
        "worst overshoot",
        "admitted above the limit in the worst window, at the instants at which callers may proceed",
    ),
    ("used", "admitted while callers arrived, of what one line for all instances would have admitted"),
    ("rejected", "callers that were rejected, at once or at their deadline"),
    ("waited p50", "the median wait of those that were admitted"),
    ("waited p99", "the wait that one of a hundred exceeds"),
    ("store calls a caller", "calls to the store in all, a caller"),
    ("calls at a start", "the most calls to the store in the first 10 ms of a period, but for the first one"),
];

/// What callers that wait get, and what their provider sees.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitMetrics {
    /// As [`SimulationMetrics::overshoot`](super::SimulationMetrics::overshoot), at the instants of admission: what a
    /// provider counts.
    pub overshoot: f64,
    /// Admitted while callers arrived, as a share of what one line for all instances admits; at most 1.
    pub used: f64,
    pub rejected: f64,
    /// The wait of the admitted callers: the median.
    pub p50: Period,
    /// The wait that one of a hundred admitted callers exceeds.
    pub p99: Period,
    /// Calls to the store per caller.
    pub calls: f64,
    /// The most calls to the store in the first 10 ms of a period, but for the first one.
    pub calls_at_start: u64,
}

// === impl WaitMetrics ===

impl WaitMetrics {
    /// Computes the metrics of callers that wait for up to `max_wait`. `best` is the outcome of one line for all.
    pub fn of(
        scenario: &Scenario,
        max_wait: Period,
        outcome: &WaitingOutcome,
        best: &WaitingOutcome,
    ) -> Self {
        let decisions = &outcome.simulated.decisions;
        let share = |n: usize| n as f64 / decisions.len().max(1) as f64;
        let mut waits: Vec<Period> = decisions
            .iter()
            .filter(|decision| decision.admitted == Some(true))
            .map(|decision| decision.decided.since(decision.arrived))
            .collect();
        waits.sort_unstable();
        let percentile = |percent: usize| {
            let rank = (waits.len() * percent).div_ceil(100).saturating_sub(1);
            waits.get(rank).copied().unwrap_or_default()
        };
        let possible = admitted_until(scenario.end(), &best.simulated);
        let used = admitted_until(scenario.end(), &outcome.simulated) as f64 / possible.max(1) as f64;
        // whoever waits is also served in the periods after the last arrival
        let more = max_wait.as_nanos().div_ceil(scenario.tier.period.as_nanos().max(1)) + 1;
        let windows = scenario.windows.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
        let longer = Scenario { windows, ..scenario.clone() };
        Self {
            overshoot: overshoot_of(&longer, &as_counted(decisions)),
            used: used.min(1.0),
            rejected: share(decisions.iter().filter(|decision| decision.admitted != Some(true)).count()),
            p50: percentile(50),
            p99: percentile(99),
            calls: outcome.simulated.calls as f64 / decisions.len().max(1) as f64,
            calls_at_start: outcome.calls_at_start,
        }
    }
}

pub fn wait_table(modes: &[(&str, WaitMetrics)]) -> String {
    let row = |(name, metrics): &(&str, WaitMetrics)| {
        vec![
            (*name).to_owned(),
            overshoot(metrics.overshoot),
            percent(metrics.used),
            percent(metrics.rejected),
            wait(metrics.p50),
            wait(metrics.p99),
            calls(metrics.calls),
            metrics.calls_at_start.to_string(),
        ]
    };
    columns(&COLUMNS, modes.iter().map(row))
}

pub fn wait_legend() -> String {
    legend_of(&COLUMNS)
}

/// Counts all requests when they were decided.
fn as_counted(decisions: &[SimulatedDecision]) -> Vec<SimulatedDecision> {
    let count = |decision: &SimulatedDecision| SimulatedDecision { arrived: decision.decided, ..*decision };
    decisions.iter().map(count).collect()
}

fn admitted_until(end: Timestamp, outcome: &SimulationOutcome) -> usize {
    let admitted = |decision: &&SimulatedDecision| decision.admitted == Some(true) && decision.decided < end;
    outcome.decisions.iter().filter(admitted).count()
}

fn wait(period: Period) -> String {
    let millis = period.as_nanos().div_ceil(1_000_000);
    if millis < 1_000 { format!("{millis} ms") } else { format!("{:.1} s", millis as f64 / 1e3) }
}
