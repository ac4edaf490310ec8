//! The machine's clock is set while weir runs.

use std::time::Duration;

use weir_limit::{Period, Timestamp};
use weir_proto::envoy::service::ratelimit::v3::rate_limit_response::Code::{Ok, OverLimit};

use crate::{
    in_process::{NOW, Weir, get, until},
    wire::{descriptor, request},
};

const RULES: &str = "
domain: d
descriptors:
  - { key: fixed, rate_limit: { requests_per_unit: 2, unit: minute } }
  - { key: sliding, rate_limit: { requests: 2, per: 1m, algorithm: sliding_window } }
  - { key: bucket, rate_limit: { requests: 2, per: 1m, algorithm: token_bucket } }
  - { key: smooth, rate_limit: { requests: 2, per: 1m, algorithm: fixed_window, smooth: true } }
  - { key: tiers, rate_limit: { tiers: [{ requests: 2, per: 1m }, { requests: 2, per: 10s }] } }
  - { key: pool, rate_limit: { requests: 2, per: 1m, share: {} } }
";

const HOUR: u64 = 3_600;

/// Returns what the metric shows.
async fn steps(weir: &Weir) -> u64 {
    let page = get(weir.addresses.http, "/metrics").await;
    let line = page.lines().find(|line| line.starts_with("weir_clock_steps_total "));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect("the metric")
}

/// Each answer says how long the rejection lasts: what was used stays used until the clock is there again.
async fn a_rejection_tells_its_true_wait(variables: &[(&str, &str)]) {
    let mut weir = Weir::start_with(RULES, variables).await;
    for key in ["fixed", "sliding", "bucket", "smooth", "tiers", "pool"] {
        let ask = || request("d", [descriptor([(key, "x")])]);
        weir.clock.set(Timestamp::from_secs(NOW));
        assert_eq!(weir.decide(ask()).await.overall_code(), Ok, "{key}");
        while weir.decide(ask()).await.overall_code() == Ok {}
        weir.clock.set(Timestamp::from_secs(NOW - HOUR));
        let rejected = weir.decide(ask()).await;
        assert_eq!(rejected.overall_code(), OverLimit, "{key}");
        let wait = rejected.statuses[0].duration_until_reset.expect("a wait");
        let wait = Duration::try_from(wait).expect("it is positive");
        assert!(wait.as_secs() > HOUR && wait.as_secs() <= HOUR + 60, "{key}: {wait:?}");
        let wait = Period::from_nanos(u64::try_from(wait.as_nanos()).expect("hours"));
        weir.clock.advance(Period::from_nanos(wait.as_nanos() - 1_000_000_000));
        assert_eq!(weir.decide(ask()).await.overall_code(), OverLimit, "{key}, a second early");
        weir.clock.advance(Period::from_secs(1));
        assert_eq!(weir.decide(ask()).await.overall_code(), Ok, "{key} after {wait}");
    }
}

#[tokio::test]
async fn in_memory_a_rejection_tells_its_true_wait() {
    a_rejection_tells_its_true_wait(&[]).await;
}

#[tokio::test]
async fn on_disk_a_rejection_tells_its_true_wait() {
    a_rejection_tells_its_true_wait(&[("WEIR_DATA_DIR", "{dir}/data"), ("WEIR_DECISION_BUDGET", "10s")])
        .await;
}

#[tokio::test]
async fn each_step_is_counted_and_time_that_passes_is_none() {
    let weir = Weir::start(RULES).await;
    weir.advance(HOUR);
    assert_eq!(steps(&weir).await, 0);
    for (step, at) in [(1, NOW - HOUR), (2, NOW + HOUR)] {
        weir.clock.set(Timestamp::from_secs(at));
        until("the step is counted", async || steps(&weir).await == step).await;
    }
    weir.advance(HOUR);
    weir.clock.set(Timestamp::from_millis(1_000 * (NOW + 2 * HOUR) + 900));
    // the next step is the third one
    weir.clock.set(Timestamp::from_secs(NOW));
    until("the step is counted", async || steps(&weir).await == 3).await;
}
