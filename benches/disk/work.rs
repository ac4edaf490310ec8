//! The buckets, and updates of them.

use std::{
    cell::RefCell,
    fmt,
    path::Path,
    rc::Rc,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Builder, Runtime},
    task::LocalSet,
    time::sleep,
};
use weir_disk::{Data, DiskError, DiskSettings, DiskStore, DiskSync, OnDamage};
use weir_limit::{
    Algorithm, Bucket, Descriptor, Domain, Entry, Hits, KeyHasher, Limit, OnStoreFailure, OverLimitPolicy,
    Period, Refill, Request, Rule, RuleNode, RuleSet, Tier, Values, algorithm::CounterState,
};
use weir_limiter::{DecisionSettings, Limiter};
use weir_observe::{Source as _, Stats};
use weir_store::{
    MemoryStore, Store,
    clock::{Clock as _, ManualClock},
};

/// The share of buckets that are full again after an hour, in percent.
pub(crate) const SHORT_SHARE: u64 = 90;

/// The updates at the same time at most.
const MOST_AT_ONCE: usize = 256;

pub(crate) struct Work {
    limiter: Arc<Limiter<DiskStore>>,
    buckets: u64,
    rate: u64,
    runtime: Runtime,
}

/// Latencies of decisions.
pub(crate) struct Latency(Vec<Duration>);

fn tier(domain: &str) -> Tier {
    let period = Period::from_secs(if domain == "short" { 3_600 } else { 30 * 86_400 });
    let algorithm =
        Algorithm::TokenBucket(Bucket { burst: 1_000, refill: Refill::Continuous, strict: false });
    Tier::new(1_000, period, algorithm)
}

/// Returns the domain and the tenant of a bucket.
fn name(bucket: u64) -> (&'static str, String) {
    // names in no order
    let tenant = format!("{:08x}", bucket.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32);
    (if bucket % 100 < SHORT_SHARE { "short" } else { "long" }, tenant)
}

/// Writes all buckets, each with a few hits.
pub(crate) fn fill(dir: &Path, buckets: u64, clock: &ManualClock) {
    let now = clock.now();
    let mut data = Data::open_or_create(dir, now).unwrap_or_else(|error| panic!("{error}"));
    let counters = (0..buckets).map(|bucket| {
        let (domain, tenant) = name(bucket);
        let tier = tier(domain);
        let mut state = CounterState::unused(&tier, now);
        state.take(&tier, now, Hits(900 + bucket % 90));
        let text = format!("b{}", tier.period);
        Ok::<_, DiskError>((format!("{domain}|tenant={tenant}|path=/v1/x"), text, state))
    });
    data.import(counters).expect("they are written");
    data.close().expect("it is closed");
}

pub(crate) fn open(dir: &Path, clock: &Arc<ManualClock>) -> Limiter<DiskStore> {
    let settings = DiskSettings {
        dir: dir.to_owned(),
        sync: DiskSync::Interval,
        interval: Period::from_millis(100),
        on_damage: OnDamage::Refuse,
        max_bytes: None,
        budget: Period::from_secs(10),
        on_store_failure: OnStoreFailure::Local,
        max_counters: 1_000_000,
    };
    let store = DiskStore::open(settings, Arc::clone(clock) as _).unwrap_or_else(|error| panic!("{error}"));
    let limiter = Limiter::new(store, Arc::new(Stats::default()), DecisionSettings::default());
    load(&limiter);
    limiter
}

fn load<S: Store>(limiter: &Limiter<S>) {
    let domain = |domain: &str| {
        let limit = Limit::Tiers {
            tiers: [tier(domain)].into_iter().collect(),
            over_limit_policy: OverLimitPolicy::Ignore,
        };
        let path = RuleNode { rule: Some(Rule::new(limit)), ..RuleNode::new("path", Values::Any) };
        let tenant = RuleNode { children: vec![path], ..RuleNode::new("tenant", Values::Any) };
        Domain::new(domain, vec![tenant])
    };
    limiter.load(RuleSet::new(&[domain("short"), domain("long")], KeyHasher::random()));
}

/// Returns the time of a decision in the memory store.
pub(crate) fn hot_in_memory(clock: &ManualClock) -> Duration {
    let limiter =
        Limiter::new(MemoryStore::new(1_000_000), Arc::new(Stats::default()), DecisionSettings::default());
    load(&limiter);
    Builder::new_current_thread().build().expect("a runtime").block_on(nanos_of(&limiter, clock))
}

/// Returns the time of a decision about one of some counters.
async fn nanos_of<S: Store>(limiter: &Limiter<S>, clock: &ManualClock) -> Duration {
    const ROUNDS: u32 = 1_000_000;
    let mut begun = Instant::now();
    for round in 0..ROUNDS + 2_000 {
        if round == 2_000 {
            begun = Instant::now();
        }
        take(limiter, u64::from(round % 1_000), clock).await;
    }
    begun.elapsed() / ROUNDS
}

async fn take<S: Store>(limiter: &Limiter<S>, bucket: u64, clock: &ManualClock) {
    let (domain, tenant) = name(bucket);
    let entries = [Entry { key: "tenant", value: &tenant }, Entry { key: "path", value: "/v1/x" }];
    let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
    let request = Request { domain, descriptors: [descriptor].into_iter().collect(), hits: 1 };
    limiter.decide(&request, clock.now(), |_| ()).await.expect("a decision");
}

impl Work {
    pub(crate) fn new(limiter: Limiter<DiskStore>, buckets: u64, rate: u64) -> Self {
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        Self { limiter: Arc::new(limiter), buckets, rate, runtime }
    }

    /// Updates one bucket.
    pub(crate) fn one(&self, bucket: u64, clock: &ManualClock) {
        self.runtime.block_on(take(&self.limiter, bucket, clock));
    }

    /// Updates buckets for some time.
    pub(crate) fn run(&self, time: Duration, clock: &Arc<ManualClock>) -> Latency {
        let begun = Instant::now();
        self.run_until(clock, || begun.elapsed() >= time)
    }

    /// Updates buckets, some of them much more often than others (Zipf, 0.99), until `is_over`.
    pub(crate) fn run_until(&self, clock: &Arc<ManualClock>, is_over: impl Fn() -> bool) -> Latency {
        let latencies = Rc::new(RefCell::new(Vec::new()));
        let tasks = LocalSet::new();
        self.runtime.block_on(tasks.run_until(async {
            let (begun, mut sent, mut seed) = (Instant::now(), 0_u64, 1_u64);
            let at_once = Rc::new(RefCell::new(0_usize));
            while !is_over() {
                let due =
                    u64::try_from(begun.elapsed().as_micros()).unwrap_or_default() * self.rate / 1_000_000;
                while sent < due && *at_once.borrow() < MOST_AT_ONCE {
                    seed =
                        seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let bucket = self.zipf(seed);
                    let (limiter, clock) = (Arc::clone(&self.limiter), Arc::clone(clock));
                    let (latencies, at_once) = (Rc::clone(&latencies), Rc::clone(&at_once));
                    *at_once.borrow_mut() += 1;
                    tokio::task::spawn_local(async move {
                        let begun = Instant::now();
                        take(&limiter, bucket, &clock).await;
                        latencies.borrow_mut().push(begun.elapsed());
                        *at_once.borrow_mut() -= 1;
                    });
                    sent += 1;
                }
                sleep(Duration::from_millis(1)).await;
            }
            while *at_once.borrow() > 0 {
                sleep(Duration::from_millis(1)).await;
            }
        }));
        let mut latencies = latencies.take();
        latencies.sort_unstable();
        Latency(latencies)
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it need not be exact"
    )]
    fn zipf(&self, seed: u64) -> u64 {
        let uniform = (seed >> 11) as f64 / (1_u64 << 53) as f64;
        let rank = ((self.buckets as f64).powf(0.01) - 1.0).mul_add(uniform, 1.0).powf(100.0);
        (rank as u64).wrapping_mul(0xd129_0d3b) % self.buckets
    }

    /// Returns the time of a decision about a counter that is in memory.
    pub(crate) fn hot(&self, clock: &ManualClock) -> Duration {
        self.runtime.block_on(nanos_of(&*self.limiter, clock))
    }

    fn metric(&self, name: &str) -> u64 {
        let metrics = self.limiter.store().metrics();
        metrics.iter().find(|metric| metric.name == name).expect("a metric").value
    }

    /// Returns the number of records that were removed.
    pub(crate) fn removed(&self) -> u64 {
        self.metric("weir.disk.removed")
    }

    /// Waits until all records are counted.
    pub(crate) fn wait_for_survey(&self, buckets: u64) {
        let begun = Instant::now();
        while self.metric("weir.disk.records") < buckets * 99 / 100 {
            assert!(begun.elapsed() < Duration::from_mins(10), "they are not counted");
            thread::sleep(Duration::from_millis(50));
        }
        println!("all files verified and all records counted after {:.1?}", begun.elapsed());
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |share: usize| {
            self.0.get(self.0.len().saturating_sub(1) * share / 1_000).copied().unwrap_or_default()
        };
        write!(
            f,
            "{} decisions, p50 {:.1?}, p99 {:.1?}, p99.9 {:.1?}, longest {:.1?}",
            self.0.len(),
            at(500),
            at(990),
            at(999),
            at(1_000)
        )
    }
}
