//! What is measured.

use std::time::Duration;

use super::{
    bench::{Bench, Plan, fill},
    callgrind,
    client::{Client, Load, Outcome, Target, Until},
    comparison::Kind,
    connection::Fault,
    entrant::Entrant,
    machine::{Cores, Machine},
    message::{Asked, Shape},
    options::Options,
    redis::Redis,
    rounds::Pace,
    rules, server,
    table::{Table, thousands},
};

const CLOSED: Plan = Plan {
    load: Load { connections: 4, in_flight: 64 },
    pace: Pace::Closed,
    instructions: false,
    warm_up: Duration::ZERO,
};
const COUNTED: Plan = Plan { instructions: true, ..CLOSED };
const ALONE: Plan = Plan { load: Load { connections: 1, in_flight: 1 }, ..CLOSED };
/// While the others have their turns, leases that nobody asks for go back; this is about counters that are in use.
const IN_USE: Plan = Plan { warm_up: Duration::from_secs(1), ..CLOSED };
const STEADY: Plan = Plan { pace: Pace::Open(5_000), ..CLOSED };

const ONE: Asked = Asked { shape: Shape::One, rules: 1, met: 1, keys: 10_000, limitador: false };
const TWO_BY_THREE: Asked = Asked { shape: Shape::TwoByThree, ..ONE };

/// Runs the cases that `options` want, or the load that they want in their place.
pub(crate) fn run(options: &Options) -> Result<(), Fault> {
    if options.print_rules {
        print!("{}", rules::text(options.asked(), ""));
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
    if options.wants_instructions() && !callgrind::is_here() {
        bench.table.note("Instructions were not counted: that needs valgrind.");
    }
    bench.all()?;
    if options.write {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/performance.md");
        bench.table.write(file.as_ref())?;
    }
    Ok(())
}

/// Loads a server that runs already.
fn load(target: &Target, options: &Options) -> Result<(), Fault> {
    let mut client = Client::connect(target, options.load(), options.asked())?;
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
        self.compared()?;
        self.grown()?;
        self.counters()?;
        self.case("cores", Plan { load: Load { connections: 8, in_flight: 64 }, ..CLOSED }, || {
            let two = Entrant::weir("weir, two processors, one of them the client's", ONE, "");
            vec![Entrant::weir("weir, one processor", ONE, ""), two.on(Cores::Two)]
        })?;
        self.together()?;
        self.beside_limitador()?;
        self.idle();
        Ok(())
    }

    /// weir beside those that decide nothing.
    fn compared(&mut self) -> Result<(), Fault> {
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
        self.case("one at a time", ALONE, || {
            vec![comparison(Kind::H2), comparison(Kind::Tonic), Entrant::weir("weir", ONE, "")]
        })?;
        self.case("5,000 a second", STEADY, || {
            vec![comparison(Kind::H2), comparison(Kind::Tonic), Entrant::weir("weir", ONE, "")]
        })?;
        self.case("the comparison itself", CLOSED, || vec![comparison(Kind::H2), comparison(Kind::H2Spawn)])
    }

    /// weir with few rules and with many.
    fn grown(&mut self) -> Result<(), Fault> {
        self.case("rules", CLOSED, || {
            let weir = |(rules, met): (u32, u32)| {
                let name = format!("weir, {}", thousands(rules.into()));
                let name = if rules == met { name } else { format!("{name}, {met} of them met") };
                Entrant::weir(name, Asked { rules, met, ..ONE }, "")
            };
            [(1, 1), (100, 100), (10_000, 1), (10_000, 100), (10_000, 10_000)].map(weir).into()
        })
    }

    /// weir with one counter and with many, and what those hold.
    fn counters(&mut self) -> Result<(), Fault> {
        const NAME: &str = "counters";
        const MANY: u32 = 1_000_000;
        if !self.options.wants(NAME) {
            return Ok(());
        }
        let weir = |keys: u32| {
            let name = format!("weir, {}", thousands(keys.into()));
            Entrant::weir(name, Asked { keys, ..ONE }, "").with("WEIR_MAX_COUNTERS", "2000000")
        };
        let entrants = [1, MANY].map(weir);
        let runners = self.runners(CLOSED, &entrants)?;
        let before = runners[1].server.resident();
        fill(&runners[1], &entrants[1])?;
        let held = runners[1].server.resident() - before;
        let live = runners[1].server.metric("weir_counters_live");
        if live != Some(MANY.into()) {
            return Err(Fault::Unexpected(format!("that it holds {live:?} counters")));
        }
        self.run(NAME, CLOSED, &entrants, runners)?;
        let note = format!("{MANY} counters made the process grow by {} bytes each.", held / u64::from(MANY));
        self.table.note(&note);
        Ok(())
    }

    /// The ways of counting together.
    fn together(&mut self) -> Result<(), Fault> {
        const NAME: &str = "coordination";
        if !self.options.wants(NAME) {
            return Ok(());
        }
        let Some(redis) = Redis::start() else {
            self.table.note("Counting together was not measured: that needs redis-server.");
            return Ok(());
        };
        self.case(NAME, IN_USE, || {
            let way = |(way, asked): (&str, Asked)| {
                let name = format!("weir, {way}, {} keys", thousands(asked.keys.into()));
                // each shares its counters with nobody
                let weir = Entrant::weir(&*name, asked, &format!(", coordination: {way}"));
                let weir = weir.with("REDIS_URL", redis.url()).with("CACHE_KEY_PREFIX", name);
                // what is measured is Redis, and not deciding without it
                weir.with("WEIR_DECISION_BUDGET", "1s")
            };
            let memory = Entrant::weir("weir, in memory", ONE, "");
            let few = Asked { keys: 100, ..ONE };
            let all = [("interval", ONE), ("interval", few), ("lease", ONE), ("lease", few), ("strict", ONE)];
            [memory].into_iter().chain(all.map(way)).collect()
        })
    }

    /// weir beside the other service in Rust, each with what it has for the purpose.
    fn beside_limitador(&mut self) -> Result<(), Fault> {
        let Some(program) = self.options.limitador.clone() else {
            if self.options.wants("limitador") {
                self.table.note("limitador did not take part: that needs --limitador with its program.");
            }
            return Ok(());
        };
        let Some(redis) = Redis::start() else { return Ok(()) };
        let url = format!("redis+unix://{}", redis.url());
        let in_redis = |way: &str| {
            let weir = Entrant::weir(format!("weir, {way}"), ONE, &format!(", coordination: {way}"));
            weir.with("REDIS_URL", redis.url()).with("WEIR_DECISION_BUDGET", "1s")
        };
        let limitador = |storage: &[&str]| Entrant::limitador(&program, ONE, storage);
        self.case("limitador, in memory", IN_USE, || {
            vec![Entrant::weir("weir, in memory", ONE, ""), limitador(&["memory"])]
        })?;
        self.case("limitador, each decision in Redis", IN_USE, || {
            vec![in_redis("strict"), limitador(&["redis", &url])]
        })?;
        self.case("limitador, in Redis now and then", IN_USE, || {
            vec![in_redis("interval"), limitador(&["redis_cached", &url])]
        })
    }

    fn idle(&mut self) {
        if self.options.wants("idle") {
            let resident = Entrant::weir("weir", ONE, "").start(&self.machine, &[]).resident();
            self.table.note(&format!("A weir that has just been started holds {} kB.", resident / 1024));
        }
    }
}
