//! A weir in the test's process that sends its traces to a collector.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use weir_proto::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::{
    collector::Collector,
    in_process::{Weir, get, until},
    wire::{descriptor, request},
};

pub(crate) const RULES: &str = "domain: shop
descriptors:
  - key: tenant
    rate_limit: { unit: hour, requests_per_unit: 2 }
  - key: plan
    value: free
    rate_limit: { unit: day, requests_per_unit: 1000 }
  - key: trusted
    rate_limit: { unlimited: true }
";

/// Sends spans at once, instead of after five seconds.
pub(crate) const AT_ONCE: (&str, &str) = ("OTEL_BSP_SCHEDULE_DELAY", "10");

/// Starts a weir that sends traces to `collector` over HTTP, with further `variables`.
pub(crate) async fn weir(collector: &Collector, variables: &[(&str, &str)]) -> Weir {
    weir_by("http", collector, variables).await
}

/// Starts a weir that sends traces to `collector` by `protocol`.
pub(crate) async fn weir_by(protocol: &str, collector: &Collector, variables: &[(&str, &str)]) -> Weir {
    let endpoint = format!("http://{}", collector.address);
    let own = [
        ("TRACING_ENABLED", "true"),
        ("TRACING_EXPORTER_PROTOCOL", protocol),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        AT_ONCE,
    ];
    Weir::start_with(RULES, &[&own, variables].concat()).await
}

/// Returns a request of one tenant.
pub(crate) fn tenant(name: &str) -> RateLimitRequest {
    request("shop", [descriptor([("tenant", name)])])
}

/// Returns `message` as a call with `headers`.
pub(crate) fn with_headers(
    message: RateLimitRequest,
    headers: &[(&'static str, &str)],
) -> tonic::Request<RateLimitRequest> {
    let mut call = tonic::Request::new(message);
    for (name, value) in headers {
        call.metadata_mut().append(*name, value.parse().expect("a header's value"));
    }
    call
}

/// Sends `body` to `/json` with the lines `headers`, and returns the response.
pub(crate) async fn json(weir: &Weir, headers: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(weir.addresses.http).await.expect("it listens");
    let text = format!(
        "POST /json HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n{headers}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).await.expect("it reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("it answers");
    response
}

/// Returns the metric with this name and labels.
pub(crate) async fn metric(weir: &Weir, name: &str) -> u64 {
    let page = get(weir.addresses.http, "/metrics").await;
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}: {page}")).trim().parse().expect("a number")
}

/// Waits until the metric is at least `least`.
pub(crate) async fn until_metric(weir: &Weir, name: &str, least: u64) {
    until(name, async || metric(weir, name).await >= least).await;
}
