//! Callers with a `grpc-timeout`, in front of a Redis that does not reply.

use bytes::Bytes;
use http::{Method, Request};
use prost::Message as _;
use tokio::{net::TcpStream, time::timeout};
use weir_proto::envoy::service::ratelimit::v3::RateLimitResponse;

use crate::{
    proxy::Faults,
    support::{DEADLINE, Server, Weir, until},
    wire::{descriptor, request},
};

/// Longer than a test waits.
const BUDGET: &str = "1m";

const RULES: &str = "
domain: shop
descriptors:
  - key: k
    rate_limit: { requests: 100, per: 365d, coordination: strict }
  - key: probe
    rate_limit: { requests: 100, per: 365d, coordination: strict }
";

/// Sends a hit of `k` with the header `grpc-timeout: value`, by a client that waits for any time. Returns the status of
/// the response, with its text, and the response.
async fn call(weir: &Weir, value: &str) -> (String, String, Option<RateLimitResponse>) {
    let stream = TcpStream::connect(weir.grpc_address()).await.expect("it listens");
    let (client, connection) = h2::client::handshake(stream).await.expect("it speaks HTTP/2");
    let connection = tokio::spawn(connection);
    let head = Request::builder()
        .method(Method::POST)
        .uri("http://weir/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", value)
        .body(())
        .expect("a request");
    let mut client = client.ready().await.expect("it is connected");
    let (response, mut body) = client.send_request(head, false).expect("it is sent");
    let message = request("shop", [descriptor([("k", "v")])]).encode_to_vec();
    let length = u32::try_from(message.len()).expect("it is short").to_be_bytes();
    let framed = [&[0], &length[..], &message].concat();
    // an error means that the head was enough for an answer, which ended the call
    let _ = body.send_data(Bytes::from(framed), true);
    let response = timeout(DEADLINE, response).await.expect("in time").expect("a response");
    let text = |headers: &http::HeaderMap, name: &str| {
        headers.get(name).map(|value| value.to_str().expect("a text").to_owned()).unwrap_or_default()
    };
    let (head, mut body) = response.into_parts();
    let mut sent = Vec::new();
    while let Some(part) = timeout(DEADLINE, body.data()).await.expect("in time") {
        sent.extend_from_slice(&part.expect("a part"));
    }
    let trailers = body.trailers().await.expect("no error").unwrap_or(head.headers);
    let answer = sent.get(5..).map(|message| RateLimitResponse::decode(message).expect("a response"));
    connection.abort();
    (text(&trailers, "grpc-status"), text(&trailers, "grpc-message"), answer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_with_a_timeout_is_answered_within_it() {
    let (server, dir) = (Server::start(), tempfile::tempdir().expect("a directory"));
    std::fs::write(dir.path().join("rules.yaml"), RULES).expect("a file in it");
    let variables = [("WEIR_DECISION_BUDGET", BUDGET), ("REDIS_TIMEOUT", "2m")];
    let weir = Weir::start_with(&server, dir.path().to_str().expect("a path"), &variables).await;
    until("redis replies", async || {
        call(&weir, "5S").await;
        weir.metric("weir_decisions_total{how=\"waited\"}") > 0
    })
    .await;
    weir.proxy.set(Faults { drops_requests: true, ..Faults::default() });
    let fallback = weir.metric("weir_decisions_total{how=\"fallback\"}");
    for value in ["5m", "100000u", "1S"] {
        let (status, text, answer) = call(&weir, value).await;
        assert_eq!((&*status, &*text), ("0", ""), "{value}");
        assert_eq!(answer.expect("an answer").statuses.len(), 1, "{value}");
    }
    let now = weir.metric("weir_decisions_total{how=\"fallback\"}");
    assert_eq!(now - fallback, 3, "no reply from Redis, and no wait of {BUDGET}");
    let (status, text, answer) = call(&weir, "5ms").await;
    assert_eq!((&*status, answer), ("13", None));
    assert!(
        text.starts_with("malformed%20grpc-timeout:%20") || text.starts_with("malformed grpc-timeout: "),
        "{text}"
    );
}
