//! All operations of the script in Redis, sent by several writers, compared with the simulated store, which uses the
//! algorithms in Rust.

use std::{cell::Cell, sync::Arc};

use proptest::{
    collection::vec,
    option,
    prelude::*,
    test_runner::{Config, TestRunner},
};
use weir_coordinate::simulated::SimulatedServer;
use weir_limit::{Algorithm, Direction, OverLimitPolicy, Period, Tier, Timestamp, algorithm::CountChange};
use weir_store::{
    clock::Clock as _,
    remote::{Exchange, LeaseRequest, Reply, Report, Run, Target, UnusedHits},
};

use crate::{
    algorithms::{RedisWithClock, START, tiers},
    support::Op,
};

/// The number of writers.
const WRITERS: u64 = 3;

/// An operation of one writer, `later` thousandths of the first tier's period after the last one.
#[derive(Clone, Debug)]
struct Step {
    later: i64,
    writer: u64,
    action: Action,
}

#[derive(Clone, Debug)]
enum Action {
    Take(u64),
    Add(Change),
    Grant {
        least: u64,
        want: u64,
        hold: u64,
        report: Option<Change>,
    },
    /// Several reports, tries and a hold in one command.
    Exchange {
        changes: Vec<Change>,
        runs: Vec<Run>,
        all_or_none: bool,
        hold: Option<(u64, u64, u64)>,
    },
}

/// What a report says. Times are in thousandths of the first tier's period before now.
#[derive(Clone, Debug)]
struct Change {
    ago: i64,
    hits: Vec<i64>,
    /// The hits, and the end of their hold.
    unused: Option<(u64, i64)>,
    rejected: Option<i64>,
}

fn ago() -> impl Strategy<Value = i64> {
    prop_oneof![3 => Just(0), 3 => 0..90_i64, 2 => 0..600_i64, 1 => 0..1_500_i64, 1 => -60..0_i64]
}

fn change(most: i64) -> impl Strategy<Value = Change> {
    let hits = vec(prop_oneof![2 => 1..=most, 1 => -most..0], 0..4);
    let unused = option::weighted(0.3, (0..=most.unsigned_abs(), ago()));
    (ago(), hits, unused, option::weighted(0.3, ago())).prop_map(|(ago, hits, unused, rejected)| Change {
        ago,
        hits,
        unused,
        rejected,
    })
}

fn steps(most: i64) -> impl Strategy<Value = Vec<Step>> {
    let later = prop_oneof![5 => 0..50_i64, 2 => 0..500_i64, 1 => 0..2_500_i64, 2 => Just(0), 1 => Just(1_000), 1 => -200..0_i64];
    let takes = prop_oneof![1 => Just(0_u64), 4 => Just(1), 4 => 0..=most.unsigned_abs()];
    let grant = (1..5_u64, 0..=most.unsigned_abs(), 0..4_u64, option::weighted(0.6, change(most)));
    let direction = prop_oneof![2 => Just(Direction::Take), 1 => Just(Direction::GiveBack)];
    let run = (direction, prop_oneof![1 => Just(0_u64), 4 => 1..5_u64], 1..6_u32);
    let run = run.prop_map(|(direction, hits, tries)| Run { direction, hits, tries, counts_rejected: false });
    let runs = (vec(run, 0..4), any::<bool>());
    let hold = option::weighted(0.4, (1..5_u64, 0..=most.unsigned_abs(), 0..4_u64));
    let exchange = (vec(change(most), 0..4), runs, hold);
    let action = prop_oneof![
        3 => exchange.prop_map(|(changes, (runs, all_or_none), hold)| {
            Action::Exchange { changes, runs, all_or_none, hold }
        }),
        4 => takes.prop_map(Action::Take),
        3 => change(most).prop_map(Action::Add),
        3 => grant.prop_map(|(least, want, hold, report)| Action::Grant { least, want, hold, report }),
    ];
    vec(
        (later, 1..=WRITERS, action).prop_map(|(later, writer, action)| Step { later, writer, action }),
        1..40,
    )
}

/// Both stores.
struct Compared<'a> {
    redis: &'a RedisWithClock,
    model: SimulatedServer,
    /// What the operations of each exchange do one after the other.
    in_turn: SimulatedServer,
    target: Arc<Target>,
}

impl Compared<'_> {
    fn tiers(&self) -> &[Tier] {
        &self.target.tiers
    }

    /// Returns the instant `thousandths` of the first tier's period ago, in whole microseconds.
    fn ago(&self, thousandths: i64) -> Timestamp {
        let step = self.tiers()[0].period.as_nanos() / 1_000 / 1_000 * 1_000;
        let nanos = step * thousandths.unsigned_abs();
        let now = self.redis.clock.now().as_nanos();
        Timestamp::from_nanos(if thousandths < 0 { now + nanos } else { now - nanos })
    }

    fn report(&self, change: &Change) -> Report {
        let mut summed = CountChange::default();
        for hits in &change.hits {
            summed.append(*hits);
        }
        Report {
            at: self.ago(change.ago),
            change: summed,
            unused: change.unused.map(|(hits, until)| UnusedHits { hits, until: self.ago(until) }),
            rejected_at: change.rejected.map(|rejected| self.ago(rejected)),
        }
    }

    fn hold_time(&self, hold: u64) -> Period {
        Period::from_nanos(self.tiers()[0].period.as_nanos() / 1_000 / 40 * 1_000 * hold)
    }

    /// Carries out the operations of an exchange one after the other. Returns the tries that were
    /// admitted of each run, the held hits, and the last reply.
    fn in_turn(&mut self, exchange: &Exchange) -> (Vec<u32>, u64, Reply) {
        let now = self.redis.clock.now();
        let mut carry_out = |at, op: Op| op.counted(self.in_turn.execute(&op.command(&self.target, at), now));
        for report in &exchange.reports {
            carry_out(report.at, Op::Add { report: report.clone() });
        }
        let mut taken = Vec::new();
        for run in &exchange.runs {
            if run.direction == Direction::GiveBack {
                let hits = i64::try_from(run.all_hits()).expect("it is small");
                carry_out(now, Op::Add { report: Report::of(now, -hits) });
                taken.push(run.tries);
                continue;
            }
            let granted =
                (0..run.tries).map(|_| carry_out(now, Op::Take { hits: run.hits }).granted).sum::<u64>();
            let tries = granted.checked_div(run.hits).map(|tries| u32::try_from(tries).expect("it is small"));
            taken.push(tries.unwrap_or(run.tries));
        }
        let held = exchange.lease.map_or(0, |lease| {
            let LeaseRequest { least, want, hold } = lease;
            carry_out(now, Op::Grant { report: None, least, want, hold }).granted
        });
        let at = exchange.counted_at(now);
        let states = carry_out(at, Op::Add { report: Report::of(at, 0) });
        (taken, held, states)
    }

    /// Carries out a step in both stores. Returns their replies.
    fn step(&mut self, step: &Step) -> [Reply; 2] {
        let exchange = match &step.action {
            Action::Exchange { changes, runs, all_or_none, hold } => Exchange {
                reports: changes.iter().map(|change| self.report(change)).collect(),
                runs: runs.iter().copied().collect(),
                all_or_none: *all_or_none,
                lease: hold.map(|(least, want, time)| LeaseRequest {
                    least,
                    want,
                    hold: self.hold_time(time),
                }),
                writer: 0,
            },
            Action::Take(hits) => Exchange::of_try(*hits, OverLimitPolicy::Ignore),
            Action::Add(change) => Exchange::of_report(self.report(change)),
            Action::Grant { least, want, hold, report } => Exchange {
                reports: report.iter().map(|change| self.report(change)).collect(),
                ..Exchange::of_lease(LeaseRequest { least: *least, want: *want, hold: self.hold_time(*hold) })
            },
        };
        let op = Op::Exchange(Exchange { writer: step.writer, ..exchange });
        let (now, target) = (self.redis.clock.now(), Arc::clone(&self.target));
        let mut model = self.model.execute(&op.command(&target, now), now);
        if op.exchange(target.over_limit_policy).decides() {
            // the counters afterwards, as the other reply has them
            model.counters = self.model.execute(&Op::Take { hits: 0 }.command(&target, now), now).counters;
        }
        [self.redis.send(&target, op), model]
    }
}

#[test]
fn the_script_does_what_the_algorithms_in_rust_do() {
    let (own, others) = compare_with_rust(&RedisWithClock::new(), 300);
    assert!(own > 200 && others > 200, "{own} {others}");
}

#[test]
fn the_script_does_in_lua_5_4_what_the_algorithms_in_rust_do() {
    compare_with_rust(&RedisWithClock::in_lua_5_4(), 100);
}

/// Compares `cases` random cases. Returns in how many steps nobody else had changed a tier since the writer did, and in how
/// many somebody had.
fn compare_with_rust(redis: &RedisWithClock, cases: u32) -> (u32, u32) {
    let (own, others) = (Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new(Config { failure_persistence: None, cases, ..Config::default() });
    let checked = runner.run(&(tiers(20), steps(24)), |(tiers, steps)| {
        redis.clock.set(START);
        let target = redis.target(&tiers);
        let mut compared = Compared {
            redis,
            model: SimulatedServer::default(),
            in_turn: SimulatedServer::default(),
            target,
        };
        for step in steps {
            redis.advance(&tiers, step.later);
            let now = redis.clock.now();
            let [redis, rust] = compared.step(&step);
            prop_assert_eq!(
                (redis.granted, &redis.taken),
                (rust.granted, &rust.taken),
                "{:?} at {:?}",
                step,
                now
            );
            // a command without a script has no clock
            prop_assert!(redis.at.is_none_or(|at| Some(at) == rust.at), "{:?} and {:?}", redis, rust);
            for (i, tier) in tiers.iter().enumerate() {
                // keys end by Redis' own clock, which this test does not move
                if !rust.missing.contains(i) {
                    prop_assert_eq!(redis.own.contains(i), rust.own.contains(i), "{:?} at {:?}", step, now);
                }
                let [in_redis, in_rust] =
                    [&redis, &rust].map(|reply| reply.counters[i].availability(tier, now));
                prop_assert_eq!(
                    in_redis.remaining,
                    in_rust.remaining,
                    "{:?} at {:?}: {:?} {:?} {:?}",
                    step,
                    now,
                    tier,
                    redis,
                    rust
                );
                let apart = in_redis.reset.as_nanos().abs_diff(in_rust.reset.as_nanos());
                prop_assert!(
                    apart <= 1_000,
                    "{:?} at {:?} of {}: {:?} and {:?}",
                    step,
                    now,
                    tier,
                    redis,
                    rust
                );
            }
            let flows = tiers.iter().any(|tier| tier.algorithm != Algorithm::FixedWindow);
            let counted = if rust.own.is_empty() { &others } else { &own };
            counted.set(counted.get() + u32::from(flows));
        }
        Ok(())
    });
    if let Err(error) = checked {
        panic!("{error}");
    }
    (own.get(), others.get())
}

#[test]
fn hits_that_are_given_back_at_once_leave_no_counter() {
    let redis = RedisWithClock::new();
    redis.clock.set(START);
    let tiers = [Tier::sliding_window(0, Period::from_millis(120))];
    let change = |hits: Vec<i64>, unused| Change { ago: 0, hits, unused, rejected: None };
    let changes = vec![change(vec![1], None), change(Vec::new(), Some((1, 0)))];
    let action = Action::Exchange { changes, runs: Vec::new(), all_or_none: false, hold: None };
    let mut compared = Compared {
        redis: &redis,
        model: SimulatedServer::default(),
        in_turn: SimulatedServer::default(),
        target: redis.target(&tiers),
    };
    compared.step(&Step { later: 0, writer: 1, action });
    let action = Action::Take(0);
    let [in_redis, in_rust] = compared.step(&Step { later: 0, writer: 2, action });
    assert!(in_redis.missing.contains(0) && in_rust.missing.contains(0));
}

/// An exchange is one command, and no different from its parts one after the other.
#[test]
fn an_exchange_does_what_its_parts_do_in_turn() {
    let redis = RedisWithClock::new();
    let mut runner = TestRunner::new(Config { failure_persistence: None, cases: 300, ..Config::default() });
    let checked = runner.run(&(tiers(20), steps(24)), |(tiers, steps)| {
        redis.clock.set(START);
        let target = redis.target(&tiers);
        let mut compared = Compared {
            redis: &redis,
            model: SimulatedServer::default(),
            in_turn: SimulatedServer::default(),
            target: Arc::clone(&target),
        };
        for step in steps {
            redis.advance(&tiers, step.later);
            let Action::Exchange { changes, runs, hold, .. } = step.action else { continue };
            let mut exchange = Exchange { runs: runs.into(), ..Exchange::default() };
            for change in changes {
                exchange.reports.push(compared.report(&change));
            }
            exchange.lease =
                hold.map(|(least, want, time)| LeaseRequest { least, want, hold: compared.hold_time(time) });
            let now = redis.clock.now();
            let in_redis = redis.send(&target, Op::Exchange(exchange.clone()));
            let (taken, held, states) = compared.in_turn(&exchange);
            prop_assert_eq!(
                (in_redis.taken.to_vec(), in_redis.granted),
                (taken, held),
                "{:?} at {:?}",
                exchange,
                now
            );
            for (i, tier) in tiers.iter().enumerate() {
                let [remaining, in_turn] =
                    [&in_redis, &states].map(|reply| reply.counters[i].availability(tier, now).remaining);
                prop_assert_eq!(remaining, in_turn, "{:?} at {:?}: {}", exchange, now, tier);
            }
        }
        Ok(())
    });
    if let Err(error) = checked {
        panic!("{error}");
    }
}
