//! Tiers and algorithms end to end: the reported tier, the reported wait, and the effect of changed rules on existing
//! counts.

use std::time::Duration;

use weir_limit::Period;
use weir_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::{
        Code::{self, Ok, OverLimit},
        rate_limit::Unit,
    },
};

use crate::{
    in_process::{Weir, replace, until},
    wire::{descriptor, gist, hits, refund, request},
};

/// Returns rules for one key, `k`, with this `rate_limit`.
fn rules(rate_limit: &str) -> String {
    format!("domain: d\ndescriptors:\n  - key: k\n    rate_limit: {rate_limit}\n")
}

fn one_hit() -> RateLimitRequest {
    request("d", [descriptor([("k", "x")])])
}

/// Returns a request that counts nothing.
fn peek() -> RateLimitRequest {
    request("d", [hits(0, descriptor([("k", "x")]))])
}

/// Returns the reported limit of a response's only status: requests, unit, name.
fn limit(response: &RateLimitResponse) -> (u32, Unit, &str) {
    let limit = response.statuses[0].current_limit.as_ref().expect("a limit is reported");
    (limit.requests_per_unit, limit.unit(), &limit.name)
}

/// Returns the reported wait.
fn reset(response: &RateLimitResponse) -> Duration {
    let reset = response.statuses[0].duration_until_reset.expect("there is a limit");
    reset.try_into().expect("it is not negative")
}

/// Returns the code, the remaining requests, and the wait in milliseconds.
fn summary(response: &RateLimitResponse) -> (Code, u32, u128) {
    let reset = reset(response);
    assert_eq!(reset.as_nanos() % 1_000_000, 0, "{reset:?}");
    (response.overall_code(), response.statuses[0].limit_remaining, reset.as_millis())
}

/// Polls until the rules with the `expected` limit are loaded.
async fn await_limit(weir: &mut Weir, expected: (u32, Unit)) {
    let mut client = weir.client.clone();
    until("the new rules", async || {
        let response = client.should_rate_limit(peek()).await.expect("a response").into_inner();
        let (requests, unit, _) = limit(&response);
        (requests, unit) == expected
    })
    .await;
}

#[tokio::test]
async fn the_nearest_tier_is_reported_and_on_rejection_the_one_with_the_longest_wait() {
    let tiers = "{ name: orders, tiers: [{ requests: 4, per: 1m }, { requests: 8, per: 1h }, { requests: 90, per: 90s }] }";
    let mut weir = Weir::start(&rules(tiers)).await;
    // 30 s into a minute, 1,890 s into an hour, and 0 s into 90 of them
    for remaining in [3, 2, 1, 0] {
        let response = weir.decide(one_hit()).await;
        assert_eq!(summary(&response), (Ok, remaining, 30_000));
        assert_eq!(limit(&response), (4, Unit::Minute, "orders"));
    }
    for _ in 0..9 {
        assert_eq!(summary(&weir.decide(one_hit()).await), (OverLimit, 0, 30_000));
    }
    weir.advance(30);
    // rejected hits took nothing from the hour: both tiers have four left; after three more hits the hour has the lower
    // share
    let response = weir.decide(request("d", [hits(3, descriptor([("k", "x")]))])).await;
    assert_eq!((summary(&response), limit(&response)), ((Ok, 1, 1_680_000), (8, Unit::Hour, "orders")));
    let response = weir.decide(one_hit()).await;
    assert_eq!(
        (summary(&response), limit(&response)),
        ((Ok, 0, 60_000), (4, Unit::Minute, "orders")),
        "the first on ties"
    );
    let response = weir.decide(one_hit()).await;
    let hour = (8, Unit::Hour, "orders");
    assert_eq!((summary(&response), limit(&response)), ((OverLimit, 0, 1_680_000), hour), "both are over");
    weir.advance(60);
    let response = weir.decide(one_hit()).await;
    assert_eq!(
        (summary(&response), limit(&response)),
        ((OverLimit, 0, 1_620_000), hour),
        "only the hour is over"
    );
}

#[tokio::test]
async fn hits_that_exceed_one_tier_take_nothing_from_another() {
    let mut weir =
        Weir::start(&rules("{ tiers: [{ requests: 3, per: 1m }, { requests: 9, per: 1h }] }")).await;
    let many = |n| request("d", [hits(n, descriptor([("k", "x")]))]);
    assert_eq!(
        gist(&weir.decide(many(4)).await),
        (OverLimit, vec![(OverLimit, 3)]),
        "three would have fitted"
    );
    assert_eq!(summary(&weir.decide(peek()).await), (Ok, 3, 30_000));
    assert_eq!(gist(&weir.decide(many(3)).await), (Ok, vec![(Ok, 0)]));
    let back = request("d", [refund(2, descriptor([("k", "x")]))]);
    assert_eq!(gist(&weir.decide(back).await), (Ok, vec![(Ok, 2)]), "refunded to all tiers");
    weir.advance(30);
    assert_eq!(gist(&weir.decide(many(3)).await).1, [(Ok, 0)]);
    weir.advance(60);
    let response = weir.decide(many(3)).await;
    assert_eq!((gist(&response).1, limit(&response)), (vec![(Ok, 0)], (3, Unit::Minute, "")));
    assert_eq!(weir.decide(peek()).await.statuses[0].limit_remaining, 0);
    weir.advance(60);
    let response = weir.decide(many(3)).await;
    assert_eq!(gist(&response), (OverLimit, vec![(OverLimit, 2)]), "the hour has counted seven");
    assert_eq!(limit(&response), (9, Unit::Hour, ""));
}

#[tokio::test]
async fn a_period_that_is_not_a_unit_is_reported_as_unknown() {
    for (rate_limit, unit) in [
        ("{ requests: 5, per: 90s }", Unit::Unknown),
        ("{ requests: 5, per: 100ms }", Unit::Unknown),
        ("{ unit: minute, unit_multiplier: 5, requests_per_unit: 5 }", Unit::Unknown),
        ("{ requests: 5, per: 60s }", Unit::Minute),
        ("{ requests: 5, per: 24h, algorithm: sliding_window }", Unit::Day),
        ("{ requests: 5, per: 7d, algorithm: token_bucket }", Unit::Week),
        ("{ requests: 5, per: 30d }", Unit::Month),
        ("{ requests: 5, per: 365d }", Unit::Year),
    ] {
        let mut weir = Weir::start(&rules(rate_limit)).await;
        assert_eq!(limit(&weir.decide(one_hit()).await), (5, unit, ""), "{rate_limit}");
    }
}

/// Checks that requests are rejected until exactly the reported instant, and admitted at it.
async fn admits_exactly_after(weir: &mut Weir, wait: Duration) {
    let nanos = u64::try_from(wait.as_nanos()).expect("it is short");
    weir.clock.advance(Period::from_nanos(nanos - 1));
    let early = weir.decide(one_hit()).await;
    assert_eq!((early.overall_code(), reset(&early)), (OverLimit, Duration::from_nanos(1)));
    weir.clock.advance(Period::from_nanos(1));
    assert_eq!(weir.decide(one_hit()).await.overall_code(), Ok);
}

#[tokio::test]
async fn a_sliding_window_reports_exactly_when_the_oldest_hits_expire() {
    let mut weir = Weir::start(&rules("{ requests: 2, per: 1m, algorithm: sliding_window }")).await;
    assert_eq!(summary(&weir.decide(one_hit()).await), (Ok, 1, 60_000));
    weir.clock.advance(Period::from_millis(20_250));
    assert_eq!(summary(&weir.decide(one_hit()).await), (Ok, 0, 60_000), "until the last hit is gone");
    weir.clock.advance(Period::from_nanos(14_750_000_001));
    let rejected = weir.decide(one_hit()).await;
    assert_eq!(rejected.overall_code(), OverLimit);
    // nothing happens at the whole minute, 30 s after the first: a fixed window would have begun afresh
    assert_eq!(reset(&rejected), Duration::from_nanos(60_000_000_000 - 20_250_000_000 - 14_750_000_001));
    admits_exactly_after(&mut weir, reset(&rejected)).await;
}

#[tokio::test]
async fn a_bucket_reports_exactly_when_the_next_token_is_refilled() {
    let mut weir = Weir::start(&rules("{ requests: 3, per: 10s, algorithm: token_bucket, burst: 2 }")).await;
    // a token every third of ten seconds: rounded up to the nanosecond, never down
    let first = weir.decide(one_hit()).await;
    assert_eq!((limit(&first), first.statuses[0].limit_remaining), ((3, Unit::Unknown, ""), 1));
    assert_eq!(reset(&first), Duration::from_nanos(3_333_333_334), "until it is full");
    assert_eq!(reset(&weir.decide(one_hit()).await), Duration::from_nanos(6_666_666_667));
    weir.clock.advance(Period::from_millis(1));
    let rejected = weir.decide(one_hit()).await;
    assert_eq!((rejected.overall_code(), reset(&rejected)), (OverLimit, Duration::from_nanos(3_332_333_334)));
    admits_exactly_after(&mut weir, reset(&rejected)).await;
}

#[tokio::test]
async fn a_strict_bucket_rejects_clients_that_keep_trying() {
    let strict = "{ requests: 1, per: 1h, algorithm: token_bucket, burst: 1, strict: true }";
    let mut weir = Weir::start(&rules(strict)).await;
    assert_eq!(weir.decide(one_hit()).await.overall_code(), Ok);
    for _ in 0..3 {
        weir.advance(3_599);
        assert_eq!(summary(&weir.decide(one_hit()).await), (OverLimit, 0, 3_600_000));
    }
    weir.advance(3_600);
    assert_eq!(weir.decide(one_hit()).await.overall_code(), Ok, "a client that waits is admitted");
}

#[tokio::test]
async fn a_bucket_in_steps_fills_at_the_end_of_each_period() {
    let steps = "{ requests: 2, per: 10s, algorithm: token_bucket, burst: 3, refill: step }";
    let mut weir = Weir::start(&rules(steps)).await;
    let all = request("d", [hits(3, descriptor([("k", "x")]))]);
    assert_eq!(summary(&weir.decide(all).await), (Ok, 0, 20_000));
    weir.clock.advance(Period::from_millis(9_999));
    assert_eq!(summary(&weir.decide(one_hit()).await), (OverLimit, 0, 1));
    weir.clock.advance(Period::from_millis(1));
    assert_eq!(summary(&weir.decide(one_hit()).await), (Ok, 1, 10_000), "two at once");
}

#[tokio::test]
async fn a_window_of_a_fraction_of_a_second_reports_its_exact_end() {
    let mut weir = Weir::start(&rules("{ requests: 1, per: 100ms }")).await;
    weir.clock.advance(Period::from_millis(30));
    assert_eq!(summary(&weir.decide(one_hit()).await), (Ok, 0, 70));
    assert_eq!(summary(&weir.decide(one_hit()).await), (OverLimit, 0, 70));
    weir.clock.advance(Period::from_millis(70));
    assert_eq!(summary(&weir.decide(one_hit()).await), (Ok, 0, 100));
}

#[tokio::test]
async fn a_changed_limit_applies_immediately_to_existing_counts() {
    let bucket = |requests: u32, burst: u32| {
        rules(&format!("{{ requests: {requests}, per: 1h, algorithm: token_bucket, burst: {burst} }}"))
    };
    let mut weir = Weir::start(&bucket(1, 4)).await;
    let four = request("d", [hits(4, descriptor([("k", "x")]))]);
    assert_eq!(summary(&weir.decide(four).await).1, 0);
    // a raised limit applies immediately
    replace(&weir.file(), &bucket(2, 10));
    await_limit(&mut weir, (2, Unit::Hour)).await;
    assert_eq!(summary(&weir.decide(peek()).await), (Ok, 6, 2 * 3_600_000));
    // lowered below what is taken: empty, and no wait is longer than that of an empty bucket of that size
    replace(&weir.file(), &bucket(3, 1));
    await_limit(&mut weir, (3, Unit::Hour)).await;
    assert_eq!(summary(&weir.decide(one_hit()).await), (OverLimit, 0, 1_200_000));

    let sliding =
        |requests: u32| rules(&format!("{{ requests: {requests}, per: 1h, algorithm: sliding_window }}"));
    let mut weir = Weir::start(&sliding(5)).await;
    let five = request("d", [hits(5, descriptor([("k", "x")]))]);
    assert_eq!(summary(&weir.decide(five).await), (Ok, 0, 3_600_000));
    replace(&weir.file(), &sliding(7));
    await_limit(&mut weir, (7, Unit::Hour)).await;
    assert_eq!(summary(&weir.decide(one_hit()).await), (Ok, 1, 3_600_000));
    replace(&weir.file(), &sliding(2));
    await_limit(&mut weir, (2, Unit::Hour)).await;
    assert_eq!(summary(&weir.decide(one_hit()).await), (OverLimit, 0, 3_600_000));
}

#[tokio::test]
async fn another_algorithm_starts_afresh() {
    let mut weir = Weir::start(&rules("{ requests: 2, per: 1m }")).await;
    for code in [Ok, Ok, OverLimit] {
        assert_eq!(weir.decide(one_hit()).await.overall_code(), code);
    }
    for algorithm in ["sliding_window", "token_bucket"] {
        // the changed limit shows when the new rules are loaded
        let requests = if algorithm == "token_bucket" { 3 } else { 4 };
        replace(
            &weir.file(),
            &rules(&format!("{{ requests: {requests}, per: 1m, algorithm: {algorithm} }}")),
        );
        await_limit(&mut weir, (requests, Unit::Minute)).await;
        for remaining in (0..requests).rev() {
            assert_eq!(gist(&weir.decide(one_hit()).await), (Ok, vec![(Ok, remaining)]), "{algorithm}");
        }
        assert_eq!(weir.decide(one_hit()).await.overall_code(), OverLimit, "{algorithm}");
    }
}

#[tokio::test]
async fn tiers_keep_their_counts_when_others_are_added_or_removed() {
    let mut weir = Weir::start(&rules("{ requests: 5, per: 1m }")).await;
    for remaining in [4, 3, 2] {
        assert_eq!(summary(&weir.decide(one_hit()).await).1, remaining);
    }
    // an added tier starts at zero, the other keeps its count
    replace(&weir.file(), &rules("{ tiers: [{ requests: 6, per: 1m }, { requests: 2, per: 1h }] }"));
    await_limit(&mut weir, (6, Unit::Minute)).await;
    let response = weir.decide(one_hit()).await;
    assert_eq!((summary(&response).1, limit(&response).1), (2, Unit::Minute), "2 of 6 is less than 1 of 2");
    let response = weir.decide(one_hit()).await;
    assert_eq!((summary(&response).1, limit(&response).1), (0, Unit::Hour), "0 of 2 is less than 1 of 6");
    let over = weir.decide(one_hit()).await;
    assert_eq!((summary(&over), limit(&over).1), ((OverLimit, 0, 1_710_000), Unit::Hour));
    // the first tier is removed: the second keeps its count
    replace(&weir.file(), &rules("{ tiers: [{ requests: 3, per: 1h }] }"));
    await_limit(&mut weir, (3, Unit::Hour)).await;
    assert_eq!(summary(&weir.decide(one_hit()).await), (Ok, 0, 1_710_000));
}
