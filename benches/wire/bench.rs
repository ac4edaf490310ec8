//! Runs a case of the benchmark.

use std::time::{Duration, Instant};

use super::{
    callgrind,
    client::{Client, Load, Until},
    connection::Fault,
    entrant::Entrant,
    machine::Machine,
    options::Options,
    rounds::{Pace, RunSummary, Runner, measure},
    table::{Row, Table},
};

/// The time that weir may take to connect to its Redis.
const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) struct Bench<'a> {
    pub(crate) options: &'a Options,
    pub(crate) machine: Machine,
    pub(crate) table: Table,
}

/// The load and measurements of a case.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) load: Load,
    pub(crate) pace: Pace,
    pub(crate) instructions: bool,
    /// The warm-up of each run.
    pub(crate) warm_up: Duration,
}

impl Bench<'_> {
    /// Runs a case, if selected: starts the servers, loads them in turns, and counts their instructions.
    pub(crate) fn case(
        &mut self,
        name: &str,
        plan: Plan,
        entrants: impl FnOnce() -> Vec<Entrant>,
    ) -> Result<(), Fault> {
        if !self.options.wants(name) {
            return Ok(());
        }
        let entrants = entrants();
        let runners = self.runners(plan, &entrants)?;
        let runners = self.run(name, plan, &entrants, runners);
        runners.map(drop)
    }

    /// Starts all servers, each with a client.
    pub(crate) fn runners(&self, plan: Plan, entrants: &[Entrant]) -> Result<Vec<Runner>, Fault> {
        let start = |entrant: &Entrant| {
            let server = entrant.start(&self.machine, &[]);
            if entrant.needs_redis() {
                let started = Instant::now();
                while server.metric("weir_redis_connected{redis=\"main\"}") != Some(1) {
                    if started.elapsed() > DEADLINE {
                        return Err(Fault::Unexpected("a timeout of its connection to Redis".into()));
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
            Runner::new(&*entrant.name, server, plan.load, entrant.workload, entrant.needs_redis())
        };
        entrants.iter().map(start).collect()
    }

    /// Loads the started servers, adds the results to the table, and returns the servers, still running.
    pub(crate) fn run(
        &mut self,
        name: &str,
        plan: Plan,
        entrants: &[Entrant],
        mut runners: Vec<Runner>,
    ) -> Result<Vec<Runner>, Fault> {
        let summaries = measure(&mut runners, plan.pace, plan.warm_up, self.options.effort())?;
        for RunSummary { name, errors, .. } in summaries.iter().filter(|summary| summary.errors > 0) {
            self.table.note(&format!("{name} responded to {errors} requests with an error."));
        }
        let counts = if plan.instructions && self.options.wants_instructions() && callgrind::is_installed() {
            self.instructions(entrants)?
        } else {
            vec![None; entrants.len()]
        };
        let rows =
            summaries.into_iter().zip(counts).map(|(summary, instructions)| Row { summary, instructions });
        self.table.add(name, &rows.collect::<Vec<_>>());
        Ok(runners)
    }

    /// Returns the instructions per request of each server, and their ratio to the first server's.
    fn instructions(&self, entrants: &[Entrant]) -> Result<Vec<Option<(u64, f64)>>, Fault> {
        let mut counts = Vec::new();
        for entrant in entrants {
            let start = |wrapper: &[&str]| entrant.start(&self.machine, wrapper);
            counts.push(callgrind::instructions(entrant.workload, start)?);
        }
        #[expect(clippy::cast_precision_loss, reason = "a ratio to print")]
        let to_first = |count: u64| count as f64 / counts[0] as f64;
        Ok(counts.iter().map(|count| Some((*count, to_first(*count)))).collect())
    }
}

/// Creates a counter on a server for each key of the workload.
pub(crate) fn fill(runner: &Runner, entrant: &Entrant) -> Result<(), Fault> {
    let (workload, requests) = entrant.workload.filling();
    let load = Load { connections: 1, in_flight: 16 };
    Client::connect(&runner.server.target, load, workload)?.closed(Until::Requests(requests)).map(drop)
}
