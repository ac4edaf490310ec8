//! Delta temporality: the exports add up to the page.

use opentelemetry_proto::tonic::metrics::v1::AggregationTemporality;

use crate::{
    in_process::until,
    page::{Page, temporality},
    receiver::{Answers, Receiver},
    same::{HITS, tenant, weir},
};

const DELTA: (&str, &str) = ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta");
const COUNT: &str = "ratelimit_service_response_time_seconds_count{grpc_method=\"ShouldRateLimit\"}";
const LIMIT: &str = "weir_rule_limit{domain=\"shop\",key1=\"tenant\",per=\"1h\"}";

/// Returns the sum of a series in all exports.
fn sum(receiver: &Receiver, series: &str) -> f64 {
    let exports = receiver.received();
    exports.iter().filter_map(|export| Page::of_export(export).value(series)).sum()
}

#[tokio::test]
async fn changes_add_up_although_exports_fail() {
    for protocol in ["grpc", "http"] {
        let receiver = Receiver::start(protocol).await;
        let mut weir = weir(protocol, &receiver, &[DELTA]).await;
        for answers in [Answers::Accepts, Answers::Invalid, Answers::Accepts, Answers::Unavailable] {
            receiver.answer(answers);
            let attempts = receiver.attempts();
            weir.decide(tenant()).await;
            until("two attempts", async || receiver.attempts() >= attempts + 2).await;
        }
        receiver.answer(Answers::Accepts);
        until("all hits", async || sum(&receiver, HITS) >= 4.0).await;
        let last = receiver.next().await;
        for series in [HITS, COUNT] {
            assert!((sum(&receiver, series) - 4.0).abs() < 1e-9, "{protocol}: {series}");
            assert_eq!(Page::of_export(&last).value(series), Some(0.0), "{protocol}: {series}");
        }
        assert_eq!(Page::of_export(&last).value(LIMIT), Some(2.0), "a gauge has no temporality");
        for metric in last.metrics() {
            assert!(
                temporality(metric).is_none_or(|is| is == AggregationTemporality::Delta),
                "{}",
                metric.name
            );
        }
    }
}

#[tokio::test]
async fn the_last_changes_are_sent_when_weir_stops() {
    let receiver = Receiver::start("grpc").await;
    let mut weir = weir("grpc", &receiver, &[DELTA, ("OTEL_METRIC_EXPORT_INTERVAL", "3600000")]).await;
    weir.decide(tenant()).await;
    assert!(receiver.received().is_empty());
    weir.stop().await.expect("it does not panic").expect("it stops");
    assert!((sum(&receiver, HITS) - 1.0).abs() < 1e-9);
}
