//! What is measured.

use super::{
    callgrind,
    client::{Client, Load, Outcome, Until},
    connection::Fault,
    entrant::Entrant,
    machine::Machine,
    message::{Asked, Shape},
    options::Options,
    rounds::{Pace, Runner, measure},
    rules,
    serve::Kind,
    table::{Row, Table},
};

const MANY_AT_ONCE: Load = Load { connections: 4, in_flight: 64 };

const ONE: Asked = Asked { shape: Shape::One, rules: 1, keys: 10_000 };
const TWO_BY_THREE: Asked = Asked { shape: Shape::TwoByThree, rules: 1, keys: 10_000 };

struct Bench<'a> {
    options: &'a Options,
    machine: Machine,
    table: Table,
}

/// How a case is run.
struct Plan {
    load: Load,
    pace: Pace,
    instructions: bool,
}

/// Runs the cases that `options` want, or the load that they want in their place.
pub(crate) fn run(options: &Options) -> Result<(), Fault> {
    if options.print_rules {
        print!("{}", rules::text(options.asked(), ""));
        return Ok(());
    }
    let machine = Machine::new();
    eprintln!("{}", machine.take_last());
    if let Some(target) = &options.target {
        let mut client = Client::connect(target, options.load(), options.asked())?;
        let outcome = match (options.pace(), options.requests) {
            (_, Some(requests)) => client.closed(Until::Requests(requests))?,
            (Pace::Closed, None) => client.closed(Until::Elapsed(options.time()))?,
            (Pace::Open(rate), None) => client.open(rate, options.time())?,
        };
        print(&outcome);
        return Ok(());
    }
    let mut bench = Bench { options, machine, table: Table::default() };
    if options.wants_instructions() && !callgrind::is_here() {
        bench.table.note("instructions were not counted: that needs valgrind");
    }
    bench.all()?;
    if options.write {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/performance.md");
        bench.table.write(file.as_ref())?;
    }
    Ok(())
}

fn print(outcome: &Outcome) {
    let Outcome { requests, elapsed, latencies } = outcome;
    println!("{requests} requests in {elapsed:.2?}");
    for (name, per_mille) in [("p50", 500), ("p99", 990), ("p99.9", 999)] {
        println!("{name} {:.1?}", latencies.at(per_mille));
    }
}

impl Bench<'_> {
    fn all(&mut self) -> Result<(), Fault> {
        let closed = |instructions| Plan { load: MANY_AT_ONCE, pace: Pace::Closed, instructions };
        let comparison = |kind| Entrant::comparison(kind, ONE);
        self.compare("one descriptor", &closed(true), || {
            vec![
                comparison(Kind::H2),
                comparison(Kind::H2Spawn),
                comparison(Kind::Tonic),
                comparison(Kind::TonicCurrentThread),
                Entrant::weir("weir", ONE, ""),
            ]
        })?;
        self.compare("two descriptors of three entries, two tiers", &closed(true), || {
            vec![Entrant::comparison(Kind::H2, TWO_BY_THREE), Entrant::weir("weir", TWO_BY_THREE, "")]
        })
    }

    /// Runs a case, if it is wanted.
    fn compare(
        &mut self,
        case: &str,
        plan: &Plan,
        entrants: impl FnOnce() -> Vec<Entrant>,
    ) -> Result<(), Fault> {
        if !self.options.wants(case) {
            return Ok(());
        }
        let entrants = entrants();
        let runner = |entrant: &Entrant| {
            Runner::new(&*entrant.name, entrant.start(&self.machine, &[]), plan.load, entrant.asked)
        };
        let mut runners = entrants.iter().map(runner).collect::<Result<Vec<_>, _>>()?;
        let figures = measure(&mut runners, plan.pace, self.options.effort())?;
        drop(runners);
        let counts = match plan.instructions && self.options.wants_instructions() && callgrind::is_here() {
            true => self.instructions(&entrants)?,
            false => vec![None; entrants.len()],
        };
        let rows =
            figures.into_iter().zip(counts).map(|(figures, instructions)| Row { figures, instructions });
        self.table.add(case, &rows.collect::<Vec<_>>());
        Ok(())
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
