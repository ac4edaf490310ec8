//! Fixed rates of everyday size on all coordination modes, and keys that others replace all the time.

use std::{fmt::Write as _, time::Duration};

use super::{
    bench::{Bench, Plan},
    cases::{CLOSED, ONE},
    connection::Fault,
    entrant::Entrant,
    message::Workload,
    redis::Redis,
    rounds::{Effort, Pace, RunSummary, measure},
    table::{micros, thousands},
};

const EVERYDAY: &str = "everyday load";
const LONG_TAIL: &str = "long tail";

/// The rates in requests per second.
const RATES: [u32; 4] = [500, 2_000, 5_000, 15_000];

const MODES: [&str; 4] = ["auto", "interval", "lease", "strict"];

/// 100,000 keys, all of which are others after 14 s, with windows of 10 s.
const CHANGING: Workload = Workload { keys: 100_000, turnover: Some(14), ..ONE };

/// The time after which as many counters expire as are created.
const SETTLED: Duration = Duration::from_secs(25);

/// The head of the results.
pub(crate) const HEAD: &str = "\
| load | mode | CPU, µs | x | p50, µs | p99, µs | calls a request | commands a request | pipelines/s |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
";

impl Bench<'_> {
    /// Loads memory and all modes by turns, at each of [`RATES`].
    pub(crate) fn everyday(&mut self) -> Result<(), Fault> {
        if !self.options.wants(EVERYDAY) {
            return Ok(());
        }
        let Some(redis) = Redis::start() else {
            self.table.note("The everyday load was not measured: redis-server is missing.");
            return Ok(());
        };
        let entrants = all_modes(ONE, &redis);
        let mut runners = self.runners(CLOSED, &entrants)?;
        let Effort { rounds, time } = self.options.effort();
        let effort = Effort { rounds: rounds.div_ceil(3), time: time * 5 };
        for rate in RATES {
            let summaries = measure(&mut runners, Pace::Open(rate), Duration::from_secs(1), effort)?;
            let load = format!("{EVERYDAY}, {} a second", thousands(rate.into()));
            self.table.add_everyday(&rows(&load, &summaries));
        }
        Ok(())
    }

    /// Loads memory and all modes one after the other with keys that change.
    pub(crate) fn long_tail(&mut self) -> Result<(), Fault> {
        if !self.options.wants(LONG_TAIL) {
            return Ok(());
        }
        let Some(redis) = Redis::start() else {
            self.table.note("The long tail was not measured: redis-server is missing.");
            return Ok(());
        };
        let pace = Pace::Open(15_000);
        let plan = Plan { pace, ..CLOSED };
        let (mut summaries, mut notes) = (Vec::new(), Vec::new());
        // one run each: what matters is the state after a while
        for entrant in all_modes(CHANGING, &redis) {
            let mut runners = self.runners(plan, std::slice::from_ref(&entrant))?;
            let before = runners[0].server.resident();
            let effort = Effort { rounds: 1, time: Duration::from_secs(5) };
            summaries.extend(measure(&mut runners, pace, SETTLED, effort)?);
            let grown = runners[0].server.resident().saturating_sub(before) / 1024 / 1024;
            let live =
                ["memory", "coordinated"].map(|table| format!("weir_counters_live{{table=\"{table}\"}}"));
            let live: u64 = live.iter().filter_map(|name| runners[0].server.metric(name)).sum();
            notes.push(format!("{LONG_TAIL}, {}: {} counters, {grown} MB.", entrant.name, thousands(live)));
        }
        let memory = summaries.first().map_or(f64::NAN, |memory| memory.cpu);
        for summary in &mut summaries {
            summary.cpu_ratio = summary.cpu / memory;
        }
        let load = format!("{LONG_TAIL}, 15,000 a second");
        self.table.add_everyday(&rows(&load, &summaries));
        for note in notes {
            self.table.note(&note);
        }
        Ok(())
    }
}

/// Returns weir in memory, and in each mode.
fn all_modes(workload: Workload, redis: &Redis) -> Vec<Entrant> {
    let weir = |mode: &str| {
        let weir = Entrant::weir(mode, workload, &format!(", coordination: {mode}"));
        // the prefix gives each server its own counters; no decision falls back to local counts
        let weir = weir.with("REDIS_URL", redis.url()).with("CACHE_KEY_PREFIX", format!("{mode}:"));
        weir.with("WEIR_DECISION_BUDGET", "1s")
    };
    let memory = Entrant::weir("in memory", workload, "");
    [memory].into_iter().chain(MODES.map(weir)).collect()
}

fn rows(load: &str, summaries: &[RunSummary]) -> String {
    let mut text = String::new();
    for (number, summary) in summaries.iter().enumerate() {
        let latency = |per_mille| micros(summary.latencies.at(per_mille));
        let redis = summary.redis;
        // writing to a String cannot fail
        let _ = writeln!(
            text,
            "| {} | {} | {:.1} | {:.2} | {} | {} | {:.3} | {:.3} | {:.0} |",
            if number == 0 { load } else { "" },
            summary.name,
            summary.cpu,
            summary.cpu_ratio,
            latency(500),
            latency(990),
            redis.calls,
            redis.commands,
            redis.pipelines,
        );
    }
    text
}
