//! How a case is run, whatever it is about.

use std::time::{Duration, Instant};

use super::{
    callgrind,
    client::{Client, Load, Until},
    connection::Fault,
    entrant::Entrant,
    machine::Machine,
    options::Options,
    rounds::{CoordinationMetrics, Pace, Runner, measure},
    table::{Row, Table},
};

/// Within this a weir finds its Redis, unless it never does.
const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) struct Bench<'a> {
    pub(crate) options: &'a Options,
    pub(crate) machine: Machine,
    pub(crate) table: Table,
}

/// How a case is run.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) load: Load,
    pub(crate) pace: Pace,
    pub(crate) instructions: bool,
    /// How long each run goes on before it is measured.
    pub(crate) warm_up: Duration,
}

impl Bench<'_> {
    /// Runs a case, if it is wanted: starts who takes part, has them run by turns, and counts their instructions.
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
        let figures = self.run(name, plan, &entrants, runners);
        figures.map(drop)
    }

    /// Starts them all, each with a client.
    pub(crate) fn runners(&self, plan: Plan, entrants: &[Entrant]) -> Result<Vec<Runner>, Fault> {
        let start = |entrant: &Entrant| {
            let server = entrant.start(&self.machine, &[]);
            if entrant.needs_redis() {
                let begun = Instant::now();
                while server.metric("weir_redis_connected{redis=\"main\"}") != Some(1) {
                    if begun.elapsed() > DEADLINE {
                        return Err(Fault::Unexpected("that it does not reach its Redis".into()));
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
            Runner::new(&*entrant.name, server, plan.load, entrant.asked)
        };
        entrants.iter().map(start).collect()
    }

    /// Runs those that were started, and adds what came of it to the table. They are handed back, still alive.
    pub(crate) fn run(
        &mut self,
        name: &str,
        plan: Plan,
        entrants: &[Entrant],
        mut runners: Vec<Runner>,
    ) -> Result<Vec<Runner>, Fault> {
        let figures = measure(&mut runners, plan.pace, plan.warm_up, self.options.effort())?;
        for CoordinationMetrics { name, errors, .. } in figures.iter().filter(|figures| figures.errors > 0) {
            self.table.note(&format!("{name} answered {errors} requests with an error."));
        }
        let counts = if plan.instructions && self.options.wants_instructions() && callgrind::is_here() {
            self.instructions(entrants)?
        } else {
            vec![None; entrants.len()]
        };
        let rows =
            figures.into_iter().zip(counts).map(|(figures, instructions)| Row { figures, instructions });
        self.table.add(name, &rows.collect::<Vec<_>>());
        Ok(runners)
    }

    /// Instructions of each, and how many times those of the first.
    fn instructions(&self, entrants: &[Entrant]) -> Result<Vec<Option<(u64, f64)>>, Fault> {
        let mut counts = Vec::new();
        for entrant in entrants {
            let start = |wrapper: &[&str]| entrant.start(&self.machine, wrapper);
            counts.push(callgrind::instructions(entrant.asked, start)?);
        }
        #[expect(clippy::cast_precision_loss, reason = "a ratio to read")]
        let to_first = |count: u64| count as f64 / counts[0] as f64;
        Ok(counts.iter().map(|count| Some((*count, to_first(*count)))).collect())
    }
}

/// Has a server make a counter for each key that is asked about.
pub(crate) fn fill(runner: &Runner, entrant: &Entrant) -> Result<(), Fault> {
    let (asked, requests) = entrant.asked.filling();
    let load = Load { connections: 1, in_flight: 16 };
    Client::connect(&runner.server.target, load, asked)?.closed(Until::Requests(requests)).map(drop)
}
