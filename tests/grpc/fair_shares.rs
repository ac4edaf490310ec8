//! Requests of members, from the rule file to the response.

use weir_proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus},
    },
};

use crate::in_process::{NOW, Weir, get};

const RULES: &str = "
domain: platform
descriptors:
  - key: service
    value: kyc
    descriptors:
      - key: client
        rate_limit:
          name: kyc-capacity
          requests: 40
          per: 10s
          share: { lend: next_cycle }
  - key: within
    rate_limit: { requests: 100, per: 10s, share: { borrow: max_min, anonymous: share } }
  - key: shadowed
    shadow_mode: true
    rate_limit: { requests: 10, per: 10s, share: {} }
  - key: capped
    rate_limit:
      tiers:
        - { requests: 5, per: 1s }
        - { requests: 40, per: 10s, share: { lend: next_cycle } }
  - key: other
    rate_limit: { requests: 3, per: 1m }
";

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entries = entries.iter().map(|(key, value)| Entry { key: (*key).into(), value: (*value).into() });
    RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() }
}

fn request(descriptors: &[&[(&str, &str)]], hits: u32) -> RateLimitRequest {
    RateLimitRequest {
        domain: "platform".into(),
        descriptors: descriptors.iter().map(|entries| descriptor(entries)).collect(),
        hits_addend: hits,
    }
}

fn kyc(client: &str) -> RateLimitRequest {
    request(&[&[("service", "kyc"), ("client", client)]], 1)
}

/// Sends `count` requests, and returns how many were admitted, and the last status.
async fn send(weir: &mut Weir, request: &RateLimitRequest, count: u32) -> (u32, DescriptorStatus) {
    let (mut admitted, mut status) = (0, DescriptorStatus::default());
    for _ in 0..count {
        let RateLimitResponse { overall_code, statuses, .. } = weir.decide(request.clone()).await;
        admitted += u32::from(overall_code == Code::Ok as i32);
        status = statuses.into_iter().next().expect("a status");
    }
    (admitted, status)
}

/// Advances to the start of the next cycle, by whole seconds: it begins at a whole ten.
fn next_cycle(weir: &Weir, elapsed: &mut u64) {
    let rest = 10 - (NOW + *elapsed) % 10;
    weir.advance(rest);
    *elapsed += rest;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_worked_example_comes_out_to_the_number() {
    let (mut weir, mut elapsed) = (Weir::start(RULES).await, 0);
    let demand = async |weir: &mut Weir, demands: [u32; 4]| {
        let mut admitted = [0; 4];
        for (i, (client, demand)) in ["a", "b", "c", "d"].into_iter().zip(demands).enumerate() {
            admitted[i] = send(weir, &kyc(client), demand).await.0;
        }
        admitted
    };
    demand(&mut weir, [10; 4]).await;
    next_cycle(&weir, &mut elapsed);
    demand(&mut weir, [2, 15, 10, 10]).await;
    for (demands, admitted) in [
        // of shares 5, 15, 10, 10; then 3, 11, 16, 10; then 1, 12, 22, 5
        ([3, 15, 50, 10], [3, 15, 10, 10]),
        ([0, 15, 50, 5], [0, 11, 16, 5]),
        ([4, 15, 50, 9], [1, 12, 22, 5]),
    ] {
        next_cycle(&weir, &mut elapsed);
        assert_eq!(demand(&mut weir, demands).await, admitted);
    }
    // the status carries the member's share, and ends with the cycle
    next_cycle(&weir, &mut elapsed);
    weir.advance(3);
    let (_, status) = send(&mut weir, &kyc("c"), 1).await;
    let share = status.current_limit.expect("a limit").requests_per_unit;
    assert!((16..=17).contains(&share), "{share}");
    assert_eq!(status.limit_remaining, share - 1);
    assert_eq!(status.duration_until_reset.expect("a time").seconds, 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn members_have_metrics() {
    let mut weir = Weir::start(RULES).await;
    send(&mut weir, &kyc("a"), 30).await;
    send(&mut weir, &kyc("b"), 30).await;
    let page = get(weir.addresses.debug, "/metrics").await;
    for line in [
        "weir_pool_admitted_total{rule=\"kyc-capacity\",member=\"a\"} 30",
        "weir_pool_admitted_total{rule=\"kyc-capacity\",member=\"b\"} 10",
        "weir_pool_rejected_total{rule=\"kyc-capacity\",member=\"b\"} 20",
        "weir_pools_members 2",
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shadowed_pool_admits_everybody_and_grants_what_it_would_have_granted() {
    let mut weir = Weir::start(RULES).await;
    let (admitted, _) = send(&mut weir, &request(&[&[("shadowed", "a")]], 1), 25).await;
    assert_eq!(admitted, 25);
    let page = get(weir.addresses.debug, "/metrics").await;
    for line in [
        "weir_pool_admitted_total{rule=\"platform.shadowed\",member=\"a\"} 10",
        "weir_pool_rejected_total{rule=\"platform.shadowed\",member=\"a\"} 15",
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tiers_beside_the_pool_hold() {
    let mut weir = Weir::start(RULES).await;
    let capped = request(&[&[("capped", "a")]], 1);
    let (admitted, status) = send(&mut weir, &capped, 10).await;
    assert_eq!(admitted, 5);
    assert_eq!(status.current_limit.expect("a limit").requests_per_unit, 5);
    // what the tier rejected was not granted
    for _ in 0..9 {
        weir.advance(1);
        send(&mut weir, &capped, 10).await;
    }
    let page = get(weir.addresses.debug, "/metrics").await;
    assert!(page.contains("weir_pool_admitted_total{rule=\"platform.capped\",member=\"a\"} 40"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_request_takes_nothing_of_the_pool_where_all_count_or_none() {
    let variables = [("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")];
    for order in [[0, 1], [1, 0]] {
        let mut weir = Weir::start_with(RULES, &variables).await;
        let descriptors: [&[(&str, &str)]; 2] = [&[("within", "a")], &[("other", "x")]];
        let both = request(&order.map(|i| descriptors[i]), 1);
        let (admitted, _) = send(&mut weir, &both, 50).await;
        assert_eq!(admitted, 3);
        let (admitted, _) = send(&mut weir, &request(&[descriptors[0]], 1), 200).await;
        assert_eq!(admitted, 97, "{order:?}");
        // and the other way round
        let (admitted, _) = send(&mut weir, &both, 5).await;
        assert_eq!(admitted, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_is_no_demand_and_hits_can_be_given_back() {
    let mut weir = Weir::start(RULES).await;
    let with = |hits: Option<u64>, back: bool| {
        let mut request = request(&[&[("within", "a")]], 0);
        request.descriptors[0].hits_addend = hits;
        request.descriptors[0].is_negative_hits = back;
        request
    };
    let (admitted, status) = send(&mut weir, &with(Some(0), false), 1).await;
    assert_eq!((admitted, status.limit_remaining), (1, 100));
    assert_eq!(send(&mut weir, &with(Some(60), false), 2).await.0, 1);
    send(&mut weir, &with(Some(60), true), 1).await;
    assert_eq!(send(&mut weir, &with(Some(100), false), 1).await.0, 1);
    assert_eq!(send(&mut weir, &with(Some(0), false), 1).await.1.limit_remaining, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn response_headers_carry_the_share_of_the_member() {
    let variables = [("WEIR_RESPONSE_HEADERS", "ietf")];
    let (mut weir, mut elapsed) = (Weir::start_with(RULES, &variables).await, 0);
    for client in ["a", "b"] {
        send(&mut weir, &kyc(client), 40).await;
    }
    next_cycle(&weir, &mut elapsed);
    let response = weir.decide(kyc("a")).await;
    let header = |name: &str| {
        let header = response.response_headers_to_add.iter().find(|header| header.key == name);
        header.map(|header| header.value.clone()).unwrap_or_default()
    };
    assert_eq!(header("RateLimit-Policy"), "\"kyc-capacity\";q=20;w=10");
    assert_eq!(header("RateLimit"), "\"kyc-capacity\";r=19;t=10");
}
