//! The waits for Redis, as children of the decisions that waited.

use crate::{
    collector::error,
    redis_server::Server,
    waits::{Decided, Traced, one},
    wire::{descriptor, hits, request},
};

/// Starts a Redis, and a weir that counts in it.
async fn start(variables: &[(&str, &str)]) -> (Server, Traced) {
    let redis = Server::start();
    let address = format!("127.0.0.1:{}", redis.port());
    let own = [("REDIS_URL", &*address), ("REDIS_TIMEOUT", "5s"), ("REDIS_STARTUP_MAX_ELAPSED_TIME", "20s")];
    let traced = Traced::start(&[&own, variables].concat()).await;
    (redis, traced)
}

fn commands(decided: &Decided) -> u64 {
    decided.commands("Redis Pipeline Execution", "redis")
}

#[tokio::test]
async fn a_decision_that_waits_for_redis_has_a_child() {
    let (_redis, mut traced) = start(&[]).await;
    let strict = traced.decide(one("strict")).await;
    assert_eq!(commands(&strict), 1);
    assert_eq!(error(&strict.children[0]), None);
    assert_eq!(strict.attribute("weir.coordination").as_deref(), Some("strict"));
    assert_eq!(strict.attribute("weir.store.fallback"), None);

    let two = [descriptor([("strict", "y")]), descriptor([("strict", "z")]), descriptor([("local", "z")])];
    let two = traced.decide(request("shop", two)).await;
    assert_eq!(commands(&two), 2);
    assert_eq!(two.attribute("weir.coordination").as_deref(), Some("strict,local"));
}

#[tokio::test]
async fn a_lease_is_waited_for_once() {
    let (_redis, mut traced) = start(&[]).await;
    let first = traced.decide(one("lease")).await;
    assert_eq!(commands(&first), 1);
    assert_eq!(first.attribute("weir.coordination").as_deref(), Some("lease"));
    let mut waited = Vec::new();
    for _ in 0..5 {
        waited.push(traced.decide(one("lease")).await.children.len());
    }
    assert!(waited.contains(&0), "the lease has hits left: {waited:?}");
}

#[tokio::test]
async fn a_decision_that_does_not_wait_has_no_child() {
    let (_redis, mut traced) = start(&[]).await;
    for key in ["interval", "local"] {
        let decided = traced.decide(one(key)).await;
        assert!(decided.children.is_empty());
        assert_eq!(decided.attribute("weir.coordination").as_deref(), Some(key));
        assert_eq!(decided.attribute("weir.store.waited").as_deref(), Some("false"));
    }
}

#[tokio::test]
async fn all_or_none_decisions_have_children_as_well() {
    let (_redis, mut traced) = start(&[("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")]).await;
    let both = || [descriptor([("strict", "x")]), hits(1, descriptor([("strict", "y")]))];
    assert_eq!(commands(&traced.decide(request("shop", both())).await), 2);
    let over = [descriptor([("strict", "x")]), hits(1_001, descriptor([("strict", "y")]))];
    let over = traced.decide(request("shop", over)).await;
    assert!(!over.children.is_empty());
    assert_eq!(over.attribute("weir.rules_over_limit").as_deref(), Some("shop.strict"));
    assert_eq!(over.attribute("weir.rejection.reason").as_deref(), Some("limit"));
    assert_eq!(over.attribute("weir.coordination").as_deref(), Some("strict"));
}

#[tokio::test]
async fn a_call_that_fails_is_an_error_of_the_child() {
    let (redis, mut traced) = start(&[("WEIR_DECISION_BUDGET", "200ms")]).await;
    redis.signal("STOP");
    let late = traced.decide(one("strict")).await;
    redis.signal("CONT");
    assert_eq!(commands(&late), 1);
    assert_eq!(
        error(&late.children[0]),
        Some("no reply within WEIR_DECISION_BUDGET or the timeout of the caller")
    );
    assert_eq!(late.attribute("weir.store.fallback").as_deref(), Some("true"));
    // the request itself was answered
    assert_eq!(error(&late.span), None);
}

#[tokio::test]
async fn a_rejection_because_redis_does_not_reply_says_so() {
    let variables = [("WEIR_DECISION_BUDGET", "200ms"), ("WEIR_ON_STORE_FAILURE", "deny")];
    let (redis, mut traced) = start(&variables).await;
    redis.signal("STOP");
    let denied = traced.decide(one("strict")).await;
    redis.signal("CONT");
    assert_eq!(denied.attribute("weir.rules_over_limit").as_deref(), Some("shop.strict"));
    assert_eq!(denied.attribute("weir.rejection.reason").as_deref(), Some("store"));
}
