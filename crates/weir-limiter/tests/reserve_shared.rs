//! Hits that requests reserve at instances that share a simulated store: they end anywhere, and come back everywhere.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Condition, Network, SimulatedClock, SimulatedRemote, SimulatedStore},
};
use weir_limit::{Code, Descriptor, Entry, KeyHasher, Request, RuleSet, Timestamp};
use weir_limiter::{DecisionSettings, Limiter};
use weir_observe::Stats;
use weir_store::{TakeOptions, clock::Clock as _};

struct Instance {
    limiter: Limiter<Coordinated<SimulatedRemote>>,
    clock: SimulatedClock,
}

async fn fleet(limit: &str) -> (SimulatedStore, Vec<Instance>) {
    // in the midst of an hour
    let clock = SimulatedClock::new(Timestamp::from_secs(1_700_000_000));
    let shared = SimulatedStore::new(clock.skewed(3_000_000_000), 1);
    let instance = |i: u32| {
        let settings = CoordinationSettings { instance: format!("i{i}"), ..CoordinationSettings::default() };
        let store = Coordinated::new(shared.connect(Network::default()), Arc::new(clock.clone()), settings);
        let limiter = Limiter::new(store, Arc::new(Stats::default()), DecisionSettings::default());
        let rules = format!("domain: llm\ndescriptors:\n- {{key: tenant, rate_limit: {{{limit}}}}}\n");
        let loaded = weir_config::parse("llm.yaml", &rules).expect("valid rules");
        limiter.load(RuleSet::new(&loaded.domains, KeyHasher::random()));
        Instance { limiter, clock: clock.clone() }
    };
    let instances = (0..2).map(instance).collect();
    sleep(Duration::from_secs(5)).await;
    (shared, instances)
}

impl Instance {
    /// Returns whether it is admitted, the hits that are left, and the name.
    async fn decide(&self, entries: &[(&str, &str)], hits: Option<u64>) -> (bool, u32, Option<String>) {
        let entries = entries.iter().map(|(key, value)| Entry { key, value }).collect();
        let descriptor = Descriptor { entries, limit: None, hits, refund: false };
        let request = Request { domain: "llm", descriptors: std::iter::once(descriptor).collect(), hits: 0 };
        let options = TakeOptions { takes_names: true, ..TakeOptions::default() };
        let decided = self.limiter.decide_with(&request, self.clock.now(), options, |verdict| {
            let name =
                verdict.in_flight.as_ref().and_then(|places| places.name.as_deref().map(str::to_owned));
            (verdict.code == Code::Ok, verdict.statuses[0].remaining, name)
        });
        decided.await.expect("a decision")
    }

    async fn begin(&self) -> String {
        let (is_admitted, _, name) = self.decide(&[("tenant", "a")], Some(0)).await;
        assert!(is_admitted);
        name.expect("a name")
    }

    async fn end(&self, name: &str, cost: Option<u64>) {
        assert!(self.decide(&[("in_flight", name)], cost).await.0, "never rejected");
    }

    async fn left(&self) -> u32 {
        self.decide(&[("tenant", "a"), ("in_flight", "check")], None).await.1
    }
}

/// Until reports are sent and leases have ended.
async fn quiet() {
    sleep(Duration::from_secs(3)).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_reserved_at_one_instance_is_corrected_at_another() {
    for mode in ["strict", "lease", "interval", "auto"] {
        let rule = format!(
            "requests: 1000, per: 1h, algorithm: fixed_window, reserve: 300, give_up_after: 10s, coordination: {mode}"
        );
        let (shared, instances) = fleet(&rule).await;
        let [one, two] = &instances[..] else { panic!() };
        let is_left = async |expected: u32, then: &str| {
            // a check alone has an instance hear of others
            for _ in 0..2 {
                let _ = (one.left().await, two.left().await);
                quiet().await;
            }
            let left = [one.left().await, two.left().await];
            // some are leased
            let leased = if mode == "strict" { 0 } else { 30 };
            let is_near = left.iter().all(|left| (expected.saturating_sub(leased)..=expected).contains(left));
            assert!(is_near, "{mode} {then}: {left:?} are left of {expected}");
        };
        let name = one.begin().await;
        quiet().await;
        is_left(700, "").await;
        // less than reserved, at the other instance; twice is as once
        two.end(&name, Some(100)).await;
        two.end(&name, None).await;
        one.end(&name, None).await;
        is_left(900, "settled below").await;
        // more than reserved, at once
        let name = one.begin().await;
        one.end(&name, Some(350)).await;
        is_left(550, "settled above").await;
        // without a name
        let name = two.begin().await;
        quiet().await;
        one.decide(&[("tenant", "a")], Some(50)).await;
        is_left(500, "without a name").await;
        two.end(&name, None).await;
        is_left(500, "ended before").await;
        // one that never ends
        one.begin().await;
        is_left(200, "held").await;
        sleep(Duration::from_secs(11)).await;
        for _ in 0..2 {
            // any end asks what was given up
            one.end(&name, None).await;
            two.end(&name, None).await;
            sleep(Duration::from_secs(1)).await;
        }
        is_left(500, "given up").await;
        // an outage: begun and ended without the store, and begun before it
        let before = one.begin().await;
        quiet().await;
        shared.set(Condition::Down);
        sleep(Duration::from_secs(4)).await;
        two.end(&before, Some(100)).await;
        shared.set(Condition::Up);
        quiet().await;
        one.end(&name, None).await;
        two.end(&name, None).await;
        is_left(400, "after an outage").await;
    }
}

/// Also if the request runs for longer than a lease may.
#[tokio::test(start_paused = true)]
async fn what_is_not_used_goes_back_to_a_bucket() {
    for mode in ["strict", "lease", "interval", "auto"] {
        let rule = format!(
            "requests: 1000, per: 365d, algorithm: token_bucket, reserve: 300, give_up_after: 20s, coordination: {mode}"
        );
        let (_, instances) = fleet(&rule).await;
        let [one, two] = &instances[..] else { panic!() };
        let begun = [one.begin().await, one.begin().await];
        one.begin().await;
        sleep(Duration::from_secs(10)).await;
        two.end(&begun[0], Some(100)).await;
        one.end(&begun[1], None).await;
        // an instance asks after as long without news
        sleep(Duration::from_secs(31)).await;
        for _ in 0..3 {
            // the last one is given up
            one.end(&begun[1], None).await;
            two.end(&begun[1], None).await;
            let _ = (one.left().await, two.left().await);
            quiet().await;
        }
        let left = [one.left().await, two.left().await];
        let leased = if mode == "strict" { 0 } else { 30 };
        assert!(left.iter().all(|left| (900 - leased..=900).contains(left)), "{mode}: {left:?}");
    }
}
