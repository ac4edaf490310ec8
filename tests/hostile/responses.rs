//! Clients that send requests and do not read the responses.

use std::collections::HashSet;

use prost::Message as _;
use weir_proto::{
    envoy::service::ratelimit::v3::RateLimitRequest,
    weir::v1::{AcquireRequest, acquire_request::Entry},
};

use crate::{
    frames::{
        Attacker, DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, WINDOW_UPDATE, call, frame, framed,
        header_block_of,
    },
    target::{MB, NAME, Target},
    wire::{descriptor, request},
};

/// Descriptors of each request; each has an answer of [`NAME`] bytes.
const DESCRIPTORS: usize = 100;

/// Requests of each connection: their answers have 100 MB.
const REQUESTS: u32 = 500;

fn large() -> RateLimitRequest {
    let descriptors = (0..DESCRIPTORS).map(|i| descriptor([("named", i.to_string().as_str())])).collect();
    RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 0 }
}

async fn send_all(attacker: &mut Attacker) {
    let request = large();
    for stream in (0..REQUESTS).map(|i| 2 * i + 1) {
        if !attacker.send(&call(stream, &request)).await {
            return;
        }
    }
}

#[tokio::test]
async fn responses_without_a_window_are_bounded_and_the_connection_is_closed() {
    assert_eq!(REQUESTS as usize * DESCRIPTORS * NAME, 100_000_000);
    // long enough for all requests to arrive, also beside the other tests
    let mut target = Target::start(&[("WEIR_SEND_TIMEOUT", "40s")]).await;
    let mut attacker = Attacker::connect(target.address("grpc"), 0).await;
    send_all(&mut attacker).await;
    target.until_exceeded("unread_responses", 1).await;
    attacker.until_closed().await;
    assert_eq!(target.exceeded("send_timeout").await, 1);
    target.still_serves().await;
    // of 100 MB
    target.assert_grown_below(50 * MB);
}

#[tokio::test]
async fn responses_that_the_socket_does_not_take_are_bounded_and_the_connection_is_closed() {
    let mut target = Target::start(&[("WEIR_SEND_TIMEOUT", "1s")]).await;
    let mut attacker = Attacker::connect(target.address("grpc"), 0x7fff_ffff).await;
    // not even what the system takes
    send_all(&mut attacker).await;
    target.until_exceeded("send_timeout", 1).await;
    target.still_serves().await;
    target.assert_grown_below(50 * MB);
}

#[tokio::test]
async fn all_connections_together_hold_a_bounded_number_of_bytes() {
    let mut target = Target::start(&[("WEIR_MAX_BUFFERED_BYTES", "16MiB")]).await;
    let mut attackers = Vec::new();
    for _ in 0..6 {
        let mut attacker = Attacker::connect(target.address("grpc"), 0).await;
        let request = large();
        for stream in (0..30).map(|i| 2 * i + 1) {
            attacker.send(&call(stream, &request)).await;
        }
        attackers.push(attacker);
        target.still_serves().await;
    }
    target.until_exceeded("buffered_bytes", 1).await;
    // of 36 MB
    target.assert_grown_below(40 * MB);
}

/// Ends a call that its client does not read, as it ends a connection, although the client reads other calls.
#[tokio::test]
async fn streams_that_are_never_read_end() {
    const STREAMS: u32 = 500;
    let acquire = AcquireRequest {
        domain: "d".to_owned(),
        entries: vec![Entry { key: "k".to_owned(), value: "v".to_owned() }],
        ..AcquireRequest::default()
    };
    let acquire = framed(false, &acquire.encode_to_vec()).repeat(10);
    // of all services
    let list = framed(false, b"\x3a\x00");
    let mut target = Target::start(&[("WEIR_SEND_TIMEOUT", "2s")]).await;
    let mut ended = 0;
    for (path, body, flags) in [
        ("/weir.v1.Limiter/AcquireStream", acquire, 0),
        ("/grpc.health.v1.Health/Watch", framed(false, b""), END_STREAM),
        ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", list, 0),
    ] {
        let mut attacker = Attacker::connect(target.address("grpc"), 0).await;
        // content-type: application/grpc
        let block = [&header_block_of(path)[..], &[0x0f, 0x10, 16], b"application/grpc"].concat();
        let mut left: HashSet<u32> = (0..STREAMS).map(|i| 2 * i + 1).collect();
        for stream in (0..STREAMS).map(|i| 2 * i + 1) {
            attacker.send(&frame(HEADERS, END_HEADERS, stream, &block)).await;
            attacker.send(&frame(DATA, flags, stream, &body)).await;
        }
        // whether or not it reads this one
        let other = 2 * STREAMS + 1;
        attacker.send(&call(other, &request("d", [descriptor([("k", "v")])]))).await;
        attacker.send(&frame(WINDOW_UPDATE, 0, other, &1_000_u32.to_be_bytes())).await;
        let mut is_answered = false;
        while !left.is_empty() || !is_answered {
            let next = attacker.next().await;
            let (kind, flags, stream, _) = next.unwrap_or_else(|| panic!("{path}: the connection is closed"));
            if kind == RST_STREAM || kind == HEADERS && flags & END_STREAM != 0 {
                left.remove(&stream);
            }
            is_answered |= kind == DATA && stream == other;
        }
        ended += u64::from(STREAMS);
        assert_eq!(target.exceeded("send_timeout").await, ended, "{path}");
        target.until_at_most("weir_connections_buffered_bytes ", MB).await;
    }
}
