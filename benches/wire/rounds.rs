//! Servers by turns: each has a short run in every round, so that what the machine does besides meets all of them, and
//! the ratios of a round hold even where its figures do not.

use std::time::Duration;

use super::{
    client::{Client, Load, Outcome, Until},
    connection::Fault,
    histogram::Histogram,
    message::Asked,
    server::Server,
};

/// How long, and how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
}

/// How requests are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// As many at once as the load allows.
    Closed,
    /// So many a second.
    Open(u32),
}

/// A server that takes part, and a client of its own.
pub(crate) struct Runner {
    pub(crate) name: String,
    pub(crate) server: Server,
    client: Client,
    runs: Vec<Run>,
    latencies: Histogram,
}

/// One run.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Requests a second.
    rate: f64,
    /// Microseconds of the server's processor time for each.
    cpu: f64,
}

/// What a server's runs come to.
pub(crate) struct CoordinationMetrics {
    pub(crate) name: String,
    pub(crate) rate: f64,
    pub(crate) cpu: f64,
    /// Of its processor time to that of the first server, the median over the rounds.
    pub(crate) cpu_ratio: f64,
    pub(crate) latencies: Histogram,
    /// Answers that were errors.
    pub(crate) errors: u64,
}

impl Runner {
    pub(crate) fn new(
        name: impl Into<String>,
        server: Server,
        load: Load,
        asked: Asked,
    ) -> Result<Self, Fault> {
        let client = Client::connect(&server.target, load, asked)?;
        Ok(Self { name: name.into(), server, client, runs: Vec::new(), latencies: Histogram::new() })
    }

    fn go(&mut self, pace: Pace, time: Duration) -> Result<(Outcome, Run), Fault> {
        let before = self.server.cpu();
        let outcome = match pace {
            Pace::Closed => self.client.closed(Until::Elapsed(time)),
            Pace::Open(rate) => self.client.open(rate, time),
        };
        let outcome = outcome.map_err(|fault| Fault::Of(self.name.clone(), fault.into()))?;
        let cpu = self.server.cpu().saturating_sub(before);
        #[expect(clippy::cast_precision_loss, reason = "figures to read")]
        let requests = outcome.requests as f64;
        let run =
            Run { rate: requests / outcome.elapsed.as_secs_f64(), cpu: cpu.as_secs_f64() * 1e6 / requests };
        Ok((outcome, run))
    }
}

/// Has all of them run by turns, each for the time of `warm_up` before it is measured, and then for as long at least. The
/// figures are in the order of `runners`.
pub(crate) fn measure(
    runners: &mut [Runner],
    pace: Pace,
    warm_up: Duration,
    effort: Effort,
) -> Result<Vec<CoordinationMetrics>, Fault> {
    for runner in runners.iter_mut() {
        // caches and tables get warm, and are not measured
        runner.go(pace, effort.time / 2)?;
    }
    // what is kept warm does some of its work once a second only
    let time = effort.time.max(warm_up);
    let rounds = if warm_up.is_zero() { effort.rounds } else { effort.rounds.div_ceil(2) };
    for _ in 0..rounds {
        for runner in runners.iter_mut() {
            if !warm_up.is_zero() {
                runner.go(pace, warm_up)?;
            }
            let (outcome, run) = runner.go(pace, time)?;
            runner.runs.push(run);
            runner.latencies.merge(&outcome.latencies);
        }
    }
    let first: Vec<Run> = runners.first().map(|runner| runner.runs.clone()).unwrap_or_default();
    Ok(runners.iter().map(|runner| runner.figures(&first)).collect())
}

impl Runner {
    fn figures(&self, first: &[Run]) -> CoordinationMetrics {
        CoordinationMetrics {
            name: self.name.clone(),
            rate: median(self.runs.iter().map(|run| run.rate)),
            cpu: median(self.runs.iter().map(|run| run.cpu)),
            cpu_ratio: median(self.runs.iter().zip(first).map(|(run, first)| run.cpu / first.cpu)),
            latencies: self.latencies.clone(),
            errors: self.client.errors(),
        }
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
