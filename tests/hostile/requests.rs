//! Requests that never end, and requests that are larger than they look.

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use tokio::task::JoinSet;

use crate::{
    frames::{Attacker, END_HEADERS, END_STREAM, HEADERS, PART, frame, framed, header_block},
    target::{MB, Target},
};

/// Streams of each connection that holds unfinished bodies.
const STREAMS: u32 = 60;

/// Sends a megabyte of each of many bodies, and ends none. Returns when the connection is closed or all is sent.
async fn hold_bodies(address: String) -> Attacker {
    let mut attacker = Attacker::connect(&address, 65_535).await;
    let announced = framed(false, &vec![0; 4 << 20]);
    for stream in (0..STREAMS).map(|i| 2 * i + 1) {
        attacker.send(&frame(HEADERS, END_HEADERS, stream, &header_block())).await;
        for part in announced.chunks(PART).take((1 << 20) / PART) {
            if !attacker.send_data(stream, 0, part).await {
                return attacker;
            }
        }
    }
    attacker
}

#[tokio::test]
async fn bodies_that_never_end_hold_a_bounded_number_of_bytes() {
    let mut target = Target::start(&[("WEIR_MAX_BUFFERED_BYTES", "48MiB")]).await;
    let mut attacks = JoinSet::new();
    for _ in 0..4 {
        attacks.spawn(hold_bodies(target.address("grpc").to_owned()));
    }
    let mut held = Vec::new();
    while let Some(attacker) = attacks.join_next().await {
        held.push(attacker.expect("no panic"));
        target.still_serves().await;
    }
    // of 240 MB
    target.assert_grown_below(110 * MB);
    assert!(target.exceeded("connection_bytes").await > 0);
    assert!(target.exceeded("buffered_bytes").await > 0);
}

#[tokio::test]
async fn a_request_that_does_not_arrive_is_given_up() {
    let mut target = Target::start(&[("WEIR_REQUEST_TIMEOUT", "300ms")]).await;
    let mut attacker = Attacker::connect(target.address("grpc"), 65_535).await;
    // without a body, with a part of one, and byte by byte
    for stream in [1, 3, 5] {
        attacker.send(&frame(HEADERS, END_HEADERS, stream, &header_block())).await;
    }
    attacker.send_data(3, 0, &framed(false, &[0; 1_000])[..500]).await;
    let mut ended = Vec::new();
    while ended.len() < 3 {
        let (kind, flags, stream, _) = attacker.next().await.expect("the connection stays open");
        if kind == HEADERS && flags & END_STREAM != 0 {
            ended.push(stream);
        }
        if !ended.contains(&5) {
            attacker.send_data(5, 0, &[0]).await;
        }
    }
    target.until_exceeded("request_timeout", 3).await;
}

/// Sends one call of an encoded message, and waits for its end.
async fn send_message(target: &Target, compressed: bool, message: &[u8]) {
    let mut attacker = Attacker::connect(target.address("grpc"), 65_535).await;
    // grpc-encoding: gzip, as a literal header
    let encoding = [&[0, 13][..], b"grpc-encoding", &[4], b"gzip"].concat();
    attacker.send(&frame(HEADERS, END_HEADERS, 1, &[header_block(), encoding].concat())).await;
    let body = framed(compressed, message);
    let mut parts = body.chunks(PART).peekable();
    while let Some(part) = parts.next() {
        attacker.send_data(1, if parts.peek().is_none() { END_STREAM } else { 0 }, part).await;
    }
    while let Some((kind, flags, ..)) = attacker.next().await {
        if kind == HEADERS && flags & END_STREAM != 0 {
            return;
        }
    }
    panic!("the connection was closed");
}

#[tokio::test]
async fn two_million_descriptors_take_little_memory() {
    let mut target = Target::start(&[]).await;
    let descriptors = [0x12, 0].repeat(2 << 20);
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&descriptors).expect("to memory");
    let packed = packed.finish().expect("to memory");
    assert!(packed.len() < 10_000);
    for _ in 0..3 {
        send_message(&target, false, &descriptors).await;
        send_message(&target, true, &packed).await;
        target.still_serves().await;
    }
    assert_eq!(target.exceeded("descriptors").await, 6);
    // of 460 MB
    target.assert_grown_below(50 * MB);
}

#[tokio::test]
async fn two_million_entries_take_little_memory() {
    let mut target = Target::start(&[]).await;
    // of one descriptor
    let entries = [0x0a, 0].repeat((4 << 20) / 2 - 100);
    let mut message = vec![0x12];
    prost::encoding::encode_varint(entries.len() as u64, &mut message);
    message.extend(entries);
    send_message(&target, false, &message).await;
    assert_eq!(target.exceeded("entries").await, 1);
    target.still_serves().await;
    target.assert_grown_below(50 * MB);
}

#[tokio::test]
async fn streams_without_a_message_are_bounded() {
    let mut target = Target::start(&[("WEIR_MAX_BUFFERED_BYTES", "32MiB")]).await;
    // a header of 8,000 bytes in each
    let padding = [&[0, 1, b'x', 0x7f, 0xc1, 0x3d][..], &[b'y'; 8_000]].concat();
    let block = [header_block(), padding].concat();
    let mut attackers = Vec::new();
    for _ in 0..6 {
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
    // of more than 200 MB
    target.assert_grown_below(110 * MB);
}
