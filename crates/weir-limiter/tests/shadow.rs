//! Limits in the shadow of rules: what they count, in every store and coordination mode, and that they change no
//! answer.

use std::{sync::Arc, time::Duration};

use proptest::{collection::vec, prelude::*};
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Condition, Network, SimulatedClock, SimulatedRemote, SimulatedStore},
};
use weir_disk::{DiskSettings, DiskStore, DiskSync, OnDamage};
use weir_export::{
    prometheus::{MetricNames, render},
    snapshot::{StatValue, snapshot},
};
use weir_limit::{
    Code, Coordination, Descriptor, Entry, KeyHasher, OnStoreFailure, Period, Request, RuleSet, RuntimeLimit,
    Timestamp, Unit,
};
use weir_limiter::{DecisionSettings, Limiter};
use weir_observe::{RuleCounts, ShadowCounts, Stats};
use weir_store::{
    MemoryStore, Store,
    clock::{Clock as _, ManualClock},
};

/// The start of a window of every length that the tests use.
const EPOCH: Timestamp = Timestamp::from_secs(1_699_999_200);

/// A limiter and its stats.
struct Service<S> {
    limiter: Limiter<S>,
    stats: Arc<Stats>,
    hasher: KeyHasher,
}

/// The parts of an answer.
type Answer = (Code, Vec<(Code, u32, Option<Period>)>);

impl<S: Store> Service<S> {
    /// Creates a service on `store` with the rules of the file `text`.
    fn new(store: S, text: &str) -> Self {
        let stats = Arc::new(Stats::default());
        let limiter = Limiter::new(store, Arc::clone(&stats), DecisionSettings::default());
        let service = Self { limiter, stats, hasher: KeyHasher::random() };
        service.load(text);
        service
    }

    fn load(&self, text: &str) {
        let loaded = weir_config::parse("shadow.yaml", text).expect("valid rules");
        self.limiter.load(RuleSet::new(&loaded.domains, self.hasher));
    }

    /// Decides a request of `descriptors`.
    async fn decide(&self, descriptors: Vec<Descriptor<'_>>, now: Timestamp) -> Answer {
        let request = Request { domain: "d", descriptors: descriptors.into(), hits: 1 };
        let answer = self.limiter.decide(&request, now, |verdict| {
            let statuses = verdict.statuses.iter().map(|s| (s.code, s.remaining, s.reset)).collect();
            (verdict.code, statuses)
        });
        answer.await.expect("a decision")
    }

    /// Sends a hit of `key`. Returns whether it was admitted.
    async fn hit(&self, key: &str, now: Timestamp) -> bool {
        self.decide(vec![descriptor(key)], now).await.0 == Code::Ok
    }

    /// Returns what was counted for the rule of `key`, and in its shadow.
    fn counts(&self, key: &str) -> (RuleCounts, ShadowCounts) {
        let stats = self.stats.rule(&["d".into(), key.into()]);
        (stats.get(), stats.shadow())
    }

    /// Returns the hits of the rule of `key` that the limit in its shadow would have admitted and rejected.
    fn shadow(&self, key: &str) -> (u64, u64) {
        let ShadowCounts { within_limit, over_limit } = self.counts(key).1;
        (within_limit, over_limit)
    }
}

fn descriptor(key: &str) -> Descriptor<'_> {
    let entries = [Entry { key, value: "v" }];
    Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() }
}

/// Returns a file with a rule for the key `k`, whose `rate_limit` has these `lines`.
fn rule(lines: &str) -> String {
    format!("domain: d\ndescriptors:\n  - key: k\n    rate_limit: {{ {lines} }}\n")
}

fn memory() -> MemoryStore {
    MemoryStore::new(1_000)
}

#[tokio::test]
async fn a_lower_limit_counts_what_it_would_reject_and_rejects_nothing() {
    let service = Service::new(memory(), &rule("requests: 5, per: 1m, shadow: { requests: 2, per: 1m }"));
    let mut admitted = 0;
    for _ in 0..8 {
        admitted += u32::from(service.hit("k", EPOCH).await);
    }
    assert_eq!(admitted, 5);
    let (counts, _) = service.counts("k");
    assert_eq!((counts.total_hits, counts.within_limit, counts.over_limit), (8, 5, 3));
    assert_eq!((counts.near_limit, counts.shadow_mode), (1, 0));
    assert_eq!(service.shadow("k"), (2, 6));
    assert!(service.hit("k", EPOCH.after(Period::from_secs(60))).await);
    assert_eq!(service.shadow("k"), (3, 6), "its window ends, too");
}

#[tokio::test]
async fn a_higher_limit_counts_what_it_would_admit() {
    let service = Service::new(memory(), &rule("requests: 2, per: 1m, shadow: { requests: 6, per: 1m }"));
    for _ in 0..8 {
        service.hit("k", EPOCH).await;
    }
    assert_eq!((service.counts("k").0.within_limit, service.shadow("k")), (2, (6, 2)));
}

#[tokio::test]
async fn the_metrics_have_the_labels_of_the_rule() {
    let text =
        rule("requests: 5, per: 1m, shadow: { tiers: [{ requests: 1, per: 1m }, { requests: 9, per: 1h }] }");
    let service = Service::new(memory(), &text);
    service.hit("k", EPOCH).await;
    service.hit("k", EPOCH).await;
    let lines = |page: &str| -> Vec<String> {
        page.lines().filter(|line| line.starts_with("weir_shadow")).map(str::to_owned).collect()
    };
    assert_eq!(
        lines(&render(&service.stats, &MetricNames::default())),
        [
            r#"weir_shadow_limit{domain="d",key1="k",per="1h"} 9"#,
            r#"weir_shadow_limit{domain="d",key1="k",per="1m"} 1"#,
            r#"weir_shadow_over_limit_total{domain="d",key1="k"} 1"#,
            r#"weir_shadow_within_limit_total{domain="d",key1="k"} 1"#,
        ]
    );
    let stats = snapshot(&service.stats);
    assert_eq!(stats["weir.shadow_limit.d.k.1h"], StatValue::Gauge(9));
    assert_eq!(stats["weir.shadow_over_limit.d.k"], StatValue::Counter(1));
    // rules without a shadow have no such series
    let without = Service::new(memory(), &rule("requests: 5, per: 1m"));
    without.hit("k", EPOCH).await;
    assert_eq!(lines(&render(&without.stats, &MetricNames::default())), [""; 0]);
}

#[tokio::test]
async fn values_in_stats_are_in_those_of_the_shadow() {
    let text = "domain: d\ndescriptors:\n  - key: k\n    detailed_metric: true\n    \
                rate_limit: { requests: 5, per: 1m, shadow: { requests: 1, per: 1m } }\n";
    let service = Service::new(memory(), text);
    service.hit("k", EPOCH).await;
    service.hit("k", EPOCH).await;
    assert_eq!((service.shadow("k"), service.shadow("k_v")), ((0, 0), (1, 1)));
}

/// The algorithms of enforced limits and of shadows, without braces.
fn limits() -> impl Strategy<Value = String> {
    let requests = 1_u32..8;
    let kinds = prop::sample::select(vec![
        "requests: R, per: 1m",
        "requests_per_unit: R, unit: minute",
        "requests: R, per: 90s, algorithm: sliding_window",
        "requests: R, per: 1m, algorithm: token_bucket, burst: 3",
        "tiers: [{ requests: R, per: 7s }, { requests: 9, per: 1m }]",
    ]);
    (requests, kinds).prop_map(|(requests, kind)| kind.replace('R', &requests.to_string()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The answers and stats of a rule are those without the shadow, and the shadow counts as a rule of its limit alone
    /// does.
    #[test]
    fn a_shadow_counts_as_if_it_were_enforced_alone(
        (enforced, shadow) in (limits(), limits()),
        steps in vec((0_u64..40_000, 0_u64..4, any::<bool>()), 1..60),
    ) {
        // another algorithm than the rule's is named, since a shadow has the rule's otherwise
        let shadow = if shadow.contains("algorithm") || shadow.contains("tiers") {
            shadow
        } else {
            format!("{shadow}, algorithm: fixed_window")
        };
        prop_assume!(!shadow.contains("tiers") || !enforced.contains("algorithm"));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let both = Service::new(memory(), &rule(&format!("{enforced}, shadow: {{ {shadow} }}")));
            let plain = Service::new(memory(), &rule(&enforced));
            let alone = Service::new(memory(), &rule(&shadow));
            let mut now = EPOCH;
            for (millis, hits, gives_back) in steps {
                now = now.after(Period::from_millis(millis));
                let request = || vec![Descriptor { hits: Some(hits), refund: gives_back, ..descriptor("k") }];
                let answer = both.decide(request(), now).await;
                assert_eq!(answer, plain.decide(request(), now).await);
                alone.decide(request(), now).await;
                assert_eq!(both.counts("k").0, plain.counts("k").0);
                let counts = alone.counts("k").0;
                assert_eq!(both.shadow("k"), (counts.within_limit, counts.over_limit));
            }
        });
    }
}

#[tokio::test]
async fn of_all_or_nothing_a_shadow_counts_what_no_other_rule_rejects() {
    let text = "domain: d\nall_or_nothing: true\ndescriptors:\n  - key: k\n    \
                rate_limit: { requests: 2, per: 1m, shadow: { requests: 4, per: 1m } }\n  - key: other\n    \
                rate_limit: { requests: 7, per: 1m }\n";
    let both = || vec![descriptor("k"), descriptor("other")];
    let now = EPOCH;
    for is_without_executor in [false, true] {
        let service = Service::new(memory(), text);
        let send = async |descriptors: Vec<Descriptor<'static>>| {
            if !is_without_executor {
                return service.decide(descriptors, now).await.0;
            }
            let request = Request { domain: "d", descriptors: descriptors.into(), hits: 1 };
            service.limiter.decide_now(&request, now, |verdict| verdict.code).expect("a decision")
        };
        for _ in 0..5 {
            send(both()).await;
        }
        // a shadow of 4 admits what the rule's limit of 2 has rejected, but it does not count for `other`
        assert_eq!(service.shadow("k"), (4, 1));
        let counts = service.counts("k").0;
        assert_eq!((counts.within_limit, counts.over_limit), (2, 3));
        for _ in 0..5 {
            assert_eq!(send(vec![descriptor("other")]).await, Code::Ok);
        }
        let later = now.after(Period::from_secs(60));
        for _ in 0..7 {
            service.decide(vec![descriptor("other")], later).await;
        }
        // `other` rejects these, so they would not count under a limit of 4
        for _ in 0..3 {
            assert_eq!(service.decide(both(), later).await.0, Code::OverLimit);
        }
        assert_eq!(service.shadow("k"), (4, 1));
    }
}

#[tokio::test]
async fn a_request_with_its_own_limit_counts_in_no_shadow() {
    let service = Service::new(memory(), &rule("requests: 5, per: 1m, shadow: { requests: 2, per: 1m }"));
    let own = RuntimeLimit::per_unit(1, Unit::Minute);
    for _ in 0..3 {
        let limited = Descriptor { limit: Some(Box::new(own.clone())), ..descriptor("k") };
        service.decide(vec![limited], EPOCH).await;
    }
    assert_eq!(service.shadow("k"), (0, 0));
    service.hit("k", EPOCH).await;
    assert_eq!(service.shadow("k"), (1, 0));
}

#[tokio::test]
async fn a_replaced_rule_counts_in_no_shadow() {
    let text = "domain: d\ndescriptors:\n  - key: k\n    \
                rate_limit: { requests: 5, per: 1m, name: old, shadow: { requests: 1, per: 1m } }\n  - key: new\n    \
                rate_limit: { requests: 3, per: 1m, replaces: [{ name: old }], shadow: { requests: 1, per: 1m } }\n";
    let service = Service::new(memory(), text);
    for _ in 0..2 {
        service.decide(vec![descriptor("k"), descriptor("new")], EPOCH).await;
    }
    assert_eq!((service.shadow("k"), service.shadow("new")), ((0, 0), (1, 1)));
    assert_eq!(service.counts("k").0.total_hits, 0);
}

#[tokio::test]
async fn reloads_add_change_and_remove_a_shadow_and_keep_the_counts_of_the_rule() {
    let service = Service::new(memory(), &rule("requests: 9, per: 1m"));
    let send = async |hits: u32| {
        for _ in 0..hits {
            assert!(service.hit("k", EPOCH).await);
        }
    };
    send(2).await;
    assert_eq!(service.shadow("k"), (0, 0));
    // it begins with no hits, since none were counted for it
    service.load(&rule("requests: 9, per: 1m, shadow: { requests: 2, per: 1m }"));
    send(3).await;
    assert_eq!(service.shadow("k"), (2, 1));
    // another number keeps its count, another period begins
    service.load(&rule("requests: 9, per: 1m, shadow: { requests: 3, per: 1m }"));
    send(1).await;
    assert_eq!(service.shadow("k"), (3, 1));
    service.load(&rule("requests: 9, per: 1m, shadow: { requests: 1, per: 1h }"));
    send(1).await;
    assert_eq!(service.shadow("k"), (4, 1));
    service.load(&rule("requests: 9, per: 1m"));
    send(2).await;
    assert_eq!(service.shadow("k"), (4, 1), "its counters stay, as those of rules do");
    assert!(!service.hit("k", EPOCH).await, "the rule has counted all of them");
}

/// Starts instances in front of one simulated store. `lines` are those of the rule.
async fn fleet(
    instances: usize,
    lines: &str,
    network: Network,
) -> (SimulatedClock, Vec<Service<Coordinated<SimulatedRemote>>>) {
    let clock = SimulatedClock::new(EPOCH);
    let shared = SimulatedStore::new(clock.clone(), 7);
    let services: Vec<_> = (0..instances)
        .map(|i| {
            let settings =
                CoordinationSettings { instance: format!("i{i}"), ..CoordinationSettings::default() };
            let store = Coordinated::new(shared.connect(network), Arc::new(clock.clone()), settings);
            Service::new(store, &rule(lines))
        })
        .collect();
    // after two heartbeats all instances know each other
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    (clock, services)
}

const MODES: [Coordination; 5] = [
    Coordination::Auto,
    Coordination::Local,
    Coordination::Interval,
    Coordination::Lease,
    Coordination::Strict,
];

/// Sends hits to three instances in turn. Returns what they admit and reject, and what the limit in the shadow of their
/// rule would.
async fn counts_of_three(lines: &str) -> ([u64; 2], [u64; 2]) {
    let (clock, services) = fleet(3, lines, Network::default()).await;
    for turn in 0..60 {
        services[turn % 3].hit("k", clock.now()).await;
        // the instances hear of each other's hits
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    services.iter().fold(([0; 2], [0; 2]), |(rule, shadow), service| {
        let (counts, in_shadow) = service.counts("k");
        let rule = [rule[0] + counts.within_limit, rule[1] + counts.over_limit];
        (rule, [shadow[0] + in_shadow.within_limit, shadow[1] + in_shadow.over_limit])
    })
}

#[tokio::test(start_paused = true)]
async fn instances_count_a_shadow_as_they_count_a_rule_in_every_mode() {
    for mode in MODES {
        for syntax in ["requests: R, per: 1d", "requests_per_unit: R, unit: day"] {
            let limit = |requests: u32| syntax.replace('R', &requests.to_string());
            let rule = |requests: u32| format!("{}, coordination: {}", limit(requests), mode.name());
            let (counts, in_shadow) =
                counts_of_three(&format!("{}, shadow: {{ {} }}", rule(20), limit(6))).await;
            assert_eq!(counts, counts_of_three(&rule(20)).await.0, "{mode:?} {syntax}");
            assert_eq!(in_shadow, counts_of_three(&rule(6)).await.0, "{mode:?} {syntax}");
            if matches!(mode, Coordination::Auto | Coordination::Lease | Coordination::Strict) {
                assert_eq!(in_shadow, [6, 54], "{mode:?} {syntax}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_decision_waits_for_a_rule_and_its_shadow_at_once() {
    let network = Network { round_trip: Duration::from_millis(3), ..Network::default() };
    for mode in [Coordination::Local, Coordination::Interval, Coordination::Strict] {
        let mut waited = Vec::new();
        for shadow in ["", ", shadow: { requests: 2, per: 1d }"] {
            let lines = format!("requests: 9, per: 1d, coordination: {}{shadow}", mode.name());
            let (clock, services) = fleet(2, &lines, network).await;
            let begun = tokio::time::Instant::now();
            for _ in 0..12 {
                services[0].hit("k", clock.now()).await;
            }
            waited.push(begun.elapsed());
        }
        assert_eq!(waited[0], waited[1], "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_store_counts_in_the_shadow_locally() {
    let lines = "requests: 9, per: 1d, coordination: strict, shadow: { requests: 2, per: 1d }";
    let clock = SimulatedClock::new(EPOCH);
    let shared = SimulatedStore::new(clock.clone(), 7);
    let settings = CoordinationSettings { instance: "i".to_owned(), ..CoordinationSettings::default() };
    let store = Coordinated::new(shared.connect(Network::default()), Arc::new(clock.clone()), settings);
    let service = Service::new(store, &rule(lines));
    tokio::time::sleep(Duration::from_secs(3)).await;
    shared.set(Condition::Down);
    for _ in 0..5 {
        assert!(service.hit("k", clock.now()).await);
    }
    assert_eq!(service.shadow("k"), (2, 3));
}

#[test]
fn a_shadow_on_disk_outlives_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = rule("requests: 5, per: 1d, shadow: { requests: 2, per: 1d }");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let clock = Arc::new(ManualClock::at(EPOCH));
    let run = |hits: u32| {
        let settings = DiskSettings {
            dir: dir.path().join("data"),
            sync: DiskSync::Always,
            interval: Period::from_millis(5),
            on_damage: OnDamage::Refuse,
            max_bytes: None,
            budget: Period::from_secs(60),
            on_store_failure: OnStoreFailure::Local,
            max_counters: 1_000,
        };
        let store = DiskStore::open(settings, Arc::clone(&clock) as _).expect("a store");
        let service = Service::new(store, &text);
        runtime.block_on(async {
            let mut admitted = 0;
            for _ in 0..hits {
                admitted += u32::from(service.hit("k", EPOCH).await);
            }
            service.limiter.store().close().await;
            (admitted, service.shadow("k"))
        })
    };
    assert_eq!(run(3), (3, (2, 1)));
    assert_eq!(run(3), (2, (0, 3)), "both remember their hits");
}
