//! What a span says about its request.

use opentelemetry_proto::tonic::trace::v1::Span;
use tonic::Code;

use crate::{
    collector::{Collector, attribute, error},
    traced::{tenant, weir},
    wire::{descriptor, hits, limited, refund, request},
};

fn of(span: &Span, name: &str) -> Option<String> {
    attribute(&span.attributes, name)
}

#[tokio::test]
async fn a_span_has_the_rules_the_outcome_and_the_hits() {
    let collector = Collector::http().await;
    let mut weir = weir(&collector, &[]).await;
    let both = [hits(2, descriptor([("tenant", "acme")])), hits(5, descriptor([("plan", "free")]))];
    weir.decide(request("shop", both)).await;
    weir.decide(tenant("acme")).await;
    let spans = collector.await_spans(2).await;
    let expected = [
        ("rpc.system", "grpc"),
        ("rpc.service", "envoy.service.ratelimit.v3.RateLimitService"),
        ("rpc.method", "ShouldRateLimit"),
        ("rpc.grpc.status_code", "0"),
        ("weir.domain", "shop"),
        ("weir.outcome", "OK"),
        ("weir.rules", "shop.tenant,shop.plan_free"),
        ("weir.hits", "7"),
        ("weir.coordination", "local"),
        ("weir.store.waited", "false"),
    ];
    for (name, value) in expected {
        assert_eq!(of(&spans[0], name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(spans[0].attributes.len(), expected.len(), "{:?}", spans[0].attributes);
    assert_eq!(of(&spans[1], "weir.outcome").as_deref(), Some("OVER_LIMIT"));
    assert_eq!(of(&spans[1], "weir.rules_over_limit").as_deref(), Some("shop.tenant"));
    // a rejection is no failure
    assert_eq!(error(&spans[1]), None);
}

#[tokio::test]
async fn limits_of_requests_refunds_and_unlimited_rules_are_named() {
    let collector = Collector::http().await;
    let mut weir = weir(&collector, &[]).await;
    weir.decide(request("shop", [limited(9, 3, descriptor([("tenant", "secret")]))])).await;
    weir.decide(request("shop", [refund(4, descriptor([("tenant", "acme")]))])).await;
    weir.decide(request("shop", [descriptor([("trusted", "yes")])])).await;
    weir.decide(request("shop", [descriptor([("unknown", "x")])])).await;
    let spans = collector.await_spans(4).await;
    let rules: Vec<_> = spans.iter().map(|span| of(span, "weir.rules").unwrap_or_default()).collect();
    assert_eq!(rules, ["limit override", "shop.tenant", "shop.trusted", ""]);
    let hits: Vec<_> = spans.iter().map(|span| of(span, "weir.hits").unwrap_or_default()).collect();
    assert_eq!(hits, ["1", "-4", "0", ""]);
}

#[tokio::test]
async fn values_of_descriptors_are_sent_only_on_request() {
    let message = || request("shop", [descriptor([("tenant", "jane@example.org"), ("path", "/a")])]);
    let collector = Collector::http().await;
    let mut silent = weir(&collector, &[]).await;
    silent.decide(message()).await;
    silent.decide(tenant("jane@example.org")).await;
    collector.await_spans(2).await;
    let everything = format!("{:?}", collector.received());
    assert!(!everything.contains("jane") && everything.contains("shop.tenant"), "{everything}");

    let collector = Collector::http().await;
    let mut open = weir(&collector, &[("WEIR_TRACING_DESCRIPTOR_VALUES", "true")]).await;
    open.decide(message()).await;
    // megabytes of values are cut off
    open.decide(request(
        "shop",
        std::array::from_fn::<_, 100, _>(|_| descriptor([("tenant", &*"é".repeat(9_999))])),
    ))
    .await;
    let spans = collector.await_spans(2).await;
    assert_eq!(of(&spans[0], "weir.descriptors").as_deref(), Some("tenant=jane@example.org,path=/a"));
    let cut = of(&spans[1], "weir.descriptors").expect("values");
    assert!((2_000..=5_000).contains(&cut.len()), "{} bytes", cut.len());
}

#[tokio::test]
async fn a_failed_request_has_the_error() {
    let collector = Collector::http().await;
    let mut weir = weir(&collector, &[]).await;
    let failed = weir.try_decide(request("", [descriptor([("tenant", "acme")])])).await;
    assert_eq!(failed.expect_err("no domain").code(), Code::Unknown);
    let spans = collector.await_spans(1).await;
    assert_eq!(error(&spans[0]), Some("rate limit domain must not be empty"));
    assert_eq!(of(&spans[0], "rpc.grpc.status_code").as_deref(), Some("2"));
    assert_eq!(of(&spans[0], "weir.outcome"), None);
}

#[tokio::test]
async fn a_long_domain_is_cut_off() {
    let collector = Collector::http().await;
    let mut weir = weir(&collector, &[]).await;
    weir.decide(request(&"d".repeat(1 << 20), [descriptor([("tenant", "acme")])])).await;
    let spans = collector.await_spans(1).await;
    assert_eq!(of(&spans[0], "weir.domain"), Some("d".repeat(256)));
}

#[tokio::test]
async fn the_resource_describes_this_instance() {
    let collector = Collector::http().await;
    let variables = [
        ("TRACING_SERVICE_NAME", "limits"),
        ("TRACING_SERVICE_NAMESPACE", "edge"),
        ("TRACING_SERVICE_INSTANCE_ID", "pod-7"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=prod,service.name=other"),
    ];
    let mut weir = weir(&collector, &variables).await;
    weir.decide(tenant("acme")).await;
    collector.await_spans(1).await;
    let sent = &collector.received()[0].message.resource_spans[0];
    let resource = &sent.resource.as_ref().expect("a resource").attributes;
    let expected = [
        ("service.name", "limits"),
        ("service.namespace", "edge"),
        ("service.instance.id", "pod-7"),
        ("deployment.environment", "prod"),
        ("service.version", env!("CARGO_PKG_VERSION")),
    ];
    for (name, value) in expected {
        assert_eq!(attribute(resource, name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(resource.len(), expected.len(), "{resource:?}");
    assert_eq!(sent.scope_spans[0].scope.as_ref().expect("a scope").name, "weir");
}
