//! A collector that is away, slow, or refuses.

use std::{
    fs,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::{
    child::Serving,
    in_process::until,
    page::Page,
    receiver::{Answers, Receiver},
    same::{RULES, tenant, weir},
};

/// The flush, and what a busy machine may add.
const LONGEST: Duration = Duration::from_secs(20);

const FAILURES: &str = "weir_metrics_export_failures_total";

fn serving(receiver: &Receiver, protocol: &str, variables: &[(&str, &str)]) -> (Serving, TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("rules.yaml"), RULES).expect("a file");
    let endpoint = format!("http://{}", receiver.address);
    let own = [
        ("OTEL_METRICS_EXPORTER", "otlp"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", protocol),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", endpoint.as_str()),
        ("OTEL_METRIC_EXPORT_INTERVAL", "50"),
        ("WEIR_STOP_DELAY", "0"),
    ];
    let path = dir.path().to_str().expect("a plain path").to_owned();
    (Serving::start(&path, &[&own, variables].concat()), dir)
}

/// Stops `weir`, and returns the lines of its log about the collector.
async fn stop(weir: Serving) -> Vec<String> {
    let begun = Instant::now();
    weir.signal("TERM");
    let (status, output) = tokio::task::spawn_blocking(|| weir.ended()).await.expect("it ends");
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(begun.elapsed() < LONGEST, "{:?}", begun.elapsed());
    output.lines().filter(|line| line.contains("collector")).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_fails_costs_one_warning() {
    for (protocol, answers) in
        [("grpc", Answers::Unavailable), ("http/protobuf", Answers::Unavailable), ("grpc", Answers::Invalid)]
    {
        let receiver = Receiver::start(protocol).await;
        receiver.answer(answers);
        let (weir, _dir) = serving(&receiver, protocol, &[]);
        until("many attempts", async || receiver.attempts() >= 5).await;
        let lines = stop(weir).await;
        let [line] = &lines[..] else { panic!("one warning: {lines:?}") };
        assert!(line.contains("cannot send metrics to the collector"), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_comes_back_is_a_second_line() {
    let receiver = Receiver::start("grpc").await;
    receiver.answer(Answers::Unavailable);
    let (weir, _dir) = serving(&receiver, "grpc", &[]);
    until("many attempts", async || receiver.attempts() >= 3).await;
    receiver.answer(Answers::Accepts);
    receiver.next().await;
    receiver.next().await;
    let lines = stop(weir).await;
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[1].contains("metrics are sent to the collector again"), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_hangs_delays_neither_decisions_nor_the_end() {
    let receiver = Receiver::start("http/protobuf").await;
    receiver.answer(Answers::Hangs);
    let mut decided = weir("http", &receiver, &[("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000")]).await;
    until("an attempt", async || receiver.attempts() >= 1).await;
    decided.decide(tenant()).await;
    let (weir, _dir) = serving(&receiver, "http/protobuf", &[("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000")]);
    until("another attempt", async || receiver.attempts() >= 2).await;
    stop(weir).await;
}

#[tokio::test]
async fn what_became_of_exports_is_counted() {
    for protocol in ["grpc", "http"] {
        let receiver = Receiver::start(protocol).await;
        receiver.answer(Answers::Rejects(2));
        let weir = weir(protocol, &receiver, &[]).await;
        receiver.next().await;
        receiver.answer(Answers::Invalid);
        until("a failure", async || Page::of_weir(&weir).await.value(FAILURES) > Some(0.0)).await;
        let page = Page::of_weir(&weir).await;
        let rejected = page.value("weir_metrics_points_rejected_total").expect("it is counted");
        let exports = page.value("weir_metrics_exports_total").expect("it is counted");
        assert!(exports >= 2.0 && (rejected - 2.0 * exports).abs() < 1e-9, "{rejected} of {exports}");
    }
}
