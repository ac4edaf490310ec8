//! Headers that take more memory than their bytes.

use crate::{
    frames::{
        Attacker, DATA, END_HEADERS, END_STREAM, HEADERS, frame, framed, header_block, header_block_of,
    },
    target::{MB, Target},
};

/// Services whose calls never end: decisions without a message, and tonic's.
const PATHS: [&str; 3] = [
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
];

/// Returns the header block of a call of `path` with `count` headers whose names have two letters.
fn block(path: &str, count: u8) -> Vec<u8> {
    let mut block = header_block_of(path);
    // content-type: application/grpc
    block.extend([&[0x0f, 0x10, 16][..], b"application/grpc"].concat());
    for i in 0..count {
        block.extend([0, 2, b'a' + i / 26, b'a' + i % 26, 0]);
    }
    block
}

#[tokio::test]
async fn open_calls_are_charged_for_their_headers() {
    for path in PATHS {
        let mut target = Target::start(&[("WEIR_MAX_BUFFERED_BYTES", "32MiB")]).await;
        let block = block(path, 95);
        let mut attackers = Vec::new();
        for _ in 0..3 {
            let mut attacker = Attacker::connect(target.address("grpc"), 65_535).await;
            for stream in (0..4_000).map(|i| 2 * i + 1) {
                if !attacker.send(&frame(HEADERS, END_HEADERS, stream, &block)).await {
                    break;
                }
            }
            attackers.push(attacker);
            target.still_serves().await;
        }
        target.until_exceeded("connection_bytes", 1).await;
        target.still_serves().await;
        // of several hundred
        target.assert_grown_below(120 * MB);
    }
}

#[tokio::test]
async fn calls_with_too_many_headers_are_rejected() {
    let target = Target::start(&[]).await;
    let mut attacker = Attacker::connect(target.address("grpc"), 65_535).await;
    for (stream, path) in [1, 3, 5].into_iter().zip(PATHS) {
        attacker.send(&frame(HEADERS, END_HEADERS, stream, &block(path, 110))).await;
        attacker.send(&frame(DATA, END_STREAM, stream, &framed(false, &[]))).await;
        loop {
            let (kind, flags, ..) = attacker.next().await.expect("the connection stays open");
            if kind == HEADERS && flags & END_STREAM != 0 {
                break;
            }
        }
    }
    assert_eq!(target.exceeded("headers").await, 3);
    // as many as the bound
    let mut fewer = header_block();
    for i in 0..100 {
        fewer.extend([0, 2, b'a' + i / 26, b'a' + i % 26, 0]);
    }
    attacker.send(&frame(HEADERS, END_HEADERS, 7, &fewer)).await;
    attacker.send(&frame(DATA, END_STREAM, 7, &framed(false, &[]))).await;
    while let Some((kind, flags, ..)) = attacker.next().await {
        if kind == HEADERS && flags & END_STREAM != 0 {
            break;
        }
    }
    assert_eq!(target.exceeded("headers").await, 3);
}
