//! Compares the encoder with the generated one, byte for byte.

use proptest::{collection::vec, option, prelude::*};
use serde_json::json;

use super::*;
use crate::{conversion::response, grpc::message::PREFIX};
use weir_limit::{
    Algorithm, Code, Domain, KeyHasher, Limit, OverLimitPolicy, Period, Rule, RuleNode, RuleRef, RuleSet,
    Tier, Values,
};

/// The parts of a descriptor's status: over, its limit with name and reset, and the remaining requests.
type Parts = (bool, Option<(Tier, Option<String>, u64)>, u32);

fn a_tier() -> impl Strategy<Value = Tier> {
    let second = 1_000_000_000;
    let periods = [1, second, 60 * second, 3_600 * second, 90 * second, 7 * 86_400 * second, second / 2];
    let algorithm = prop_oneof![Just(Algorithm::FixedWindow), Just(Algorithm::SlidingWindow)];
    (a_number(), prop::sample::select(periods.to_vec()), algorithm).prop_map(
        |(requests, period, algorithm)| Tier { requests, period: Period::from_nanos(period), algorithm },
    )
}

fn a_number() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), 0..300_u32, any::<u32>()]
}

fn a_status() -> impl Strategy<Value = Parts> {
    let name = option::of(prop_oneof!["[a-z]{0,12}", Just("long".repeat(60))]);
    let reset = prop_oneof![Just(0), 0..10_000_000_000_u64, any::<u64>()];
    (any::<bool>(), option::of((a_tier(), name, reset)), a_number())
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
            limit: limit.as_ref().and_then(|(tier, ..)| Some(CurrentLimit { rule: *next.next()?, tier, requests: tier.requests })),
            remaining: *remaining,
            reset: limit.as_ref().map(|(_, _, reset)| Period::from_nanos(*reset)),
        });
        let headers: Vec<_> = headers.into_iter().map(|value| Header { name: "x-limit", for_request: value.len() % 2 == 1, value }).collect();
        let verdict = Verdict {
            code: code(over),
            shadowed: false,
            statuses: statuses.collect(),
            nearest: None,
            metadata,
        };
        let mut ours = FieldWriter::new();
        encode(&verdict, &headers, &mut ours);
        prop_assert_eq!(&ours.finish()[PREFIX..], response(&verdict, &headers).encode_to_vec());
    }
}
