//! `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`: a rejected request counts nothing, in any coordination mode.

use weir::proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
};

use crate::{in_process::Weir, observe, server::Server};

const RULES: &str = "
domain: shop
descriptors:
  - { key: a, rate_limit: { unit: hour, requests_per_unit: 20 } }
  - { key: b, rate_limit: { unit: day, requests_per_unit: 3 } }
";

/// Requests about `a` and `b`: `b` admits three of them.
const REQUESTS: usize = 7;

fn request() -> RateLimitRequest {
    let descriptor = |key: &str| RateLimitDescriptor {
        entries: vec![Entry { key: key.to_owned(), value: "v".to_owned() }],
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest {
        domain: "shop".to_owned(),
        descriptors: vec![descriptor("a"), descriptor("b")],
        hits_addend: 0,
    }
}

fn remaining(answer: &RateLimitResponse) -> Vec<u32> {
    answer.statuses.iter().map(|status| status.limit_remaining).collect()
}

/// Sends the requests, and compares what remains of each limit after each of them.
async fn send(weir: &mut Weir, mode: &str) {
    for i in 0..REQUESTS {
        let answer = weir.decide(request()).await;
        let admitted = u32::try_from(i.min(2) + 1).expect("it is small");
        assert_eq!(remaining(&answer), [20 - admitted, 3 - admitted], "{mode}: request {i}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_request_counts_nothing_in_redis() {
    for mode in ["strict", "lease", "interval"] {
        for local_cache in ["0", "1000000"] {
            let redis = Server::start();
            let address = format!("127.0.0.1:{}", redis.port());
            let mut weir = Weir::start_with(
                RULES,
                &[
                    ("REDIS_URL", &address),
                    ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true"),
                    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true"),
                    ("LOCAL_CACHE_SIZE_IN_BYTES", local_cache),
                    ("WEIR_COORDINATION", mode),
                    ("WEIR_DECISION_BUDGET", "20s"),
                ],
            )
            .await;
            observe::until_connected(&weir).await;
            let described = format!("{mode}, LOCAL_CACHE_SIZE_IN_BYTES={local_cache}");
            send(&mut weir, &described).await;
            if mode == "strict" {
                // nothing is left to be corrected later
                assert_eq!(counts(&redis), [3, 3], "{described}");
            }
            weir.stop().await.expect("it does not panic").expect("it stops");
            assert_eq!(counts(&redis), [3, 3], "{described}");
        }
    }
}

/// What Redis counts for `a` and `b`.
fn counts(redis: &Server) -> Vec<u64> {
    observe::keys(redis).into_iter().map(|(_, count)| count).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_request_counts_nothing_in_memory() {
    let variables = [("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")];
    let mut weir = Weir::start_with(RULES, &variables).await;
    send(&mut weir, "memory").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_request_counts_nothing_without_redis() {
    for mode in ["strict", "lease", "interval"] {
        let mut redis = Server::start();
        let address = format!("127.0.0.1:{}", redis.port());
        redis.kill();
        let variables = [
            ("REDIS_URL", &*address),
            ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true"),
            ("WEIR_COORDINATION", mode),
        ];
        let mut weir = Weir::start_with(RULES, &variables).await;
        send(&mut weir, mode).await;
    }
}
