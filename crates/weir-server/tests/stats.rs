//! The stats of requests, and their names.

mod support;

use std::sync::Arc;

use support::{Service, above, changed, descriptor, limited, node, rules, unlimited};
use weir_export::{
    prometheus::{MetricNames, render},
    snapshot::StatValue,
};
use weir_limit::{
    Descriptor, Hits, Limit, LimitCheck, Modes, OverLimitPolicy, Pattern, Period, Request, Reservation,
    ReservationRequest, RuleNode, RuntimeLimit, Scope, Tier, Timestamp, Unit, Values,
};
use weir_limiter::{DecisionSettings, Limiter};
use weir_observe::Stats;
use weir_store::{Decisions, Store, StoreError, TakeOptions};

fn rule_stats(service: &Service, path: &str) -> [u64; 5] {
    ["total_hits", "within_limit", "near_limit", "over_limit", "shadow_mode"].map(|stat| {
        let name = format!("ratelimit.service.rate_limit.{path}.{stat}");
        service.counter(&name).unwrap_or_else(|| panic!("there is no {name}"))
    })
}

#[tokio::test]
async fn hits_are_split_where_they_straddle_a_threshold() {
    let service = Service::new(vec![limited("tenant", "acme", 10)]);
    assert_eq!(rule_stats(&service, "shop.tenant_acme"), [0, 0, 0, 0, 0]);
    let acme = [("tenant", "acme")];
    // the near-limit threshold is 8
    for (hits, expected) in [
        (8, [8, 8, 0, 0, 0]),
        (1, [9, 9, 1, 0, 0]),
        (5, [14, 9, 2, 4, 0]),
        (2, [16, 9, 2, 6, 0]),
        (0, [16, 9, 2, 6, 0]),
    ] {
        service.decide(&acme, hits).await;
        assert_eq!(rule_stats(&service, "shop.tenant_acme"), expected, "after {hits} more");
    }
    assert_eq!(
        service.counter("ratelimit.service.rate_limit.shop.tenant_acme.over_limit_with_local_cache"),
        Some(0)
    );
}

/// Returns the series of descriptors that no rule matches, as they are on the page.
fn unmatched(service: &Service) -> Vec<String> {
    let page = render(&service.stats, &MetricNames::default());
    let series = page.lines().filter(|line| line.starts_with("weir_unmatched_descriptors_total"));
    series.map(|line| line["weir_unmatched_descriptors_total".len()..].to_owned()).collect()
}

#[tokio::test]
async fn descriptors_with_a_key_that_no_rule_has_are_counted_by_the_key() {
    let nested = above(limited("tenant", "", 10), vec![limited("path", "/slow", 5)]);
    let service = Service::new(vec![nested, limited("plan", "free", 5), node("declared", "")]);
    for known in [
        &[("tenant", "acme")][..],
        &[("tenant", "acme"), ("path", "/slow")],
        // no rule is for these values, and none needs to be
        &[("tenant", "acme"), ("path", "/fast")],
        &[("plan", "gold")],
        &[("declared", "without a limit")],
    ] {
        service.decide(known, 1).await;
    }
    assert!(unmatched(&service).is_empty(), "{:?}", unmatched(&service));
    for (entries, times) in [
        (&[("tennant", "secret")][..], 2),
        (&[("tenant", "acme"), ("pth", "secret"), ("more", "secret")], 1),
        // the rule ends before it
        (&[("plan", "free"), ("path", "secret")], 1),
    ] {
        for _ in 0..times {
            service.decide(entries, 1).await;
        }
    }
    let expected = [
        r#"{domain="shop",key="path"} 1"#,
        r#"{domain="shop",key="pth"} 1"#,
        r#"{domain="shop",key="tennant"} 2"#,
    ];
    let sorted = |service: &Service| {
        let mut series = unmatched(service);
        series.sort_unstable();
        series
    };
    assert_eq!(sorted(&service), expected);
    // several descriptors of a request, each by itself; an unknown domain has no keys
    for domain in ["shop", "shpo"] {
        let several = vec![descriptor(&[("plan", "free")], 1), descriptor(&[("pla", "free")], 1)];
        service.decide_all(domain, several).await;
    }
    assert_eq!(sorted(&service)[1], r#"{domain="shop",key="pla"} 1"#);
    assert_eq!(unmatched(&service).len(), 4);
    // keys are bounded, and those that nobody sends for an hour are forgotten
    for i in 0..1_100 {
        service.decide(&[(&*format!("k{i}"), "v")], 1).await;
    }
    assert_eq!(unmatched(&service).len(), 1_001);
    assert!(unmatched(&service).iter().any(|line| line == r#"{domain="_other",key="_other"} 104"#));
    for _ in 0..13 {
        service.stats.age_names();
    }
    assert_eq!(unmatched(&service), [r#"{domain="_other",key="_other"} 104"#]);
}

#[tokio::test]
async fn a_jump_over_both_thresholds_counts_on_both_sides() {
    let service = Service::new(vec![limited("tenant", "acme", 10)]);
    service.decide(&[("tenant", "acme")], 5).await;
    service.decide(&[("tenant", "acme")], 10).await;
    assert_eq!(rule_stats(&service, "shop.tenant_acme"), [15, 5, 2, 5, 0]);
}

/// A request chooses how many hits it has.
#[tokio::test]
async fn counts_stay_at_the_most_that_there_can_be() {
    let service = Service::new(vec![limited("tenant", "acme", 10)]);
    for hits in [5, u64::MAX, u64::MAX - 2, 7] {
        service.decide(&[("tenant", "acme")], hits).await;
    }
    assert_eq!(rule_stats(&service, "shop.tenant_acme"), [u64::MAX, 5, 2, u64::MAX, 0]);
}

#[tokio::test]
async fn the_near_limit_ratio_is_a_setting() {
    let settings = DecisionSettings { near_limit_ratio: 0.5, ..DecisionSettings::default() };
    let service = Service::with(vec![limited("tenant", "acme", 10)], Stats::default(), settings);
    service.decide(&[("tenant", "acme")], 6).await;
    assert_eq!(rule_stats(&service, "shop.tenant_acme"), [6, 6, 1, 0, 0]);
}

#[tokio::test]
async fn a_shadow_rule_counts_the_excess_that_it_admits() {
    let shadow = changed(limited("tenant", "acme", 2), |rule| rule.shadow_mode = true);
    let service = Service::new(vec![shadow]);
    service.decide(&[("tenant", "acme")], 2).await;
    assert_eq!(rule_stats(&service, "shop.tenant_acme")[4], 0);
    service.decide(&[("tenant", "acme")], 3).await;
    assert_eq!(rule_stats(&service, "shop.tenant_acme"), [5, 2, 1, 3, 3]);
}

#[tokio::test]
async fn global_shadow_mode_counts_requests() {
    let settings =
        DecisionSettings { modes: Modes { shadow: true, ..Modes::default() }, ..DecisionSettings::default() };
    let service = Service::with(vec![limited("tenant", "acme", 0)], Stats::default(), settings);
    let acme = || descriptor(&[("tenant", "acme")], 1);
    service.decide_all("shop", vec![acme(), acme()]).await;
    assert_eq!(service.counter("ratelimit.service.global_shadow_mode"), Some(1));
    assert_eq!(rule_stats(&service, "shop.tenant_acme"), [2, 0, 0, 2, 0]);
}

#[tokio::test]
async fn hits_that_are_given_back_are_not_counted_twice() {
    let service = Service::new(vec![limited("tenant", "acme", 10)]);
    service.decide(&[("tenant", "acme")], 4).await;
    let negative = "ratelimit.service.rate_limit.shop.tenant_acme.total_negative_hits";
    assert_eq!(service.counter(negative), None, "of most rules no hit is given back");
    let back = Descriptor { refund: true, ..descriptor(&[("tenant", "acme")], 3) };
    service.decide_all("shop", vec![back]).await;
    assert_eq!(rule_stats(&service, "shop.tenant_acme"), [4, 4, 0, 0, 0]);
    assert_eq!(service.counter(negative), Some(3));
    let page = render(&service.stats, &MetricNames::default());
    let line = r#"ratelimit_service_rate_limit_total_negative_hits{domain="shop",key1="tenant_acme"} 3"#;
    assert!(page.contains(line), "{page}");
}

#[tokio::test]
async fn dots_in_keys_and_values_are_steps_of_a_name_unless_they_are_replaced() {
    for (replaced, name) in [(false, "shop.host.name_a.example"), (true, "shop.host_name_a_example")] {
        let stats = Stats::default();
        if replaced {
            stats.replace_dots();
        }
        let rules = vec![limited("host.name", "a.example", 9)];
        let service = Service::with(rules, stats, DecisionSettings::default());
        service.decide(&[("host.name", "a.example")], 2).await;
        assert_eq!(service.hits(name), Some(2));
        let label = if replaced { "host_name_a_example" } else { "host.name_a.example" };
        let page = render(&service.stats, &MetricNames::default());
        for metric in ["ratelimit_service_rate_limit_total_hits", "weir_rule_limit"] {
            let series = format!(r#"{metric}{{domain="shop",key1="{label}""#);
            assert!(page.contains(&series), "{series}: {page}");
        }
    }
}

#[tokio::test]
async fn values_are_in_the_name_only_where_configured() {
    let detailed = |node: RuleNode| changed(node, |rule| rule.detailed_metric = true);
    let with_value = |node: RuleNode| RuleNode { value_to_metric: true, ..node };
    let shared = |node: RuleNode| RuleNode { share_threshold: true, ..node };
    let two = |above_it: RuleNode, leaf: RuleNode| above(above_it, vec![leaf]);
    for (rules, entries, name) in [
        (limited("tenant", "", 9), vec![("tenant", "acme")], "shop.tenant"),
        (limited("tenant", "a*", 9), vec![("tenant", "acme")], "shop.tenant_a*"),
        (detailed(limited("tenant", "", 9)), vec![("tenant", "acme")], "shop.tenant_acme"),
        (detailed(limited("tenant", "a*", 9)), vec![("tenant", "acme")], "shop.tenant_acme"),
        (with_value(limited("tenant", "", 9)), vec![("tenant", "acme")], "shop.tenant_acme"),
        (shared(detailed(limited("tenant", "a*", 9))), vec![("tenant", "acme")], "shop.tenant_a*"),
        (shared(with_value(limited("tenant", "a*", 9))), vec![("tenant", "acme")], "shop.tenant_a*"),
        (
            two(node("tenant", ""), detailed(limited("path", "/*", 9))),
            vec![("tenant", "acme"), ("path", "/x")],
            "shop.tenant_acme.path_/x",
        ),
        (
            two(with_value(node("tenant", "")), limited("path", "", 9)),
            vec![("tenant", "acme"), ("path", "/x")],
            "shop.tenant_acme.path",
        ),
        (
            two(shared(node("path", "/v1/*")), detailed(limited("method", "", 9))),
            vec![("path", "/v1/1"), ("method", "GET")],
            "shop.path_/v1/*.method_GET",
        ),
    ] {
        let service = Service::new(vec![rules]);
        service.decide(&entries, 3).await;
        assert_eq!(service.hits(name), Some(3), "{name}: {:?}", service.snapshot().keys());
    }
}

#[tokio::test]
async fn names_are_sanitized() {
    let detailed = changed(limited("peer", "", 9), |rule| rule.detailed_metric = true);
    let values = Values::Of(vec![Pattern::new("GET"), Pattern::new("HEAD")]);
    let service = Service::new(vec![detailed, RuleNode { values, ..limited("method", "", 9) }]);
    service.decide(&[("peer", "10.1.2.3:80|x")], 1).await;
    service.decide(&[("peer", "a\nshop.b:9|c")], 1).await;
    service.decide(&[("method", "HEAD")], 1).await;
    service.decide_all("10.0.0.1:no", vec![descriptor(&[("a", "b")], 1)]).await;
    assert_eq!(service.hits("shop.peer_10_1_2_3_80_x"), Some(1));
    assert_eq!(service.hits("shop.peer_a_shop.b_9_c"), Some(1));
    assert_eq!(service.hits("shop.method_GET_HEAD"), Some(1));
    assert_eq!(service.counter("ratelimit.service.rate_limit.10_0_0_1_no.domain_not_found"), Some(1));
}

#[tokio::test]
async fn an_override_has_its_own_name() {
    let service = Service::new(vec![limited("tenant", "", 9)]);
    let limit = Some(Box::new(RuntimeLimit::per_unit(1, Unit::Hour)));
    let overridden = Descriptor { limit, ..descriptor(&[("tenant", "acme"), ("plan", "")], 2) };
    service.decide_all("shop", vec![overridden]).await;
    assert_eq!(rule_stats(&service, "shop.tenant_acme.plan"), [2, 0, 1, 1, 0]);
}

#[tokio::test]
async fn past_the_bound_hits_count_under_the_rules_own_name() {
    let detailed = changed(limited("tenant", "", 9), |rule| rule.detailed_metric = true);
    let service = Service::with(vec![detailed], Stats::new(2), DecisionSettings::default());
    for tenant in ["a", "b", "c", "d", "a"] {
        service.decide(&[("tenant", tenant)], 1).await;
    }
    assert_eq!(service.hits("shop.tenant_a"), Some(2));
    assert_eq!(service.hits("shop.tenant_b"), Some(1));
    assert_eq!(service.hits("shop.tenant_c"), None);
    assert_eq!(service.hits("shop.tenant"), Some(2));
    let limit = Some(Box::new(RuntimeLimit::per_unit(1, Unit::Hour)));
    service.decide_all("shop", vec![Descriptor { limit, ..descriptor(&[("e", "")], 1) }]).await;
    assert_eq!(service.hits("shop.e"), None);
    assert_eq!(service.counter("weir.stat_names_rejected"), Some(3));
}

#[tokio::test]
async fn unlimited_requests_are_not_counted() {
    let service = Service::new(vec![unlimited("tenant", "acme"), node("free", "")]);
    service.decide(&[("tenant", "acme")], 5).await;
    service.decide(&[("free", "x")], 5).await;
    service.decide(&[("other", "x")], 5).await;
    assert_eq!(service.hits("shop.tenant_acme"), Some(0));
    assert_eq!(service.hits("shop.free"), None);
}

#[tokio::test]
async fn failed_requests_are_counted_by_the_side_at_fault() {
    struct Broken;
    impl Store for Broken {
        async fn take_with(
            &self,
            _: &[LimitCheck<'_>],
            _: Scope,
            _: Timestamp,
            _: TakeOptions<'_>,
        ) -> Result<Decisions, StoreError> {
            Err(StoreError::Unavailable("gone".to_owned()))
        }

        async fn reserve(
            &self,
            _: &LimitCheck<'_>,
            _: ReservationRequest,
            _: Timestamp,
        ) -> Result<Reservation, StoreError> {
            Err(StoreError::Unavailable("gone".to_owned()))
        }

        async fn release(
            &self,
            _: &LimitCheck<'_>,
            _: Reservation,
            _: Hits,
            _: Timestamp,
        ) -> Result<(), StoreError> {
            Err(StoreError::Unavailable("gone".to_owned()))
        }
    }

    let service = Service::empty(Stats::default(), DecisionSettings::default());
    service.decide(&[("a", "b")], 1).await;
    service.limiter.load(rules("shop", vec![limited("a", "", 1)]));
    service.decide_all("", vec![descriptor(&[("a", "b")], 1)]).await;
    service.decide_all("shop", vec![]).await;
    assert_eq!(service.counter("ratelimit.service.call.should_rate_limit.service_error"), Some(3));
    assert_eq!(service.counter("ratelimit.service.call.should_rate_limit.redis_error"), Some(0));

    let limiter = Limiter::new(Broken, Arc::clone(&service.stats), DecisionSettings::default());
    limiter.load(rules("shop", vec![limited("a", "", 1)]));
    let request = Request {
        domain: "shop",
        descriptors: vec![descriptor(&[("a", "b")], 1)].into(),
        ..Request::default()
    };
    assert!(limiter.decide(&request, Timestamp::from_secs(1), |_| ()).await.is_err());
    assert_eq!(service.counter("ratelimit.service.call.should_rate_limit.redis_error"), Some(1));
    let text = render(&service.stats, &MetricNames::default());
    for line in [
        r#"ratelimit_service_should_rate_limit_error{err_type="redis_error"} 1"#,
        r#"ratelimit_service_should_rate_limit_error{err_type="service_error"} 3"#,
    ] {
        assert!(text.lines().any(|has| has == line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn every_step_of_a_rule_is_a_label() {
    let deep = above(
        node("tenant", ""),
        vec![above(
            node("path", "/v1/a.b"),
            vec![above(node("method", "GET"), vec![limited("user", "", 1)])],
        )],
    );
    let service = Service::new(vec![deep, limited("quote", "a\"b\\c", 4)]);
    let entries = [("tenant", "acme"), ("path", "/v1/a.b"), ("method", "GET"), ("user", "u")];
    service.decide(&entries, 3).await;
    service.decide(&[("quote", "a\"b\\c")], 4).await;
    service.decide_all("nowhere", vec![descriptor(&[("a", "b")], 1), descriptor(&[("a", "b")], 1)]).await;
    let text = render(&service.stats, &MetricNames::default());
    let deep = r#"{domain="shop",key1="tenant",key2="path_/v1/a.b",key3="method_GET",key4="user"}"#;
    for line in [
        format!("ratelimit_service_rate_limit_total_hits{deep} 3"),
        format!("ratelimit_service_rate_limit_over_limit{deep} 2"),
        format!("ratelimit_service_rate_limit_near_limit{deep} 1"),
        format!("ratelimit_service_rate_limit_within_limit{deep} 0"),
        format!("ratelimit_service_rate_limit_shadow_mode{deep} 0"),
        format!("ratelimit_service_rate_limit_over_limit_with_local_cache{deep} 0"),
        r#"ratelimit_service_rate_limit_near_limit{domain="shop",key1="quote_a\"b\\c"} 1"#.to_owned(),
        r#"ratelimit_service_rate_limit_domain_not_found{domain="nowhere"} 2"#.to_owned(),
    ] {
        assert!(text.lines().any(|has| has == line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn the_memory_store_and_the_build_are_reported() {
    let service = Service::new(vec![limited("tenant", "", 9)]);
    service.decide(&[("tenant", "a")], 1).await;
    service.decide(&[("tenant", "b")], 1).await;
    service.stats.config_loaded_at.set(1_700_000_000);
    let snapshot = service.snapshot();
    assert_eq!(snapshot["weir.counters.live.memory"], StatValue::Gauge(2));
    assert_eq!(snapshot["weir.counters.max.memory"], StatValue::Gauge(1_000));
    assert_eq!(snapshot["weir.counters.evicted.memory.lost"], StatValue::Counter(0));
    assert_eq!(snapshot["weir.rules"], StatValue::Gauge(1));
    let text = render(&service.stats, &MetricNames::default());
    for line in [
        "# TYPE weir_counters_live gauge",
        r#"weir_counters_live{table="memory"} 2"#,
        "# TYPE weir_counters_expired_total counter",
        "weir_counters_expired_total 0",
        "weir_config_loaded_timestamp_seconds 1700000000",
        concat!("weir_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
    ] {
        assert!(text.lines().any(|has| has == line), "{line} is not in\n{text}");
    }
    service.limiter.store().sweep_step(0, Timestamp::from_secs(1_000));
    assert_eq!(service.snapshot()["weir.counters.expired"], StatValue::Counter(2));
}

#[test]
fn limits_of_the_current_rules_are_gauges() {
    let tiered = changed(limited("path", "/a:b", 1), |rule| {
        let tier = |requests, period| Tier::sliding_window(requests, period);
        rule.limit = Limit::Tiers {
            tiers: [tier(7, Period::from_millis(1_500)), tier(90, Period::from_secs(3_600))]
                .into_iter()
                .collect(),
            over_limit_policy: OverLimitPolicy::Ignore,
        };
    });
    let service = Service::new(vec![
        limited("tenant", "acme", 5),
        above(node("tenant", ""), vec![tiered]),
        unlimited("tenant", "free"),
    ]);
    let gauges = || -> Vec<String> {
        let text = render(&service.stats, &MetricNames::default());
        text.lines().filter(|line| line.starts_with("weir_rule_limit")).map(str::to_owned).collect()
    };
    assert_eq!(
        gauges(),
        [
            r#"weir_rule_limit{domain="shop",key1="tenant",key2="path_/a_b",per="1500ms"} 7"#,
            r#"weir_rule_limit{domain="shop",key1="tenant",key2="path_/a_b",per="1h"} 90"#,
            r#"weir_rule_limit{domain="shop",key1="tenant_acme",per="1m"} 5"#,
            r#"weir_rule_limit_period_seconds{domain="shop",key1="tenant",key2="path_/a_b",per="1500ms"} 1.5"#,
            r#"weir_rule_limit_period_seconds{domain="shop",key1="tenant",key2="path_/a_b",per="1h"} 3600"#,
            r#"weir_rule_limit_period_seconds{domain="shop",key1="tenant_acme",per="1m"} 60"#,
        ]
    );
    assert_eq!(service.snapshot()["weir.rule_limit.shop.tenant_acme.1m"], StatValue::Gauge(5));

    // a rule that is gone has no limit, though its counters stay
    service.limiter.load(rules("shop", vec![limited("tenant", "acme", 6)]));
    assert_eq!(gauges()[0], r#"weir_rule_limit{domain="shop",key1="tenant_acme",per="1m"} 6"#);
    assert_eq!(gauges().len(), 2);
}

/// The dashboard divides a value's hits by its limit, so both must have the same labels.
#[tokio::test]
async fn a_value_that_is_part_of_a_name_has_the_limit_of_its_rule() {
    let detailed = |requests| changed(limited("tenant", "", requests), |rule| rule.detailed_metric = true);
    let service = Service::new(vec![detailed(5)]);
    service.decide(&[("tenant", "acme")], 1).await;
    let gauges = || -> Vec<String> {
        let text = render(&service.stats, &MetricNames::default());
        let of_limits = |line: &&str| line.starts_with("weir_rule_limit{");
        text.lines().filter(of_limits).map(str::to_owned).collect()
    };
    assert_eq!(
        gauges(),
        [
            r#"weir_rule_limit{domain="shop",key1="tenant",per="1m"} 5"#,
            r#"weir_rule_limit{domain="shop",key1="tenant_acme",per="1m"} 5"#,
        ]
    );
    service.limiter.load(rules("shop", vec![detailed(6)]));
    assert_eq!(gauges()[1], r#"weir_rule_limit{domain="shop",key1="tenant_acme",per="1m"} 6"#);
    service.limiter.load(rules("shop", Vec::new()));
    assert_eq!(gauges(), [""; 0]);
}

/// `weir call` asks with such a limit whether a domain exists.
#[tokio::test]
async fn a_limit_of_a_request_makes_no_name_for_nothing() {
    let service = Service::new(vec![limited("tenant", "acme", 9)]);
    let own = RuntimeLimit::per_unit(1, Unit::Hour);
    for (hits, expected) in [(0, None), (2, Some(2))] {
        let limited = Descriptor { limit: Some(Box::new(own.clone())), ..descriptor(&[("k", "v")], hits) };
        service.decide_all("shop", vec![limited]).await;
        assert_eq!(service.hits("shop.k_v"), expected);
    }
}

#[test]
fn rules_of_one_name_have_one_limit_the_lowest() {
    let service = Service::new(vec![limited("tenant", "a:b", 9), limited("tenant", "a|b", 4)]);
    let text = render(&service.stats, &MetricNames::default());
    assert_eq!(text.matches("\nweir_rule_limit{").count(), 1);
    assert!(text.contains("\nweir_rule_limit{domain=\"shop\",key1=\"tenant_a_b\",per=\"1m\"} 4\n"), "{text}");
}

/// Checks a scraper's requirements on a page with all kinds of stats.
#[tokio::test]
async fn the_page_is_well_formed() {
    let service = Service::new(vec![limited("tenant", "", 9), limited("path", "/*", 9)]);
    service.decide(&[("tenant", "a")], 1).await;
    service.decide_all("nowhere", vec![descriptor(&[("a", "b")], 1)]).await;
    drop(service.stats.method("ShouldRateLimit").begin());
    let text = render(&service.stats, &MetricNames::default());
    assert!(text.ends_with('\n'));
    let (mut family, mut families, mut seen) = (String::new(), Vec::new(), Vec::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(!families.contains(&name), "{name} is there twice");
            name.clone_into(&mut family);
            families.push(name);
        } else if !line.starts_with("# HELP ") {
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert!(series.starts_with(&family), "{series} stands under {family}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(!seen.contains(&series), "{series} is there twice");
            seen.push(series);
        }
    }
    assert!(seen.len() > 40, "{text}");
}
