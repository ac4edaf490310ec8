//! Measures the latency that each coordination mode adds to a decision, and the Redis calls that it needs. Runs all
//! modes against one Redis, which the benchmark starts.
//!
//! Then measures `strict` decisions on one hot key and on many, with one and with 64 in flight, and how long they take
//! alone and beside `interval` decisions on many keys, in turns.
//!
//! `cargo bench --bench coordination`; it needs `redis-server`.

use std::{
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use weir_coordinate::{Coordinated, CoordinationSettings};
use weir_limit::{
    Coordination, Descriptor, Domain, Entry, KeyHasher, Limit, Matched, OverLimitPolicy, Period, Request,
    Rule, RuleCoordination, RuleNode, RuleSet, Scope, Tier, Values,
};
use weir_remotes::redis::{Address, RedisRemote};
use weir_store::{
    Store,
    clock::{Clock, SystemClock},
};

/// The number of decisions in each mode.
const DECISIONS: usize = 20_000;

/// The number of keys that the decisions are spread over.
const KEYS: usize = 100;

/// The keys of the `interval` decisions beside which `strict` is measured, and these decisions a second.
const BESIDE_KEYS: u64 = 100_000;
const BESIDE_RATE: u64 = 15_000;

/// The `strict` decisions a second that are measured alone and beside, and the time of a turn.
const EXACT_RATE: u64 = 1_000;
const TURN: Duration = Duration::from_secs(2);
const TURNS: usize = 5;

/// A Redis server on a Unix socket, killed on drop.
struct Redis {
    child: Child,
    dir: tempfile::TempDir,
}

impl Redis {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("redis.sock");
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket"])
            .arg(&socket)
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed, as by `make test`");
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { child, dir }
    }

    fn address(&self) -> Address {
        Address::Unix(self.dir.path().join("redis.sock"))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn rules(mode: Coordination) -> RuleSet {
    let tier = Tier::fixed_window(1_000_000, Period::from_secs(60));
    let limit = Limit::Tiers { tiers: [tier].into(), over_limit_policy: OverLimitPolicy::Ignore };
    let coordination = RuleCoordination { mode: Some(mode), ..RuleCoordination::default() };
    let rule = Rule { coordination, ..Rule::new(limit) };
    let node = RuleNode { rule: Some(rule), ..RuleNode::new("key", Values::Any) };
    RuleSet::new(&[Domain::new(mode.name(), vec![node])], KeyHasher::random())
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers to print"
)]
async fn run(redis: &Redis, mode: Coordination) {
    let remote = RedisRemote::new(weir_remotes::redis::RedisSettings::single(redis.address()))
        .expect("settings without TLS files");
    let settings = CoordinationSettings {
        budget: Period::from_secs(1),
        instance: mode.name().into(),
        ..CoordinationSettings::default()
    };
    let store = Coordinated::new(remote, Arc::new(SystemClock), settings);
    while !store.remote().state().is_connected() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let rules = rules(mode);
    let take = async |key: usize| {
        let value = (key % KEYS).to_string();
        let entries = [Entry { key: "key", value: &value }];
        let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
        let request =
            Request { domain: mode.name(), descriptors: [descriptor].into_iter().collect(), hits: 1 };
        let started = Instant::now();
        let matched = Matched::new(&rules, &request);
        let decisions = store.take(&matched.checks, Scope::Descriptor, SystemClock.now()).await;
        let took = started.elapsed();
        (took, !decisions.expect("a coordinated store always decides")[0].over)
    };
    // an instance that splits limits has no part at first
    while !take(KEYS).await.1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut latencies: Vec<Duration> = Vec::with_capacity(DECISIONS);
    for i in 0..DECISIONS {
        let (took, is_admitted) = take(i).await;
        latencies.push(took);
        assert!(is_admitted);
        // lets background tasks run
        if i % 64 == 0 {
            tokio::task::yield_now().await;
        }
    }
    latencies.sort_unstable();
    let micros = |share: f64| latencies[(DECISIONS as f64 * share) as usize].as_nanos() as f64 / 1_000.0;
    let (calls, commands) = (
        store.coordination_metrics().store.calls.get() as f64,
        store.coordination_metrics().store.commands.get() as f64,
    );
    println!(
        "{:<10} {:>10.2} {:>10.2} {:>10.2} {:>18.4} {:>18.4}",
        mode.name(),
        micros(0.5),
        micros(0.99),
        micros(0.999),
        calls / DECISIONS as f64,
        commands / DECISIONS as f64,
    );
    store.close().await;
}

/// Opens a store on a thread of its own, as the service does.
fn open_on_a_thread(redis: &Redis) -> Arc<Coordinated<RedisRemote>> {
    let (sender, receiver) = mpsc::channel();
    let settings = weir_remotes::redis::RedisSettings::single(redis.address());
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let remote = RedisRemote::new(settings).expect("settings without TLS files");
            let own = CoordinationSettings {
                budget: Period::from_secs(1),
                instance: "beside".into(),
                ..CoordinationSettings::default()
            };
            let store = Arc::new(Coordinated::new(remote, Arc::new(SystemClock), own));
            while !store.remote().state().is_connected() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            sender.send(store).expect("the benchmark waits");
            std::future::pending::<()>().await;
        });
    });
    receiver.recv().expect("the store opens")
}

/// Decides `rate` hits a second one after the other until `until`, and returns the latencies.
fn decide(
    store: &Coordinated<RedisRemote>,
    mode: Coordination,
    (keys, rate): (u64, u64),
    until: impl Fn() -> bool,
) -> Vec<Duration> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let rules = rules(mode);
    let started = Instant::now();
    let (mut latencies, mut sent, mut random) = (Vec::new(), 0_u64, 1_u64);
    while !until() {
        let due = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX) * rate / 1_000_000;
        if sent >= due {
            thread::sleep(Duration::from_micros(200));
            continue;
        }
        sent += 1;
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let value = ((random >> 33) % keys).to_string();
        let entries = [Entry { key: "key", value: &value }];
        let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
        let request =
            Request { domain: mode.name(), descriptors: [descriptor].into_iter().collect(), hits: 1 };
        let begun = Instant::now();
        let matched = Matched::new(&rules, &request);
        let decisions = runtime.block_on(store.take(&matched.checks, Scope::Descriptor, SystemClock.now()));
        assert!(!decisions.expect("a coordinated store always decides")[0].over);
        latencies.push(begun.elapsed());
    }
    latencies
}

/// Measures `strict` decisions on one key and on many, with so many in flight, and prints them.
fn in_flight(redis: &Redis) {
    let store = open_on_a_thread(redis);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    println!(
        "\nstrict decisions on a key, in flight at a time; latency in microseconds, commands per decision"
    );
    println!(
        "{:<10} {:>10} {:>14} {:>10} {:>10} {:>10}",
        "keys", "in flight", "decisions/s", "p50", "p99", "commands"
    );
    for (keys, callers) in [(1, 1), (1, 64), (10_000, 1), (10_000, 64)] {
        let before = store.coordination_metrics().store.commands.get();
        let (rules, begun) = (Arc::new(rules(Coordination::Strict)), Instant::now());
        let mut latencies: Vec<Duration> = runtime.block_on(async {
            let mut calling = tokio::task::JoinSet::new();
            for caller in 0..callers {
                let (store, rules) = (Arc::clone(&store), Arc::clone(&rules));
                calling.spawn(async move {
                    let mut latencies = Vec::new();
                    let mut random = caller;
                    while begun.elapsed() < TURN {
                        random = random * 31 % 10_007 + 1;
                        let value = (random % keys).to_string();
                        let entries = [Entry { key: "key", value: &value }];
                        let entries = entries.into_iter().collect();
                        let descriptors =
                            [Descriptor { entries, ..Descriptor::default() }].into_iter().collect();
                        let request = Request { domain: Coordination::Strict.name(), descriptors, hits: 1 };
                        let sent = Instant::now();
                        let matched = Matched::new(&rules, &request);
                        let decisions = store.take(&matched.checks, Scope::Descriptor, SystemClock.now());
                        decisions.await.expect("a coordinated store always decides");
                        latencies.push(sent.elapsed());
                    }
                    latencies
                });
            }
            calling.join_all().await.into_iter().flatten().collect()
        });
        let seconds = begun.elapsed().as_millis();
        let commands = store.coordination_metrics().store.commands.get() - before;
        latencies.sort_unstable();
        let at = |percent: usize| latencies[latencies.len() * percent / 100].as_micros();
        let made = latencies.len() as u64;
        println!(
            "{keys:<10} {callers:>10} {:>14} {:>10} {:>10} {:>9}%",
            u128::from(made) * 1_000 / seconds,
            at(50),
            at(99),
            commands * 100 / made
        );
    }
}

/// Measures `strict` decisions alone and beside `interval` decisions, in turns, and prints both.
fn beside(redis: &Redis) {
    let store = open_on_a_thread(redis);
    let mut latencies = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        for (is_beside, latencies) in latencies.iter_mut().enumerate() {
            let stop = AtomicBool::new(is_beside == 0);
            thread::scope(|scope| {
                scope.spawn(|| {
                    decide(&store, Coordination::Interval, (BESIDE_KEYS, BESIDE_RATE), || {
                        stop.load(Ordering::Relaxed)
                    })
                });
                let started = Instant::now();
                latencies.extend(decide(&store, Coordination::Strict, (1_000, EXACT_RATE), || {
                    started.elapsed() >= TURN
                }));
                stop.store(true, Ordering::Relaxed);
            });
            // the flushes of the keys end before the next turn
            thread::sleep(Duration::from_millis(500));
        }
    }
    println!(
        "\n{EXACT_RATE} strict decisions a second, alone and beside {BESIDE_RATE} interval decisions a second on \
         {BESIDE_KEYS} keys; latency in microseconds"
    );
    println!("{:<10} {:>10} {:>10} {:>10} {:>12}", "strict", "p50", "p99", "p99.9", "decisions");
    for (name, latencies) in ["alone", "beside"].into_iter().zip(&mut latencies) {
        latencies.sort_unstable();
        let at = |per_mille: usize| latencies[latencies.len() * per_mille / 1_000].as_micros();
        println!("{name:<10} {:>10} {:>10} {:>10} {:>12}", at(500), at(990), at(999), latencies.len());
    }
}

fn main() {
    let redis = Redis::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    println!(
        "{DECISIONS} sequential decisions, {KEYS} keys; latency in microseconds, calls and commands per decision"
    );
    println!("{:<10} {:>10} {:>10} {:>10} {:>18} {:>18}", "mode", "p50", "p99", "p99.9", "calls", "commands");
    for mode in Coordination::ALL {
        runtime.block_on(run(&redis, mode));
    }
    in_flight(&redis);
    beside(&redis);
}
