//! Random rules and requests: weir answers as the model of envoyproxy/ratelimit does.

use proptest::{
    collection::vec,
    option, prop_oneof,
    sample::{select, subsequence},
    strategy::{Just, Strategy},
    test_runner::{Config, TestCaseError, TestRunner},
};
use serde_json::{Value, json};
use weir_proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::ratelimit::v3::RateLimitRequest,
};

use crate::{
    frozen_time,
    in_process::{NOW, Weir},
    model::{Descriptor, Limit, Model, Node, Rule},
    observe,
    redis_server::Server,
};

#[derive(Clone, Debug)]
struct Case {
    rules: Vec<Node>,
    shadow_mode: bool,
    quota_mode: bool,
    /// With their hits.
    requests: Vec<(u32, Vec<Descriptor>)>,
}

const KEYS: [&str; 2] = ["a", "b"];
const NAMES: [&str; 3] = ["n1", "n2", "n3"];

/// A limit by hour, day, month, year or week, whose numbers are the same in requests and in responses.
fn limit() -> impl Strategy<Value = Limit> {
    let requests = prop_oneof![4 => 0..12_u32, 1 => Just(u32::MAX)];
    (requests, select(vec![3, 4, 5, 6, 7]))
}

fn rule() -> impl Strategy<Value = Rule> {
    let names = option::of(select(&NAMES[..]));
    let limit = prop_oneof![6 => limit().prop_map(Some), 1 => Just(None)];
    (limit, names, subsequence(&NAMES[..], 0..2)).prop_map(|(limit, name, replaces)| {
        let name = name.unwrap_or_default();
        Rule { limit, name, replaces: replaces.into_iter().filter(|replaced| *replaced != name).collect() }
    })
}

/// Nodes of one level, without two of the same key and value.
fn nodes(depth: u32) -> impl Strategy<Value = Vec<Node>> {
    let values = vec![None, None, Some("x"), Some("y"), Some("x*"), Some("*"), Some("*y*"), Some("é*")];
    let node = |children| {
        (
            select(&KEYS[..]),
            select(values),
            option::weighted(0.8, rule()),
            proptest::array::uniform3(proptest::bool::weighted(0.3)),
            children,
        )
            .prop_map(|(key, value, rule, [share, shadow, quota], children)| {
                let share_threshold = share && value.is_some_and(|value: &str| value.contains('*'));
                Node { key, value, rule, share_threshold, shadow, quota, children }
            })
    };
    let children = if depth == 0 { Just(Vec::new()).boxed() } else { nodes(depth - 1).boxed() };
    vec(node(children), 0..5).prop_map(|nodes| {
        let mut kept: Vec<Node> = Vec::new();
        for node in nodes {
            if kept.iter().all(|other| (other.key, other.value) != (node.key, node.value)) {
                kept.push(node);
            }
        }
        kept
    })
}

fn descriptor() -> impl Strategy<Value = Descriptor> {
    let entry = (select(&KEYS[..]), select(vec!["x", "y", "xy", "z", "", "x*", "*", "éy"]));
    let hits = option::weighted(0.3, prop_oneof![4 => 0..6_u64, 1 => Just(u64::from(u32::MAX))]);
    (vec(entry, 0..4), hits, option::weighted(0.2, limit())).prop_map(|(entries, hits, limit)| {
        // in memory, a value that reads like a pattern has a counter of its own, beside that of the values which share
        // the pattern
        let limit = limit.filter(|_| entries.iter().all(|(_, value)| !value.contains('*')));
        Descriptor { entries, hits, limit }
    })
}

fn case() -> impl Strategy<Value = Case> {
    let mode = || proptest::bool::weighted(0.2);
    let requests = vec((0..4_u32, vec(descriptor(), 1..5)), 1..40);
    (nodes(2), mode(), mode(), requests).prop_map(|(rules, shadow_mode, quota_mode, requests)| Case {
        rules,
        shadow_mode,
        quota_mode,
        requests,
    })
}

/// Runs `case` against weir with its counts in memory, or in Redis.
async fn run(case: &Case, in_redis: bool) -> Result<(), TestCaseError> {
    let redis = in_redis.then(Server::start);
    let descriptors: Vec<Value> = case.rules.iter().map(Node::config).collect();
    let rules = json!({ "domain": "shop", "descriptors": descriptors }).to_string();
    let address = match &redis {
        Some(redis) => frozen_time::proxy(([127, 0, 0, 1], redis.port()).into(), NOW).await.to_string(),
        None => String::new(),
    };
    let (shadow, quota) = (case.shadow_mode.to_string(), case.quota_mode.to_string());
    let mut variables = vec![("SHADOW_MODE", &*shadow), ("QUOTA_MODE", &*quota)];
    if in_redis {
        variables.extend([
            ("REDIS_URL", &*address),
            ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true"),
            ("WEIR_COORDINATION", "strict"),
            ("WEIR_DECISION_BUDGET", "20s"),
        ]);
    }
    let mut weir = Weir::start_with(&rules, &variables).await;
    observe::until_connected(&weir).await;
    let mut model = Model::new(case.shadow_mode, case.quota_mode);
    for (i, (hits, descriptors)) in case.requests.iter().enumerate() {
        let got = observe::answer(weir.try_decide(request(*hits, descriptors)).await);
        let expected = model.answer(&case.rules, *hits, descriptors);
        if got != expected {
            let reason =
                format!("request {i}, in redis: {in_redis}\nexpected {expected}\ngot      {got}\n{rules}");
            return Err(TestCaseError::fail(reason));
        }
    }
    Ok(())
}

fn request(hits: u32, descriptors: &[Descriptor]) -> RateLimitRequest {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    let limit = |(requests_per_unit, unit): Limit| RateLimitOverride { requests_per_unit, unit };
    let descriptor = |descriptor: &Descriptor| RateLimitDescriptor {
        entries: descriptor.entries.iter().map(entry).collect(),
        limit: descriptor.limit.map(limit),
        hits_addend: descriptor.hits,
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest {
        domain: "shop".to_owned(),
        descriptors: descriptors.iter().map(descriptor).collect(),
        hits_addend: hits,
    }
}

/// Runs random cases. Failures are minimized and printed; they are not stored.
fn run_cases(cases: u32, in_redis: bool) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let result = runner.run(&case(), |case| runtime.block_on(run(&case, in_redis)));
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn random_requests_are_answered_from_memory_as_the_model_does() {
    run_cases(64, false);
}

#[test]
fn random_requests_are_answered_from_redis_as_the_model_does() {
    run_cases(16, true);
}
