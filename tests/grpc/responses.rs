//! The contents of responses besides codes: errors, headers, metadata.

use tonic::Code;
use weir_proto::envoy::service::ratelimit::v3::RateLimitResponse;

use crate::{
    in_process::Weir,
    wire::{descriptor, hits, limited, request},
};

const RULES: &str = "
domain: d
descriptors:
  - key: five
    rate_limit: { unit: minute, requests_per_unit: 5 }
    metadata: { plan: { name: five, level: 5 }, first: five }
  - key: one
    rate_limit: { unit: hour, requests_per_unit: 1 }
    metadata: { plan: { name: one, team: red }, list: [1, two, null, true] }
  - key: none
    rate_limit: { unit: second, requests_per_unit: 0 }
    metadata: { never: seen }
  - key: quota
    quota_mode: true
    rate_limit: { unit: day, requests_per_unit: 0 }
";

#[tokio::test]
async fn errors_have_the_texts_of_envoyproxy_ratelimit() {
    let mut weir = Weir::start(RULES).await;
    let empty = weir.try_decide(request("", [descriptor([("five", "x")])])).await.expect_err("no domain");
    assert_eq!((empty.code(), empty.message()), (Code::Unknown, "rate limit domain must not be empty"));
    let none = weir.try_decide(request("d", [])).await.expect_err("no descriptors");
    assert_eq!(
        (none.code(), none.message()),
        (Code::Unknown, "rate limit descriptor list must not be empty")
    );
    weir.decide(request("d", [descriptor([("five", "x")])])).await;
}

#[tokio::test]
async fn an_override_with_an_invalid_unit_is_an_invalid_argument() {
    let mut weir = Weir::start(RULES).await;
    for unit in [0, 8, 99, -1] {
        let five = descriptor([("five", "x")]);
        let rejected = weir.try_decide(request("d", [five.clone(), limited(1, unit, five)])).await;
        let status = rejected.expect_err("there is no such unit");
        assert_eq!(status.code(), Code::InvalidArgument);
        let message = status.message();
        assert!(message.contains("descriptor 1") && message.contains("SECOND (1)"), "{message}");
    }
    let response = weir.decide(request("d", [descriptor([("five", "x")])])).await;
    assert_eq!(response.statuses[0].limit_remaining, 4, "an invalid request counts nothing");
}

fn headers(response: &RateLimitResponse) -> Vec<(&str, &str)> {
    let headers = response.response_headers_to_add.iter();
    headers.map(|header| (header.key.as_str(), header.value.as_str())).collect()
}

#[tokio::test]
async fn headers_report_the_descriptor_nearest_to_its_limit() {
    let mut weir = Weir::start_with(RULES, &[("LIMIT_RESPONSE_HEADERS_ENABLED", "true")]).await;
    let (five, one) = (|| descriptor([("five", "x")]), || descriptor([("one", "x")]));
    let quota = || descriptor([("quota", "x")]);
    let free = || descriptor([("unlimited", "x")]);

    let lowest = weir.decide(request("d", [free(), five(), one()])).await;
    let of_one = [("RateLimit-Limit", "1"), ("RateLimit-Remaining", "0"), ("RateLimit-Reset", "1710")];
    assert_eq!(headers(&lowest), of_one, "on OK, too");
    let first = weir.decide(request("d", [hits(4, five()), one()])).await;
    assert_eq!(
        headers(&first),
        of_one,
        "the last descriptor over its limit wins, though the first one has as little left"
    );
    let tied = weir.decide(request("d", [hits(0, five()), quota()])).await;
    let of_five = [("RateLimit-Limit", "5"), ("RateLimit-Remaining", "0"), ("RateLimit-Reset", "30")];
    assert_eq!(headers(&tied), of_five, "the first on ties, and no quota instead of it");
    let last = weir.decide(request("d", [one(), descriptor([("none", "x")]), five()])).await;
    assert_eq!(headers(&last), of_five, "the last one over its limit");
    assert!(headers(&weir.decide(request("d", [free()])).await).is_empty());
}

#[tokio::test]
async fn settings_enable_and_name_the_headers() {
    let variables = [
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_LIMIT_HEADER", "x-limit"),
        ("LIMIT_REMAINING_HEADER", "x-left"),
        ("LIMIT_RESET_HEADER", "x-reset"),
    ];
    let mut weir = Weir::start_with(RULES, &variables).await;
    let response = weir.decide(request("d", [descriptor([("five", "x")])])).await;
    assert_eq!(headers(&response), [("x-limit", "5"), ("x-left", "4"), ("x-reset", "30")]);
    let mut silent = Weir::start(RULES).await;
    let response = silent.decide(request("d", [descriptor([("five", "x")])])).await;
    assert!(headers(&response).is_empty() && response.dynamic_metadata.is_none());
}

#[tokio::test]
async fn metadata_describes_the_request_and_the_rules_that_passed() {
    let mut weir = Weir::start_with(RULES, &[("RESPONSE_DYNAMIC_METADATA", "true")]).await;
    let mut message = request(
        "d",
        [
            descriptor([("five", "x")]),
            hits(1, descriptor([("one", "y")])),
            descriptor([("none", "z")]),
            limited(7, 2, descriptor([("a", "b"), ("c", "")])),
            limited(0, 6, descriptor([("d", "e")])),
        ],
    );
    message.hits_addend = 2;
    let response = weir.decide(message).await;
    let metadata = response.dynamic_metadata.expect("it is enabled");
    let expected = serde_json::json!({
        "domain": "d",
        "hitsAddend": 2.0,
        "descriptors": [
            { "entries": ["five=x"] },
            { "entries": ["one=y"], "hitsAddend": 1.0 },
            { "entries": ["none=z"] },
            { "entries": ["a=b", "c="], "limit": "requests_per_unit:7 unit:MINUTE" },
            // protobuf's text leaves out fields that are zero
            { "entries": ["d=e"], "limit": "unit:YEAR" },
        ],
        "metadata": {
            "plan": { "name": "five", "level": 5.0, "team": "red" },
            "first": "five",
            "list": [1.0, "two", null, true],
        },
    });
    assert_eq!(object(&metadata), expected);
}

fn object(fields: &prost_types::Struct) -> serde_json::Value {
    fields.fields.iter().map(|(key, value)| (key.clone(), json(value))).collect()
}

fn json(value: &prost_types::Value) -> serde_json::Value {
    use prost_types::value::Kind;
    match value.kind.as_ref().expect("a value has a kind") {
        Kind::NullValue(_) => serde_json::Value::Null,
        Kind::NumberValue(number) => (*number).into(),
        Kind::StringValue(text) => text.as_str().into(),
        Kind::BoolValue(bool) => (*bool).into(),
        Kind::StructValue(fields) => object(fields),
        Kind::ListValue(list) => list.values.iter().map(json).collect(),
    }
}
