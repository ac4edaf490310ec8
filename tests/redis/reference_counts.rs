//! The counts in Redis of rules in envoyproxy/ratelimit's spelling, beside what that would count: all hits, rejected
//! ones included.

use std::time::Duration;

use proptest::prelude::*;
use tokio::{task::JoinSet, time::sleep};

use crate::support::{Server, Weir, until};

const MODES: [&str; 4] = ["auto", "lease", "interval", "strict"];

const LIMITS: [u64; 3] = [7, 40, 200];

/// Hits of one counter, for which each has a value of its own.
#[derive(Clone, Debug)]
struct Sequence {
    mode: usize,
    limit: usize,
    /// For each request: how many milliseconds after the one before, to which instance, and its hits.
    requests: Vec<(u64, usize, u64)>,
}

fn sequence() -> impl Strategy<Value = Sequence> {
    let after = prop_oneof![4 => Just(0_u64), 4 => 1..20_u64, 1 => 20..800_u64];
    let hits = prop_oneof![4 => Just(1_u64), 2 => 1..8_u64, 1 => 8..50_u64];
    let requests = proptest::collection::vec((after, 0..3_usize, hits), 1..40);
    (0..MODES.len(), 0..LIMITS.len(), requests).prop_map(|(mode, limit, requests)| Sequence {
        mode,
        limit,
        requests,
    })
}

fn rules() -> String {
    let rule = |mode: &str, limit: u64| {
        // one window during the whole test
        format!(
            "  - key: {mode}-{limit}\n    rate_limit: {{ unit: year, requests_per_unit: {limit}, coordination: {mode} }}\n"
        )
    };
    let rules = MODES.iter().flat_map(|mode| LIMITS.map(|limit| rule(mode, limit)));
    "domain: shop\ndescriptors:\n".to_owned() + &rules.collect::<String>()
}

impl Sequence {
    /// Returns the key of its rule.
    fn key(&self) -> String {
        format!("{}-{}", MODES[self.mode], LIMITS[self.limit])
    }

    fn sum(&self) -> u64 {
        self.requests.iter().map(|(_, _, hits)| hits).sum()
    }

    fn is_used_up(&self) -> bool {
        self.sum() >= LIMITS[self.limit]
    }
}

/// Sends `sequences` to `instances` at the same time, and waits until Redis counts what envoyproxy/ratelimit would.
async fn run(instances: usize, sequences: &[Sequence]) {
    let (server, dir) = (Server::start(), tempfile::tempdir().expect("a directory"));
    std::fs::write(dir.path().join("rules.yaml"), rules()).expect("a file in it");
    let path = dir.path().to_str().expect("a path in UTF-8");
    let mut weirs = Vec::new();
    for _ in 0..instances {
        // no decision of the fallback, which counts no rejected hit
        weirs.push(Weir::start_with(&server, path, &[("WEIR_DECISION_BUDGET", "20s")]).await);
    }
    until("all instances know each other", async || {
        weirs.iter().all(|weir| weir.metric("weir_instances") == instances as u64)
    })
    .await;
    let mut sent = JoinSet::new();
    for (i, sequence) in sequences.iter().enumerate() {
        let mut requests = Vec::new();
        for (after, instance, hits) in &sequence.requests {
            let descriptor = format!("{}=v{i}", sequence.key());
            requests.push((*after, weirs[instance % instances].send_hits(&descriptor, *hits)));
        }
        sent.spawn(async move {
            let mut decided = JoinSet::new();
            for (after, request) in requests {
                sleep(Duration::from_millis(after)).await;
                decided.spawn(request);
            }
            decided.join_all().await;
        });
    }
    sent.join_all().await;
    for (i, sequence) in sequences.iter().enumerate().filter(|(_, sequence)| sequence.is_used_up()) {
        let pattern = format!("shop_{}_v{i}_*", sequence.key());
        let (mut counted, mut polls) = (None, 0);
        while counted != Some(sequence.sum()) {
            assert!(
                polls < 200,
                "{counted:?} instead of {} of {instances} instances: {sequence:?}",
                sequence.sum()
            );
            polls += 1;
            sleep(Duration::from_millis(25)).await;
            let keys: Vec<String> = server.send(&["KEYS", &pattern]);
            counted = keys.first().map(|key| server.send(&["GET", key]));
        }
    }
    let fallback: u64 = weirs.iter().map(|weir| weir.metric("weir_decisions_total{how=\"fallback\"}")).sum();
    assert_eq!(fallback, 0, "every decision is made with Redis");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, max_shrink_iters: 40, ..ProptestConfig::default() })]

    #[test]
    fn when_a_limit_is_used_up_redis_soon_counts_what_the_reference_would(
        instances in 1..=3_usize,
        sequences in proptest::collection::vec(sequence(), 20..30),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(run(instances, &sequences));
    }
}
