//! This writer against the generated one, byte for byte.

use proptest::{collection::vec, option, prelude::*};
use serde_json::json;

use super::*;
use crate::{
    limit::{Algorithm, Code, Period, Tier},
    proto::envoy::service::ratelimit::v3::RateLimitResponse,
};

/// What one descriptor's status is made of: over, its limit with the time left, requests left.
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
    fn a_verdict_is_written_as_the_generated_writer_would(
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
        let statuses = statuses.iter().map(|(over, limit, remaining)| Status {
            code: code(*over),
            limit: limit.as_ref().map(|(tier, name, _)| CurrentLimit { name: name.as_deref(), tier }),
            remaining: *remaining,
            reset: limit.as_ref().map(|(_, _, reset)| Period::from_nanos(*reset)),
        });
        let headers = headers.into_iter().map(|value| Header { name: "x-limit", value });
        let verdict = Verdict {
            code: code(over),
            shadowed: false,
            statuses: statuses.collect(),
            headers: headers.collect(),
            metadata,
        };
        let mut ours = Buffer::new();
        encode(&verdict, &mut ours);
        prop_assert_eq!(ours.to_vec(), RateLimitResponse::from(&verdict).encode_to_vec());
    }
}
