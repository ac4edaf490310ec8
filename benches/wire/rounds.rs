//! Measures servers in turns: each has a short run in every round, so that disturbances of the machine affect all of
//! them, and ratios within a round stay valid.

use std::time::Duration;

use super::{
    client::{Client, Load, Outcome, Until},
    connection::Fault,
    histogram::Histogram,
    message::Workload,
    server::Server,
};

/// The length and number of runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
}

/// The pace at which requests are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// As many at once as the load allows.
    Closed,
    /// A fixed number per second.
    Open(u32),
}

/// A measured server and its client.
pub(crate) struct Runner {
    pub(crate) name: String,
    pub(crate) server: Server,
    client: Client,
    /// Whether its metrics count what it sends to Redis.
    needs_redis: bool,
    runs: Vec<Run>,
    latencies: Histogram,
}

/// One run.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Requests per second.
    rate: f64,
    /// The server's processor time per request in microseconds.
    cpu: f64,
    redis: RedisUse,
}

/// What a server sends to its Redis, as its metrics say.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RedisUse {
    /// Calls per request.
    pub(crate) calls: f64,
    /// Commands per request.
    pub(crate) commands: f64,
    /// Pipelines per second.
    pub(crate) pipelines: f64,
}

/// The summary of a server's runs.
pub(crate) struct RunSummary {
    pub(crate) name: String,
    pub(crate) rate: f64,
    pub(crate) cpu: f64,
    /// The ratio of its processor time to the first server's, median over the rounds.
    pub(crate) cpu_ratio: f64,
    pub(crate) latencies: Histogram,
    /// The means of its runs.
    pub(crate) redis: RedisUse,
    /// The number of error responses.
    pub(crate) errors: u64,
}

impl Runner {
    pub(crate) fn new(
        name: impl Into<String>,
        server: Server,
        load: Load,
        workload: Workload,
        needs_redis: bool,
    ) -> Result<Self, Fault> {
        let client = Client::connect(&server.target, load, workload)?;
        let (runs, latencies) = (Vec::new(), Histogram::new());
        Ok(Self { name: name.into(), server, client, needs_redis, runs, latencies })
    }

    fn run(&mut self, pace: Pace, time: Duration) -> Result<(Outcome, Run), Fault> {
        // before and after the measurement of the processor time, which it would add to
        let calls_before = self.redis_counts();
        let before = self.server.cpu();
        let outcome = match pace {
            Pace::Closed => self.client.closed(Until::Elapsed(time)),
            Pace::Open(rate) => self.client.open(rate, time),
        };
        let outcome = outcome.map_err(|fault| Fault::Server(self.name.clone(), fault.into()))?;
        let cpu = self.server.cpu().saturating_sub(before);
        let [calls, commands, pipelines] = self.redis_counts();
        let (seconds, requests) = (outcome.elapsed.as_secs_f64(), float(outcome.requests));
        let redis = RedisUse {
            calls: float(calls - calls_before[0]) / requests,
            commands: float(commands - calls_before[1]) / requests,
            pipelines: float(pipelines - calls_before[2]) / seconds,
        };
        let run = Run { rate: requests / seconds, cpu: cpu.as_secs_f64() * 1e6 / requests, redis };
        Ok((outcome, run))
    }

    /// Returns the calls, commands and pipelines that were sent to the main Redis so far; zeros without one.
    fn redis_counts(&self) -> [u64; 3] {
        ["calls", "commands", "pipelines"].map(|name| {
            let name = format!("weir_redis_{name}_total{{redis=\"main\"}}");
            if self.needs_redis { self.server.metric(&name).unwrap_or(0) } else { 0 }
        })
    }
}

/// Runs all servers in turns, each for `warm_up` before it is measured, and then for at least as long. Returns the
/// summaries in the order of `runners`.
pub(crate) fn measure(
    runners: &mut [Runner],
    pace: Pace,
    warm_up: Duration,
    effort: Effort,
) -> Result<Vec<RunSummary>, Fault> {
    for runner in runners.iter_mut() {
        (runner.runs, runner.latencies) = (Vec::new(), Histogram::new());
        // fills caches and tables before the measurement
        runner.run(pace, effort.time / 2)?;
    }
    // some of the server's work happens only once a second
    let time = effort.time.max(warm_up);
    let rounds = if warm_up.is_zero() { effort.rounds } else { effort.rounds.div_ceil(2) };
    for _ in 0..rounds {
        for runner in runners.iter_mut() {
            if !warm_up.is_zero() {
                runner.run(pace, warm_up)?;
            }
            let (outcome, run) = runner.run(pace, time)?;
            runner.runs.push(run);
            runner.latencies.merge(&outcome.latencies);
        }
    }
    let first: Vec<Run> = runners.first().map(|runner| runner.runs.clone()).unwrap_or_default();
    Ok(runners.iter().map(|runner| runner.summary(&first)).collect())
}

impl Runner {
    fn summary(&self, first: &[Run]) -> RunSummary {
        RunSummary {
            name: self.name.clone(),
            rate: median(self.runs.iter().map(|run| run.rate)),
            cpu: median(self.runs.iter().map(|run| run.cpu)),
            cpu_ratio: median(self.runs.iter().zip(first).map(|(run, first)| run.cpu / first.cpu)),
            latencies: self.latencies.clone(),
            redis: RedisUse {
                calls: self.mean(|redis| redis.calls),
                commands: self.mean(|redis| redis.commands),
                pipelines: self.mean(|redis| redis.pipelines),
            },
            errors: self.client.errors(),
        }
    }

    fn mean(&self, part: impl Fn(RedisUse) -> f64) -> f64 {
        self.runs.iter().map(|run| part(run.redis)).sum::<f64>() / float(self.runs.len() as u64)
    }
}

#[expect(clippy::cast_precision_loss, reason = "approximate output")]
const fn float(number: u64) -> f64 {
    number as f64
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
