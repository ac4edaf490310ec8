//! How spans reach the collector, and what happens while they cannot.

use std::time::{Duration, Instant};

use tonic::Code;

use crate::{
    collector::{Answers, Collector},
    in_process::until,
    traced::{metric, tenant, until_metric, weir, weir_by},
};

const EXPORTED: &str = "weir_trace_spans_exported_total";
const FAILED: &str = "weir_trace_spans_failed_total";
const ENDED: &str = "weir_trace_spans_total";

#[tokio::test]
async fn spans_arrive_over_grpc_and_http() {
    for protocol in ["grpc", "http"] {
        let collector = Collector::start(protocol).await;
        let mut weir = weir_by(protocol, &collector, &[]).await;
        for _ in 0..3 {
            weir.decide(tenant("acme")).await;
        }
        collector.await_spans(3).await;
        until_metric(&weir, EXPORTED, 3).await;
        for received in collector.received() {
            let content_type = received.headers["content-type"].to_str().expect("a text");
            match protocol {
                "grpc" => assert_eq!((content_type, &*received.path), ("application/grpc", "")),
                _ => assert_eq!((content_type, &*received.path), ("application/x-protobuf", "/v1/traces")),
            }
        }
        assert_eq!((metric(&weir, ENDED).await, metric(&weir, FAILED).await), (3, 0));
    }
}

#[tokio::test]
async fn exports_have_the_headers_of_the_settings_and_are_compressed() {
    for protocol in ["grpc", "http"] {
        let collector = Collector::start(protocol).await;
        let variables = [
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20t,x-scope-orgid=7"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ];
        let mut weir = weir_by(protocol, &collector, &variables).await;
        weir.decide(tenant("acme")).await;
        collector.await_spans(1).await;
        let headers = &collector.received()[0].headers;
        assert_eq!(headers["authorization"], "Bearer t");
        assert_eq!(headers["x-scope-orgid"], "7");
        let encoding = if protocol == "grpc" { "grpc-encoding" } else { "content-encoding" };
        assert_eq!(headers[encoding], "gzip");
    }
}

#[tokio::test]
async fn full_batches_leave_before_their_delay() {
    let collector = Collector::http().await;
    let variables = [("OTEL_BSP_SCHEDULE_DELAY", "3600000"), ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")];
    let mut weir = weir(&collector, &variables).await;
    for _ in 0..25 {
        weir.decide(tenant("acme")).await;
    }
    collector.await_spans(10).await;
    let sizes: Vec<_> = collector.received().iter().map(|received| spans_of(received).len()).collect();
    assert!(sizes[0] == 10 && sizes.iter().all(|size| *size <= 10), "{sizes:?}");
    weir.stop().await.expect("it does not panic").expect("it stops");
    assert_eq!(collector.spans().len(), 25, "the others are sent at the end");
}

fn spans_of(received: &crate::collector::Received) -> &[opentelemetry_proto::tonic::trace::v1::Span] {
    &received.message.resource_spans[0].scope_spans[0].spans
}

#[tokio::test]
async fn an_export_is_repeated_while_the_collector_is_unavailable() {
    for protocol in ["grpc", "http"] {
        let collector = Collector::start(protocol).await;
        collector.answer(Answers::Unavailable);
        let mut weir = weir_by(protocol, &collector, &[]).await;
        weir.decide(tenant("acme")).await;
        until("an attempt", async || !collector.attempts().is_empty()).await;
        collector.answer(Answers::Accepts);
        collector.await_spans(1).await;
        until_metric(&weir, EXPORTED, 1).await;
        assert_eq!(metric(&weir, FAILED).await, 0);
    }
}

#[tokio::test]
async fn spans_that_the_collector_refuses_are_not_sent_again() {
    for protocol in ["grpc", "http"] {
        let collector = Collector::start(protocol).await;
        let mut weir = weir_by(protocol, &collector, &[]).await;
        collector.answer(Answers::Invalid);
        weir.decide(tenant("acme")).await;
        until_metric(&weir, FAILED, 1).await;
        // the exporter does not tell that spans of an export were rejected
        collector.answer(Answers::Rejects(1));
        weir.decide(tenant("acme")).await;
        until_metric(&weir, EXPORTED, 1).await;
        collector.answer(Answers::Accepts);
        weir.decide(tenant("acme")).await;
        until_metric(&weir, EXPORTED, 2).await;
        assert_eq!(collector.attempts().len(), 3);
    }
}

#[tokio::test]
async fn decisions_continue_without_a_collector_and_the_queue_is_bounded() {
    for (protocol, answers) in
        [("http", Answers::Hangs), ("grpc", Answers::Hangs), ("http", Answers::Unavailable)]
    {
        let collector = Collector::start(protocol).await;
        collector.answer(answers);
        let variables = [
            ("OTEL_BSP_MAX_QUEUE_SIZE", "50"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "20"),
            ("OTEL_BSP_EXPORT_TIMEOUT", "600000"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "500"),
        ];
        let mut weir = weir_by(protocol, &collector, &variables).await;
        let begun = Instant::now();
        for _ in 0..1_000 {
            weir.decide(tenant("acme")).await;
        }
        // far less than an export may take
        assert!(begun.elapsed() < Duration::from_mins(1), "{:?}", begun.elapsed());
        assert_eq!((metric(&weir, ENDED).await, metric(&weir, EXPORTED).await), (1_000, 0));
        collector.answer(Answers::Accepts);
        // those of the queue, and of the batch that was being sent
        until_metric(&weir, EXPORTED, 51).await;
        assert!(collector.spans().len() <= 70, "{protocol}: {}", collector.spans().len());
        assert_eq!(metric(&weir, FAILED).await, 0);
    }
}

#[tokio::test]
async fn spans_arrive_after_a_collector_has_restarted() {
    for protocol in ["grpc", "http"] {
        let collector = Collector::start(protocol).await;
        let proxy = crate::tls::Relay::start(collector.address).await;
        let endpoint = format!("http://{}", proxy.address);
        let mut weir = weir_by(protocol, &collector, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]).await;
        weir.decide(tenant("acme")).await;
        collector.await_spans(1).await;
        until_metric(&weir, EXPORTED, 1).await;
        // the connection that the exporter keeps is closed
        proxy.cut();
        weir.decide(tenant("acme")).await;
        collector.await_spans(2).await;
        until_metric(&weir, EXPORTED, 2).await;
    }
}

#[tokio::test]
async fn an_export_is_repeated_when_the_collector_says() {
    const PAUSE: Duration = Duration::from_secs(3);
    for protocol in ["grpc", "http"] {
        let collector = Collector::start(protocol).await;
        collector.answer(Answers::Throttles(PAUSE));
        let mut weir = weir_by(protocol, &collector, &[]).await;
        weir.decide(tenant("acme")).await;
        until("an attempt", async || !collector.attempts().is_empty()).await;
        collector.answer(Answers::Accepts);
        collector.await_spans(1).await;
        let [first, second] = collector.attempts()[..] else { panic!("two attempts") };
        assert!(second - first >= PAUSE, "{protocol}: {:?}", second - first);
    }
}

#[tokio::test]
async fn only_statuses_that_the_protocol_names_are_repeated() {
    for code in [Code::Unknown, Code::ResourceExhausted, Code::Internal] {
        let collector = Collector::grpc().await;
        collector.answer(Answers::Status(code));
        let mut weir = weir_by("grpc", &collector, &[]).await;
        weir.decide(tenant("acme")).await;
        until_metric(&weir, FAILED, 1).await;
        assert_eq!(collector.attempts().len(), 1, "{code}");
    }
}
