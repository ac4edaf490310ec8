//! The waits for Redis, as children of the decisions that waited.

use std::fs;

use tempfile::TempDir;
use tonic::transport::Channel;
use weir::proto::{
    envoy::service::ratelimit::v3::{RateLimitRequest, rate_limit_service_client::RateLimitServiceClient},
    opentelemetry::proto::trace::v1::{Span, span::SpanKind},
};

use crate::{
    child::Serving,
    collector::{Collector, attribute, error},
    in_process::until,
    redis_server::Server,
    traced::AT_ONCE,
    wire::{descriptor, hits, request},
};

const RULES: &str = "domain: shop
descriptors:
  - { key: strict, rate_limit: { requests: 1000, per: 365d, coordination: strict } }
  - { key: lease, rate_limit: { requests: 1000, per: 365d, coordination: lease } }
  - { key: interval, rate_limit: { requests: 1000, per: 365d, coordination: interval } }
  - { key: local, rate_limit: { requests: 1000, per: 365d, coordination: local } }
";

const DECISION: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A weir that counts in Redis and sends traces.
struct Traced {
    redis: Server,
    collector: Collector,
    client: RateLimitServiceClient<Channel>,
    _weir: Serving,
    _dir: TempDir,
}

/// A decision with its children.
struct Decided {
    span: Span,
    children: Vec<Span>,
}

// === impl Traced ===

impl Traced {
    async fn start(variables: &[(&str, &str)]) -> Self {
        let (redis, collector) = (Server::start(), Collector::grpc().await);
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("rules.yaml"), RULES).expect("a file");
        let (address, endpoint) =
            (format!("127.0.0.1:{}", redis.port()), format!("http://{}", collector.address));
        let own = [
            ("REDIS_URL", address.as_str()),
            ("REDIS_TIMEOUT", "5s"),
            ("REDIS_STARTUP_MAX_ELAPSED_TIME", "20s"),
            ("WEIR_DECISION_BUDGET", "10s"),
            ("WEIR_STOP_DELAY", "0"),
            ("TRACING_ENABLED", "true"),
            ("TRACING_EXPORTER_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
            AT_ONCE,
        ];
        let weir = Serving::start(dir.path().to_str().expect("a plain path"), &[&own, variables].concat());
        let client = RateLimitServiceClient::connect(format!("http://{}", weir.address("grpc")));
        let client = client.await.expect("it listens");
        Self { redis, collector, client, _weir: weir, _dir: dir }
    }

    /// Decides `message`, and returns its span with the children.
    async fn decide(&mut self, message: RateLimitRequest) -> Decided {
        let before = self.decisions().len();
        self.client.should_rate_limit(message).await.expect("a response");
        until("the span", async || self.decisions().len() > before).await;
        let span = self.decisions().remove(before);
        // the spans of a request leave in one batch, or the decision before its children
        let waited = attribute(&span.attributes, "weir.store.waited").expect("it is known");
        let children = || -> Vec<Span> {
            self.collector.spans().into_iter().filter(|child| child.parent_span_id == span.span_id).collect()
        };
        until("the children", async || (waited == "true") != children().is_empty()).await;
        Decided { children: children(), span }
    }

    fn decisions(&self) -> Vec<Span> {
        let mut spans = self.collector.spans();
        spans.retain(|span| span.name == DECISION);
        spans
    }
}

// === impl Decided ===

impl Decided {
    fn attribute(&self, name: &str) -> Option<String> {
        attribute(&self.span.attributes, name)
    }
}

/// Checks the children of a decision. Returns their number of commands.
///
/// Commands that are sent together have one child, unless the first reply arrives before the second command is sent.
fn commands(decided: &Decided) -> u64 {
    let span = &decided.span;
    assert!(!decided.children.is_empty());
    let commands = decided.children.iter().map(|child| {
        assert_eq!((&*child.name, child.kind()), ("Redis Pipeline Execution", SpanKind::Client));
        assert_eq!(child.trace_id, span.trace_id);
        assert!(child.start_time_unix_nano >= span.start_time_unix_nano);
        assert!(child.end_time_unix_nano > child.start_time_unix_nano);
        assert!(child.end_time_unix_nano <= span.end_time_unix_nano);
        assert_eq!(attribute(&child.attributes, "db.system.name").as_deref(), Some("redis"));
        let commands = attribute(&child.attributes, "db.operation.batch.size").expect("a number of commands");
        commands.parse::<u64>().expect("a number")
    });
    commands.sum()
}

fn one(key: &str) -> RateLimitRequest {
    request("shop", [descriptor([(key, "x")])])
}

#[tokio::test]
async fn a_decision_that_waits_for_redis_has_a_child() {
    let mut traced = Traced::start(&[]).await;
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
    let mut traced = Traced::start(&[]).await;
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
    let mut traced = Traced::start(&[]).await;
    for key in ["interval", "local"] {
        let decided = traced.decide(one(key)).await;
        assert!(decided.children.is_empty());
        assert_eq!(decided.attribute("weir.coordination").as_deref(), Some(key));
        assert_eq!(decided.attribute("weir.store.waited").as_deref(), Some("false"));
    }
}

#[tokio::test]
async fn all_or_none_decisions_have_children_as_well() {
    let mut traced = Traced::start(&[("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")]).await;
    let both = || [descriptor([("strict", "x")]), hits(1, descriptor([("strict", "y")]))];
    assert_eq!(commands(&traced.decide(request("shop", both())).await), 2);
    let over = [descriptor([("strict", "x")]), hits(1_001, descriptor([("strict", "y")]))];
    let over = traced.decide(request("shop", over)).await;
    assert!(!over.children.is_empty());
    assert_eq!(over.attribute("weir.rules_over_limit").as_deref(), Some("shop.strict"));
    assert_eq!(over.attribute("weir.coordination").as_deref(), Some("strict"));
}

#[tokio::test]
async fn a_call_that_fails_is_an_error_of_the_child() {
    let mut traced = Traced::start(&[("WEIR_DECISION_BUDGET", "200ms")]).await;
    traced.redis.signal("STOP");
    let late = traced.decide(one("strict")).await;
    traced.redis.signal("CONT");
    assert_eq!(commands(&late), 1);
    assert_eq!(error(&late.children[0]), Some("no reply within WEIR_DECISION_BUDGET"));
    assert_eq!(late.attribute("weir.store.fallback").as_deref(), Some("true"));
    // the request itself was answered
    assert_eq!(error(&late.span), None);
}
