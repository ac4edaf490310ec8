//! The place of a span in its trace, by the headers of the request.

use opentelemetry_proto::tonic::trace::v1::{Span, Status, span::SpanKind};

use crate::{
    collector::{Collector, attribute, hex},
    in_process::Weir,
    traced::{json, tenant, weir, with_headers},
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// The bits of a span's flags: sampled, bit 9 is valid, the parent is in another process.
const SAMPLED: u32 = 1;
const KNOWN: u32 = 1 << 8;
const REMOTE: u32 = 1 << 9;

async fn call(weir: &mut Weir, headers: &[(&'static str, &str)]) {
    weir.client.should_rate_limit(with_headers(tenant("acme"), headers)).await.expect("a response");
}

/// Returns the span of a call with `headers`.
async fn span(headers: &[(&'static str, &str)]) -> Span {
    let collector = Collector::http().await;
    let mut weir = weir(&collector, &[("TRACING_SAMPLING_RATE", "0")]).await;
    call(&mut weir, headers).await;
    let mut spans = collector.await_spans(1).await;
    assert_eq!(spans.len(), 1);
    spans.remove(0)
}

fn continues(span: &Span) {
    assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
    assert_eq!(span.flags, SAMPLED | KNOWN | REMOTE);
    assert!(span.span_id.len() == 8 && hex(&span.span_id) != PARENT);
}

#[tokio::test]
async fn a_traceparent_is_continued() {
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let span = span(&[("traceparent", &parent), ("tracestate", "a=1"), ("tracestate", "b=2")]).await;
    continues(&span);
    assert_eq!(span.trace_state, "a=1,b=2");
    assert_eq!(span.name, "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    assert_eq!(span.kind(), SpanKind::Server);
    assert_eq!(span.status.clone().unwrap_or_default(), Status::default());
    assert!(span.start_time_unix_nano > 0 && span.end_time_unix_nano >= span.start_time_unix_nano);
}

#[tokio::test]
async fn b3_in_one_header_is_continued() {
    continues(&span(&[("b3", &format!("{TRACE}-{PARENT}-1"))]).await);
}

#[tokio::test]
async fn b3_in_several_headers_is_continued() {
    let headers = [("x-b3-traceid", TRACE), ("x-b3-spanid", PARENT), ("x-b3-sampled", "1")];
    continues(&span(&headers).await);
}

#[tokio::test]
async fn a_request_at_json_is_traced_as_well() {
    let collector = Collector::http().await;
    let weir = weir(&collector, &[("TRACING_SAMPLING_RATE", "0")]).await;
    let headers = format!("traceparent: 00-{TRACE}-{PARENT}-01");
    let body =
        r#"{"domain":"shop","descriptors":[{"entries":[{"key":"tenant","value":"acme"}],"hitsAddend":3}]}"#;
    assert!(json(&weir, &headers, body).await.starts_with("HTTP/1.1 429 "));
    assert!(json(&weir, &headers, "{").await.starts_with("HTTP/1.1 400 "));
    let spans = collector.await_spans(2).await;
    for span in &spans {
        continues(span);
        assert_eq!((&*span.name, span.kind()), ("POST /json", SpanKind::Server));
    }
    let status = |span: &Span| attribute(&span.attributes, "http.response.status_code");
    assert_eq!((status(&spans[0]), status(&spans[1])), (Some("429".into()), Some("400".into())));
    assert_eq!(attribute(&spans[0].attributes, "weir.outcome"), Some("OVER_LIMIT".into()));
    let error = spans[1].status.as_ref().expect("it failed");
    assert!(error.message.starts_with("the body is not a "), "{error:?}");
}

#[tokio::test]
async fn a_caller_that_does_not_sample_leaves_no_span() {
    let collector = Collector::http().await;
    // every request without a parent would be traced
    let mut weir = weir(&collector, &[]).await;
    for (name, value) in [
        ("traceparent", format!("00-{TRACE}-{PARENT}-00")),
        ("b3", format!("{TRACE}-{PARENT}-0")),
        ("b3", format!("{TRACE}-{PARENT}")),
    ] {
        call(&mut weir, &[(name, &value)]).await;
    }
    call(&mut weir, &[("x-b3-traceid", TRACE), ("x-b3-spanid", PARENT), ("x-b3-sampled", "0")]).await;
    // spans arrive in the order of their requests
    call(&mut weir, &[("traceparent", &format!("00-{TRACE}-1111111111111111-01"))]).await;
    let spans = collector.await_spans(1).await;
    assert_eq!(spans.len(), 1);
    assert_eq!(hex(&spans[0].parent_span_id), "1111111111111111");
}

#[tokio::test]
async fn requests_without_a_parent_are_roots_by_the_sampling_rate() {
    let collector = Collector::http().await;
    let mut weir = weir(&collector, &[("TRACING_SAMPLING_RATE", "0.5")]).await;
    for i in 0..400 {
        // neither of these is a parent
        let headers: &[_] = if i % 2 == 0 { &[("b3", "1")] } else { &[("traceparent", "00-what-is-this")] };
        call(&mut weir, headers).await;
    }
    call(&mut weir, &[("traceparent", &format!("00-{TRACE}-{PARENT}-01"))]).await;
    let is_last = |span: &Span| hex(&span.trace_id) == TRACE;
    crate::in_process::until("the last span", async || collector.spans().iter().any(is_last)).await;
    let mut roots = collector.spans();
    roots.retain(|span| !is_last(span));
    // five standard deviations
    assert!((150..=250).contains(&roots.len()), "{} of 400", roots.len());
    for span in &roots {
        assert!(span.parent_span_id.is_empty() && span.trace_state.is_empty());
        assert_eq!(span.flags, SAMPLED | KNOWN);
        assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8));
    }
    let mut traces: Vec<_> = roots.iter().map(|span| &span.trace_id).collect();
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), roots.len(), "each has a trace of its own");
}

#[tokio::test]
async fn without_tracing_nothing_is_sent() {
    let collector = Collector::http().await;
    let endpoint = format!("http://{}", collector.address);
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()), ("OTEL_BSP_SCHEDULE_DELAY", "1")];
    let mut weir = Weir::start_with(crate::traced::RULES, &variables).await;
    call(&mut weir, &[("traceparent", &format!("00-{TRACE}-{PARENT}-01"))]).await;
    // what is left is sent before it has stopped
    weir.stop().await.expect("it does not panic").expect("it stops");
    assert!(collector.received().is_empty());
}
