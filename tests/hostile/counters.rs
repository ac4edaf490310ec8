//! Values that make counters expensive.

use weir_proto::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::{
    frames::{Attacker, END_STREAM, HEADERS, call},
    target::{MB, Target},
    wire::descriptor,
};

/// The length of each value.
const LONG: usize = 8_000;

/// The values of a request, whose bytes fit the smallest window of a stream.
const VALUES: usize = 8;

/// The requests.
const REQUESTS: u32 = 1_250;

/// Counts thousands of long values of `key`. Returns the target, which has answered all requests.
async fn count_long_values(target: Target, key: &str) -> Target {
    let mut attacker = Attacker::connect(target.address("grpc"), 65_535).await;
    let mut responses = 0;
    for i in 0..REQUESTS {
        let value = |j| format!("{i}-{j}-{}", "x".repeat(LONG));
        let descriptors = (0..VALUES).map(|j| descriptor([(key, value(j).as_str())])).collect();
        let request = RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 0 };
        let sent = call(2 * i + 1, &request);
        assert!(attacker.send(&sent).await);
        while responses <= i {
            let Some((kind, flags, ..)) = attacker.next().await else {
                panic!("connection closed after {responses} responses: {}", target.log().await);
            };
            responses += u32::from(kind == HEADERS && flags & END_STREAM != 0);
        }
    }
    target
}

#[tokio::test]
async fn long_values_in_keys_of_the_reference_are_bounded_in_bytes() {
    // Redis is away, which makes the counters live longer
    let variables = [("REDIS_URL", "127.0.0.1:1"), ("WEIR_MAX_COUNTER_BYTES", "16MiB")];
    let mut target = count_long_values(Target::start(&variables).await, "shared").await;
    target.still_serves().await;
    assert!(target.metric("weir_coordinated_counters_name_bytes").await <= 16 * MB);
    // of 80 MB
    target.assert_grown_below(60 * MB);
}

#[tokio::test]
async fn long_values_in_other_keys_are_hashed() {
    let target = Target::start(&[("REDIS_URL", "127.0.0.1:1")]).await;
    let mut target = count_long_values(target, "hashed").await;
    target.still_serves().await;
    assert!(
        target.metric("weir_counters_live{table=\"coordinated\"}").await
            >= u64::from(REQUESTS) * VALUES as u64
    );
    let bytes = target.metric("weir_coordinated_counters_name_bytes").await;
    assert!(bytes < 200 * u64::from(REQUESTS + 10) * VALUES as u64, "{bytes}");
    // of 80 MB
    target.assert_grown_below(40 * MB);
}
