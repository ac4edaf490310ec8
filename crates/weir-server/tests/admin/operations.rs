//! What the operations say of the traffic.

use serde_json::{Value, json};
use weir_limit::{Algorithm, Bucket, Limit, OverLimitPolicy, Period, Refill, Tier};
use weir_limiter::DecisionSettings;
use weir_observe::{Stats, hot_keys::HotKeyValues};
use weir_server::http::admin::AdminSettings;

use crate::{
    client::{Admin, Ask, shown},
    support::{Service, above, changed, descriptor, limited, node, unlimited},
};

async fn get(admin: &Admin, path: &str) -> Value {
    let answer = admin.ask(&Ask::get(path)).await;
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    answer.json()
}

async fn why(admin: &Admin, body: &Value) -> Value {
    let ask = Ask::new("POST", "/v1/why").header("content-type: application/json");
    let answer = admin.ask(&ask.body(&body.to_string())).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

fn asks(tenant: &str) -> Value {
    json!({"domain": "shop", "descriptors": [{"entries": [{"key": "tenant", "value": tenant}]}]})
}

#[tokio::test]
async fn rules_have_what_they_have_seen() {
    let admin = Admin::start(AdminSettings::default()).await;
    let before = &get(&admin, "/v1/rules").await["items"][0];
    assert_eq!((&before["last_matched"], &before["totals"]["admitted"]), (&Value::Null, &json!(0)));
    for _ in 0..130 {
        admin.service.decide(&[("tenant", "acme")], 1).await;
    }
    admin.service.clock.advance(Period::from_secs(10));
    let rules = get(&admin, "/v1/rules?domain=shop").await;
    let rule = &rules["items"][0];
    assert_eq!(rule["rule"], "shop.tenant_acme");
    assert_eq!(rule["levels"], json!([{"key": "tenant", "values": ["acme"]}]));
    assert_eq!(rule["limit"], "100 requests per 1m");
    assert_eq!(rule["totals"], json!({"admitted": 100, "rejected": 30, "shadowed": 0}));
    assert_eq!(rule["rates"]["admitted_1m"], 10.0);
    assert_eq!(rule["rates"]["rejected_10m"], 3.0);
    assert_eq!(rule["fullest"]["entries"], json!([{"key": "tenant", "value": "acme"}]));
    assert_eq!(rule["fullest"]["used"], 1.0);
    assert!(rule["last_matched"].is_string(), "{rule}");
    assert_eq!(get(&admin, "/v1/rules?domain=none").await["items"], json!([]));
    let instance = get(&admin, "/v1/instance").await;
    assert_eq!(instance["rates"]["admitted_1m"], 10.0);
    assert_eq!((&instance["store"]["kind"], &instance["counters"]["held"]), (&json!("memory"), &json!(1)));
    assert_eq!(instance["access"]["by"], "loopback");
}

#[tokio::test]
async fn a_long_list_comes_in_parts() {
    let nodes: Vec<_> = (0..250).map(|i| limited("tenant", &format!("t{i:03}"), 5)).collect();
    let admin = Admin::of(shown(nodes), AdminSettings::default(), None).await;
    let (mut names, mut path) = (Vec::new(), "/v1/rules?limit=100".to_owned());
    loop {
        let part = get(&admin, &path).await;
        names.extend(part["items"].as_array().expect("a list").iter().map(|rule| rule["rule"].to_string()));
        let Some(next) = part["next"].as_str() else { break };
        path = format!("/v1/rules?limit=100&cursor={next}");
    }
    assert_eq!(names.len(), 250);
    assert!(names.is_sorted());
}

#[tokio::test]
async fn hot_keys_have_their_entries_and_masked_values_are_masked_everywhere() {
    for (values, shown) in [(HotKeyValues::Shown, "a,b=c"), (HotKeyValues::Masked, "***")] {
        let settings = DecisionSettings { hot_keys: values, ..DecisionSettings::default() };
        let service = Service::with(vec![limited("tenant", "", 10)], Stats::default(), settings);
        let admin = Admin::of(service, AdminSettings::default(), None).await;
        for _ in 0..15 {
            admin.service.decide(&[("tenant", "a,b=c")], 1).await;
        }
        let hot = get(&admin, "/v1/hot").await;
        let counter = &hot["items"][0];
        assert_eq!(counter["entries"], json!([{"key": "tenant", "value": shown}]), "{hot}");
        assert_eq!(
            (&counter["hits"], &counter["at_least"], &counter["at_most"]),
            (&json!(15), &json!(15), &json!(15))
        );
        assert_eq!(get(&admin, "/v1/hot?by=rejected").await["items"][0]["hits"], 5);
        for path in ["/v1/hot", "/v1/rules", "/v1/attention", "/v1/counters?domain=shop&below=true", "/hot"] {
            let answer = admin.ask(&Ask::get(path)).await;
            let has_value = answer.body.contains("a,b=c");
            assert!(values == HotKeyValues::Shown || !has_value, "{path}: {answer:?}");
        }
        // what the caller sends is no secret to it
        let view = get(&admin, "/v1/counters?domain=shop&entry=tenant%3Da%2Cb%3Dc").await;
        assert_eq!(view["items"][0]["entries"][0]["value"], "a,b=c");
        assert_eq!(view["items"][0]["number"], counter["number"]);
    }
}

#[tokio::test]
async fn a_counter_is_shown_tier_by_tier_and_a_look_counts_nothing() {
    let bucket = Bucket { burst: 8, refill: Refill::Continuous, strict: false };
    let tiers = [
        Tier::fixed_window(10, Period::from_secs(60)),
        Tier { algorithm: Algorithm::SlidingWindow, ..Tier::fixed_window(100, Period::from_secs(3_600)) },
        Tier::token_bucket(6, Period::from_secs(60), bucket),
    ];
    let rule = changed(limited("tenant", "", 1), |rule| {
        rule.limit =
            Limit::Tiers { tiers: tiers.into_iter().collect(), over_limit_policy: OverLimitPolicy::Ignore };
    });
    let admin = Admin::of(shown(vec![rule]), AdminSettings::default(), None).await;
    admin.service.decide(&[("tenant", "acme")], 7).await;
    let path = "/v1/counters?domain=shop&entry=tenant=acme";
    for _ in 0..20 {
        get(&admin, path).await;
        why(&admin, &asks("acme")).await;
    }
    let counter = &get(&admin, path).await["items"][0];
    let tiers: Vec<_> = (0..3)
        .map(|i| {
            let tier = &counter["tiers"][i];
            (tier["limit"].clone(), tier["used"].clone(), tier["remaining"].clone(), tier["is_over"].clone())
        })
        .collect();
    let expected = [(10, 7, 3), (100, 7, 93), (6, 7, 1)];
    assert_eq!(
        tiers,
        expected.map(|(limit, used, left)| (json!(limit), json!(used), json!(left), json!(false)))
    );
    assert_eq!(counter["tiers"][2]["burst"], 8);
    assert_eq!(counter["tiers"][0]["reset"], 48.0);
    assert_eq!((&counter["source"], &counter["mode"]), (&json!("memory"), &Value::Null));
    admin.service.decide(&[("tenant", "acme")], 1).await;
    let counter = &get(&admin, path).await["items"][0];
    assert_eq!(
        (&counter["tiers"][2]["remaining"], &counter["tiers"][2]["is_over"]),
        (&json!(0), &json!(true))
    );
    let unused = &get(&admin, "/v1/counters?domain=shop&entry=tenant=other").await["items"][0];
    assert_eq!(unused["tiers"][0]["used"], 0);
    assert_eq!(get(&admin, "/v1/instance").await["counters"]["held"], 3, "a look makes no counter");
}

/// The service then does what was said.
#[tokio::test]
async fn why_agrees_with_the_next_decision() {
    let nodes = vec![
        above(limited("tenant", "", 3), vec![limited("path", "/v1/*", 1)]),
        unlimited("free", ""),
        changed(limited("shadow", "", 1), |rule| rule.shadow_mode = true),
        node("bare", ""),
    ];
    let admin = Admin::of(shown(nodes), AdminSettings::default(), None).await;
    let cases: [&[(&str, &str)]; 7] = [
        &[("tenant", "acme")],
        &[("tenant", "acme"), ("path", "/v1/x")],
        &[("tenant", "acme"), ("path", "/v2/x")],
        &[("free", "x")],
        &[("shadow", "x")],
        &[("bare", "x")],
        &[("tennant", "x")],
    ];
    for round in 0..5 {
        for entries in cases {
            let listed: Vec<Value> =
                entries.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
            let told = why(&admin, &json!({"domain": "shop", "descriptors": [{"entries": listed}]})).await;
            let request = weir_limit::Request {
                domain: "shop",
                descriptors: std::iter::once(descriptor(entries, 1)).collect(),
                hits: 0,
            };
            let code = admin.service.limiter.decide_now(
                &request,
                weir_store::clock::Clock::now(&*admin.service.clock),
                |verdict| verdict.code,
            );
            let expected =
                if code.expect("a verdict") == weir_limit::Code::Ok { "admitted" } else { "rejected" };
            assert_eq!(told["verdict"], expected, "round {round}, {entries:?}: {told}");
        }
    }
    let told = why(
        &admin,
        &json!({"domain": "shop", "descriptors": [{"entries": [{"key": "tennant", "value": "x"}]}]}),
    )
    .await;
    let descriptor = &told["descriptors"][0];
    assert_eq!((&descriptor["verdict"], &descriptor["did_you_mean"]), (&json!("no_limit"), &json!("tenant")));
    assert_eq!(descriptor["steps"][0]["tried"][0]["words"], "key tennant, value x");
    let told = why(&admin, &asks("acme")).await;
    let sentence = told["descriptors"][0]["sentence"].as_str().expect("a sentence");
    assert!(
        sentence.starts_with("Rule shop.tenant rejects it: its limit of 3 requests per 1m is used up"),
        "{sentence}"
    );
}

#[tokio::test]
async fn a_line_of_the_log_finds_its_counter() {
    let admin = Admin::of(shown(vec![limited("tenant", "", 3)]), AdminSettings::default(), None).await;
    for _ in 0..5 {
        admin.service.decide(&[("tenant", "acme")], 1).await;
    }
    let line = |descriptor: &str| {
        json!({"line": format!(
            "2026-11-30T09:00:00.1Z WARN weir_server::rejections: rejected domain=shop rule=shop.tenant \
             descriptor={descriptor} hits=2 limit=3 requests per 1m retry_after=12.3s mode=default reason=limit"
        )})
    };
    let told = why(&admin, &line("tenant=acme")).await;
    assert_eq!((&told["verdict"], &told["logged"]["hits"]), (&json!("rejected"), &json!(2)));
    // by its number
    let hot = get(&admin, "/v1/hot").await;
    let number = hot["items"][0]["number"].as_str().expect("a number");
    let told = why(&admin, &line(&format!("tenant=*** #{number}"))).await;
    assert_eq!(told["descriptors"][0]["entries"][0]["value"], "acme");
    let ask = Ask::new("POST", "/v1/why").header("content-type: application/json");
    for (descriptor, expected) in [("tenant=*** #00000001", "WEIR_LOG_VALUES"), ("tenant=a…", "was cut")] {
        let answer = admin.ask(&ask.clone().body(&line(descriptor).to_string())).await;
        assert_eq!(answer.status, 404, "{answer:?}");
        assert!(answer.detail().contains(expected), "{answer:?}");
    }
}

#[tokio::test]
async fn what_needs_a_person_is_told_the_worst_first() {
    let nodes = vec![limited("tenant", "", 10), limited("never", "", 10)];
    let admin = Admin::of(shown(nodes), AdminSettings::default(), None).await;
    assert_eq!(get(&admin, "/v1/attention").await["items"], json!([]));
    for _ in 0..12 {
        admin.service.decide(&[("tenant", "<img onerror=alert(1)>\u{202e}\u{1b}[2J")], 1).await;
    }
    admin.service.decide(&[("tennant", "x")], 1).await;
    admin.service.decide_all("stop", vec![descriptor(&[("a", "b")], 1)]).await;
    admin.service.stats.config_rejected.set(1);
    let answer = admin.ask(&Ask::get("/v1/attention")).await;
    assert!(!answer.body.contains(['\u{202e}', '\u{1b}']), "{answer:?}");
    let kinds = |answer: &Value| -> Vec<(String, String)> {
        let items = answer["items"].as_array().expect("a list");
        let of = |item: &Value, name: &str| item[name].as_str().expect("text").to_owned();
        items.iter().map(|item| (of(item, "severity"), of(item, "kind"))).collect()
    };
    let found = kinds(&answer.json());
    let expected = [
        ("error", "rules_rejected"),
        ("warning", "near_limit"),
        ("warning", "unmatched_key"),
        ("warning", "unmatched_domain"),
    ];
    assert_eq!(found, expected.map(|(severity, kind)| (severity.to_owned(), kind.to_owned())), "{answer:?}");
    admin.service.clock.advance(Period::from_secs(601));
    let later = get(&admin, "/v1/attention").await;
    assert!(kinds(&later).contains(&("info".into(), "never_matched".into())), "{later}");
    assert!(
        later.to_string().contains("shop.never") && !later.to_string().contains("shop.tenant has matched")
    );
    let unmatched = get(&admin, "/v1/unmatched").await;
    assert_eq!(unmatched["items"].as_array().map(Vec::len), Some(2), "{unmatched}");
}

#[tokio::test]
async fn the_console_is_open_and_has_its_headers() {
    let admin = Admin::with_tokens(AdminSettings::default()).await;
    for (path, kind) in
        [("/", "text/html"), ("/console/app.js", "text/javascript"), ("/console/console.css", "text/css")]
    {
        let ask = Ask::get(path).from(crate::client::SIDECAR).host("weir.svc");
        let answer = admin.ask(&ask).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        for header in [
            &*format!("content-type: {kind}"),
            "content-security-policy: default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; \
             require-trusted-types-for 'script'",
            "referrer-policy: no-referrer",
            "x-content-type-options: nosniff",
        ] {
            assert!(answer.head.contains(header), "{header}: {answer:?}");
        }
        let tag = answer.head.split("etag: ").nth(1).and_then(|rest| rest.lines().next()).expect("a tag");
        assert_eq!(admin.status(&ask.header(&format!("if-none-match: {tag}"))).await, 304);
    }
}

/// Names that others choose: as long as a megabyte, and many.
#[tokio::test]
async fn long_names_and_many_rules_are_answered_within_bounds() {
    let nodes: Vec<_> = (0..10_000).map(|i| limited("tenant", &format!("t{i:05}"), 5)).collect();
    let admin =
        Admin::of(shown([nodes, vec![limited("long", "", 1)]].concat()), AdminSettings::default(), None)
            .await;
    let long = "<img src=x onerror=alert(1)>".repeat(40_000);
    for value in [&*long, &long[..4_096], &long[..100]] {
        admin.service.decide(&[("long", value)], 5).await;
    }
    for i in 0..2_000 {
        admin
            .service
            .decide_all(&format!("domain-{i}-{}", "x".repeat(100)), vec![descriptor(&[("a", "b")], 1)])
            .await;
    }
    let hot = get(&admin, "/v1/hot").await;
    let has_entries: Vec<bool> = hot["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|counter| counter["entries"].is_array())
        .collect();
    assert_eq!(has_entries.iter().filter(|has| **has).count(), 1, "{has_entries:?}");
    assert!(hot.to_string().len() < 5_000);
    let unmatched = get(&admin, "/v1/unmatched?limit=1000").await;
    assert_eq!(unmatched["items"].as_array().map(Vec::len), Some(1_000));
    assert_eq!(unmatched["items"][0]["domain"], "_other", "{}", unmatched["items"][0]);
    assert!(unmatched.to_string().len() < 200_000);
    let attention = get(&admin, "/v1/attention?limit=1000").await;
    assert!(attention["items"].as_array().is_some_and(|items| items.len() <= 1_000 && items.len() > 100));
    let (mut rules, mut path) = (0, "/v1/rules?limit=1000".to_owned());
    while rules < 20_000 {
        let part = get(&admin, &path).await;
        rules += part["items"].as_array().expect("a list").len();
        let Some(next) = part["next"].as_str() else { break };
        path = format!("/v1/rules?limit=1000&cursor={next}");
    }
    assert_eq!(rules, 10_001);
}
