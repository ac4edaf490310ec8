//! Compares the encoder with the generated one, byte for byte.

use proptest::{collection::vec, option, prelude::*};
use serde_json::json;

use super::*;
use crate::grpc::PREFIX;
use weir_limit::{Domain, KeyHasher, Limit, OverLimitPolicy, Rule, RuleNode, RuleRef, RuleSet, Values};
use weir_proto::envoy::{
    config::core::v3::HeaderValue,
    service::ratelimit::v3::{
        RateLimitResponse,
        rate_limit_response::{DescriptorStatus, RateLimit},
    },
};

/// The parts of a descriptor's status: over, its limit with name and reset, and the remaining requests.
type Parts = (bool, Option<(Tier, Option<String>, u64)>, u32);

fn a_tier() -> impl Strategy<Value = Tier> {
    let second = 1_000_000_000;
    let periods = [1, second, 60 * second, 3_600 * second, 90 * second, 7 * 86_400 * second, second / 2];
    let tiers = prop::sample::select(vec![Tier::fixed_window, Tier::sliding_window]);
    (a_number(), prop::sample::select(periods.to_vec()), tiers)
        .prop_map(|(requests, period, tier)| tier(requests, Period::from_nanos(period)))
}

fn a_number() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), 0..300_u32, any::<u32>()]
}

fn a_status() -> impl Strategy<Value = Parts> {
    let name = option::of(prop_oneof!["[a-z]{0,12}", Just("long".repeat(60))]);
    let reset = prop_oneof![Just(0), 0..10_000_000_000_u64, any::<u64>()];
    (any::<bool>(), option::of((a_tier(), name, reset)), a_number())
}

fn generated(verdict: &Verdict<'_>, headers: &[Header<'_>]) -> RateLimitResponse {
    let headers = |for_request: bool| {
        let header =
            |header: &Header<'_>| HeaderValue { key: header.name.to_owned(), value: header.value.clone() };
        headers.iter().filter(|header| header.for_request == for_request).map(header).collect()
    };
    RateLimitResponse {
        overall_code: code(verdict.code).into(),
        statuses: verdict.statuses.iter().map(descriptor_status).collect(),
        response_headers_to_add: headers(false),
        request_headers_to_add: headers(true),
        dynamic_metadata: verdict.metadata.as_ref().map(protobuf_struct),
        ..RateLimitResponse::default()
    }
}

fn descriptor_status(status: &Status<'_>) -> DescriptorStatus {
    let reset = |limit: &CurrentLimit<'_>| {
        let is_never = status.remaining == 0 && status.is_closed();
        let (seconds, nanos) = duration(status.reset.filter(|_| !is_never)?, limit.tier);
        Some(prost_types::Duration { seconds, nanos })
    };
    DescriptorStatus {
        code: code(status.code).into(),
        current_limit: status.limit.as_ref().map(rate_limit),
        limit_remaining: status.remaining,
        duration_until_reset: status.limit.as_ref().and_then(reset),
    }
}

fn rate_limit(limit: &CurrentLimit<'_>) -> RateLimit {
    RateLimit {
        requests_per_unit: limit.requests,
        unit: unit_of(limit.tier).into(),
        name: limit.rule.name().unwrap_or_default().to_owned(),
    }
}

proptest! {
    #[test]
    fn a_verdict_is_encoded_like_the_generated_encoder_does(
        over: bool,
        statuses in vec(a_status(), 0..4),
        headers in vec(prop_oneof!["[0-9]{0,10}", Just("v".repeat(1_000)), Just("w".repeat(20_000))], 0..4),
        with_metadata: bool,
    ) {
        let code = |over| if over { Code::OverLimit } else { Code::Ok };
        let metadata = with_metadata.then(|| match json!({ "a": { "b": [1, null, "c", true] } }) {
            serde_json::Value::Object(fields) => fields,
            _ => unreachable!("it is an object"),
        });
        let limits = statuses.iter().filter_map(|(_, limit, _)| limit.as_ref()).enumerate();
        let nodes = limits.map(|(i, (tier, name, _))| {
            let tiers = [tier.clone()].into();
            let limit = Limit::Tiers { tiers, over_limit_policy: OverLimitPolicy::Ignore };
            let rule = Rule { name: name.as_deref().map(Into::into), ..Rule::new(limit) };
            RuleNode { rule: Some(rule), ..RuleNode::new(&i.to_string(), Values::Any) }
        });
        let domain = Domain::new("d", nodes.collect());
        let rules = RuleSet::new(&[domain], KeyHasher::random());
        let rules: Vec<RuleRef<'_>> = rules.rules().iter().map(RuleRef::Compiled).collect();
        let mut next = rules.iter();
        let statuses = statuses.iter().map(|(over, limit, remaining)| Status {
            code: code(*over),
            quota: false,
            limit: limit.as_ref().and_then(|(tier, ..)| {
                Some(CurrentLimit { rule: *next.next()?, tier: Some(tier), requests: tier.requests })
            }),
            remaining: *remaining,
            reset: limit.as_ref().map(|(_, _, reset)| Period::from_nanos(*reset)),
        });
        let header = |value: String| Header { name: "x-limit", for_request: value.len() % 2 == 1, value };
        let headers: Vec<_> = headers.into_iter().map(header).collect();
        let verdict = Verdict {
            code: code(over),
            shadowed: false,
            in_flight: None,
            statuses: statuses.collect(),
            nearest: None,
            metadata,
        };
        let ours = encode(&verdict, &headers);
        prop_assert_eq!(&ours[PREFIX..], generated(&verdict, &headers).encode_to_vec());
    }
}
