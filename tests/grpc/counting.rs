//! Counting, and rejecting past the limit.

use weir_limit::Period;
use weir_proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code::{Ok, OverLimit},
    RateLimit,
    rate_limit::Unit,
};

use crate::{
    in_process::{NOW, Weir, get},
    wire::{descriptor, gist, hits, limited, refund, request},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: hello
    rate_limit: { unit: minute, requests_per_unit: 3 }
  - key: tenant
    descriptors:
      - key: path
        rate_limit: { unit: hour, requests_per_unit: 2 }
  - key: open
  - key: free
    rate_limit: { unlimited: true }
  - key: closed
    rate_limit: { unit: day, requests_per_unit: 0 }
";

#[tokio::test]
async fn a_request_is_rejected_when_its_count_exceeds_the_limit() {
    let mut weir = Weir::start(RULES).await;
    let hello = || request("shop", [descriptor([("hello", "world")])]);
    for remaining in [2, 1, 0] {
        assert_eq!(gist(&weir.decide(hello()).await), (Ok, vec![(Ok, remaining)]));
    }
    let over = weir.decide(hello()).await;
    assert_eq!(gist(&over), (OverLimit, vec![(OverLimit, 0)]));
    let limit = over.statuses[0].current_limit.clone().expect("a limit is reported");
    assert_eq!((limit.requests_per_unit, limit.unit()), (3, Unit::Minute));
    let other = weir.decide(request("shop", [descriptor([("hello", "you")])])).await;
    assert_eq!(gist(&other), (Ok, vec![(Ok, 2)]), "another value has a counter of its own");
}

#[tokio::test]
async fn windows_are_aligned_to_the_epoch_and_report_their_end() {
    let mut weir = Weir::start(RULES).await;
    let both =
        || request("shop", [descriptor([("hello", "a")]), descriptor([("tenant", "t"), ("path", "/")])]);
    let resets =
        |response: &weir_proto::envoy::service::ratelimit::v3::RateLimitResponse| -> Vec<(i64, i32)> {
            let statuses = response.statuses.iter();
            statuses.map(|s| s.duration_until_reset.map_or((-1, 0), |d| (d.seconds, d.nanos))).collect()
        };
    assert_eq!(resets(&weir.decide(both()).await), [(30, 0), (1710, 0)]);
    weir.advance(29);
    let last = weir.decide(both()).await;
    assert_eq!((resets(&last), gist(&last).1), (vec![(1, 0), (1681, 0)], vec![(Ok, 1), (Ok, 0)]));
    weir.advance(1);
    let next = weir.decide(both()).await;
    assert_eq!(resets(&next), [(60, 0), (1680, 0)]);
    assert_eq!(gist(&next), (OverLimit, vec![(Ok, 2), (OverLimit, 0)]), "the minute is new, the hour is not");
}

#[tokio::test]
async fn the_reset_is_rounded_up_so_that_a_client_is_not_early() {
    let mut weir = Weir::start(RULES).await;
    weir.clock.advance(Period::from_millis(250));
    let hello = request("shop", [descriptor([("hello", "x")])]);
    let reset = weir.decide(hello).await.statuses[0].duration_until_reset.expect("there is a limit");
    assert_eq!((reset.seconds, reset.nanos), (30, 0), "29.75 s are left of the minute");
}

#[tokio::test]
async fn every_unit_has_its_length() {
    let units = ["second", "MINUTE", "Hour", "day", "week", "month", "year"];
    let rule = |unit| format!("  - key: {unit}\n    rate_limit: {{ unit: {unit}, requests_per_unit: 1 }}\n");
    let rules = units.map(rule).concat();
    let mut weir = Weir::start(&format!("domain: d\ndescriptors:\n{rules}")).await;
    let lengths = [1, 60, 3_600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400];
    let codes = [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];
    for ((unit, length), code) in units.into_iter().zip(lengths).zip(codes) {
        let response = weir.decide(request("d", [descriptor([(unit, "")])])).await;
        let status = &response.statuses[0];
        let reset = status.duration_until_reset.expect("there is a limit");
        assert_eq!(reset.seconds, i64::try_from(length - NOW % length).expect("it is short"), "{unit}");
        assert_eq!(status.current_limit.as_ref().map(RateLimit::unit), Some(code));
    }
}

#[tokio::test]
async fn hits_of_a_descriptor_win_and_the_default_is_one() {
    let mut weir = Weir::start(RULES).await;
    let hello = || descriptor([("hello", "x")]);
    let mut two = request("shop", [hello()]);
    two.hits_addend = 2;
    assert_eq!(gist(&weir.decide(two.clone()).await).1, [(Ok, 1)]);
    two.descriptors = vec![hits(1, hello())];
    assert_eq!(gist(&weir.decide(two.clone()).await).1, [(Ok, 0)], "the descriptor's own");
    two.descriptors = vec![hits(0, hello())];
    assert_eq!(gist(&weir.decide(two).await).1, [(Ok, 0)], "a check takes nothing, and passes at the limit");
    assert_eq!(gist(&weir.decide(request("shop", [hello()])).await).1, [(OverLimit, 0)]);
    let check = weir.decide(request("shop", [hits(0, hello())])).await;
    assert_eq!(gist(&check), (OverLimit, vec![(OverLimit, 0)]), "past the limit a check fails, too");
}

#[tokio::test]
async fn rejected_hits_count_by_default() {
    let mut weir = Weir::start(RULES).await;
    let hello = |n| request("shop", [hits(n, descriptor([("hello", "x")]))]);
    assert_eq!(gist(&weir.decide(hello(9)).await).1, [(OverLimit, 0)]);
    assert_eq!(gist(&weir.decide(hello(1)).await).1, [(OverLimit, 0)]);
}

#[tokio::test]
async fn hits_are_refunded_but_never_below_zero() {
    let mut weir = Weir::start(RULES).await;
    let hello = || descriptor([("hello", "x")]);
    weir.decide(request("shop", [hits(3, hello())])).await;
    let back = weir.decide(request("shop", [refund(2, hello())])).await;
    assert_eq!(gist(&back), (Ok, vec![(Ok, 2)]));
    let all = weir.decide(request("shop", [refund(99, hello())])).await;
    assert_eq!(gist(&all), (Ok, vec![(Ok, 3)]));
    assert_eq!(gist(&weir.decide(request("shop", [hits(3, hello())])).await).1, [(Ok, 0)]);
    assert_eq!(gist(&weir.decide(request("shop", [hello()])).await).1, [(OverLimit, 0)]);
}

#[tokio::test]
async fn requests_without_a_limit_pass() {
    let mut weir = Weir::start(RULES).await;
    for (domain, entries) in [
        ("shop", ("unknown", "x")),
        ("shop", ("open", "x")),
        ("shop", ("tenant", "t")),
        ("elsewhere", ("hello", "x")),
    ] {
        let response = weir.decide(request(domain, [descriptor([entries])])).await;
        assert_eq!(gist(&response), (Ok, vec![(Ok, 0)]), "{domain} {entries:?}");
        assert!(
            response.statuses[0].current_limit.is_none()
                && response.statuses[0].duration_until_reset.is_none()
        );
    }
    let free = weir.decide(request("shop", [descriptor([("free", "x")])])).await;
    assert_eq!(gist(&free), (Ok, vec![(Ok, u32::MAX)]));
    assert!(free.statuses[0].current_limit.is_none());
    let closed = weir.decide(request("shop", [descriptor([("closed", "x")])])).await;
    assert_eq!(gist(&closed), (OverLimit, vec![(OverLimit, 0)]));
    let none = weir.decide(request("shop", [descriptor([])])).await;
    assert_eq!(gist(&none), (Ok, vec![(Ok, 0)]), "no entries match nothing");
}

#[tokio::test]
async fn an_override_replaces_the_rules() {
    let rules = "
domain: shop
descriptors:
  - key: hello
    shadow_mode: true
    rate_limit: { name: greeting, unit: minute, requests_per_unit: 1 }
";
    let mut weir = Weir::start(rules).await;
    let own = || request("shop", [limited(2, Unit::Hour.into(), descriptor([("hello", "x")]))]);
    let first = weir.decide(own()).await;
    assert_eq!(gist(&first), (Ok, vec![(Ok, 1)]));
    let limit = first.statuses[0].current_limit.clone().expect("it has a limit");
    assert_eq!((limit.requests_per_unit, limit.unit(), limit.name.as_str()), (2, Unit::Hour, ""));
    weir.decide(own()).await;
    assert_eq!(
        gist(&weir.decide(own()).await),
        (OverLimit, vec![(OverLimit, 0)]),
        "shadow mode does not apply"
    );
    let nowhere = request("elsewhere", [limited(0, Unit::Hour.into(), descriptor([("hello", "x")]))]);
    assert_eq!(gist(&weir.decide(nowhere).await), (Ok, vec![(Ok, 0)]), "the domain must be known");
    let unmatched = request("shop", [limited(0, Unit::Hour.into(), descriptor([("any", "x")]))]);
    assert_eq!(
        gist(&weir.decide(unmatched).await),
        (OverLimit, vec![(OverLimit, 0)]),
        "a rule need not match"
    );
}

/// The rules and the picture of docs/rules.md.
#[tokio::test]
async fn all_or_nothing_is_a_property_of_a_domain() {
    let page = include_str!("../../docs/rules.md");
    let start = page.find("domain: mesh\nall_or_nothing: true\n").expect("the example");
    let whole = page[start..].split("```").next().expect("its text");
    let each = whole.replace("all_or_nothing: true\n", "");
    let both = || {
        let tenant = ("tenant", "acme");
        request("mesh", [descriptor([tenant]), descriptor([tenant, ("path", "/checkout")])])
    };
    for (rules, left) in [(each.as_str(), [4, 3, 2, 1, 0]), (whole, [4, 3, 3, 3, 3])] {
        let mut weir = Weir::start(rules).await;
        for (i, left) in left.into_iter().enumerate() {
            let code = if i < 2 { Ok } else { OverLimit };
            assert_eq!(gist(&weir.decide(both()).await).0, code, "{i}");
            // without counting
            let tenant = request("mesh", [hits(0, descriptor([("tenant", "acme")]))]);
            assert_eq!(gist(&weir.decide(tenant).await).1[0].1, left, "{i}: {rules}");
        }
    }
}

#[tokio::test]
async fn with_stop_increment_a_rejected_request_counts_nothing() {
    let two = || request("shop", [descriptor([("hello", "x")]), descriptor([("closed", "x")])]);
    let hello = || request("shop", [descriptor([("hello", "x")])]);
    let mut plain = Weir::start(RULES).await;
    plain.decide(two()).await;
    assert_eq!(gist(&plain.decide(hello()).await).1, [(Ok, 1)]);

    let mut weir = Weir::start_with(RULES, &[("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")]).await;
    for _ in 0..5 {
        assert_eq!(gist(&weir.decide(two()).await), (OverLimit, vec![(Ok, 3), (OverLimit, 0)]));
    }
    assert_eq!(gist(&weir.decide(hello()).await).1, [(Ok, 2)]);
}

/// A domain in which callers give nothing back, but for one rule.
const DENYING: &str = "
domain: shop
give_back: deny
descriptors:
  - key: denied
    rate_limit: { unit: hour, requests_per_unit: 9 }
  - key: allowed
    rate_limit: { requests: 9, per: 1h, give_back: allow }
  - key: shadowed
    rate_limit: { requests: 9, per: 1h, shadow: { requests: 1, per: 1h } }
";

#[tokio::test]
async fn hits_are_given_back_only_where_that_is_not_denied() {
    let mut weir = Weir::start(DENYING).await;
    let of = |key| descriptor([(key, "x")]);
    for (key, left) in [("denied", 4), ("allowed", 8), ("shadowed", 4)] {
        weir.decide(request("shop", [hits(5, of(key))])).await;
        let back = weir.decide(request("shop", [refund(4, of(key))])).await;
        assert_eq!(gist(&back), (Ok, vec![(Ok, left)]), "{key}");
    }
    // what the request is rejected by is not that it gives hits back
    weir.decide(request("shop", [hits(4, of("denied"))])).await;
    let both = weir.decide(request("shop", [refund(u64::MAX, of("denied")), of("allowed")])).await;
    assert_eq!(gist(&both), (Ok, vec![(Ok, 0), (Ok, 7)]));
    // nor does a limit of the request's own have them back
    let own = || limited(9, Unit::Hour.into(), of("own"));
    weir.decide(request("shop", [hits(5, own())])).await;
    assert_eq!(gist(&weir.decide(request("shop", [refund(4, own())])).await), (Ok, vec![(Ok, 4)]));
    let page = get(weir.addresses.debug, "/metrics").await;
    let series = |name: &str| -> Vec<String> {
        let lines =
            page.lines().filter_map(|line| line.strip_prefix(&format!("{name}{{domain=\"shop\",key1=")));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(series("weir_hits_returned_total"), [r#""allowed"} 4"#]);
    // of hits without end, as many as the limit has
    assert_eq!(
        series("weir_hits_return_denied_total"),
        [r#""denied"} 13"#, r#""own_x"} 4"#, r#""shadowed"} 4"#]
    );
    let page = get(weir.addresses.debug, "/rlconfig").await;
    let line = "shop.denied: unit=HOUR requests_per_unit=9, shadow_mode: false, quota_mode: false, give_back: deny\n";
    assert!(page.contains(line), "{page}");
    assert_eq!(page.matches("give_back").count(), 2, "{page}");
    let page = get(weir.addresses.debug, "/rules").await;
    assert_eq!(page.matches("  hits cannot be given back (give_back: deny)\n").count(), 2, "{page}");
}
