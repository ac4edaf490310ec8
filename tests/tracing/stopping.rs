//! The last spans, when the program stops.

use std::{
    fs,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use weir_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;

use crate::{
    child::Serving,
    collector::{Answers, Collector},
    traced::{RULES, tenant},
};

/// The flush, and what a busy machine may add.
const LONGEST: Duration = Duration::from_secs(15);

/// Starts a weir that would send its traces in an hour.
fn serving(collector: &Collector, protocol: &str, variables: &[(&str, &str)]) -> (Serving, TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("rules.yaml"), RULES).expect("a file");
    let endpoint = format!("http://{}", collector.address);
    let own = [
        ("TRACING_ENABLED", "true"),
        ("TRACING_EXPORTER_PROTOCOL", protocol),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "60000"),
        ("OTEL_BSP_SCHEDULE_DELAY", "3600000"),
        ("WEIR_STOP_DELAY", "0"),
    ];
    let path = dir.path().to_str().expect("a plain path");
    (Serving::start(path, &[&own, variables].concat()), dir)
}

async fn decide(weir: &Serving, count: usize) {
    let address = format!("http://{}", weir.address("grpc"));
    let mut client = RateLimitServiceClient::connect(address).await.expect("it listens");
    for _ in 0..count {
        client.should_rate_limit(tenant("acme")).await.expect("a response");
    }
}

/// Stops `weir`, and returns its output and the time that it took.
async fn stop(weir: Serving) -> (String, Duration) {
    let begun = Instant::now();
    weir.signal("TERM");
    let (status, output) = tokio::task::spawn_blocking(|| weir.ended()).await.expect("it ends");
    assert_eq!(status.code(), Some(0), "{output}");
    (output, begun.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_sends_what_is_left() {
    for protocol in ["grpc", "http"] {
        let collector = Collector::start(protocol).await;
        let (weir, _dir) = serving(&collector, protocol, &[]);
        decide(&weir, 700).await;
        let before = collector.spans().len();
        assert!(before < 700, "the rest waits for a full batch");
        let (output, _) = stop(weir).await;
        assert_eq!(collector.spans().len(), 700);
        assert!(!output.contains("collector"), "{output}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_hangs_or_fails_delays_the_end_by_five_seconds() {
    for answers in [Answers::Hangs, Answers::Unavailable] {
        let collector = Collector::http().await;
        collector.answer(answers);
        let (weir, _dir) = serving(&collector, "http", &[]);
        decide(&weir, 3).await;
        let (output, took) = stop(weir).await;
        assert!(took < LONGEST && took >= Duration::from_secs(4), "{answers:?}: {took:?}");
        let warnings = output.lines().filter(|line| line.contains("collector")).count();
        assert_eq!(warnings, 1, "{output}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_has_the_number_of_spans_that_found_no_room() {
    let collector = Collector::http().await;
    collector.answer(Answers::Hangs);
    let (weir, _dir) = serving(&collector, "http", &[("OTEL_BSP_MAX_QUEUE_SIZE", "10")]);
    // a batch is being sent, and another one waits
    decide(&weir, 30).await;
    let (output, _) = stop(weir).await;
    let lines: Vec<&str> = output.lines().filter(|line| line.contains("queue")).collect();
    let [first, last] = lines[..] else { panic!("two lines: {output}") };
    assert!(first.contains("SpanDroppingStarted"), "{first}");
    assert!(last.contains("dropped_span_count="), "{last}");
}
