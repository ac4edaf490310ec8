//! Pages that hostile clients make large, and do not read.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use weir_proto::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::{
    frames::{Attacker, END_STREAM, HEADERS, call},
    target::{MB, Target},
    wire::{descriptor, limited},
};

/// The requests of each kind: each has a name of its own, of a kilobyte.
const NAMES: u32 = 5_000;

/// Sends all requests on one connection, and waits for their responses.
async fn send(target: &Target, requests: impl Iterator<Item = RateLimitRequest>) {
    let mut attacker = Attacker::connect(target.address("grpc"), 65_535).await;
    for (i, request) in (0..).zip(requests) {
        assert!(attacker.send(&call(2 * i + 1, &request)).await);
        while let Some((kind, flags, ..)) = attacker.next().await {
            if kind == HEADERS && flags & END_STREAM != 0 {
                break;
            }
        }
    }
}

#[tokio::test]
async fn unread_pages_of_many_names_take_little_memory() {
    let mut target = Target::start(&[]).await;
    let name = |i| format!("{i}-{}", "x".repeat(990));
    // domains that no rule has
    send(
        &target,
        (0..NAMES).map(|i| RateLimitRequest {
            domain: name(i),
            descriptors: vec![descriptor([("k", "v")])],
            hits_addend: 0,
        }),
    )
    .await;
    // limits of the requests, which have stats of their own
    send(
        &target,
        (0..NAMES).map(|i| RateLimitRequest {
            domain: "d".into(),
            descriptors: vec![limited(10, 3, descriptor([("k", name(i).as_str())]))],
            hits_addend: 0,
        }),
    )
    .await;
    assert_eq!(
        target.metric("ratelimit_service_rate_limit_domain_not_found{domain=\"_other\"}").await,
        4_000
    );
    let mut unread = Vec::new();
    for port in ["http", "debug"] {
        for _ in 0..100 {
            let mut stream = TcpStream::connect(target.address(port)).await.expect("it listens");
            stream
                .write_all(b"GET /metrics HTTP/1.1\r\nhost: weir\r\n\r\n")
                .await
                .expect("it accepts the bytes");
            unread.push(stream);
        }
    }
    target.still_serves().await;
    for stream in &mut unread {
        // rendered, and not read
        stream.read_exact(&mut [0]).await.expect("a response");
    }
    // a scraper still gets the page
    assert!(target.metric("weir_rules").await > 0);
    // of 2 GB
    target.assert_grown_below(120 * MB);
}
