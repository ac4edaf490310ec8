//! The HTTP servers, over real sockets.

mod support;

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use flate2::read::GzDecoder;
use serde_json::{Value, json};
use support::{
    Service, above, changed, descriptor, limited, node,
    test_server::{DEADLINE, TestServer},
    unlimited,
};
use tokio::time::timeout;
use weir_export::prometheus::{CONTENT_TYPE, MetricNames, TimeUnit};
use weir_limit::{
    Coordination, Domain, KeyHasher, Limit, Modes, NANOS_PER_SECOND, Origin, Period, RuleSet, Timestamp,
};
use weir_limiter::DecisionSettings;
use weir_observe::{Stats, hot_keys::HotKeyValues};
use weir_server::{
    Health,
    bounds::RequestBounds,
    headers::{HeaderNames, HeaderStyle, ResponseHeaders},
    health::Reason,
    http::{
        self, JsonAccess, Pages, ServiceContext,
        admin::{AdminParts, AdminSettings, Permission, ProcessFacts},
    },
};
use weir_store::{
    MemoryStore,
    clock::{Clock as _, SystemClock},
};

fn context(service: &Service) -> ServiceContext<MemoryStore> {
    ServiceContext {
        limiter: Arc::clone(&service.limiter),
        stats: Arc::clone(&service.stats),
        clock: Arc::clone(&service.clock) as _,
        health: Health::new(),
        headers: ResponseHeaders::default(),
        tracer: None,
        metric_names: MetricNames::default(),
        audit: Arc::default(),
    }
}

fn pages() -> Pages {
    Pages::new(Arc::default())
}

async fn server(service: &Service) -> TestServer {
    let router = http::router(&context(service), RequestBounds::default(), JsonAccess::Everybody, &pages());
    TestServer::start(router).await
}

async fn debug_server(service: &Service) -> TestServer {
    let permission = Permission::new(AdminSettings::default(), None, Arc::clone(&service.clock) as _);
    TestServer::start(http::debug_router(
        &context(service),
        &pages(),
        AdminParts { permission, facts: ProcessFacts::default(), more: Vec::new() },
    ))
    .await
}

const ACME: &str =
    r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "tenant", "value": "acme"}]}]}"#;

#[tokio::test]
async fn json_requests_are_admitted_until_the_limit_and_again_in_the_next_window() {
    let service = Service::new(vec![limited("tenant", "acme", 2)]);
    let server = server(&service).await;
    let limit = json!({"requestsPerUnit": 2, "unit": "MINUTE"});
    for (status, code, remaining) in [(200, "OK", Some(1)), (200, "OK", None), (429, "OVER_LIMIT", None)] {
        let response = server.json(ACME).await;
        assert_eq!(response.status, status, "{response:?}");
        assert!(response.head.contains("content-type: application/json"), "{response:?}");
        let mut expected = json!({"code": code, "currentLimit": limit, "durationUntilReset": "48s"});
        // protobuf's JSON mapping omits zeros
        if let Some(remaining) = remaining {
            expected["limitRemaining"] = remaining.into();
        }
        let body: Value = serde_json::from_str(&response.body).unwrap();
        assert_eq!(body, json!({"overallCode": code, "statuses": [expected]}));
    }
    service.clock.set(Timestamp::from_secs(12).after(Period::from_secs(48)));
    assert_eq!(server.json(ACME).await.status, 200);
}

#[tokio::test]
async fn every_field_of_a_request_is_understood() {
    let modes = Modes { metadata: true, ..Modes::default() };
    let settings = DecisionSettings { modes, ..DecisionSettings::default() };
    let service = Service::with(vec![unlimited("tenant", "")], Stats::default(), settings);
    let styles = vec![HeaderStyle::LimitRemainingReset(HeaderNames::default())];
    let context = ServiceContext { headers: ResponseHeaders { styles }, ..context(&service) };
    let router = http::router(&context, RequestBounds::default(), JsonAccess::Everybody, &pages());
    let server = TestServer::start(router).await;
    let request = json!({
        "domain": "shop",
        "hits_addend": 7,
        "descriptors": [
            {"entries": [{"key": "a", "value": "b"}], "limit": {"requestsPerUnit": 10, "unit": "HOUR"}},
            {"entries": [{"key": "a", "value": "b"}], "limit": {"requests_per_unit": 10, "unit": 3}, "hitsAddend": "2"},
            {"entries": [{"key": "a", "value": "b"}], "limit": {"requests_per_unit": 10, "unit": 3}, "hits_addend": 4,
             "isNegativeHits": true},
            {"entries": [{"key": "tenant"}]},
        ],
    });
    let response = server.json(&request.to_string()).await;
    assert_eq!(response.status, 200, "{response:?}");
    let body: Value = serde_json::from_str(&response.body).unwrap();
    let remaining: Vec<u64> =
        (0..4).map(|i| body["statuses"][i]["limitRemaining"].as_u64().unwrap_or_default()).collect();
    assert_eq!(remaining, [3, 1, 5, u64::from(u32::MAX)]);
    assert_eq!(body["dynamicMetadata"]["domain"], "shop");
    assert_eq!(body["responseHeadersToAdd"][0], json!({"key": "RateLimit-Limit", "value": "10"}));
}

#[tokio::test]
async fn invalid_requests_are_rejected_with_the_reason() {
    let service = Service::new(vec![limited("tenant", "acme", 2)]);
    let server = server(&service).await;
    let descriptor = r#"{"entries": [{"key": "tenant", "value": "acme"}]}"#;
    let nested = "[".repeat(100_000);
    let unit = r#"{"domain": "shop", "descriptors": [{"limit": {"unit": 99}}]}"#;
    for (body, reason) in [
        ("", "EOF"),
        ("{", "line 1"),
        ("[]", "RateLimitRequest"),
        ("null", "RateLimitRequest"),
        (nested.as_str(), "RateLimitRequest"),
        (r#"{"domain": "shop", "typo": 1}"#, "typo"),
        (r#"{"domain": 7}"#, "line 1"),
        (&format!("{ACME} {{}}"), "trailing"),
        ("{}", "rate limit domain must not be empty"),
        (r#"{"domain": "shop"}"#, "rate limit descriptor list must not be empty"),
        (&format!(r#"{{"descriptors": [{descriptor}]}}"#), "rate limit domain must not be empty"),
        (unit, "descriptor 0: the unit of its limit override is 99"),
    ] {
        let response = server.json(body).await;
        assert_eq!(response.status, 400, "{response:?}");
        assert!(response.body.contains(reason), "{} should say {reason}", response.body);
    }
    let response = server.send("POST", "/json", b"{\"domain\": \"\xff\"}").await;
    assert_eq!(response.status, 400, "{response:?}");
    assert_eq!(server.json(ACME).await.status, 200, "the server still serves");
}

#[tokio::test]
async fn without_rules_requests_are_rejected() {
    let service = Service::empty(Stats::default(), DecisionSettings::default());
    let response = server(&service).await.json(ACME).await;
    assert_eq!((response.status, response.body.trim_end()), (400, "no rate limit configuration loaded"));
}

#[tokio::test]
async fn large_bodies_other_methods_and_other_paths_are_rejected() {
    let service = Service::new(vec![limited("tenant", "acme", 2)]);
    let server = server(&service).await;
    assert_eq!(server.send("POST", "/json", &vec![b' '; (4 << 20) + 1]).await.status, 413);
    assert_eq!(server.get("/json").await.status, 405);
    assert_eq!(server.get("/nothing").await.status, 404);
}

/// The server has one thread, which would decode the bodies before it reads the next request.
#[tokio::test]
async fn large_bodies_do_not_delay_the_healthcheck() {
    let service = Service::new(vec![limited("tenant", "acme", 2)]);
    let server = server(&service).await;
    let address = server.address;
    let descriptors = vec![r#"{"entries": [{"key": "other", "value": "x"}]}"#; 9_000].join(",");
    let body = format!(r#"{{"domain": "shop", "descriptors": [{descriptors}]}}"#);
    let length = body.len();
    // all but the last byte
    let begin = move |request: String| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(&request.as_bytes()[..request.len() - 1]).unwrap();
        (stream, request.as_bytes()[request.len() - 1])
    };
    let begin_all = move || {
        let head = |request: &str| format!("{request} HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n");
        let large = |_| begin(format!("{}content-length: {length}\r\n\r\n{body}", head("POST /json")));
        let mut open: Vec<_> = (0..4).map(large).collect();
        open.push(begin(head("GET /healthcheck") + "\r\n"));
        open
    };
    let mut open = tokio::task::spawn_blocking(begin_all).await.unwrap();
    // the server has read what there is of each body, and a buffer that grows is as large again
    server.until_held(4 * 2 * (length as u64 - 1)).await;
    let end_all = move || {
        for (stream, last) in &mut open {
            stream.write_all(&[*last]).unwrap();
        }
        let answered = |(mut stream, _): (TcpStream, u8)| {
            thread::spawn(move || {
                let mut response = String::new();
                stream.read_to_string(&mut response).unwrap();
                assert!(response.starts_with("HTTP/1.1 200"), "{response}");
                Instant::now()
            })
        };
        let answered: Vec<_> = open.into_iter().map(answered).collect();
        answered.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    };
    let answered = tokio::task::spawn_blocking(end_all).await.unwrap();
    let last = answered[..4].iter().max().unwrap();
    assert!(answered[4] < *last, "health was answered after all bodies were decoded");
}

#[tokio::test]
async fn the_healthcheck_follows_health() {
    let service = Service::new(Vec::new());
    let context = context(&service);
    let health = context.health.clone();
    let router = http::router(&context, RequestBounds::default(), JsonAccess::Everybody, &pages());
    let server = TestServer::start(router).await;
    let response = server.get("/healthcheck").await;
    assert_eq!((response.status, response.body.as_str()), (200, "OK"));
    health.fail(Reason::Stopping);
    let response = server.get("/healthcheck").await;
    assert_eq!((response.status, response.body.as_str()), (500, "stopping"));
    health.ok(Reason::Stopping);
    assert_eq!(server.get("/healthcheck").await.status, 200);
}

#[tokio::test]
async fn metrics_are_on_every_port() {
    let service = Service::new(vec![limited("tenant", "acme", 2)]);
    let main = server(&service).await;
    main.json(ACME).await;
    let debug = debug_server(&service).await;
    let elsewhere = http::metrics_router(
        &service.stats,
        "/my/{metrics".to_owned(),
        MetricNames::Reference(TimeUnit::Milliseconds),
        &pages(),
    );
    let elsewhere = TestServer::start(elsewhere).await;
    for (server, path) in [(&main, "/metrics"), (&debug, "/metrics"), (&elsewhere, "/my/{metrics")] {
        let response = server.get(path).await;
        assert_eq!(response.status, 200);
        assert!(response.head.contains(&format!("content-type: {CONTENT_TYPE}")), "{}", response.head);
        for line in [
            r#"ratelimit_service_rate_limit_total_hits{domain="shop",key1="tenant_acme"} 1"#,
            r#"ratelimit_service_total_requests{grpc_method="json"} 1"#,
            r#"ratelimit_service_response_time_seconds_count{grpc_method="json"} 1"#,
        ] {
            assert!(response.body.lines().any(|has| has == line), "{line} is not in\n{}", response.body);
        }
    }
    assert_eq!(elsewhere.get("/metrics").await.status, 404);
}

#[tokio::test]
async fn metrics_are_compressed_on_request() {
    let service = Service::new(vec![limited("tenant", "acme", 2)]);
    for server in [server(&service).await, debug_server(&service).await] {
        let plain = server.request("GET", "/metrics", "accept-encoding: gzip;q=0\r\n", b"").await;
        assert!(!plain.head.contains("content-encoding"), "{}", plain.head);
        let packed = server.request("GET", "/metrics", "Accept-Encoding: deflate, gzip;q=0.5\r\n", b"").await;
        assert!(packed.head.contains("content-encoding: gzip"), "{}", packed.head);
        assert!(packed.head.contains(&format!("content-type: {CONTENT_TYPE}")), "{}", packed.head);
        let mut text = String::new();
        GzDecoder::new(packed.bytes.as_slice()).read_to_string(&mut text).expect("gzip");
        assert!(text.contains("ratelimit_service_rate_limit_total_hits{"), "{text}");
        assert!(packed.bytes.len() * 3 < text.len(), "{} of {}", packed.bytes.len(), text.len());
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn metrics_include_those_of_the_process() {
    let page = server(&Service::new(Vec::new())).await.get("/metrics").await.body;
    let value = |name: &str| -> f64 {
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {page}")).parse().expect("a number")
    };
    let now = SystemClock.now().as_nanos() / NANOS_PER_SECOND;
    let age = f64::from(u32::try_from(now).unwrap()) - value("process_start_time_seconds");
    assert!((-2.0..600.0).contains(&age), "{age}");
    assert!((0.0..600.0).contains(&value("process_cpu_seconds_total")));
    assert!(value("process_resident_memory_bytes") > 1e6);
    assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
    assert!(value("process_threads") >= 1.0);
    assert!(value("process_open_fds") >= 3.0 && value("process_open_fds") <= value("process_max_fds"));
}

#[tokio::test]
async fn the_paths_of_gos_profiles_point_to_the_documentation() {
    let server = debug_server(&Service::new(Vec::new())).await;
    for path in ["/debug/pprof", "/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile?seconds=5"] {
        let response = server.get(path).await;
        assert_eq!(response.status, 404, "{path}");
        assert!(response.body.contains("docs/operations.md"), "{path}: {}", response.body);
    }
}

#[tokio::test]
async fn the_debug_port_has_its_pages() {
    let service = Service::new(vec![limited("tenant", "acme", 2)]);
    let server = debug_server(&service).await;
    for page in ["/", "/hot", "/metrics", "/rlconfig", "/rules", "/stats"] {
        assert_eq!(server.get(page).await.status, 200, "{page}");
    }
}

#[tokio::test]
async fn stats_are_a_sorted_line_each() {
    let service = Service::new(vec![limited("tenant", "acme", 2)]);
    service.decide(&[("tenant", "acme")], 3).await;
    service.stats.method("ShouldRateLimit").record(1, Duration::from_micros(1_500));
    let body = debug_server(&service).await.get("/stats").await.body;
    let lines: Vec<&str> = body.lines().collect();
    assert!(lines.is_sorted(), "{body}");
    for line in [
        "ratelimit.service.rate_limit.shop.tenant_acme.over_limit: 1",
        "ratelimit.service.config_load_success: 0",
        "ratelimit_server.ShouldRateLimit.total_requests: 1",
        "ratelimit_server.ShouldRateLimit.response_time.count: 1",
        "ratelimit_server.ShouldRateLimit.response_time.sum_ms: 1.500",
        "weir.counters.live.memory: 1",
    ] {
        assert!(lines.contains(&line), "{line} is not in\n{body}");
    }
}

#[tokio::test]
async fn the_rules_are_dumped_in_their_order_as_they_are_now() {
    let quota = changed(limited("tenant", "acme", 3), |rule| {
        rule.quota_mode = true;
    });
    let service = Service::empty(Stats::default(), DecisionSettings::default());
    let server = debug_server(&service).await;
    let response = server.get("/rlconfig").await;
    assert_eq!((response.status, response.body.as_str()), (200, ""));
    service.limiter.load(support::rules(
        "shop",
        vec![
            quota,
            above(node("path", "/*"), vec![unlimited("method", "GET")]),
            limited("ip", "10.0.0.1", 1),
        ],
    ));
    assert_eq!(
        server.get("/rlconfig").await.body,
        "shop.tenant_acme: unit=MINUTE requests_per_unit=3, shadow_mode: false, quota_mode: true\n\
         shop.path_/*.method_GET: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false\n\
         shop.ip_10.0.0.1: unit=MINUTE requests_per_unit=1, shadow_mode: false, quota_mode: false\n"
    );
}

#[tokio::test]
async fn the_rules_are_described_in_words_and_as_json() {
    let named = changed(limited("tenant", "acme", 3), |rule| {
        rule.name = Some("gold".into());
        rule.replaces = vec!["everyone".into()];
        rule.shadow_mode = true;
        rule.coordination.mode = Some(Coordination::Strict);
        rule.shadow = Some(Limit::fixed_window(2, Period::from_secs(60)));
        rule.origin = Origin { file: "rules/a\nb.yaml".into(), line: 7, column: 5 };
    });
    let service = Service::new(vec![named, above(node("path", "/*"), vec![unlimited("method", "GET")])]);
    let server = debug_server(&service).await;
    let text = server.get("/rules").await;
    assert!(text.head.contains("content-type: text/plain"), "{}", text.head);
    assert_eq!(
        text.body,
        "rule shop.tenant_acme
  declared at rules/a\\nb.yaml:7:5
  3 requests per 1m
  with Redis: strict
  while Redis does not answer: local
  now: local, since no shared store is set
  in its shadow (weir_shadow_over_limit_total counts what it would reject):
    2 requests per 1m
    with Redis: strict
  name: gold
  replaces: everyone
  shadow_mode

rule shop.path_/*.method_GET
  declared at 
  unlimited
"
    );
    let json = server.request("GET", "/rules", "accept: text/html, application/json;q=0.9\r\n", b"").await;
    assert!(json.head.contains("content-type: application/json"), "{}", json.head);
    let rules: serde_json::Value = serde_json::from_str(&json.body).expect("JSON");
    let (first, second) = (&rules[0], &rules[1]);
    assert_eq!(
        first["tiers"][0],
        serde_json::json!({"requests": 3, "per": "1m", "algorithm": "fixed_window"})
    );
    assert_eq!(
        (&first["shadow"], &second["shadow"]),
        (
            &serde_json::json!([{"requests": 2, "per": "1m", "algorithm": "fixed_window"}]),
            &serde_json::Value::Null
        )
    );
    assert_eq!(first["declared_at"]["line"], 7);
    assert_eq!(
        (&first["coordination"]["requested"], &first["coordination"]["now"]),
        (&"strict".into(), &"local".into())
    );
    assert_eq!((&first["rejected_requests_count"], &first["shadow_mode"]), (&true.into(), &true.into()));
    assert_eq!((&second["unlimited"], &second["tiers"]), (&true.into(), &serde_json::json!([])));
    assert_eq!(
        second["descriptor"],
        serde_json::json!([{"key": "path", "value": "/*"}, {"key": "method", "value": "GET"}])
    );
}

#[tokio::test]
async fn the_hottest_keys_are_on_a_page() {
    for (hot_keys, [named, masked, off]) in [
        (HotKeyValues::Shown, [true, false, false]),
        (HotKeyValues::Masked, [false, true, false]),
        (HotKeyValues::Off, [false, false, true]),
    ] {
        let settings = DecisionSettings { hot_keys, ..DecisionSettings::default() };
        let service = Service::with(vec![limited("tenant", "", 4)], Stats::default(), settings);
        for tenant in ["acme", "acme", "acme", "acme", "acme", "globex"] {
            service.decide(&[("tenant", tenant)], 1).await;
        }
        let server = debug_server(&service).await;
        let page = server.get("/hot").await.body;
        assert_eq!(page.contains("shop.tenant tenant=acme\n"), named, "{page}");
        assert_eq!(page.contains("shop.tenant tenant=*** #"), masked, "{page}");
        assert_eq!(page.contains("hot keys are off"), off, "{page}");
        let json = server.request("GET", "/hot", "accept: application/json\r\n", b"").await;
        assert!(json.head.contains("content-type: application/json"), "{}", json.head);
        let json: serde_json::Value = serde_json::from_str(&json.body).expect("valid JSON");
        assert_eq!(json["enabled"], !off, "{json}");
        if named {
            let first = &json["tables"][0];
            assert_eq!((&first["by"], &first["minutes"]), (&"hits".into(), &1.into()), "{json}");
            let counter = &first["counters"][0];
            assert_eq!(
                (&counter["name"], &counter["hits"]),
                (&"shop.tenant tenant=acme".into(), &5.into()),
                "{json}"
            );
        }
        if named {
            let lines: Vec<Vec<&str>> = page.lines().map(|line| line.split_whitespace().collect()).collect();
            let first = |title: &str| {
                let at = page.lines().position(|line| line == title).expect("the table");
                &lines[at + 2]
            };
            let acme = ["0", "100", "%", "shop.tenant", "tenant=acme"];
            assert_eq!(first("hits of the last minute")[..], [&["5"], &acme[..]].concat());
            assert_eq!(first("rejected hits of the last 10 minutes")[..], [&["1"], &acme[..]].concat());
        }
    }
}

/// Rules of two domains may have the same name.
#[tokio::test]
async fn the_hottest_keys_are_named_with_their_domain() {
    let settings = DecisionSettings { hot_keys: HotKeyValues::Shown, ..DecisionSettings::default() };
    let service = Service::empty(Stats::default(), settings);
    let named = || changed(limited("tenant", "", 4), |rule| rule.name = Some("per-tenant".into()));
    let domains = ["shop", "mesh"].map(|name| Domain::new(name, vec![named()]));
    service.limiter.load(RuleSet::new(&domains, KeyHasher::random()));
    for domain in ["shop", "mesh"] {
        service.decide_all(domain, vec![descriptor(&[("tenant", "acme")], 1)]).await;
    }
    let page = debug_server(&service).await.get("/hot").await.body;
    for domain in ["shop", "mesh"] {
        let line = format!("{domain}.tenant (per-tenant) tenant=acme\n");
        assert!(page.contains(&line), "{line}: {page}");
    }
}

#[tokio::test]
async fn a_stop_completes_open_requests() {
    let service = Service::new(vec![limited("tenant", "acme", 2)]);
    let server = server(&service).await;
    let address = server.address;
    let mut begun = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let length = ACME.len();
        write!(
            stream,
            "POST /json HTTP/1.1\r\nhost: weir\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
        )
        .unwrap();
        // the server requests the body once it handles the request
        let mut received = Vec::new();
        while !received.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            received.push(byte[0]);
        }
        assert!(received.starts_with(b"HTTP/1.1 100"));
        stream
    })
    .await
    .unwrap();
    let TestServer { stop, running, .. } = server;
    stop.send(()).unwrap();
    let response = tokio::task::spawn_blocking(move || {
        begun.write_all(ACME.as_bytes()).unwrap();
        let mut response = String::new();
        begun.read_to_string(&mut response).unwrap();
        response
    })
    .await
    .unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    timeout(DEADLINE, running).await.expect("it ends").unwrap().unwrap();
    assert!(TcpStream::connect(address).is_err(), "the port is closed");
}
