//! Hostile and malformed messages: each gets a clear status, and the next request works.

use axum::body::Body;
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tonic::{
    Code, Status,
    client::GrpcService as _,
    codec::CompressionEncoding,
    codegen::http,
    transport::{Channel, Endpoint},
};
use weir_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest,
    rate_limit_response::Code::{Ok as Passes, OverLimit},
    rate_limit_service_client::RateLimitServiceClient,
};
use weir_server::net::BoundAddress;

use crate::{
    in_process::{DEADLINE, Weir, uri},
    wire::{descriptor, gist, request},
};

const RULES: &str = "
domain: d
descriptors:
  - key: k
    rate_limit: { unit: hour, requests_per_unit: 1000000 }
";

/// The type of HTTP/2's GOAWAY frame.
const GOAWAY: u8 = 7;

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Sends an ordinary request, which must succeed after a hostile one.
async fn still_serves(weir: &mut Weir) {
    let response = weir.decide(request("d", [descriptor([("k", "honest")])])).await;
    assert_eq!(gist(&response).0, Passes);
}

/// Posts the raw `body`, and returns the status of the response.
async fn post(weir: &Weir, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Status {
    let endpoint = Endpoint::from_shared(uri(&weir.addresses)).expect("an address");
    let mut channel: Channel = endpoint.connect().await.expect("it listens");
    let uri = format!("{}{path}", uri(&weir.addresses));
    let request =
        http::Request::post(uri).header("content-type", "application/grpc").header("te", "trailers");
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let request = request.body(tonic::body::Body::new(Body::from(body))).expect("a request");
    std::future::poll_fn(|context| channel.poll_ready(context)).await.expect("it is connected");
    let response = timeout(DEADLINE, channel.call(request)).await.expect("in time").expect("a response");
    assert_eq!(response.status(), http::StatusCode::OK, "gRPC reports errors with HTTP status 200");
    Status::from_header_map(response.headers()).expect("a gRPC status")
}

/// Returns the message with gRPC's prefix.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("it is short");
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// Hits that are announced early and sent late would count in the past, where nothing is left of them by now.
#[tokio::test]
async fn a_message_counts_when_it_has_arrived() {
    let rules = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { requests: 1, per: 10s, algorithm: sliding_window }\n";
    let mut weir = Weir::start(rules).await;
    let endpoint = Endpoint::from_shared(uri(&weir.addresses)).expect("an address");
    let mut channel: Channel = endpoint.connect().await.expect("it listens");
    let (send, rest) = tokio::sync::oneshot::channel::<()>();
    let message = framed(&request("d", [descriptor([("k", "v")])]).encode_to_vec());
    let body = futures_util::stream::once(async move {
        rest.await.expect("it is sent");
        std::io::Result::Ok(message)
    });
    let uri = format!("{}{METHOD}", uri(&weir.addresses));
    let late = http::Request::post(uri).header("content-type", "application/grpc").header("te", "trailers");
    let late = late.body(tonic::body::Body::new(Body::from_stream(body))).expect("a request");
    std::future::poll_fn(|context| channel.poll_ready(context)).await.expect("it is connected");
    let late = tokio::spawn(channel.call(late));
    // on the same connection, and so after the headers of the late one
    let mut client = RateLimitServiceClient::new(channel);
    client.should_rate_limit(request("d", [descriptor([("k", "other")])])).await.expect("a response");
    weir.advance(20);
    send.send(()).expect("it waits");
    timeout(DEADLINE, late).await.expect("in time").expect("no panic").expect("a response");
    let response = weir.decide(request("d", [descriptor([("k", "v")])])).await;
    assert_eq!(gist(&response).0, OverLimit, "it counts for ten seconds from now");
}

#[tokio::test]
async fn a_value_of_a_megabyte_is_counted_like_any_other() {
    let mut weir = Weir::start(RULES).await;
    let long = "x".repeat(1024 * 1024);
    for remaining in [999_999, 999_998] {
        let response = weir.decide(request("d", [descriptor([("k", long.as_str())])])).await;
        assert_eq!(response.statuses[0].limit_remaining, remaining);
    }
    still_serves(&mut weir).await;
}

#[tokio::test]
async fn ten_thousand_descriptors_get_as_many_statuses() {
    let mut weir = Weir::start(RULES).await;
    let descriptors = (0..10_000).map(|i| descriptor([("k", i.to_string().as_str())])).collect();
    let response = weir.decide(RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 0 }).await;
    assert_eq!(response.statuses.len(), 10_000);
    assert!(response.statuses.iter().all(|status| status.limit_remaining == 999_999));
    still_serves(&mut weir).await;
}

#[tokio::test]
async fn a_message_above_four_megabytes_is_rejected_compressed_or_not() {
    let mut weir = Weir::start(RULES).await;
    let bomb = "\0".repeat(16 * 1024 * 1024);
    let plain =
        weir.try_decide(request("d", [descriptor([("k", bomb.as_str())])])).await.expect_err("too large");
    assert_eq!(plain.code(), Code::ResourceExhausted, "{plain:?}");
    let mut client = weir.client.clone().send_compressed(CompressionEncoding::Gzip);
    let sent = client.should_rate_limit(request("d", [descriptor([("k", bomb.as_str())])])).await;
    let packed = sent.expect_err("too large when uncompressed");
    assert_eq!(packed.code(), Code::ResourceExhausted, "{packed:?}");
    still_serves(&mut weir).await;
}

#[tokio::test]
async fn gzip_is_accepted() {
    let weir = Weir::start(RULES).await;
    let mut client = weir.client.clone().send_compressed(CompressionEncoding::Gzip);
    let response = client.should_rate_limit(request("d", [descriptor([("k", "v")])])).await;
    assert_eq!(gist(response.expect("a response").get_ref()).0, Passes);
}

#[tokio::test]
async fn an_unknown_compression_is_unimplemented() {
    let mut weir = Weir::start(RULES).await;
    let mut body = framed(b"whatever");
    body[0] = 1;
    let status = post(&weir, METHOD, &[("grpc-encoding", "snappy")], body).await;
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("snappy"), "{status:?}");
    still_serves(&mut weir).await;
}

#[tokio::test]
async fn malformed_messages_get_a_status() {
    let mut weir = Weir::start(RULES).await;
    let invalid_utf8 = framed(&[0x0a, 2, 0xff, 0xfe]);
    let cut_in_a_field = framed(&[0x0a, 200, b'd']);
    let no_field = framed(&[0xff; 20]);
    let cut_in_the_frame = [&[0, 0, 0, 0, 100][..], b"only this"].concat();
    let endless = [&[0, 0xff, 0xff, 0xff, 0xff][..], b"x"].concat();
    let flagged = [&[1, 0, 0, 0, 1][..], b"x"].concat();
    // the codes of grpc-go
    for (name, body, code, message) in [
        ("invalid UTF-8", invalid_utf8, Code::Internal, "malformed RateLimitRequest"),
        ("cut in a field", cut_in_a_field, Code::Internal, "a field that exceeds the message"),
        ("no field", no_field, Code::Internal, "malformed RateLimitRequest"),
        ("cut in the frame", cut_in_the_frame, Code::Internal, "its prefix says 100"),
        ("endless", endless, Code::ResourceExhausted, "exceeds 4194304 bytes"),
        ("flagged as compressed", flagged, Code::Internal, "grpc-encoding is missing"),
        ("empty", Vec::new(), Code::Internal, "before a complete message"),
    ] {
        let status = post(&weir, METHOD, &[], body).await;
        assert_eq!(status.code(), code, "{name}: {status:?}");
        assert!(status.message().contains(message), "{name}: {status:?}");
        still_serves(&mut weir).await;
    }
}

#[tokio::test]
async fn unknown_methods_are_unimplemented() {
    let mut weir = Weir::start(RULES).await;
    for path in ["/envoy.service.ratelimit.v3.RateLimitService/Nothing", "/no.such.Service/ShouldRateLimit"] {
        assert_eq!(post(&weir, path, &[], framed(&[])).await.code(), Code::Unimplemented, "{path}");
    }
    still_serves(&mut weir).await;
}

/// Returns the HTTP/2 frames of one request: a complete header block, and data that ends the stream.
fn raw_request(stream: u32, headers: &[u8], body: &[u8]) -> Vec<u8> {
    let frame = |kind: u8, flags: u8, payload: &[u8]| {
        let length = u32::try_from(payload.len()).expect("it is short").to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    [frame(1, 4, headers), frame(0, 1, body)].concat()
}

#[tokio::test]
async fn thousands_of_simultaneous_requests_are_not_an_attack() {
    const REQUESTS: u32 = 4_000;
    let mut weir = Weir::start(RULES).await;
    let BoundAddress::Tcp(address) = weir.addresses.grpc else { panic!("it listens on a port") };
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    // POST and http from HPACK's static table, and a literal path
    let path = u8::try_from(METHOD.len()).expect("it is short");
    let headers = [&[0x83, 0x86, 0x04, path][..], METHOD.as_bytes(), &[0x41, 1, b'w']].concat();
    let body = framed(&request("d", [descriptor([("k", "burst")])]).encode_to_vec());
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    // a window for all the responses
    sent.extend(b"\0\0\x04\x08\0\0\0\0\0\0\xff\0\0");
    (0..REQUESTS).for_each(|i| sent.extend(raw_request(2 * i + 1, &headers, &body)));
    let (mut reader, mut writer) = stream.split();
    let responses = async {
        let (mut ended, mut header) = (0, [0; 9]);
        while ended < REQUESTS {
            reader.read_exact(&mut header).await.expect("another frame");
            let mut payload = vec![0; u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize];
            reader.read_exact(&mut payload).await.expect("a whole frame");
            assert_ne!(header[3], GOAWAY, "{:?}", String::from_utf8_lossy(&payload));
            // the trailers end a stream
            ended += u32::from(header[3] == 1 && header[4] & 1 == 1);
        }
    };
    let both = async {
        tokio::join!(responses, async { writer.write_all(&sent).await.expect("it accepts the bytes") })
    };
    timeout(DEADLINE, both).await.expect("in time");
    let response = weir.decide(request("d", [descriptor([("k", "burst")])])).await;
    assert_eq!(response.statuses[0].limit_remaining, 1_000_000 - REQUESTS - 1);
}

#[tokio::test]
async fn a_client_without_http2_is_disconnected() {
    let mut weir = Weir::start(RULES).await;
    let BoundAddress::Tcp(address) = weir.addresses.grpc else { panic!("it listens on a port") };
    for greeting in
        [&b"GET / HTTP/1.1\r\nhost: weir\r\n\r\n"[..], &[0xff; 100], b"\x16\x03\x01\x02\x00\x01\x00\x01"]
    {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(greeting).await.expect("it accepts the bytes");
        // a client that began a preface and stopped only signals the end of its data
        stream.shutdown().await.expect("a half-closed connection");
        let mut rest = Vec::new();
        // closed or reset, but not left open
        let _ = timeout(DEADLINE, stream.read_to_end(&mut rest)).await.expect("in time");
        still_serves(&mut weir).await;
    }
}

/// Each value would be compared with each pattern, on a thread that serves others.
#[tokio::test]
async fn many_values_of_a_key_with_many_patterns_are_an_error() {
    let mut rules = vec!["domain: d\ndescriptors:".to_owned()];
    rules.extend(
        (0..500)
            .map(|i| format!("  - {{ key: p, value: \"x{i}*\", rate_limit: {{ requests: 9, per: 1h }} }}")),
    );
    rules.push("  - { key: k, rate_limit: { requests: 9, per: 1h } }".to_owned());
    let mut weir = Weir::start(&rules.join("\n")).await;
    let of = |key: &'static str, value: &str, count: usize| RateLimitRequest {
        descriptors: vec![descriptor([(key, value)]); count],
        ..request("d", [])
    };
    for (value, count) in [("y", 10_000), (&*"y".repeat(1 << 20), 1)] {
        let status = weir.try_decide(of("p", value, count)).await.expect_err("too many");
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        let said = status.message();
        let says = ["comparisons with patterns", "500 for the key \"p\"", "2000000 are allowed"];
        assert!(says.iter().all(|part| said.contains(part)), "{said}");
    }
    // as many as are allowed, and keys without patterns
    let response = weir.decide(of("p", "x7y", 4_000)).await;
    assert_eq!(response.overall_code(), OverLimit);
    assert_eq!(weir.decide(of("k", "y", 10_000)).await.overall_code(), OverLimit);
    still_serves(&mut weir).await;
}
