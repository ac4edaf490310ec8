//! Requests in flight, and what they reserve, through a whole weir with counters in memory, as proxies and scripts use them.

use std::collections::BTreeMap;

use prost_types::value::Kind;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use weir_harness::{
    in_process::{DEADLINE, NOW, Weir, get, replace, until, uri},
    wire::{descriptor, gist, hits, limited, refund, request},
};
use weir_limit::{PlaceName, RequestName, Timestamp};
use weir_proto::{
    envoy::{
        extensions::common::ratelimit::v3::RateLimitDescriptor,
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse,
            rate_limit_response::{
                Code::{Ok, OverLimit},
                rate_limit::Unit,
            },
        },
    },
    weir::v1::{AcquireRequest, acquire_request::Entry, limiter_client::LimiterClient},
};
use weir_server::net::BoundAddress;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { in_flight: 2 }
  - key: slow
    rate_limit: { in_flight: 1, give_up_after: 1h, name: slow }
  - key: tiers
    rate_limit: { tiers: [{ in_flight: 2 }, { requests: 9, per: 365d }] }
  - key: rate
    rate_limit: { requests: 1, per: 365d }
  - key: shadow
    shadow_mode: true
    rate_limit: { in_flight: 1 }
  - key: quota_a
    quota_mode: true
    rate_limit: { in_flight: 1 }
  - key: quota_b
    quota_mode: true
    rate_limit: { in_flight: 1 }
  - key: cost
    rate_limit: { tiers: [{ in_flight: 2 }, { requests: 100, per: 365d }], reserve: 0 }
  - key: tokens
    rate_limit: { requests: 1000, per: 365d, reserve: 100 }
  - key: replacing
    rate_limit: { unlimited: true, replaces: [{ name: slow }] }
  - key: none
    rate_limit: { in_flight: 0 }
";

fn user(value: &str) -> RateLimitDescriptor {
    descriptor([("user", value)])
}

/// Returns the name in the metadata of an answer.
fn name(response: &RateLimitResponse) -> Option<String> {
    text(response, "in_flight")
}

fn text(response: &RateLimitResponse, key: &str) -> Option<String> {
    match value(response, key)? {
        Kind::StringValue(text) => Some(text),
        other => panic!("{other:?}"),
    }
}

fn value(response: &RateLimitResponse, key: &str) -> Option<Kind> {
    response.dynamic_metadata.as_ref()?.fields.get(key)?.kind.clone()
}

fn left(response: &RateLimitResponse) -> Option<f64> {
    match value(response, "in_flight_left")? {
        Kind::NumberValue(number) => Some(number),
        other => panic!("{other:?}"),
    }
}

/// Places are in memory there, too.
#[tokio::test]
async fn with_counters_on_disk_requests_have_places() {
    let variables = [("WEIR_DATA_DIR", "{dir}/data"), ("WEIR_DECISION_BUDGET", "10s")];
    let mut weir = Weir::start_with(RULES, &variables).await;
    let tiers = || descriptor([("tiers", "x")]);
    let held = [begin(&mut weir, [tiers()]).await, begin(&mut weir, [tiers()]).await];
    assert_eq!(begin(&mut weir, [tiers()]).await, None);
    end(&mut weir, held[0].as_deref().expect("a name")).await;
    let third = weir.decide(request("shop", [tiers()])).await;
    assert_eq!(gist(&third), (Ok, vec![(Ok, 6)]), "the refused one took nothing");
}

/// Asks for places, and returns the name of the request, or none if it is rejected.
async fn begin<const N: usize>(weir: &mut Weir, descriptors: [RateLimitDescriptor; N]) -> Option<String> {
    let response = weir.decide(request("shop", descriptors)).await;
    assert_eq!(response.overall_code() == Ok, name(&response).is_some(), "{response:?}");
    name(&response)
}

async fn end(weir: &mut Weir, name: &str) {
    let response = weir.decide(request("shop", [descriptor([("in_flight", name)])])).await;
    assert_eq!(gist(&response), (Ok, vec![(Ok, 0)]));
    assert_eq!(response.dynamic_metadata, None);
}

/// Returns the metrics of weir's own that are about requests in flight, by name and rule.
async fn metrics(weir: &Weir) -> BTreeMap<(String, String), u64> {
    let page = get(weir.addresses.http, "/metrics").await;
    let lines = page.lines().filter_map(|line| line.strip_prefix("weir_in_flight")?.split_once('{'));
    let parse = |(name, rest): (&str, &str)| {
        let (labels, value) = rest.rsplit_once(' ')?;
        let rule = labels.split_once("key1=\"")?.1.split('"').next()?;
        Some(((name.to_owned(), rule.to_owned()), value.parse().ok()?))
    };
    lines.filter_map(parse).collect()
}

async fn metric(weir: &Weir, name: &str, rule: &str) -> u64 {
    metrics(weir).await.get(&(name.to_owned(), rule.to_owned())).copied().unwrap_or_default()
}

/// Posts `body` to `/json`, and returns the status and the answer.
async fn post(weir: &Weir, body: &str) -> (u16, serde_json::Value) {
    let mut stream = TcpStream::connect(weir.addresses.http).await.expect("it listens");
    let head = format!(
        "POST /json HTTP/1.1\r\nhost: weir\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).await.expect("it takes it");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("a response");
    let status = response[9..12].parse().expect("a status");
    let (_, body) = response.split_once("\r\n\r\n").expect("a body");
    (status, serde_json::from_str(body).expect("JSON"))
}

#[tokio::test]
async fn a_request_has_a_place_until_it_ends() {
    let mut weir = Weir::start(RULES).await;
    let response = weir.decide(request("shop", [user("acme")])).await;
    assert_eq!(gist(&response), (Ok, vec![(Ok, 1)]));
    assert_eq!(response.statuses[0].current_limit, None, "Envoy would show it in place of a rate");
    assert_eq!(left(&response), Some(1.0));
    let first = name(&response).expect("a name");
    assert_eq!(text(&response, "in_flight/shop"), Some(first.clone()));
    let second = begin(&mut weir, [user("acme")]).await.expect("a place");
    assert_ne!(first, second);

    let rejected = weir.decide(request("shop", [user("acme")])).await;
    assert_eq!(gist(&rejected), (OverLimit, vec![(OverLimit, 0)]));
    assert_eq!(rejected.dynamic_metadata, None);
    let status = &rejected.statuses[0];
    let limit = status.current_limit.as_ref().expect("the limit");
    assert_eq!((limit.requests_per_unit, limit.unit()), (2, Unit::Unknown));
    assert_eq!(status.duration_until_reset.map(|wait| (wait.seconds, wait.nanos)), Some((1, 0)));

    assert!(begin(&mut weir, [user("globex")]).await.is_some(), "each user has places of its own");
    let page = get(weir.addresses.debug, "/rlconfig").await;
    for line in ["shop.user: in_flight=2, ", "shop.tiers: in_flight=2 and unit="] {
        assert!(page.contains(line), "{page}");
    }
    end(&mut weir, &first).await;
    // twice is as once, and a name that nobody gave ends nothing
    end(&mut weir, &first).await;
    end(&mut weir, &name_like(&first, 9_999)).await;
    let third = begin(&mut weir, [user("acme")]).await.expect("a place");
    assert_eq!(begin(&mut weir, [user("acme")]).await, None);
    // by the rule's own entries, with any hits
    let by_rule = |name: &str| descriptor([("user", "acme"), ("in_flight", name)]);
    for ended in [hits(7, by_rule(&second)), refund(1, by_rule(&third))] {
        assert_eq!(gist(&weir.decide(request("shop", [ended])).await), (Ok, vec![(Ok, 0)]));
    }
    assert_eq!(left(&weir.decide(request("shop", [hits(0, user("acme"))])).await), Some(2.0));
    let of_user = |name| metric(&weir, name, "user");
    assert_eq!((of_user("").await, of_user("_started_total").await), (1, 4));
    assert_eq!((of_user("_ended_total").await, of_user("_unknown_total").await), (3, 2));
    assert_eq!(of_user("_duration_seconds_count").await, 3);
}

/// Returns `name` with another number of the same instance.
fn name_like(name: &str, number: u64) -> String {
    let place = RequestName::read(name).expect("a name").place;
    let entries = [weir_limit::Entry { key: "user", value: "acme" }];
    RequestName::write(PlaceName::new(place.start(), place.serial() + number, false), [&entries[..]])
}

#[tokio::test]
async fn a_start_has_one_place_and_a_check_none() {
    let mut weir = Weir::start(RULES).await;
    assert!(begin(&mut weir, [hits(1_000, user("a"))]).await.is_some());
    // two descriptors of one counter are one request
    assert!(begin(&mut weir, [user("a"), user("a")]).await.is_some());
    for _ in 0..3 {
        let check = weir.decide(request("shop", [hits(0, user("a"))])).await;
        assert_eq!(gist(&check), (OverLimit, vec![(OverLimit, 0)]));
        let free = weir.decide(request("shop", [hits(0, user("b"))])).await;
        assert_eq!((gist(&free), name(&free), left(&free)), ((Ok, vec![(Ok, 2)]), None, Some(2.0)));
        // below zero without a name: nothing
        let back = weir.decide(request("shop", [refund(1, user("a"))])).await;
        assert_eq!((gist(&back), back.dynamic_metadata), ((Ok, vec![(Ok, 0)]), None));
    }
    assert_eq!(begin(&mut weir, [user("a")]).await, None);
    assert_eq!((metric(&weir, "", "user").await, metric(&weir, "_unnamed_total", "user").await), (2, 3));
    assert_eq!(begin(&mut weir, [descriptor([("none", "x")])]).await, None);
}

#[tokio::test]
async fn a_limit_that_the_request_brings_replaces_the_number() {
    let mut weir = Weir::start(RULES).await;
    let of = |most| limited(most, Unit::Second.into(), user("a"));
    for _ in 0..3 {
        assert!(begin(&mut weir, [of(3)]).await.is_some());
    }
    assert_eq!(begin(&mut weir, [of(3)]).await, None);
    assert_eq!(begin(&mut weir, [user("a")]).await, None, "the places are the rule's");
    assert!(begin(&mut weir, [of(4)]).await.is_some());
}

#[tokio::test]
async fn a_request_that_is_rejected_keeps_nothing() {
    let mut weir = Weir::start(RULES).await;
    let rate = || descriptor([("rate", "x")]);
    let first = begin(&mut weir, [user("a"), rate()]).await.expect("a place");
    // the rate rejects: no place is asked for
    for _ in 0..3 {
        let response = weir.decide(request("shop", [user("a"), rate()])).await;
        assert_eq!(gist(&response), (OverLimit, vec![(Ok, 0), (OverLimit, 0)]));
        assert_eq!(response.dynamic_metadata, None);
    }
    // another place is refused: the first one is freed
    let slow = || descriptor([("slow", "x")]);
    let held = begin(&mut weir, [slow()]).await.expect("a place");
    for _ in 0..3 {
        let response = weir.decide(request("shop", [user("a"), slow()])).await;
        assert_eq!(gist(&response), (OverLimit, vec![(Ok, 0), (OverLimit, 0)]));
    }
    assert_eq!((metric(&weir, "", "user").await, metric(&weir, "_undone_total", "user").await), (1, 3));
    end(&mut weir, &held).await;
    let both = begin(&mut weir, [user("a"), slow()]).await.expect("two places");
    assert_eq!(begin(&mut weir, [user("a")]).await, None);
    for name in [both, first] {
        end(&mut weir, &name).await;
    }
    assert_eq!((metric(&weir, "", "user").await, metric(&weir, "", "slow").await), (0, 0));
}

#[tokio::test]
async fn a_refused_place_takes_nothing_of_the_tiers_beside_it() {
    let mut weir = Weir::start(RULES).await;
    let tiers = || descriptor([("tiers", "x")]);
    let first = weir.decide(request("shop", [tiers()])).await;
    assert_eq!((gist(&first), left(&first)), ((Ok, vec![(Ok, 8)]), Some(1.0)));
    assert_eq!(first.statuses[0].current_limit.as_ref().expect("the rate").requests_per_unit, 9);
    let mut running = vec![name(&first), begin(&mut weir, [tiers()]).await];
    for _ in 0..20 {
        let rejected = weir.decide(request("shop", [tiers()])).await;
        assert_eq!(rejected.statuses[0].current_limit.as_ref().expect("a limit").unit(), Unit::Unknown);
    }
    // 9 requests in all, of which 2 run at once
    for i in 2..9 {
        end(&mut weir, &running.remove(0).expect("a name")).await;
        let next = begin(&mut weir, [tiers()]).await;
        assert!(next.is_some(), "{i}");
        running.push(next);
    }
    for name in running {
        end(&mut weir, &name.expect("a name")).await;
    }
    let rejected = weir.decide(request("shop", [tiers()])).await;
    let limit = rejected.statuses[0].current_limit.as_ref().expect("the rate");
    assert_eq!((rejected.overall_code(), limit.requests_per_unit), (OverLimit, 9));
    assert_eq!(metric(&weir, "", "tiers").await, 0);
    let stats = get(weir.addresses.debug, "/stats").await;
    for (name, value) in [("total_hits", 30), ("within_limit", 9), ("over_limit", 21)] {
        let line = format!("ratelimit.service.rate_limit.shop.tiers.{name}: {value}\n");
        assert!(stats.contains(&line), "{line}{stats}");
    }
}

#[tokio::test]
async fn with_all_or_nothing_a_refused_place_counts_nothing() {
    let rules = RULES.replacen("domain: shop", "domain: shop\nall_or_nothing: true", 1);
    let mut weir = Weir::start(&rules).await;
    let (rate, tiers) = (|| descriptor([("rate", "x")]), || descriptor([("tiers", "x")]));
    let held = [begin(&mut weir, [user("a")]).await, begin(&mut weir, [user("a")]).await];
    for _ in 0..10 {
        assert_eq!(begin(&mut weir, [rate(), tiers(), user("a")]).await, None);
    }
    end(&mut weir, held[0].as_deref().expect("a name")).await;
    let all = weir.decide(request("shop", [rate(), tiers(), user("a")])).await;
    assert_eq!(gist(&all), (Ok, vec![(Ok, 0), (Ok, 8), (Ok, 0)]));
    // an end counts, whatever becomes of the request that it comes with
    let with_end = [rate(), descriptor([("in_flight", held[1].as_deref().expect("a name"))])];
    assert_eq!(
        gist(&weir.decide(request("shop", with_end)).await),
        (OverLimit, vec![(OverLimit, 0), (Ok, 0)])
    );
    assert_eq!(metric(&weir, "", "user").await, 1);
}

#[tokio::test]
async fn in_shadow_and_quota_mode_only_what_fits_has_a_place() {
    let mut weir = Weir::start(RULES).await;
    let shadow = || request("shop", [descriptor([("shadow", "x")])]);
    let first = weir.decide(shadow()).await;
    let second = weir.decide(shadow()).await;
    assert_eq!((first.overall_code(), second.overall_code()), (Ok, Ok));
    assert_eq!((name(&first).is_some(), name(&second)), (true, None));
    assert_eq!(metric(&weir, "", "shadow").await, 1);

    let (a, b) = (|| descriptor([("quota_a", "x")]), || descriptor([("quota_b", "x")]));
    let first = begin(&mut weir, [a()]).await.expect("a place");
    let second = weir.decide(request("shop", [a(), b()])).await;
    assert_eq!(gist(&second), (Ok, vec![(OverLimit, 0), (Ok, 0)]), "the other quota admits it");
    let third = weir.decide(request("shop", [a(), b()])).await;
    assert_eq!(gist(&third), (OverLimit, vec![(OverLimit, 0), (OverLimit, 0)]));
    end(&mut weir, &name(&second).expect("a name")).await;
    assert_eq!((metric(&weir, "", "quota_a").await, metric(&weir, "", "quota_b").await), (1, 0));
    end(&mut weir, &first).await;
    assert_eq!(metric(&weir, "", "quota_a").await, 0);

    // of the whole service: each place that fits is taken
    let mut weir = Weir::start_with(RULES, &[("SHADOW_MODE", "true")]).await;
    let none = || descriptor([("none", "x")]);
    for places in [1, 2, 2] {
        weir.decide(request("shop", [none(), user("a")])).await;
        assert_eq!(metric(&weir, "", "user").await, places);
    }
}

#[tokio::test]
async fn reloads_apply_at_once_and_places_stay() {
    let mut weir = Weir::start(RULES).await;
    let held = [begin(&mut weir, [user("a")]).await, begin(&mut weir, [user("a")]).await];
    let file = weir.file();
    let load = async |text: &str, limit: &str| {
        replace(&file, text);
        until("the rules are in force", async || get(weir.addresses.debug, "/rules").await.contains(limit))
            .await;
    };
    load(&RULES.replace("{ in_flight: 2 }\n", "{ in_flight: 1, give_up_after: 20m }\n"), "after 20m").await;
    let mut client = weir.client.clone();
    let mut asks = async |name: Option<&str>| {
        let asked = name.map_or_else(|| user("a"), |name| descriptor([("in_flight", name)]));
        let response = client.should_rate_limit(request("shop", [asked])).await.expect("a response");
        response.into_inner().overall_code()
    };
    asks(held[0].as_deref()).await;
    assert_eq!(asks(None).await, OverLimit, "one is left of the two that began before");
    load(&RULES.replace("{ in_flight: 2 }\n", "{ in_flight: 2, give_up_after: 15m }\n"), "after 15m").await;
    assert_eq!((asks(None).await, asks(None).await), (Ok, OverLimit));
    // those that began before end, also without the rule
    load(&RULES.replace("  - key: user\n    rate_limit: { in_flight: 2 }\n", ""), "shop.slow").await;
    asks(held[1].as_deref()).await;
    assert_eq!(asks(None).await, Ok, "no rule, no limit");
}

#[tokio::test]
async fn a_place_is_given_up_at_its_age() {
    let mut weir = Weir::start(RULES).await;
    let held = begin(&mut weir, [user("a")]).await.expect("a place");
    weir.advance(300);
    let later = begin(&mut weir, [user("a")]).await.expect("a place");
    weir.advance(299);
    assert_eq!(begin(&mut weir, [user("a")]).await, None);
    weir.advance(1);
    let other = begin(&mut weir, [user("a")]).await.expect("the place of the first");
    assert_eq!(begin(&mut weir, [user("a")]).await, None);
    end(&mut weir, &held).await;
    assert_eq!(begin(&mut weir, [user("a")]).await, None, "the late end is unknown");
    for name in [later, other] {
        end(&mut weir, &name).await;
    }
    let of_user = |name| metric(&weir, name, "user");
    assert_eq!((of_user("_given_up_total").await, of_user("_unknown_total").await), (1, 1));
    // what nobody asks for is swept
    begin(&mut weir, [user("b")]).await.expect("a place");
    weir.advance(601);
    until("the place is given up", async || metric(&weir, "", "user").await == 0).await;
}

#[tokio::test]
async fn made_up_names_take_no_memory() {
    let mut weir = Weir::start(RULES).await;
    let held = begin(&mut weir, [user("acme")]).await.expect("a place");
    let made = RequestName::read(&held).expect("a name").place;
    let values: Vec<String> = (0..64).map(|value| value.to_string()).collect();
    let entries: Vec<[weir_limit::Entry<'_>; 1]> =
        values.iter().map(|value| [weir_limit::Entry { key: "user", value }]).collect();
    let mut ends = 0;
    let mut serial = made.serial();
    while ends < 1_000_000 {
        let descriptors = (0..100).map(|_| {
            serial += 1;
            let place = PlaceName::new(Timestamp::from_secs(NOW), serial, false);
            let name = RequestName::write(place, entries.iter().map(|entries| &entries[..]));
            descriptor([("in_flight", &*name)])
        });
        let message =
            RateLimitRequest { domain: "shop".into(), descriptors: descriptors.collect(), hits_addend: 0 };
        let response = weir.decide(message).await;
        assert!(response.statuses.iter().all(|status| status.code() == Ok));
        ends += 100 * entries.len() as u64;
    }
    assert_eq!((metric(&weir, "_unknown_total", "user").await, metric(&weir, "", "user").await), (ends, 1));
    // other instances', too long, and of another form
    let elsewhere = RequestName::write(
        PlaceName::new(Timestamp::from_secs(NOW), made.serial() ^ 1 << 39, false),
        [&entries[0][..]],
    );
    let long = "x".repeat(4_096);
    let long_name = format!("{held}{}", "A".repeat(4_096));
    for name in [&*elsewhere, &long, &long_name, "", ".", "check", &held[..20]] {
        end(&mut weir, name).await;
        let by_rule = descriptor([("user", "acme"), ("in_flight", name)]);
        // the last but one is no name, and asks
        let left = if name == "check" { 2 } else { 0 };
        assert_eq!(gist(&weir.decide(request("shop", [by_rule])).await), (Ok, vec![(Ok, left)]), "{name}");
    }
    let of_user = |name| metric(&weir, name, "user");
    assert_eq!((of_user("_elsewhere_total").await, of_user("").await), (2, 0), "a name is enough of a name");
}

#[tokio::test]
async fn a_value_that_is_too_long_for_a_name_ends_by_its_rule() {
    let mut weir = Weir::start(RULES).await;
    // a token of four kilobytes is a part of the name
    let name = begin(&mut weir, [user(&"x".repeat(4_096))]).await.expect("a place");
    end(&mut weir, &name).await;
    assert_eq!(metric(&weir, "", "user").await, 0);
    let long = "x".repeat(13_000);
    let name = begin(&mut weir, [user(&long), user("short")]).await.expect("two places");
    assert!(name.len() < 60, "{name}");
    end(&mut weir, &name).await;
    assert_eq!(metric(&weir, "", "user").await, 1);
    let by_rule = descriptor([("user", &*long), ("in_flight", &*name)]);
    weir.decide(request("shop", [by_rule])).await;
    assert_eq!(metric(&weir, "", "user").await, 0);
}

#[tokio::test]
async fn the_bound_on_counters_bounds_places() {
    let rules = "domain: shop\ndescriptors:\n  - {key: user, rate_limit: {in_flight: 100000}}\n";
    let mut weir = Weir::start_with(rules, &[("WEIR_MAX_COUNTERS", "10")]).await;
    let mut first = None;
    for i in 0..100 {
        first = first.or(begin(&mut weir, [user("a")]).await);
        assert!(metric(&weir, "", "user").await < 40, "{i}");
    }
    assert_eq!((metric(&weir, "", "user").await, metric(&weir, "_given_up_total", "user").await), (39, 61));
    end(&mut weir, &first.expect("a name")).await;
    assert_eq!(metric(&weir, "_unknown_total", "user").await, 1, "the oldest went first");
}

#[tokio::test]
async fn json_names_and_ends_requests_too() {
    let weir = Weir::start(RULES).await;
    let ask = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "slow", "value": "x"}]}]}"#;
    let (status, answer) = post(&weir, ask).await;
    assert_eq!(status, 200);
    let name = answer["dynamicMetadata"]["in_flight"].as_str().expect("a name").to_owned();
    assert_eq!(answer["dynamicMetadata"]["in_flight/shop"], name);
    let (status, answer) = post(&weir, ask).await;
    assert_eq!((status, &answer["overallCode"]), (429, &"OVER_LIMIT".into()));
    let ending = format!(
        r#"{{"domain": "shop", "descriptors": [{{"entries": [{{"key": "in_flight", "value": "{name}"}}]}}]}}"#
    );
    assert_eq!(post(&weir, &ending).await.0, 200);
    assert_eq!(post(&weir, ask).await.0, 200);
}

#[tokio::test]
async fn headers_report_requests_in_flight() {
    let mut weir = Weir::start_with(RULES, &[("WEIR_RESPONSE_HEADERS", "ietf,retry-after")]).await;
    let headers = |response: &RateLimitResponse| -> Vec<(String, String)> {
        let headers = response.response_headers_to_add.iter();
        headers.map(|header| (header.key.clone(), header.value.clone())).collect()
    };
    let policy = ("RateLimit-Policy".into(), "\"slow-in-flight\";q=1;qu=\"concurrent-requests\"".into());
    let slow = || request("shop", [descriptor([("slow", "x")])]);
    let limit = |left| ("RateLimit".into(), format!("\"slow-in-flight\";r={left}"));
    assert_eq!(headers(&weir.decide(slow()).await), [policy.clone(), limit(0)]);
    assert_eq!(headers(&weir.decide(slow()).await), [policy, limit(0), ("Retry-After".into(), "1".into())]);
    let tiers = weir.decide(request("shop", [descriptor([("tiers", "x")])])).await;
    let [(_, policies), (_, limits)] = &headers(&tiers)[..] else { panic!("{tiers:?}") };
    assert!(
        policies.starts_with("\"shop.tiers\";q=9;w=31536000, \"shop.tiers-in-flight\";q=2;"),
        "{policies}"
    );
    assert!(
        limits.contains("\"shop.tiers\";r=8;t=") && limits.ends_with("\"shop.tiers-in-flight\";r=1"),
        "{limits}"
    );
}

#[tokio::test]
async fn the_cost_of_a_request_comes_with_its_end() {
    let mut weir = Weir::start(RULES).await;
    let cost = || descriptor([("cost", "x")]);
    let left = async |weir: &mut Weir| {
        weir.decide(request("shop", [hits(0, cost())])).await.statuses[0].limit_remaining
    };
    let first = begin(&mut weir, [cost()]).await.expect("a place");
    let second = begin(&mut weir, [cost()]).await.expect("a place");
    let response = weir.decide(request("shop", [hits(30, descriptor([("in_flight", &*first)]))])).await;
    assert_eq!(gist(&response), (Ok, vec![(Ok, 0)]));
    // two began with one hit each
    assert_eq!((left(&mut weir).await, metric(&weir, "", "cost").await), (68, 1));
    // without a name it is a cost as before, and no start
    weir.decide(request("shop", [hits(8, cost())])).await;
    assert_eq!((left(&mut weir).await, metric(&weir, "", "cost").await), (60, 1));
    let above = hits(1_000, descriptor([("cost", "x"), ("in_flight", &*second)]));
    assert_eq!(gist(&weir.decide(request("shop", [above])).await), (Ok, vec![(Ok, 0)]), "never rejected");
    assert_eq!(metric(&weir, "", "cost").await, 0);
    assert_eq!(begin(&mut weir, [cost()]).await, None, "nothing is left");
}

#[tokio::test]
async fn a_request_reserves_hits_until_its_cost_is_known() {
    let mut weir = Weir::start(RULES).await;
    let tokens = || descriptor([("tokens", "x")]);
    let left = async |weir: &mut Weir| {
        let check = descriptor([("tokens", "x"), ("in_flight", "check")]);
        weir.decide(request("shop", [check])).await.statuses[0].limit_remaining
    };
    let response = weir.decide(request("shop", [hits(0, tokens())])).await;
    assert_eq!((gist(&response), crate::left(&response)), ((Ok, vec![(Ok, 900)]), None));
    assert_eq!(response.statuses[0].current_limit.as_ref().expect("the rate").requests_per_unit, 1_000);
    let first = name(&response).expect("a name");
    assert_eq!(text(&response, "in_flight/shop"), Some(first.clone()));
    // hits of the message are not those of the descriptor
    let end = request("shop", [descriptor([("in_flight", &*first)])]);
    weir.decide(RateLimitRequest { hits_addend: 500, ..end }).await;
    assert_eq!(left(&mut weir).await, 1_000);

    let second = begin(&mut weir, [tokens()]).await.expect("a name");
    assert_eq!(left(&mut weir).await, 899);
    let by_rule = hits(30, descriptor([("tokens", "x"), ("in_flight", &*second)]));
    assert_eq!(gist(&weir.decide(request("shop", [by_rule])).await), (Ok, vec![(Ok, 0)]));
    assert_eq!(left(&mut weir).await, 969);

    let entry = |key: &str, value: &str| {
        format!(r#"[{{"entries": [{{"key": "{key}", "value": "{value}"}}], "hitsAddend""#)
    };
    let body =
        |descriptor: &str, hits| format!(r#"{{"domain": "shop", "descriptors": {descriptor}: "{hits}"}}]}}"#);
    let (status, answer) = post(&weir, &body(&entry("tokens", "x"), 0)).await;
    let third = answer["dynamicMetadata"]["in_flight"].as_str().expect("a name").to_owned();
    assert_eq!((status, left(&mut weir).await), (200, 869));
    post(&weir, &body(&entry("in_flight", &third), 150)).await;
    assert_eq!(left(&mut weir).await, 819);

    // a caller of Acquire reserves, too, and a cost without a name is that of the newest request
    let mut limiter = LimiterClient::connect(uri(&weir.addresses)).await.expect("it listens");
    let ask = AcquireRequest {
        domain: "shop".into(),
        entries: vec![Entry { key: "tokens".into(), value: "x".into() }],
        ..AcquireRequest::default()
    };
    limiter.acquire(ask).await.expect("it is admitted");
    assert_eq!(left(&mut weir).await, 718);
    let cost = weir.decide(request("shop", [hits(50, tokens())])).await;
    assert_eq!((gist(&cost), left(&mut weir).await), ((Ok, vec![(Ok, 768)]), 768));

    let mut writer = FrameWriter::connect(&weir).await;
    let call = FrameWriter::call(1, &request("shop", [hits(0, tokens())]));
    writer.send([call, FrameWriter::reset(1)].concat()).await;
    until("it has begun, and keeps nothing", async || {
        metric(&weir, "_started_total", "tokens").await == 5 && metric(&weir, "", "tokens").await == 0
    })
    .await;
    assert_eq!(left(&mut weir).await, 768);
    let page = get(weir.addresses.http, "/metrics").await;
    for (metric, value) in [
        ("reserved_hits_total", 500),
        ("settled_hits_total", 230),
        ("beyond_hits_total", 50),
        ("unused_hits_total", 320),
        ("given_up_total", 0),
        ("unmatched_total", 0),
        ("hits", 0),
    ] {
        let line = format!("weir_reserve_{metric}{{domain=\"shop\",key1=\"tokens\"}} {value}\n");
        assert!(page.contains(&line), "{line}{page}");
    }
}

#[tokio::test]
async fn a_rule_that_is_replaced_has_no_places() {
    let mut weir = Weir::start(RULES).await;
    let both = || request("shop", [descriptor([("slow", "x")]), descriptor([("replacing", "x")])]);
    for _ in 0..3 {
        let response = weir.decide(both()).await;
        assert_eq!((response.overall_code(), response.dynamic_metadata), (Ok, None));
    }
    assert_eq!(metric(&weir, "", "slow").await, 0);
}

/// A client that writes HTTP/2 frames in an order of its own.
struct FrameWriter(TcpStream);

// === impl FrameWriter ===

impl FrameWriter {
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const PING: u8 = 6;
    const GOAWAY: u8 = 7;

    async fn connect(weir: &Weir) -> Self {
        let BoundAddress::Tcp(address) = weir.addresses.grpc else { panic!("it listens on a port") };
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        stream.write_all(preface).await.expect("it takes it");
        Self(stream)
    }

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("it is short").to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    fn call(stream: u32, request: &RateLimitRequest) -> Vec<u8> {
        Self::call_of("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", stream, request)
    }

    fn call_of(method: &str, stream: u32, request: &impl prost::Message) -> Vec<u8> {
        // POST and http from HPACK's static table, and a literal path and host
        let path = u8::try_from(method.len()).expect("it is short");
        let headers = [&[0x83, 0x86, 0x04, path][..], method.as_bytes(), &[0x41, 1, b'w']].concat();
        let message = request.encode_to_vec();
        let length = u32::try_from(message.len()).expect("it is short").to_be_bytes();
        let body = [&[0], &length[..], &message].concat();
        [Self::frame(Self::HEADERS, 4, stream, &headers), Self::frame(0, 1, stream, &body)].concat()
    }

    fn reset(stream: u32) -> Vec<u8> {
        Self::frame(Self::RST_STREAM, 0, stream, &8_u32.to_be_bytes())
    }

    /// Sends the frames and a ping, and returns when weir has answered that, so that it has read them.
    async fn send(&mut self, mut frames: Vec<u8>) {
        frames.extend(Self::frame(Self::PING, 0, 0, b"all read"));
        self.0.write_all(&frames).await.expect("it takes them");
        self.read_until(|kind, flags| kind == Self::PING && flags == 1).await;
    }

    async fn read_until(&mut self, is_last: impl Fn(u8, u8) -> bool) {
        let read = async {
            let mut header = [0; 9];
            loop {
                self.0.read_exact(&mut header).await.expect("another frame");
                let mut payload = vec![0; u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize];
                self.0.read_exact(&mut payload).await.expect("a whole frame");
                assert_ne!(header[3], Self::GOAWAY, "{:?}", String::from_utf8_lossy(&payload));
                if is_last(header[3], header[4]) {
                    return;
                }
            }
        };
        timeout(DEADLINE, read).await.expect("in time");
    }
}

/// Writes calls and their resets in one go: weir reads both before it answers.
#[tokio::test]
async fn a_call_that_is_reset_before_its_answer_keeps_nothing() {
    let mut weir = Weir::start(RULES).await;
    let mut writer = FrameWriter::connect(&weir).await;
    let asked = request("shop", [user("acme"), descriptor([("tiers", "x")])]);
    let streams = (0..10).map(|call| 2 * call + 1);
    let calls = streams.flat_map(|stream| [FrameWriter::call(stream, &asked), FrameWriter::reset(stream)]);
    writer.send(calls.collect::<Vec<_>>().concat()).await;
    until("nothing is held", async || {
        metric(&weir, "", "user").await == 0 && metric(&weir, "", "tiers").await == 0
    })
    .await;
    assert!(begin(&mut weir, [user("acme")]).await.is_some());
    let undone = metric(&weir, "_undone_total", "user").await;
    assert!(undone > 0 && metric(&weir, "_started_total", "user").await == undone + 1, "{undone}");
}

#[tokio::test]
async fn a_call_whose_reset_crosses_the_answer_keeps_nothing() {
    let mut weir = Weir::start(RULES).await;
    let mut writer = FrameWriter::connect(&weir).await;
    for stream in [1, 3, 5] {
        writer.send(FrameWriter::call(stream, &request("shop", [user("acme")]))).await;
        until("it has begun", async || metric(&weir, "", "user").await == 1).await;
        writer.send(FrameWriter::reset(stream)).await;
        assert_eq!(metric(&weir, "", "user").await, 0);
    }
    assert_eq!(metric(&weir, "_undone_total", "user").await, 3);
    // what is reset has no name
    let check = request("shop", [hits(0, user("acme"))]);
    writer.send(FrameWriter::call(7, &check)).await;
    writer.send(FrameWriter::reset(7)).await;
    assert!(begin(&mut weir, [user("acme")]).await.is_some());
    assert_eq!(metric(&weir, "_undone_total", "user").await, 3);
}

#[tokio::test]
async fn a_cost_counts_although_its_call_is_reset() {
    let mut weir = Weir::start(RULES).await;
    let mut writer = FrameWriter::connect(&weir).await;
    let tokens = || descriptor([("tokens", "x")]);
    let first = begin(&mut weir, [hits(0, tokens())]).await.expect("room");
    begin(&mut weir, [hits(0, tokens())]).await.expect("room");
    for (stream, cost) in [(1, descriptor([("in_flight", &*first)])), (3, tokens())] {
        writer.send(FrameWriter::call(stream, &request("shop", [hits(300, cost)]))).await;
        writer.send(FrameWriter::reset(stream)).await;
    }
    drop(writer);
    let check = descriptor([("tokens", "x"), ("in_flight", "check")]);
    assert_eq!(gist(&weir.decide(request("shop", [check])).await), (Ok, vec![(Ok, 400)]));
}

#[tokio::test]
async fn a_caller_of_acquire_that_leaves_keeps_nothing() {
    let weir = Weir::start(RULES).await;
    let mut writer = FrameWriter::connect(&weir).await;
    let acquire = |stream| {
        let asked = AcquireRequest {
            domain: "shop".into(),
            entries: vec![Entry { key: "slow".into(), value: "x".into() }],
            max_wait: Some(prost_types::Duration { seconds: 60, nanos: 0 }),
            ..AcquireRequest::default()
        };
        FrameWriter::call_of("/weir.v1.Limiter/Acquire", stream, &asked)
    };
    // before its answer, and across it
    writer.send([acquire(1), FrameWriter::reset(1)].concat()).await;
    until("nothing is held", async || metric(&weir, "", "slow").await == 0).await;
    writer.send(acquire(3)).await;
    until("it has begun", async || metric(&weir, "", "slow").await == 1).await;
    // one that waits
    writer.send(acquire(5)).await;
    until("it waits", async || get(weir.addresses.http, "/metrics").await.contains("\nweir_waiters 1\n"))
        .await;
    writer.send(FrameWriter::reset(5)).await;
    until("it left", async || get(weir.addresses.http, "/metrics").await.contains("\nweir_waiters 0\n"))
        .await;
    assert_eq!(metric(&weir, "", "slow").await, 1);
    writer.send(FrameWriter::reset(3)).await;
    assert_eq!(metric(&weir, "", "slow").await, 0);
}

/// Whatever callers do, no more requests than the limit run, and the last end frees all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_than_the_limit_run() {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };
    const LIMIT: usize = 8;
    let rules = "domain: shop\ndescriptors:\n  - {key: user, rate_limit: {in_flight: 8}}\n";
    let weir = Weir::start(rules).await;
    let running = Arc::new(AtomicUsize::new(0));
    let mut callers = Vec::new();
    for caller in 0..40_u32 {
        let (mut client, running) = (weir.client.clone(), Arc::clone(&running));
        callers.push(tokio::spawn(async move {
            let (mut admitted, mut most) = (0_u32, 0);
            for turn in 0..50_u32 {
                let response =
                    client.should_rate_limit(request("shop", [user("x")])).await.expect("a response");
                let Some(name) = name(&response.into_inner()) else { continue };
                most = most.max(running.fetch_add(1, Ordering::SeqCst) + 1);
                admitted += 1;
                for _ in 0..(caller + turn) % 5 {
                    tokio::task::yield_now().await;
                }
                running.fetch_sub(1, Ordering::SeqCst);
                for _ in 0..=turn % 2 {
                    let end = request("shop", [descriptor([("in_flight", &*name)])]);
                    client.should_rate_limit(end).await.expect("a response");
                }
            }
            (admitted, most)
        }));
    }
    let (mut admitted, mut most) = (0, 0);
    for caller in callers {
        let (own, highest) = caller.await.expect("no panic");
        (admitted, most) = (admitted + own, most.max(highest));
    }
    assert!(most <= LIMIT && admitted > 100, "{most} at once, {admitted} in all");
    assert_eq!(
        (metric(&weir, "", "user").await, metric(&weir, "_started_total", "user").await),
        (0, admitted.into())
    );
}

/// A request ends at another instance than the one that has admitted it.
#[tokio::test]
async fn instances_share_places_through_redis() {
    let server = weir_testing::redis_server::Server::start();
    let url = format!("127.0.0.1:{}", server.port());
    // a busy machine delays replies
    let variables = [("BACKEND_TYPE", "redis"), ("REDIS_URL", &*url), ("WEIR_DECISION_BUDGET", "5s")];
    let mut one = Weir::start_with(RULES, &variables).await;
    let mut other = Weir::start_with(RULES, &variables).await;
    let first = begin(&mut one, [user("acme"), descriptor([("slow", "x")])]).await.expect("a place");
    assert!(begin(&mut other, [user("acme")]).await.is_some());
    for weir in [&mut one, &mut other] {
        assert_eq!(begin(weir, [user("acme")]).await, None);
        assert_eq!(begin(weir, [user("other"), descriptor([("slow", "x")])]).await, None);
    }
    let places = |path: &str| server.send::<usize>(&["ZCARD", &format!("{{{path}}}i")]);
    until("what was rejected keeps nothing", async || places("shop|user=other") == 0).await;
    assert_eq!((places("shop|user=acme"), places("shop|slow=x")), (2, 1));
    end(&mut other, &first).await;
    until("both places are free", async || (places("shop|user=acme"), places("shop|slow=x")) == (1, 0)).await;
    for weir in [&one, &other] {
        // one was not admitted after all
        let of = async |name| metric(weir, name, "user").await;
        assert_eq!((of("_started_total").await, of("_undone_total").await), (2, 1));
    }
    until("the end is counted", async || metric(&other, "_ended_total", "user").await == 1).await;
    assert!(begin(&mut one, [user("acme")]).await.is_some());
    // a check before a start
    for fits in [true, true, false] {
        let name = begin(&mut other, [hits(0, user("twice")), user("twice")]).await;
        assert_eq!(name.is_some(), fits);
    }
}
