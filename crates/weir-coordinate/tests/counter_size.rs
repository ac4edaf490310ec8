//! Measures the memory of a coordinated counter. An instance may have a million of them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use weir_coordinate::{Coordinated, CoordinationSettings, simulated::SimulatedClock};
use weir_limit::{
    Algorithm, Bucket, Coordination, Descriptor, Domain, Entry, Hits, KeyHasher, Limit, Matched,
    OverLimitPolicy, Period, Refill, Request, Rule, RuleNode, RuleSet, Scope, Tier, Timestamp, Values,
    algorithm::CounterState,
    share::{MemberCounts, PoolTable, Sharing},
};
use weir_store::{
    MemoryStore, Store,
    clock::Clock as _,
    pool_command::{Leased, PoolCommand, PoolOp, PoolOutcome, PoolReply},
    remote::{Command, Exchange, Heartbeat, Members, Remote, RemoteError, Replies, Reply},
};

/// The number of counters that are measured in the mode that most counters have.
const MANY: u32 = 100_000;

/// The number of counters that are measured in others.
const FEW: u32 = 6_250;

/// The counters of a table, and the requests that they have had.
#[derive(Clone)]
struct Case {
    counters: u32,
    limit: Limit,
    coordination: Coordination,
    instances: usize,
    /// The time without requests before the measurement.
    idle: Duration,
    /// Whether each counter then holds a lease.
    leased: bool,
}

/// A shared store that keeps nothing, so that all allocations are the instance's, and grants everything. It knows of no
/// hits but those of a command.
struct EmptyStore {
    clock: SimulatedClock,
    instances: usize,
    /// The leases that it has granted.
    granted: Arc<AtomicU32>,
}

impl Remote for EmptyStore {
    async fn call(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        let now = self.clock.now();
        let reply = |command: &Command| {
            let Exchange { reports, runs, lease, .. } = &command.exchange;
            let taken = runs.iter().map(|run| run.tries).collect();
            let granted = lease.map_or(0, |lease| lease.want);
            let hits = command.exchange.tried() + granted;
            self.granted.fetch_add(u32::from(hits > 0), Ordering::Relaxed);
            let counters = command.target.tiers.iter().map(|tier| {
                let mut state = CounterState::unused(tier, now);
                if let Some(report) = reports.last() {
                    state.add(tier, report.at, report.change, now);
                }
                state.take(tier, now, Hits(hits));
                state
            });
            Ok(Reply { granted, taken, counters: counters.collect(), ..Reply::default() })
        };
        Ok(Replies { now, replies: commands.iter().map(reply).collect() })
    }

    async fn call_pool(&self, command: PoolCommand) -> Result<PoolReply, RemoteError> {
        let outcome = match command.op {
            PoolOp::Lease { tries, .. } => {
                let granted = tries.iter().sum();
                let tries = tries.iter().map(|_| true).collect();
                PoolOutcome::Leased(Leased { tries, ahead: 0, granted, total: granted })
            }
            PoolOp::Exchange(_) => {
                let name = MEMBER.into();
                let (asked, last_cycle) = (1, command.cycle);
                let member = MemberCounts { name, demand: 1, asked, granted: 1, last_cycle, is_new: false };
                let members = vec![member];
                PoolOutcome::Table(PoolTable { cycle: command.cycle, members, ..PoolTable::default() })
            }
        };
        Ok(PoolReply { now: self.clock.now(), outcome })
    }

    async fn heartbeat(&self, _: Heartbeat<'_>) -> Result<Members, RemoteError> {
        Ok(self.instances.into())
    }
}

/// Creates a store that has counted one hit of each key and reported all of them.
async fn filled(case: Case) -> Coordinated<EmptyStore> {
    let Case { counters, limit, coordination, instances, idle, leased } = case;
    let node = RuleNode { rule: Some(Rule::new(limit)), ..RuleNode::new("tenant", Values::Any) };
    let rules = RuleSet::new(&[Domain::new("shop", vec![node])], KeyHasher::random());
    let clock = SimulatedClock::new(Timestamp::from_secs(1_000_000));
    // a shard has as many as with 100,000 counters of a million by default
    let max_counters = 10 * counters.max(FEW) as usize;
    let settings = CoordinationSettings { coordination, max_counters, ..CoordinationSettings::default() };
    let granted = Arc::new(AtomicU32::new(0));
    let remote = EmptyStore { clock: clock.clone(), instances, granted: Arc::clone(&granted) };
    let store = Coordinated::new(remote, Arc::new(clock.clone()), settings);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let decide = async |i: u32| {
        let tenant = format!("tenant-{i:06}");
        let entries = [Entry { key: "tenant", value: &tenant }];
        let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
        let request = Request { domain: "shop", descriptors: [descriptor].into_iter().collect(), hits: 1 };
        let matched = Matched::new(&rules, &request);
        let decisions = store.take(&matched.checks, Scope::Descriptor, clock.now()).await;
        assert!(!decisions.expect("decisions")[0].over);
    };
    for i in 0..counters {
        decide(i).await;
    }
    tokio::time::sleep(idle).await;
    if counters > 0 && coordination == Coordination::Lease {
        let before = granted.load(Ordering::Relaxed);
        decide(0).await;
        assert_eq!(granted.load(Ordering::Relaxed) == before, leased, "whether a lease covers a hit");
    }
    assert_eq!(store.counters(), counters as usize);
    store
}

/// Returns the bytes that the store of `case` holds.
fn bytes_held(case: Case) -> i64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    let mut store = None;
    let measured = allocation_counter::measure(|| store = Some(runtime.block_on(filled(case))));
    measured.bytes_current
}

/// Returns the bytes of a counter, including the table's free slots.
fn bytes_of(case: Case) -> i64 {
    let counters = i64::from(case.counters);
    let empty = bytes_held(Case { counters: 0, ..case.clone() });
    (bytes_held(case) - empty) / counters
}

fn window(requests: u32) -> Limit {
    Limit::fixed_window(requests, Period::from_secs(3_600))
}

/// A limit in weir's own spelling: rare hits of one in that of envoyproxy/ratelimit lease nothing ahead.
fn fixed(requests: u32) -> Limit {
    let tier = Tier::fixed_window(requests, Period::from_secs(3_600));
    Limit::Tiers { tiers: [tier].into(), over_limit_policy: OverLimitPolicy::Ignore }
}

fn tiers(algorithm: Algorithm) -> Limit {
    let tier = Tier::new(100, Period::from_secs(3_600), algorithm);
    Limit::Tiers { tiers: [tier].into(), over_limit_policy: OverLimitPolicy::Ignore }
}

#[test]
fn a_coordinated_counter_takes_at_most_300_bytes_and_70_for_leases() {
    let bucket = Bucket { burst: 100_000, refill: Refill::Continuous, strict: false };
    let (interval, lease) = (Coordination::Interval, Coordination::Lease);
    let (short, long) = (Duration::from_secs(2), Duration::from_secs(30));
    let case = |limit, coordination, instances, idle| Case {
        counters: FEW,
        limit,
        coordination,
        instances,
        idle,
        leased: false,
    };
    let leased = |limit, idle| Case { leased: true, ..case(limit, lease, 1, idle) };
    let (bucket, sliding) = (tiers(Algorithm::TokenBucket(bucket)), tiers(Algorithm::SlidingWindow));
    for (name, case) in [
        ("interval, fixed window", Case { counters: MANY, ..case(window(1_000), interval, 3, short) }),
        ("interval, token bucket", case(bucket.clone(), interval, 3, short)),
        ("interval, sliding window", case(sliding.clone(), interval, 3, short)),
        ("lease, fixed window, nothing leased", case(window(100), lease, 3, long)),
        ("lease, token bucket, nothing leased", case(bucket.clone(), lease, 3, long)),
        ("lease, fixed window, just used", case(window(100), lease, 3, Duration::ZERO)),
        ("lease, fixed window, with a lease", leased(fixed(1_000), long)),
        ("lease, fixed window, with a new lease", leased(fixed(1_000), Duration::ZERO)),
        (
            "lease, fixed window, with a lease of several instances",
            Case { instances: 3, ..leased(fixed(100_000), long) },
        ),
        ("lease, token bucket, with a lease", leased(bucket, short)),
        ("lease, sliding window, with a lease", leased(sliding, short)),
    ] {
        let most = if case.leased { 370 } else { 300 };
        let each = bytes_of(case);
        println!("{name}: {each} bytes per counter");
        assert!((100..=most).contains(&each), "{name}: {each} bytes");
    }
    let each = bytes_of(case(window(1_000), interval, 3, Duration::ZERO));
    println!("interval, fixed window, not reported yet: {each} bytes per counter");
    assert!((300..=430).contains(&each), "{each} bytes");
}

/// The only member of each pool that is measured.
const MEMBER: &str = "client-000001";

/// Asks for a hit of the member in each of this many pools, every second for `seconds`.
async fn fill_pools(store: &impl Store, clock: &SimulatedClock, pools: u32, seconds: u64) {
    let tier = Tier::fixed_window(1_000, Period::from_secs(10));
    let limit = Limit::Tiers { tiers: [tier].into(), over_limit_policy: OverLimitPolicy::Ignore };
    let rule = Rule { sharing: Some(Arc::new(Sharing::default())), ..Rule::new(limit) };
    let client = RuleNode { rule: Some(rule), ..RuleNode::new("client", Values::Any) };
    let service = RuleNode { children: vec![client], ..RuleNode::new("service", Values::Any) };
    let rules = RuleSet::new(&[Domain::new("shop", vec![service])], KeyHasher::random());
    for _ in 0..seconds {
        for i in 0..pools {
            let service = format!("service-{i:06}");
            let entries = [Entry { key: "service", value: &service }, Entry { key: "client", value: MEMBER }];
            let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
            let request =
                Request { domain: "shop", descriptors: [descriptor].into_iter().collect(), hits: 1 };
            let matched = Matched::new(&rules, &request);
            let decisions = store.take(&matched.checks, Scope::Descriptor, clock.now()).await;
            assert!(!decisions.expect("decisions")[0].over);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Returns the bytes that the store that `make` makes holds of each of many pools, through two cycles.
fn bytes_of_pool<S: Store>(make: impl Fn(&SimulatedClock) -> S) -> i64 {
    let held = |pools| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime");
        let mut kept = None;
        let measured = allocation_counter::measure(|| {
            kept = Some(runtime.block_on(async {
                let clock = SimulatedClock::new(Timestamp::from_secs(1_000_000));
                let store = make(&clock);
                tokio::time::sleep(Duration::from_millis(100)).await;
                fill_pools(&store, &clock, pools, 12).await;
                store
            }));
        });
        measured.bytes_current
    };
    (held(500) - held(0)) / 500
}

/// A member takes 500 bytes at most, a pool as much as two of them besides, or as eight if instances share the pool. Names
/// of 256 bytes, and the task that exchanges tables, come on top of what is measured here.
#[test]
fn a_pool_takes_no_more_than_it_counts_for() {
    let memory = bytes_of_pool(|_| MemoryStore::new(1_000_000));
    let shared = bytes_of_pool(|clock| {
        let remote = EmptyStore { clock: clock.clone(), instances: 3, granted: Arc::default() };
        Coordinated::new(remote, Arc::new(clock.clone()), CoordinationSettings::default())
    });
    println!("a pool in memory: {memory} bytes; one that instances share: {shared} bytes");
    assert!(memory <= 3 * 500 - 256 && shared <= 9 * 500 - 1_000, "{memory}, {shared}");
}
