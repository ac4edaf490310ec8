//! Floods of frames that cost the client little. Each goes on until the server closes the connection, or for a while.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    frames::{
        Attacker, CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, RST_STREAM, SETTINGS,
        WINDOW_UPDATE, frame, framed, header_block,
    },
    target::{MB, Target},
};

/// How long a flood lasts that the server does not end.
const FLOOD: Duration = Duration::from_millis(1_500);

/// Sends what `next` returns for each number again and again, while an honest client is served. Reads nothing unless
/// `reads`.
async fn flood(first: &[u8], reads: bool, mut next: impl FnMut(u32) -> Vec<u8>) {
    let mut target = Target::start(&[]).await;
    let mut attacker = Attacker::connect(target.address("grpc"), 65_535).await;
    attacker.send(first).await;
    let (begun, mut number) = (Instant::now(), 0_u32);
    'flood: while begun.elapsed() < FLOOD {
        let mut bytes = Vec::new();
        for _ in 0..500 {
            bytes.extend(next(number));
            number += 1;
        }
        let send = async {
            tokio::select! {
                sent = attacker.send(&bytes) => sent,
                // a server that reads nothing more from a client that reads nothing
                () = tokio::time::sleep(FLOOD) => false,
            }
        };
        if !send.await {
            break 'flood;
        }
        if reads {
            while let Ok(Some(_)) = tokio::time::timeout(Duration::from_millis(1), attacker.next()).await {}
        }
        target.still_serves().await;
    }
    target.still_serves().await;
    target.assert_grown_below(50 * MB);
}

#[tokio::test]
async fn rapid_reset() {
    flood(&[], false, |i| {
        let stream = 2 * i + 1;
        let headers = frame(HEADERS, END_HEADERS, stream, &header_block());
        [headers, frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())].concat()
    })
    .await;
}

#[tokio::test]
async fn resets_after_whole_requests() {
    flood(&[], true, |i| {
        let stream = 2 * i + 1;
        let headers = frame(HEADERS, END_HEADERS, stream, &header_block());
        let body = frame(DATA, END_STREAM, stream, &framed(false, &[]));
        [headers, body, frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())].concat()
    })
    .await;
}

#[tokio::test]
async fn continuation() {
    let begin = frame(HEADERS, 0, 1, &header_block());
    flood(&begin, false, |i| {
        let name = i.to_string();
        let length = u8::try_from(name.len()).expect("it is short");
        let header = [&[0, length][..], name.as_bytes(), &[100], &[b'x'; 100]].concat();
        frame(CONTINUATION, 0, 1, &header)
    })
    .await;
}

#[tokio::test]
async fn empty_continuation() {
    flood(&frame(HEADERS, 0, 1, &header_block()), false, |_| frame(CONTINUATION, 0, 1, &[])).await;
}

#[tokio::test]
async fn ping() {
    flood(&[], false, |i| frame(PING, 0, 0, &u64::from(i).to_be_bytes())).await;
}

#[tokio::test]
async fn settings() {
    flood(&[], false, |i| {
        let setting = [&4_u16.to_be_bytes()[..], &(i % 65_535).to_be_bytes()].concat();
        frame(SETTINGS, 0, 0, &setting)
    })
    .await;
}

#[tokio::test]
async fn window_update() {
    let begin = frame(HEADERS, END_HEADERS, 1, &header_block());
    flood(&begin, false, |_| frame(WINDOW_UPDATE, 0, 1, &1_u32.to_be_bytes())).await;
}

#[tokio::test]
async fn empty_data() {
    let begin = frame(HEADERS, END_HEADERS, 1, &header_block());
    flood(&begin, false, |_| frame(DATA, 0, 1, &[])).await;
}

/// A header of 4,000 bytes enters HPACK's dynamic table once, and each further byte of a block repeats it.
#[tokio::test]
async fn hpack_bomb() {
    let large = [&[0x40, 1, b'x', 0x7f, 0xa1, 0x1e][..], &[b'y'; 4_000]].concat();
    let begin = frame(HEADERS, END_HEADERS | END_STREAM, 1, &[header_block(), large].concat());
    flood(&begin, true, |i| {
        let block = [header_block(), vec![0xbe; 10_000]].concat();
        frame(HEADERS, END_HEADERS | END_STREAM, 2 * i + 3, &block)
    })
    .await;
}

#[tokio::test]
async fn random_bytes() {
    // a linear congruential generator
    let mut state = 7_u64;
    flood(&[], false, |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes().to_vec()
    })
    .await;
}
