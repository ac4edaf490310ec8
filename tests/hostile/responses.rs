//! Clients that send requests and do not read the responses.

use weir::proto::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::{
    frames::{Attacker, call},
    target::{MB, NAME, Target},
    wire::descriptor,
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
    tokio::select! {
        // not even what the system takes
        () = send_all(&mut attacker) => {}
        () = target.until_exceeded("send_timeout", 1) => {}
    }
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
