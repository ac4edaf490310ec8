//! The cases of the benchmark.

use std::time::Duration;

use super::{
    bench::{Bench, Plan, fill},
    callgrind,
    client::{Client, Load, Outcome, Target, Until},
    comparison::Kind,
    connection::Fault,
    entrant::Entrant,
    machine::{Cores, Machine},
    message::{Shape, Workload},
    options::Options,
    redis::Redis,
    rounds::Pace,
    rules, server,
    table::{Table, thousands},
};

pub(crate) const CLOSED: Plan = Plan {
    load: Load { connections: 4, in_flight: 64 },
    pace: Pace::Closed,
    instructions: false,
    warm_up: Duration::ZERO,
};
const COUNTED: Plan = Plan { instructions: true, ..CLOSED };
const SEQUENTIAL: Plan = Plan { load: Load { connections: 1, in_flight: 1 }, ..CLOSED };
/// For counters with leases: idle leases are returned while other servers run, and the warm-up reserves them again.
const IN_USE: Plan = Plan { warm_up: Duration::from_secs(1), ..CLOSED };
const STEADY: Plan = Plan { pace: Pace::Open(5_000), ..CLOSED };

pub(crate) const ONE: Workload =
    Workload { shape: Shape::One, rules: 1, matched: 1, keys: 10_000, turnover: None, limitador: false };
const TWO_BY_THREE: Workload = Workload { shape: Shape::TwoByThree, ..ONE };

/// Runs the cases that `options` select, or loads a given server instead.
pub(crate) fn run(options: &Options) -> Result<(), Fault> {
    if options.print_rules {
        print!("{}", rules::text(options.workload(), ""));
        return Ok(());
    }
    let machine = Machine::new();
    eprintln!("{}", machine.take_last());
    if let Some(target) = &options.target {
        return load(target, options);
    }
    if !options.as_built {
        server::build_comparisons()?;
    }
    let mut bench = Bench { options, machine, table: Table::default() };
    if options.wants_instructions() && !callgrind::is_installed() {
        bench.table.note("Instructions were not counted: valgrind is missing.");
    }
    bench.all()?;
    if options.write {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/performance.md");
        bench.table.write(file.as_ref())?;
    }
    Ok(())
}

/// Loads a server that is already running.
fn load(target: &Target, options: &Options) -> Result<(), Fault> {
    let mut client = Client::connect(target, options.load(), options.workload())?;
    let Outcome { requests, elapsed, latencies } = match (options.pace(), options.requests) {
        (_, Some(requests)) => client.closed(Until::Requests(requests))?,
        (Pace::Closed, None) => client.closed(Until::Elapsed(options.time()))?,
        (Pace::Open(rate), None) => client.open(rate, options.time())?,
    };
    println!("{requests} requests in {elapsed:.2?}");
    for (name, per_mille) in [("p50", 500), ("p99", 990), ("p99.9", 999)] {
        println!("{name} {:.1?}", latencies.at(per_mille));
    }
    Ok(())
}

impl Bench<'_> {
    fn all(&mut self) -> Result<(), Fault> {
        self.comparisons()?;
        self.rule_counts()?;
        self.counters()?;
        self.case("cores", Plan { load: Load { connections: 8, in_flight: 64 }, ..CLOSED }, || {
            let two = Entrant::weir("weir, two processors, one shared with the client", ONE, "");
            vec![Entrant::weir("weir, one processor", ONE, ""), two.on(Cores::Two)]
        })?;
        self.coordination()?;
        self.everyday()?;
        self.long_tail()?;
        self.limitador()?;
        self.idle();
        Ok(())
    }

    /// Compares weir with servers that make no decisions.
    fn comparisons(&mut self) -> Result<(), Fault> {
        let comparison = |kind| Entrant::comparison(kind, ONE);
        self.case("one descriptor", COUNTED, || {
            vec![
                comparison(Kind::H2),
                comparison(Kind::Tonic),
                comparison(Kind::TonicCurrentThread),
                Entrant::weir("weir", ONE, ""),
            ]
        })?;
        self.case("two descriptors of three entries, two tiers", COUNTED, || {
            vec![Entrant::comparison(Kind::H2, TWO_BY_THREE), Entrant::weir("weir", TWO_BY_THREE, "")]
        })?;
        self.case("one at a time", SEQUENTIAL, || {
            vec![comparison(Kind::H2), comparison(Kind::Tonic), Entrant::weir("weir", ONE, "")]
        })?;
        self.case("5,000 a second", STEADY, || {
            vec![comparison(Kind::H2), comparison(Kind::Tonic), Entrant::weir("weir", ONE, "")]
        })?;
        self.case("the comparison itself", CLOSED, || vec![comparison(Kind::H2), comparison(Kind::H2Spawn)])
    }

    /// Compares weir with few rules and with many.
    fn rule_counts(&mut self) -> Result<(), Fault> {
        self.case("rules", CLOSED, || {
            let weir = |(rules, matched): (u32, u32)| {
                let name = format!("weir, {}", thousands(rules.into()));
                let name = if rules == matched { name } else { format!("{name}, {matched} of them matched") };
                Entrant::weir(name, Workload { rules, matched, ..ONE }, "")
            };
            [(1, 1), (100, 100), (10_000, 1), (10_000, 100), (10_000, 10_000)].map(weir).into()
        })
    }

    /// Compares weir with one counter and with many, and measures the memory of a counter.
    fn counters(&mut self) -> Result<(), Fault> {
        const NAME: &str = "counters";
        const MANY: u32 = 1_000_000;
        if !self.options.wants(NAME) {
            return Ok(());
        }
        let weir = |keys: u32| {
            let name = format!("weir, {}", thousands(keys.into()));
            Entrant::weir(name, Workload { keys, ..ONE }, "").with("WEIR_MAX_COUNTERS", "2000000")
        };
        let entrants = [1, MANY].map(weir);
        let runners = self.runners(CLOSED, &entrants)?;
        let before = runners[1].server.resident();
        fill(&runners[1], &entrants[1])?;
        let growth = runners[1].server.resident() - before;
        let live = runners[1].server.metric("weir_counters_live{table=\"memory\"}");
        if live != Some(MANY.into()) {
            return Err(Fault::Unexpected(format!("a gauge of {live:?} counters")));
        }
        self.run(NAME, CLOSED, &entrants, runners)?;
        let note =
            format!("{MANY} counters made the process grow by {} bytes each.", growth / u64::from(MANY));
        self.table.note(&note);
        Ok(())
    }

    /// Compares the coordination modes.
    fn coordination(&mut self) -> Result<(), Fault> {
        const NAME: &str = "coordination";
        if !self.options.wants(NAME) {
            return Ok(());
        }
        let Some(redis) = Redis::start() else {
            self.table.note("Coordination was not measured: redis-server is missing.");
            return Ok(());
        };
        self.case(NAME, IN_USE, || {
            let weir = |(mode, workload): (&str, Workload)| {
                let name = format!("weir, {mode}, {} keys", thousands(workload.keys.into()));
                // the prefix gives each server its own counters
                let weir = Entrant::weir(&*name, workload, &format!(", coordination: {mode}"));
                let weir = weir.with("REDIS_URL", redis.url()).with("CACHE_KEY_PREFIX", name);
                // long enough that no decision falls back to local counts
                weir.with("WEIR_DECISION_BUDGET", "1s")
            };
            let memory = Entrant::weir("weir, in memory", ONE, "");
            let few = Workload { keys: 100, ..ONE };
            let all = [("interval", ONE), ("interval", few), ("lease", ONE), ("lease", few), ("strict", ONE)];
            [memory].into_iter().chain(all.map(weir)).collect()
        })
    }

    /// Compares weir with limitador, another rate limit service in Rust, in comparable modes.
    fn limitador(&mut self) -> Result<(), Fault> {
        let Some(program) = self.options.limitador.clone() else {
            if self.options.wants("limitador") {
                self.table.note("limitador was not measured: --limitador with its program is missing.");
            }
            return Ok(());
        };
        let Some(redis) = Redis::start() else { return Ok(()) };
        let url = format!("redis+unix://{}", redis.url());
        let in_redis = |mode: &str| {
            let weir = Entrant::weir(format!("weir, {mode}"), ONE, &format!(", coordination: {mode}"));
            weir.with("REDIS_URL", redis.url()).with("WEIR_DECISION_BUDGET", "1s")
        };
        let limitador = |storage: &[&str]| Entrant::limitador(&program, ONE, storage);
        self.case("limitador, in memory", IN_USE, || {
            vec![Entrant::weir("weir, in memory", ONE, ""), limitador(&["memory"])]
        })?;
        self.case("limitador, each decision in Redis", IN_USE, || {
            vec![in_redis("strict"), limitador(&["redis", &url])]
        })?;
        self.case("limitador, periodic sync with Redis", IN_USE, || {
            vec![in_redis("interval"), limitador(&["redis_cached", &url])]
        })
    }

    fn idle(&mut self) {
        if self.options.wants("idle") {
            let resident = Entrant::weir("weir", ONE, "").start(&self.machine, &[]).resident();
            self.table.note(&format!("weir uses {} kB after its start.", resident / 1024));
        }
    }
}
