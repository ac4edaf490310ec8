//! Measures the latency that each coordination mode adds to a decision, and the Redis calls that it needs. Runs all modes
//! against one Redis, which the benchmark starts.
//!
//! `cargo bench --bench coordination`; it needs `redis-server`.

use std::{
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use weir::{
    clock::{Clock, SystemClock},
    limit::{
        Algorithm, Coordination, Descriptor, Domain, Entry, KeyHasher, Limit, Matched, OverLimitPolicy,
        Period, Request, Rule, RuleCoordination, RuleNode, RuleSet, Scope, Tier, Values,
    },
    store::{
        Store,
        coordinated::{Coordinated, CoordinationSettings},
        redis::{Address, RedisRemote},
    },
};

/// The number of decisions in each mode.
const DECISIONS: usize = 20_000;

/// The number of keys that the decisions are spread over.
const KEYS: usize = 100;

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
    let tier = Tier { requests: 1_000_000, period: Period::from_secs(60), algorithm: Algorithm::FixedWindow };
    let limit = Limit::Tiers { tiers: [tier].into(), over_limit_policy: OverLimitPolicy::Ignore };
    let coordination = RuleCoordination { mode: Some(mode), ..RuleCoordination::default() };
    let rule = Rule { coordination, ..Rule::new(limit) };
    let node = RuleNode { rule: Some(rule), ..RuleNode::new("key", Values::Any) };
    RuleSet::new(&[Domain { name: mode.name().into(), nodes: vec![node] }], KeyHasher::random())
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers to print"
)]
async fn run(redis: &Redis, mode: Coordination) {
    let remote = RedisRemote::new(weir::store::redis::RedisSettings::single(redis.address()))
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
    let mut latencies: Vec<Duration> = Vec::with_capacity(DECISIONS);
    for i in 0..DECISIONS {
        let value = (i % KEYS).to_string();
        let entries = [Entry { key: "key", value: &value }];
        let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
        let request =
            Request { domain: mode.name(), descriptors: [descriptor].into_iter().collect(), hits: 1 };
        let started = Instant::now();
        let matched = Matched::new(&rules, &request);
        let decisions = store.take(&matched.checks, Scope::Descriptor, SystemClock.now()).await;
        latencies.push(started.elapsed());
        assert!(!decisions.expect("a coordinated store always decides")[0].over);
        // lets background tasks run
        if i % 64 == 0 {
            tokio::task::yield_now().await;
        }
    }
    latencies.sort_unstable();
    let micros = |share: f64| latencies[(DECISIONS as f64 * share) as usize].as_nanos() as f64 / 1_000.0;
    let (calls, commands) =
        (store.coordination_metrics().calls.get() as f64, store.coordination_metrics().commands.get() as f64);
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
}
