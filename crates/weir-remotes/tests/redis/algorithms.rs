//! The script in Redis, compared with the algorithms in Rust.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    test_runner::{Config, TestRunner},
};
use weir_limit::{
    Algorithm, Bucket, Direction, Hits, OverLimitPolicy, Period, Refill, Tier, Timestamp,
    algorithm::CounterState, decide,
};
use weir_remotes::redis::{Address, RedisRemote};
use weir_store::{
    clock::{Clock as _, ManualClock},
    place_command::{PlaceCommand, PlaceReply},
    pool_command::{PoolCommand, PoolReply},
    remote::{Command, Remote as _, RemoteError, Reply, Report, Target},
};

use crate::support::{
    Lua54, Op, Server, address, compatible, now, remote, send, settings, target, tier, until,
};

pub(crate) const START: Timestamp = Timestamp::from_secs(1_700_000_000);

/// Periods from 120 ms to a year, whole numbers of microseconds whose twelfths are whole too.
const PERIODS: [u64; 5] =
    [120_000_000, 1_200_000_000, 12_000_000_000, 3_600_000_000_000, 31_536_000_000_000_000];

fn algorithm(burst: u32) -> impl Strategy<Value = Algorithm> {
    let bucket = (1..=burst, select(&[Refill::Continuous, Refill::Step][..]), any::<bool>());
    let bucket =
        bucket.prop_map(|(burst, refill, strict)| Algorithm::TokenBucket(Bucket { burst, refill, strict }));
    prop_oneof![1 => Just(Algorithm::FixedWindow), 2 => Just(Algorithm::SlidingWindow), 4 => bucket]
}

pub(crate) fn tiers(most: u32) -> impl Strategy<Value = Vec<Tier>> {
    let tier = (0..=most, select(&PERIODS[..]), algorithm(most))
        .prop_map(|(requests, period, algorithm)| Tier::new(requests, Period::from_nanos(period), algorithm));
    // two tiers of one algorithm and period would share a counter
    vec(tier, 1..4).prop_map(|mut tiers| {
        let kind = |tier: &Tier| (std::mem::discriminant(&tier.algorithm), tier.period);
        let mut seen = Vec::new();
        tiers.retain(|tier| {
            let new = !seen.contains(&kind(tier));
            seen.push(kind(tier));
            new
        });
        tiers
    })
}

/// Operations, each after a time in thousandths of the first tier's period; negative times go back.
fn steps(most: i64) -> impl Strategy<Value = Vec<(i64, Op)>> {
    let later = prop_oneof![5 => 0..50_i64, 2 => 0..500_i64, 1 => 0..2_500_i64, 2 => Just(0), 1 => Just(1_000), 1 => -200..0_i64];
    let take = (0..=most).prop_map(|hits| Op::Take { hits: hits.unsigned_abs() });
    let one = Just(Op::Take { hits: 1 });
    let add = (-most..=most).prop_map(|hits| Op::Add { report: Report::of(Timestamp::default(), hits) });
    vec((later, prop_oneof![4 => one, 4 => take, 2 => add]), 1..40)
}

/// A Redis whose counters follow a clock that the test sets.
pub(crate) struct RedisWithClock {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) remote: RedisRemote,
    pub(crate) runtime: tokio::runtime::Runtime,
    _server: Server,
    /// The number of the case, so that every case has its own counters.
    case: AtomicU64,
}

impl RedisWithClock {
    pub(crate) fn new() -> Self {
        let server = Server::start();
        Self::at(address(server.port()), server)
    }

    /// Starts one whose scripts run in Lua 5.4.
    pub(crate) fn in_lua_5_4() -> Self {
        let lua = Lua54::start();
        Self::at(address(lua.port()), lua.server)
    }

    fn at(address: Address, server: Server) -> Self {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let clock = Arc::new(ManualClock::at(START));
        let redis = runtime.block_on(async {
            let mut settings = settings(address);
            // keys expire on Redis' own clock, which the test does not set
            settings.keys.jitter_seconds = 1_000_000_000;
            let redis = RedisRemote::with_clock(settings, Arc::clone(&clock) as _);
            let redis = redis.expect("it needs no files");
            until("redis is connected", async || redis.state().is_connected()).await;
            redis
        });
        Self { clock, remote: redis, runtime, _server: server, case: AtomicU64::new(0) }
    }

    pub(crate) fn target(&self, tiers: &[Tier]) -> Arc<Target> {
        let case = self.case.fetch_add(1, Ordering::Relaxed);
        target(&format!("d_k_{case}_"), OverLimitPolicy::Ignore, tiers.to_vec())
    }

    /// Returns the reply with the counters after `op`.
    #[expect(clippy::needless_pass_by_value, reason = "tests make the operation in the call")]
    pub(crate) fn send(&self, target: &Arc<Target>, op: Op) -> Reply {
        let send = |op: Op| {
            let sent = self.runtime.block_on(send(&self.remote, target, self.clock.now(), op.clone()));
            sent.unwrap_or_else(|error| panic!("{op:?} on {target:?}: {error}"))
        };
        let reply = send(op.clone());
        if !op.exchange(target.over_limit_policy).decides() {
            return reply;
        }
        Reply { counters: send(Op::Take { hits: 0 }).counters, ..reply }
    }

    /// Carries out `command`.
    pub(crate) fn call_places(&self, commands: Vec<PlaceCommand>) -> Vec<Result<PlaceReply, RemoteError>> {
        self.runtime.block_on(self.remote.call_places(commands)).expect("it replies").replies
    }

    pub(crate) fn call_pool(&self, command: PoolCommand) -> Result<PoolReply, RemoteError> {
        self.runtime.block_on(self.remote.call_pool(command))
    }

    /// Moves the clock by thousandths of the first tier's period. It never moves back if a window is fixed, since the
    /// key of an earlier window does not hold later hits.
    pub(crate) fn advance(&self, tiers: &[Tier], thousandths: i64) {
        let fixed = tiers.iter().any(|tier| tier.algorithm == Algorithm::FixedWindow);
        let thousandths = if fixed { thousandths.max(0) } else { thousandths };
        let micros = tiers[0].period.as_nanos() / 1_000 / 1_000 * thousandths.unsigned_abs();
        let now = self.clock.now().as_nanos();
        let nanos = micros * 1_000;
        self.clock.set(Timestamp::from_nanos(if thousandths < 0 { now - nanos } else { now + nanos }));
    }
}

/// Applies `op` in Rust, and returns whether it was admitted.
fn model(tiers: &[Tier], counters: &mut [CounterState], op: &Op, now: Timestamp) -> bool {
    match *op {
        Op::Take { hits } => {
            !decide(tiers, counters, OverLimitPolicy::Ignore, Direction::Take, Hits(hits), now).over
        }
        Op::Add { report: Report { change, .. } } => {
            for (tier, counter) in tiers.iter().zip(counters) {
                counter.add(tier, now, change, now);
            }
            true
        }
        Op::Grant { .. } | Op::Exchange(_) => unreachable!("the model takes and adds only"),
    }
}

fn hits_of(op: &Op) -> u64 {
    match op {
        Op::Take { hits } => *hits,
        Op::Add { report } => u64::try_from(report.change.hits).unwrap_or_default(),
        Op::Grant { .. } | Op::Exchange(_) => 0,
    }
}

/// Returns `op` as of `now`.
fn at_now(op: &Op, now: Timestamp) -> Op {
    match op {
        Op::Add { report } => Op::Add { report: Report { at: now, ..report.clone() } },
        op => op.clone(),
    }
}

/// Runs `check` on many random tiers and steps.
fn random<F>(cases: u32, most: u32, check: F)
where
    F: Fn(&RedisWithClock, Vec<Tier>, Vec<(i64, Op)>) -> Result<(), TestCaseError>,
{
    let redis = RedisWithClock::new();
    let mut runner = TestRunner::new(Config { failure_persistence: None, cases, ..Config::default() });
    let strategy = (tiers(most), steps(i64::from(most) * 5 / 4));
    let checked = runner.run(&strategy, |(tiers, steps)| {
        redis.clock.set(START);
        check(&redis, tiers, steps)
    });
    if let Err(error) = checked {
        panic!("{error}");
    }
}

/// With the largest numbers, where doubles are rounded, the script never admits more than Rust.
#[test]
fn the_script_never_admits_more_than_rust() {
    random(100, u32::MAX, |redis, tiers, steps| {
        let target = redis.target(&tiers);
        let mut counters: Vec<CounterState> =
            tiers.iter().map(|tier| CounterState::unused(tier, START)).collect();
        let mut kept = vec![false; tiers.len()];
        for (later, op) in steps {
            redis.advance(&tiers, later);
            let now = redis.clock.now();
            for (i, tier) in tiers.iter().enumerate().filter(|(i, _)| !kept[*i]) {
                counters[i] = CounterState::unused(tier, now);
            }
            let taken = model(&tiers, &mut counters, &op, now);
            let reply = redis.send(&target, at_now(&op, now));
            prop_assert!(taken || reply.granted == 0, "{:?} at {:?} with {:?}", op, now, counters);
            for (i, tier) in tiers.iter().enumerate() {
                let (rust, redis) =
                    (counters[i].availability(tier, now), reply.counters[i].availability(tier, now));
                // a rejection by only one of the two is covered by the test above
                if taken == (reply.granted == hits_of(&op)) {
                    prop_assert!(
                        redis.remaining <= rust.remaining && rust.remaining - redis.remaining <= 1,
                        "{:?} of {}: {:?} and {:?}",
                        op,
                        tier,
                        rust,
                        redis
                    );
                }
                counters[i] = reply.counters[i].clone();
                kept[i] |= counters[i].used() > Hits(0);
            }
        }
        Ok(())
    });
}

#[test]
fn a_grant_takes_as_many_hits_as_all_tiers_admit_and_counts_as_of_its_latest_use() {
    random(100, 20, |redis, tiers, steps| {
        let target = redis.target(&tiers);
        for (i, (later, op)) in steps.into_iter().enumerate() {
            redis.advance(&tiers, later);
            let now = redis.clock.now();
            let want = hits_of(&op) + 1;
            let mut counters = redis.send(&target, Op::Take { hits: 0 }).counters;
            let room =
                tiers.iter().zip(&counters).map(|(tier, counter)| counter.availability(tier, now).remaining);
            let room = u64::from(room.min().unwrap_or_default()).min(want);
            let least = want.div_ceil(2);
            let hold = Period::from_nanos(tiers[0].period.as_nanos() / 1_000 / 40 * 1_000 * (i as u64 % 4));
            let reply = redis.send(&target, Op::Grant { report: None, least, want, hold });
            prop_assert_eq!(reply.granted, if room < least { 0 } else { room }, "{:?}", counters);
            for (i, tier) in tiers.iter().enumerate() {
                counters[i].reserve(tier, now, now.after(hold), Hits(reply.granted));
                let (rust, redis) =
                    (counters[i].availability(tier, now), reply.counters[i].availability(tier, now));
                prop_assert_eq!(rust.remaining, redis.remaining, "{}", tier);
                let apart = rust.reset.as_nanos().abs_diff(redis.reset.as_nanos());
                prop_assert!(apart <= 1_000, "{}: {:?} and {:?}", tier, rust, redis);
            }
        }
        Ok(())
    });
}

#[test]
fn granted_hits_count_from_their_latest_use() {
    let redis = RedisWithClock::new();
    let tiers = [tier(10, 12, Algorithm::SlidingWindow)];
    let target = redis.target(&tiers);
    let hold = Period::from_secs(3);
    assert_eq!(redis.send(&target, Op::Take { hits: 4 }).granted, 4);
    redis.clock.advance(Period::from_secs(2));
    assert_eq!(redis.send(&target, Op::Grant { report: None, least: 1, want: 9, hold }).granted, 6);
    // the four hits expire after their period and not before, whatever is granted
    redis.clock.advance(Period::from_millis(9_999));
    assert_eq!(redis.send(&target, Op::Take { hits: 1 }).granted, 0);
    redis.clock.advance(Period::from_millis(1));
    assert_eq!(redis.send(&target, Op::Take { hits: 4 }).granted, 4);
    // the last of the six hits may be used three seconds after the grant
    redis.clock.advance(Period::from_millis(4_999));
    assert_eq!(redis.send(&target, Op::Take { hits: 1 }).granted, 0);
    redis.clock.advance(Period::from_millis(1));
    assert_eq!(redis.send(&target, Op::Take { hits: 6 }).granted, 6);
}

#[test]
fn takes_use_the_window_open_on_redis_clock_and_adds_the_window_of_their_hits() {
    let redis = RedisWithClock::new();
    let tiers = [tier(5, 10, Algorithm::FixedWindow), tier(50, 60, Algorithm::FixedWindow)];
    let target = redis.target(&tiers);
    let send = |seconds_off: i64, op| {
        let at = Timestamp::from_secs(
            START.as_nanos().div_euclid(1_000_000_000).saturating_add_signed(seconds_off),
        );
        redis.runtime.block_on(send(&redis.remote, &target, at, op)).expect("it replies")
    };
    // takes use the open window even if the caller's clock is wrong
    assert_eq!(send(-70, Op::Take { hits: 3 }).granted, 3);
    assert_eq!(send(3_600, Op::Take { hits: 3 }).granted, 0);
    let reply = send(70, Op::Grant { report: None, least: 1, want: 9, hold: Period::default() });
    assert_eq!(reply.granted, 2);
    assert_eq!(reply.counters[0].idle_at(), START.window_end(tiers[0].period));
    // admitted hits count in their own window, even if it has ended
    let late = send(0, Op::Add { report: Report::of(Timestamp::from_secs(1_699_999_990), 4) });
    assert_eq!((late.counters[0].used(), late.counters[1].used()), (Hits(4), Hits(9)));
    assert_eq!(send(0, Op::Take { hits: 0 }).counters[0].used(), Hits(5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_interval_exceeds_the_limit_under_concurrent_calls() {
    let server = Server::start();
    let period = Period::from_millis(300);
    let bucket = Algorithm::TokenBucket(Bucket { burst: 20, refill: Refill::Continuous, strict: false });
    for (path, algorithm) in [("sliding_", Algorithm::SlidingWindow), ("bucket_", bucket)] {
        let target = target(path, OverLimitPolicy::Ignore, vec![Tier::new(20, period, algorithm)]);
        let senders = (0..4).map(|_| {
            let (settings, target) = (settings(address(server.port())), Arc::clone(&target));
            tokio::spawn(async move {
                let remote = RedisRemote::new(settings).expect("it needs no files");
                let (mut admitted, begun) = (Vec::new(), now(&remote).await);
                loop {
                    let command = Op::Take { hits: 1 }.command(&target, begun);
                    let replies = remote.call(vec![command]).await.expect("it replies");
                    if replies.now.since(begun) > Period::from_millis(1_500) {
                        return admitted;
                    }
                    if replies.replies[0].as_ref().is_ok_and(|reply| reply.taken[..] == [1]) {
                        admitted.push(replies.now);
                    }
                }
            })
        });
        let mut admitted: Vec<Timestamp> = Vec::new();
        for sender in senders.collect::<Vec<_>>() {
            admitted.extend(sender.await.expect("it ends"));
        }
        admitted.sort();
        for (i, first) in admitted.iter().enumerate() {
            // the reply holds the time just before the decision
            let slack = Period::from_millis(5);
            let inside = admitted[i..]
                .iter()
                .filter(|at| at.since(*first).as_nanos() + slack.as_nanos() < period.as_nanos());
            let most = if algorithm == bucket { 40 } else { 20 };
            assert!(inside.count() <= most, "{path}");
        }
        assert!(admitted.len() >= 80, "{path} admits {}", admitted.len());
    }
}

#[tokio::test]
async fn replies_are_in_the_order_of_the_commands() {
    let server = Server::start();
    let remote = remote(&server).await;
    let at = now(&remote).await;
    let one = target("one_", OverLimitPolicy::Ignore, vec![tier(3, 3_600, Algorithm::SlidingWindow)]);
    let two = compatible("two_", 3, 86_400 * 365);
    let commands: Vec<Command> = (0..10)
        .map(|i| {
            let target = if i % 2 == 0 { &one } else { &two };
            Op::Take { hits: 1 }.command(target, at)
        })
        .collect();
    let replies = remote.call(commands).await.expect("it replies");
    let taken: Vec<u32> =
        replies.replies.iter().map(|reply| reply.as_ref().expect("it is carried out").taken[0]).collect();
    assert_eq!(taken, [1, 1, 1, 1, 1, 1, 0, 0, 0, 0]);
    assert!(replies.now >= at);
}
