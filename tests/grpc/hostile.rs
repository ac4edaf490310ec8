//! Messages that no honest client sends: each gets a clear status, and the next request works.

use axum::body::Body;
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
use weir::{
    door::grpc::BoundTo,
    proto::envoy::service::ratelimit::v3::{RateLimitRequest, rate_limit_response::Code::Ok as Passes},
};

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

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Asks for nothing in particular, as everybody does after somebody was hostile.
async fn lives_on(weir: &mut Weir) {
    let answer = weir.answer(request("d", [descriptor([("k", "honest")])])).await;
    assert_eq!(gist(&answer).0, Passes);
}

/// Posts `body`, as it is, and hands out the status that comes back.
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
    assert_eq!(response.status(), http::StatusCode::OK, "gRPC's own errors are behind a 200");
    Status::from_header_map(response.headers()).expect("a gRPC status")
}

/// A message as gRPC frames it.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("it is short");
    [&[0], &length.to_be_bytes()[..], message].concat()
}

#[tokio::test]
async fn a_value_of_a_megabyte_is_counted_like_any_other() {
    let mut weir = Weir::start(RULES).await;
    let long = "x".repeat(1024 * 1024);
    for remaining in [999_999, 999_998] {
        let answer = weir.answer(request("d", [descriptor([("k", long.as_str())])])).await;
        assert_eq!(answer.statuses[0].limit_remaining, remaining);
    }
    lives_on(&mut weir).await;
}

#[tokio::test]
async fn ten_thousand_descriptors_get_as_many_statuses() {
    let mut weir = Weir::start(RULES).await;
    let descriptors = (0..10_000).map(|i| descriptor([("k", i.to_string().as_str())])).collect();
    let answer = weir.answer(RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 0 }).await;
    assert_eq!(answer.statuses.len(), 10_000);
    assert!(answer.statuses.iter().all(|status| status.limit_remaining == 999_999));
    lives_on(&mut weir).await;
}

#[tokio::test]
async fn a_message_past_four_megabytes_is_refused_compressed_or_not() {
    let mut weir = Weir::start(RULES).await;
    let bomb = "\0".repeat(16 * 1024 * 1024);
    let plain = weir.ask(request("d", [descriptor([("k", bomb.as_str())])])).await.expect_err("too large");
    assert!(matches!(plain.code(), Code::OutOfRange | Code::ResourceExhausted), "{plain:?}");
    let mut client = weir.client.clone().send_compressed(CompressionEncoding::Gzip);
    let asked = client.should_rate_limit(request("d", [descriptor([("k", bomb.as_str())])])).await;
    let packed = asked.expect_err("too large when it is unpacked");
    assert!(matches!(packed.code(), Code::OutOfRange | Code::ResourceExhausted), "{packed:?}");
    lives_on(&mut weir).await;
}

#[tokio::test]
async fn gzip_is_accepted() {
    let weir = Weir::start(RULES).await;
    let mut client = weir.client.clone().send_compressed(CompressionEncoding::Gzip);
    let answer = client.should_rate_limit(request("d", [descriptor([("k", "v")])])).await;
    assert_eq!(gist(answer.expect("an answer").get_ref()).0, Passes);
}

#[tokio::test]
async fn a_compression_that_nobody_knows_is_unimplemented() {
    let mut weir = Weir::start(RULES).await;
    let mut body = framed(b"whatever");
    body[0] = 1;
    let status = post(&weir, METHOD, &[("grpc-encoding", "snappy")], body).await;
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("snappy"), "{status:?}");
    lives_on(&mut weir).await;
}

#[tokio::test]
async fn what_is_no_message_has_a_status_of_its_own() {
    let mut weir = Weir::start(RULES).await;
    let invalid_utf8 = framed(&[0x0a, 2, 0xff, 0xfe]);
    let cut_in_a_field = framed(&[0x0a, 200, b'd']);
    let no_field = framed(&[0xff; 20]);
    let cut_in_the_frame = [&[0, 0, 0, 0, 100][..], b"only this"].concat();
    let endless = [&[0, 0xff, 0xff, 0xff, 0xff][..], b"x"].concat();
    let flagged = [&[1, 0, 0, 0, 1][..], b"x"].concat();
    for body in [invalid_utf8, cut_in_a_field, no_field, cut_in_the_frame, endless, flagged, Vec::new()] {
        let status = post(&weir, METHOD, &[], body.clone()).await;
        let expected = [Code::Internal, Code::InvalidArgument, Code::OutOfRange, Code::ResourceExhausted];
        assert!(expected.contains(&status.code()), "{body:?}: {status:?}");
        assert!(!status.message().is_empty(), "{body:?}: {status:?}");
        lives_on(&mut weir).await;
    }
}

#[tokio::test]
async fn what_there_is_not_is_unimplemented() {
    let mut weir = Weir::start(RULES).await;
    for path in ["/envoy.service.ratelimit.v3.RateLimitService/Nothing", "/no.such.Service/ShouldRateLimit"] {
        assert_eq!(post(&weir, path, &[], framed(&[])).await.code(), Code::Unimplemented, "{path}");
    }
    lives_on(&mut weir).await;
}

#[tokio::test]
async fn who_speaks_no_http2_is_shown_out() {
    let mut weir = Weir::start(RULES).await;
    let BoundTo::Tcp(address) = weir.addresses.grpc else { panic!("it listens on a port") };
    for greeting in
        [&b"GET / HTTP/1.1\r\nhost: weir\r\n\r\n"[..], &[0xff; 100], b"\x16\x03\x01\x02\x00\x01\x00\x01"]
    {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(greeting).await.expect("it takes it");
        // that no more is to come is all that somebody has to say who began a preface and thought better of it
        stream.shutdown().await.expect("a half-closed connection");
        let mut rest = Vec::new();
        // closed or reset, but not left open
        let _ = timeout(DEADLINE, stream.read_to_end(&mut rest)).await.expect("in time");
        lives_on(&mut weir).await;
    }
}
