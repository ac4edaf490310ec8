//! The waits for Memcached, as children of the decisions that waited.

use weir_store::clock::{Clock as _, SystemClock};

use crate::{
    collector::{error, hex},
    in_process::{get, until},
    memcached_server::Server,
    waits::{Decided, Traced, one},
    wire::{descriptor, request},
};

const YEAR: u64 = 365 * 86_400;

/// Starts a Memcached, and a weir that counts in it.
async fn start(variables: &[(&str, &str)]) -> (Server, Traced) {
    let memcached = Server::start();
    let address = format!("127.0.0.1:{}", memcached.port());
    let own = [("BACKEND_TYPE", "memcache"), ("MEMCACHE_HOST_PORT", &*address)];
    let traced = Traced::start(&[&own, variables].concat()).await;
    let http = traced.http();
    let connected = "\nweir_memcached_connected 1\n";
    until("it is connected", async || get(http, "/metrics").await.contains(connected)).await;
    (memcached, traced)
}

fn commands(decided: &Decided) -> u64 {
    decided.commands("Memcached Fetch Execution", "memcached")
}

#[tokio::test]
async fn a_decision_that_waits_for_memcached_has_a_child() {
    let (_memcached, mut traced) = start(&[]).await;
    let strict = traced.decide(one("strict")).await;
    assert_eq!(commands(&strict), 1);
    assert_eq!(error(&strict.children[0]), None);
    assert_eq!(strict.attribute("weir.coordination").as_deref(), Some("strict"));
    assert_eq!(strict.attribute("weir.store.fallback"), None);

    // Memcached has no leases
    let two = [descriptor([("strict", "y")]), descriptor([("lease", "z")]), descriptor([("local", "z")])];
    let two = traced.decide(request("shop", two)).await;
    assert_eq!(commands(&two), 2);
    assert_eq!(two.attribute("weir.coordination").as_deref(), Some("strict,local"));
}

#[tokio::test]
async fn the_child_belongs_to_the_trace_of_the_caller() {
    let (_memcached, mut traced) = start(&[("TRACING_SAMPLING_RATE", "0")]).await;
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let headers = [("traceparent", &*format!("00-{trace}-{parent}-01")), ("tracestate", "a=1")];
    let decided = traced.decide_with(one("strict"), &headers).await;
    assert_eq!(commands(&decided), 1);
    assert_eq!((&*hex(&decided.span.trace_id), &*hex(&decided.span.parent_span_id)), (trace, parent));
    let child = &decided.children[0];
    assert_eq!((&*hex(&child.trace_id), &*child.trace_state), (trace, "a=1"));
    assert_eq!(child.parent_span_id, decided.span.span_id);
    assert!(child.span_id.len() == 8 && child.span_id != decided.span.span_id);
}

#[tokio::test]
async fn a_decision_that_does_not_wait_has_no_child() {
    let (_memcached, mut traced) = start(&[]).await;
    for key in ["interval", "local"] {
        let decided = traced.decide(one(key)).await;
        assert!(decided.children.is_empty());
        assert_eq!(decided.attribute("weir.coordination").as_deref(), Some(key));
        assert_eq!(decided.attribute("weir.store.waited").as_deref(), Some("false"));
    }
}

#[tokio::test]
async fn a_call_without_a_reply_is_an_error_of_the_child() {
    let (memcached, mut traced) = start(&[("WEIR_DECISION_BUDGET", "200ms")]).await;
    memcached.signal("STOP");
    let late = traced.decide(one("strict")).await;
    memcached.signal("CONT");
    failed(&late, "no reply within WEIR_DECISION_BUDGET or the timeout of the caller");
}

#[tokio::test]
async fn a_command_that_memcached_rejects_is_an_error_of_the_child() {
    let (memcached, mut traced) = start(&[]).await;
    let now = SystemClock.now().as_nanos() / 1_000_000_000;
    let key = format!("shop_year_x_{}", now - now % YEAR);
    assert_eq!(memcached.send(&format!("set {key} 0 0 8\r\nno count")), "STORED");
    failed(&traced.decide(one("year")).await, "the call failed");
}

/// Checks a decision whose only command has failed because of `reason`, and which the fallback made.
fn failed(decided: &Decided, reason: &str) {
    assert_eq!(commands(decided), 1);
    assert_eq!(error(&decided.children[0]), Some(reason));
    assert_eq!(decided.attribute("weir.store.fallback").as_deref(), Some("true"));
    // the request itself was answered
    assert_eq!(error(&decided.span), None);
}
