//! All operations of the script in Redis, sent by several writers, compared with the simulated store, which uses the algorithms
//! in Rust.

use std::{cell::Cell, sync::Arc};

use proptest::{
    collection::vec,
    option,
    prelude::*,
    sample::select,
    test_runner::{Config, TestRunner},
};
use weir::{
    clock::Clock as _,
    limit::{
        Algorithm, Period, Tier, Timestamp,
        algorithm::{CountChange, CounterState},
    },
    store::{
        remote::{Command, Op, Replacement, Reply, Report, Target, UnusedHits},
        simulated::SimulatedServer,
    },
};

use crate::algorithms::{RedisWithClock, START, tiers};

/// The number of writers.
const WRITERS: usize = 3;

/// An operation of one writer, `later` thousandths of the first tier's period after the last one.
#[derive(Clone, Debug)]
struct Step {
    later: i64,
    writer: usize,
    action: Action,
}

#[derive(Clone, Debug)]
enum Action {
    Take(u64),
    Add(Change),
    Grant { least: u64, want: u64, hold: u64, report: Option<Change> },
}

/// What a report says. Times are in thousandths of the first tier's period before now.
#[derive(Clone, Debug)]
struct Change {
    ago: i64,
    since: i64,
    hits: Vec<i64>,
    /// The hits, and the end of their hold.
    unused: Option<(u64, i64)>,
    rejected: Option<i64>,
    replaces: Replaces,
    /// Whether the replacement is said to count no hits of others.
    is_own: bool,
}

/// The replacement in a report.
#[derive(Clone, Copy, Debug)]
enum Replaces {
    Nothing,
    /// With the version that the writer knows.
    Known,
    /// With a version that never was.
    Unknown,
}

/// What a writer knows from its last reply.
#[derive(Clone, Debug, Default)]
struct Knowledge {
    in_redis: u64,
    in_model: u64,
    states: Vec<CounterState>,
}

fn ago() -> impl Strategy<Value = i64> {
    prop_oneof![3 => Just(0), 3 => 0..90_i64, 2 => 0..600_i64, 1 => 0..1_500_i64, 1 => -60..0_i64]
}

fn change(most: i64) -> impl Strategy<Value = Change> {
    let hits = vec(prop_oneof![2 => 1..=most, 1 => -most..0], 0..4);
    let unused = option::weighted(0.3, (0..=most.unsigned_abs(), ago()));
    let replaces = select(
        &[Replaces::Nothing, Replaces::Known, Replaces::Known, Replaces::Known, Replaces::Unknown][..],
    );
    (ago(), ago(), hits, unused, option::weighted(0.3, ago()), (replaces, any::<bool>())).prop_map(
        |(ago, since, hits, unused, rejected, (replaces, is_own))| Change {
            ago,
            since,
            hits,
            unused,
            rejected,
            replaces,
            is_own,
        },
    )
}

fn steps(most: i64) -> impl Strategy<Value = Vec<Step>> {
    let later = prop_oneof![5 => 0..50_i64, 2 => 0..500_i64, 1 => 0..2_500_i64, 2 => Just(0), 1 => Just(1_000), 1 => -200..0_i64];
    let takes = prop_oneof![1 => Just(0_u64), 4 => Just(1), 4 => 0..=most.unsigned_abs()];
    let grant = (1..5_u64, 0..=most.unsigned_abs(), 0..4_u64, option::weighted(0.6, change(most)));
    let action = prop_oneof![
        4 => takes.prop_map(Action::Take),
        3 => change(most).prop_map(Action::Add),
        3 => grant.prop_map(|(least, want, hold, report)| Action::Grant { least, want, hold, report }),
    ];
    vec((later, 0..WRITERS, action).prop_map(|(later, writer, action)| Step { later, writer, action }), 1..40)
}

/// Both stores, and what the writers know.
struct Compared<'a> {
    redis: &'a RedisWithClock,
    model: SimulatedServer,
    target: Arc<Target>,
    writers: [Knowledge; WRITERS],
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

    /// Returns the report for Redis and for the model, whose versions differ.
    fn reports(&self, change: &Change, writer: usize) -> [Report; 2] {
        let now = self.redis.clock.now();
        let at = self.ago(change.ago);
        let mut summed = CountChange::default();
        for hits in &change.hits {
            summed.append(*hits);
        }
        let report = Report {
            at,
            change: summed,
            unused: change.unused.map(|(hits, until)| UnusedHits { hits, until: self.ago(until) }),
            rejected_at: change.rejected.map(|rejected| self.ago(rejected)),
            since: self.ago(change.since),
            replaces: None,
        };
        let writer = &self.writers[writer];
        let with = |version| {
            let states = self.tiers().iter().enumerate().map(|(i, tier)| {
                let unused = || CounterState::unused(tier, now);
                let mut state = writer.states.get(i).cloned().unwrap_or_else(unused);
                for hits in &change.hits {
                    state.add(tier, at.min(now), CountChange::of(*hits), now);
                }
                state
            });
            let replaces =
                Some(Box::new(Replacement { version, is_own: change.is_own, states: states.collect() }));
            Report { replaces, ..report.clone() }
        };
        match change.replaces {
            Replaces::Nothing => [report.clone(), report],
            Replaces::Known => [with(writer.in_redis), with(writer.in_model)],
            Replaces::Unknown => [with((1 << 48) + 1), with(u64::MAX)],
        }
    }

    /// Carries out a step in both stores. Returns their replies.
    fn step(&mut self, step: &Step) -> [Reply; 2] {
        let ops = match &step.action {
            Action::Take(hits) => [Op::Take { hits: *hits }, Op::Take { hits: *hits }],
            Action::Add(change) => self.reports(change, step.writer).map(|report| Op::Add { report }),
            Action::Grant { least, want, hold, report } => {
                let period = self.tiers()[0].period.as_nanos();
                let hold = Period::from_nanos(period / 1_000 / 40 * 1_000 * hold);
                let reports = match report {
                    Some(change) => self.reports(change, step.writer).map(Some),
                    None => [None, None],
                };
                reports.map(|report| Op::Grant { report, least: *least, want: *want, hold })
            }
        };
        let [in_redis, in_model] = ops;
        let now = self.redis.clock.now();
        let target = Arc::clone(&self.target);
        let redis = self.redis.send(&target, in_redis);
        let model = self.model.execute(&Command { target, at: now, op: in_model }, now);
        self.writers[step.writer] =
            Knowledge { in_redis: redis.version, in_model: model.version, states: model.counters.to_vec() };
        [redis, model]
    }
}

#[test]
fn the_script_does_what_the_algorithms_in_rust_do() {
    let redis = RedisWithClock::new();
    let (adopted, added) = (Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new(Config { failure_persistence: None, cases: 300, ..Config::default() });
    let checked = runner.run(&(tiers(20), steps(24)), |(tiers, steps)| {
        redis.clock.set(START);
        let target = redis.target(&tiers);
        let mut compared = Compared {
            redis: &redis,
            model: SimulatedServer::default(),
            target,
            writers: Default::default(),
        };
        for step in steps {
            redis.advance(&tiers, step.later);
            let now = redis.clock.now();
            let [redis, rust] = compared.step(&step);
            prop_assert_eq!(
                (redis.granted, redis.matched),
                (rust.granted, rust.matched),
                "{:?} at {:?}",
                step,
                now
            );
            prop_assert_eq!(redis.version == 0, rust.version == 0, "{:?} at {:?}", step, now);
            for (i, tier) in tiers.iter().enumerate() {
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
            let reports = matches!(step.action, Action::Add(_) | Action::Grant { report: Some(_), .. });
            let versioned = tiers.iter().any(|tier| tier.algorithm != Algorithm::FixedWindow);
            let counted = if rust.matched { &adopted } else { &added };
            counted.set(counted.get() + u32::from(reports && versioned));
        }
        Ok(())
    });
    if let Err(error) = checked {
        panic!("{error}");
    }
    assert!(adopted.get() > 200 && added.get() > 200, "{adopted:?} {added:?}");
}
