//! Resources of Envoy Gateway's shape, large ones and hostile ones.

use prost_types::Any;
use weir_proto::{
    envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor as Sent, rate_limit_descriptor::Entry},
        service::ratelimit::v3::rate_limit_response::Code,
    },
    ratelimit::config::ratelimit::v3::{RateLimitConfig, RateLimitDescriptor},
};

use crate::{
    control_plane::{ControlPlane, TYPE_URL, config, hourly},
    service::Starting,
    wire::{descriptor, request},
};

/// The levels of Envoy Gateway's largest policy.
const LEVELS: usize = 131;

#[tokio::test]
async fn rules_of_envoy_gateway_are_applied() {
    let mut control_plane = ControlPlane::start().await;
    let starting = Starting::new(&control_plane, &[]);
    let mut stream = control_plane.stream().await;
    stream.request().await;
    let route = "httproute/default/backend/rule/0/match/0/*_example_com";
    let leaf = RateLimitDescriptor {
        key: "rule-0-match-0".into(),
        value: "rule-0-match-0".into(),
        rate_limit: Some(hourly(1)),
        ..RateLimitDescriptor::default()
    };
    let blocked = RateLimitDescriptor {
        key: "masked_remote_address".into(),
        value: "10.0.0.0/8".into(),
        rate_limit: Some(hourly(0)),
        shadow_mode: false,
        ..RateLimitDescriptor::default()
    };
    let top = RateLimitDescriptor {
        key: route.into(),
        value: route.into(),
        descriptors: vec![leaf, blocked],
        ..RateLimitDescriptor::default()
    };
    let domain = "default/eg/http";
    let config = RateLimitConfig { name: domain.into(), domain: domain.into(), descriptors: vec![top] };
    stream.accepted("1", "a", &[config]).await;
    let mut weir = starting.ready().await;
    for (entry, codes) in [
        (("rule-0-match-0", "rule-0-match-0"), [Code::Ok, Code::OverLimit]),
        (("masked_remote_address", "10.0.0.0/8"), [Code::OverLimit; 2]),
        (("rule-1-match-0", "rule-1-match-0"), [Code::Ok; 2]),
    ] {
        for code in codes {
            let decided = weir.decide(request(domain, [descriptor([(route, route), entry])])).await;
            assert_eq!(decided.expect("a decision").overall_code(), code, "{entry:?}");
        }
    }
}

/// Returns a resource whose descriptors are nested `levels` deep, the last one limited to one an hour. Built from
/// bytes, since encoders are recursive.
fn nested(levels: usize) -> Any {
    let limit = prost::Message::encode_to_vec(&RateLimitDescriptor {
        key: "k".into(),
        rate_limit: Some(hourly(1)),
        ..RateLimitDescriptor::default()
    });
    // each level: its key, then the level below it
    let mut lengths = vec![limit.len()];
    for level in 1..levels {
        let below = lengths[level - 1];
        lengths.push(3 + 1 + varint(below).len() + below);
    }
    let mut bytes = b"\x0a\x04deep\x12\x01d\x1a".to_vec();
    bytes.extend(varint(lengths[levels - 1]));
    for level in (1..levels).rev() {
        bytes.extend(b"\x0a\x01k\x22");
        bytes.extend(varint(lengths[level - 1]));
    }
    bytes.extend(limit);
    Any { type_url: TYPE_URL.into(), value: bytes }
}

fn varint(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7f).expect("seven bits") | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).expect("seven bits"));
    bytes
}

#[tokio::test]
async fn the_deepest_rules_of_envoy_gateway_are_applied_and_deeper_ones_are_rejected() {
    let mut control_plane = ControlPlane::start().await;
    let starting = Starting::new(&control_plane, &[]);
    let mut stream = control_plane.stream().await;
    stream.request().await;
    stream.send_resources("1", "deepest", vec![nested(256)]);
    assert_eq!(stream.request().await.error_detail, None);
    let mut weir = starting.ready().await;
    stream.send_resources("1", "deep", vec![nested(LEVELS)]);
    assert_eq!(stream.request().await.error_detail, None);
    let entry = Entry { key: "k".into(), value: "v".into() };
    for code in [Code::Ok, Code::OverLimit] {
        let sent = Sent { entries: vec![entry.clone(); LEVELS], ..Sent::default() };
        let decided = weir.decide(request("d", [sent])).await.expect("a decision");
        assert_eq!(decided.overall_code(), code);
    }
    for (levels, nonce) in [(257, "too deep"), (100_000, "far too deep")] {
        stream.send_resources("2", nonce, vec![nested(levels)]);
        let message = stream.rejected("1", nonce).await;
        assert!(message.contains("deep: nested deeper than 256 levels"), "{message}");
    }
    stream.accepted("3", "shallow", &[config("d", "k", 1)]).await;
}

#[tokio::test]
async fn ten_thousand_rules_are_applied() {
    const RULES: u32 = 10_000;
    let mut control_plane = ControlPlane::start().await;
    let starting = Starting::new(&control_plane, &[]);
    let mut stream = control_plane.stream().await;
    stream.request().await;
    let mut config = config("d", "k", 1);
    config.descriptors = (0..RULES)
        .map(|i| RateLimitDescriptor {
            key: "tenant".into(),
            value: format!("tenant-{i}"),
            rate_limit: Some(hourly(i)),
            ..RateLimitDescriptor::default()
        })
        .collect();
    stream.accepted("1", "a", &[config]).await;
    let mut weir = starting.ready().await;
    assert!(weir.page("/metrics").await.contains("weir_rules 10000\n"));
    let decided =
        weir.decide(request("d", [descriptor([("tenant", "tenant-1234")])])).await.expect("a decision");
    assert_eq!(decided.statuses[0].limit_remaining, 1233);
}

#[tokio::test]
async fn what_cannot_be_read_is_rejected() {
    let mut control_plane = ControlPlane::start().await;
    let starting = Starting::new(&control_plane, &[("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "10000")]);
    let mut stream = control_plane.stream().await;
    stream.request().await;
    stream.accepted("1", "a", &[config("d", "k", 10)]).await;
    let weir = starting.ready().await;
    let malformed = Any { type_url: TYPE_URL.into(), value: b"\x1a\x05\x0a".to_vec() };
    stream.send_resources("2", "b", vec![malformed]);
    assert!(stream.rejected("1", "b").await.contains("cannot be decoded"));
    let other = Any { type_url: "type.googleapis.com/other".into(), value: Vec::new() };
    stream.send_resources("3", "c", vec![other]);
    assert!(stream.rejected("1", "c").await.contains("type.googleapis.com/other"));
    // a field that this version does not know
    let mut config = crate::control_plane::resource(&config("d", "k", 20));
    config.value.extend(b"\x7a\x03new");
    stream.send_resources("4", "d", vec![config]);
    assert_eq!(stream.request().await.error_detail, None);
    assert!(weir.rules().await.contains("requests_per_unit=20"));
    // a message over the limit ends the stream, and the rules stay
    let mut large = crate::control_plane::config("d", "k", 30);
    large.name = "x".repeat(20_000);
    stream.send("5", "e", &[large]);
    let mut stream = control_plane.stream().await;
    stream.request().await;
    assert!(weir.rules().await.contains("requests_per_unit=20"));
    stream.accepted("6", "f", &[crate::control_plane::config("d", "k", 40)]).await;
}
