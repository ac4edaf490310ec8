//! What each way of counting together adds to a decision, and what it asks of Redis: all in one run, on one Redis that the
//! benchmark starts for itself.
//!
//! `cargo bench --bench ways`; it needs `redis-server`.

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

/// Decisions of each way.
const DECISIONS: usize = 20_000;

/// Keys that they are about.
const KEYS: usize = 100;

/// A Redis of our own, on a socket of our own.
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
            .expect("redis-server is there: make test installs it");
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

fn rules(way: Coordination) -> RuleSet {
    let tier = Tier { requests: 1_000_000, period: Period::from_secs(60), algorithm: Algorithm::FixedWindow };
    let limit = Limit::Tiers { tiers: [tier].into(), over_limit_policy: OverLimitPolicy::Ignore };
    let coordination = RuleCoordination { mode: Some(way), ..RuleCoordination::default() };
    let rule = Rule { coordination, ..Rule::new(limit) };
    let node = RuleNode { rule: Some(rule), ..RuleNode::new("key", Values::Any) };
    RuleSet::new(&[Domain { name: way.name().into(), nodes: vec![node] }], KeyHasher::random())
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures to read"
)]
async fn run(redis: &Redis, way: Coordination) {
    let remote = RedisRemote::new(weir::store::redis::RedisSettings::single(redis.address()))
        .expect("no files are needed");
    let settings = CoordinationSettings {
        budget: Period::from_secs(1),
        instance: way.name().into(),
        ..CoordinationSettings::default()
    };
    let store = Coordinated::new(remote, Arc::new(SystemClock), settings);
    while !store.remote().state().is_connected() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let rules = rules(way);
    let mut took: Vec<Duration> = Vec::with_capacity(DECISIONS);
    for i in 0..DECISIONS {
        let value = (i % KEYS).to_string();
        let entries = [Entry { key: "key", value: &value }];
        let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
        let request =
            Request { domain: way.name(), descriptors: [descriptor].into_iter().collect(), hits: 1 };
        let begun = Instant::now();
        let matched = Matched::new(&rules, &request);
        let taken = store.take(&matched.checks, Scope::Descriptor, SystemClock.now()).await;
        took.push(begun.elapsed());
        assert!(!taken.expect("a coordinated store always decides")[0].over);
        // what goes on in the background has its turn
        if i % 64 == 0 {
            tokio::task::yield_now().await;
        }
    }
    took.sort_unstable();
    let micros = |share: f64| took[(DECISIONS as f64 * share) as usize].as_nanos() as f64 / 1_000.0;
    let (calls, commands) =
        (store.coordination_metrics().calls.get() as f64, store.coordination_metrics().commands.get() as f64);
    println!(
        "{:<10} {:>10.2} {:>10.2} {:>10.2} {:>18.4} {:>18.4}",
        way.name(),
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
        "{DECISIONS} decisions one after the other, {KEYS} keys; microseconds, and what Redis is asked a decision"
    );
    println!("{:<10} {:>10} {:>10} {:>10} {:>18} {:>18}", "way", "p50", "p99", "p99.9", "calls", "commands");
    for way in Coordination::ALL {
        runtime.block_on(run(&redis, way));
    }
}
