//! `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`: a rejected request counts nothing, in any coordination mode.

use weir_proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code},
};

use crate::{in_process::Weir, observe, redis_server::Server};

const RULES: &str = "
domain: shop
descriptors:
  - { key: a, rate_limit: { unit: hour, requests_per_unit: 20 } }
  - { key: b, rate_limit: { unit: day, requests_per_unit: 3 } }
";

/// Requests about `a` and `b`: `b` admits three of them.
const REQUESTS: usize = 7;

fn request() -> RateLimitRequest {
    request_about(&["a", "b"])
}

fn request_about(keys: &[&str]) -> RateLimitRequest {
    let descriptor = |key: &str| RateLimitDescriptor {
        entries: vec![Entry { key: key.to_owned(), value: "v".to_owned() }],
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest {
        domain: "shop".to_owned(),
        descriptors: keys.iter().map(|key| descriptor(key)).collect(),
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
            observe::until_clock_is_known(&weir).await;
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

/// The cases of envoyproxy/ratelimit's own tests: what its local cache rejects is in a stat of its own, and costs no
/// command.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_local_cache_rejects_without_a_command() {
    for per_second in [false, true] {
        let (redis, second) = (Server::start(), Server::start());
        let [address, second_address] = [&redis, &second].map(|redis| format!("127.0.0.1:{}", redis.port()));
        let mut variables = vec![
            ("REDIS_URL", &*address),
            ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true"),
            ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true"),
            ("LOCAL_CACHE_SIZE_IN_BYTES", "1000"),
            ("WEIR_COORDINATION", "strict"),
            ("WEIR_DECISION_BUDGET", "20s"),
        ];
        if per_second {
            variables.extend([("REDIS_PERSECOND", "true"), ("REDIS_PERSECOND_URL", &*second_address)]);
        }
        let mut weir = Weir::start_with(CACHED_RULES, &variables).await;
        observe::until_connected(&weir).await;
        for i in 0..25 {
            let commands = observe::commands(&weir).await;
            let answer = weir.decide(request_about(&["key2"])).await;
            assert_eq!(remaining(&answer), [20_u32.saturating_sub(i + 1)], "request {i}");
            let over = if i < 20 { Code::Ok } else { Code::OverLimit };
            assert_eq!((answer.overall_code(), answer.statuses[0].code()), (over, over), "request {i}");
            assert_eq!(
                stats_of(&weir, "key2").await,
                [i + 1, (i + 1).saturating_sub(20), i.saturating_sub(20)]
            );
            assert_eq!(observe::commands(&weir).await == commands, i > 20, "request {i}");
        }
        for i in 0..15 {
            let commands = observe::commands(&weir).await;
            let answer = weir.decide(request_about(&["key3", "key4"])).await;
            let over = if i < 10 { Code::Ok } else { Code::OverLimit };
            assert_eq!(remaining(&answer), [19 - i.min(9), 9 - i.min(9)], "request {i}");
            assert_eq!((answer.overall_code(), answer.statuses[0].code()), (over, Code::Ok), "request {i}");
            assert_eq!(stats_of(&weir, "key3").await, [i + 1, 0, 0], "request {i}");
            assert_eq!(
                stats_of(&weir, "key4").await,
                [i + 1, (i + 1).saturating_sub(10), i.saturating_sub(10)]
            );
            assert_eq!(observe::commands(&weir).await == commands, i > 10, "request {i}");
        }
        assert_eq!(counts(&redis), [20, 10, 10]);
    }
}

const CACHED_RULES: &str = "
domain: shop
descriptors:
  - { key: key2, rate_limit: { unit: month, requests_per_unit: 20 } }
  - { key: key3, rate_limit: { unit: month, requests_per_unit: 20 } }
  - { key: key4, rate_limit: { unit: year, requests_per_unit: 10 } }
";

/// Returns the hits of a rule, those over its limit, and those of them that the local cache has rejected.
async fn stats_of(weir: &Weir, key: &str) -> [u32; 3] {
    let stats = observe::stats(weir).await;
    ["total_hits", "over_limit", "over_limit_with_local_cache"].map(|stat| {
        let count = stats.get(&format!("ratelimit.service.rate_limit.shop.{key}.{stat}"));
        count.map_or(0, |count| u32::try_from(*count).expect("it is small"))
    })
}
