//! The HTTP doors, over real sockets.

mod stats_support;

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use axum::Router;
use serde_json::{Value, json};
use stats_support::{Service, above, changed, limited, node, unlimited};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle, time::timeout};
use weir::{
    DecisionSettings,
    limit::{Modes, Period, Timestamp},
    observe::{
        Health, Stats,
        health::Reason,
        prometheus::{CONTENT_TYPE, TimeUnit},
    },
    server::{
        headers::{HeaderNames, HeaderStyle, ResponseHeaders},
        http::{self, Context},
    },
    store::MemoryStore,
};

const DEADLINE: Duration = Duration::from_secs(20);

struct Door {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    running: JoinHandle<std::io::Result<()>>,
}

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Door {
    async fn open(router: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(http::serve(listener, router, async {
            let _ = stopped.await;
        }));
        Self { address, stop, running }
    }

    /// A whole request on a connection of its own.
    async fn send(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: weir\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let (address, request) = (self.address, [head.as_bytes(), body].concat());
        let exchange = move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            // a server that refuses a body answers before it has read all of it
            let _ = stream.write_all(&request);
            let (mut answer, mut bytes) = (Vec::new(), [0; 4096]);
            while let Ok(read @ 1..) = stream.read(&mut bytes) {
                answer.extend_from_slice(&bytes[..read]);
            }
            String::from_utf8(answer).unwrap()
        };
        let answer = tokio::task::spawn_blocking(exchange).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_lowercase(), body: body.to_owned() }
    }

    async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, b"").await
    }

    async fn json(&self, body: &str) -> Answer {
        self.send("POST", "/json", body.as_bytes()).await
    }
}

fn context(service: &Service) -> Context<MemoryStore> {
    Context {
        limiter: Arc::clone(&service.limiter),
        stats: Arc::clone(&service.stats),
        clock: Arc::clone(&service.clock) as _,
        health: Health::new(),
        headers: ResponseHeaders::default(),
        time_unit: TimeUnit::Seconds,
    }
}

async fn door(service: &Service) -> Door {
    Door::open(http::router(&context(service))).await
}

async fn debug_door(service: &Service) -> Door {
    Door::open(http::debug_router(&context(service))).await
}

const ACME: &str =
    r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "tenant", "value": "acme"}]}]}"#;

#[tokio::test]
async fn json_is_decided_until_the_limit_and_again_in_the_next_window() {
    let service = Service::new(vec![limited("tenant", "acme", 2)]);
    let door = door(&service).await;
    let limit = json!({"requestsPerUnit": 2, "unit": "MINUTE"});
    for (status, code, remaining) in [(200, "OK", Some(1)), (200, "OK", None), (429, "OVER_LIMIT", None)] {
        let answer = door.json(ACME).await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.head.contains("content-type: application/json"), "{answer:?}");
        let mut expected = json!({"code": code, "currentLimit": limit, "durationUntilReset": "48s"});
        // zeros are left out, as protobuf's mapping says
        if let Some(remaining) = remaining {
            expected["limitRemaining"] = remaining.into();
        }
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(body, json!({"overallCode": code, "statuses": [expected]}));
    }
    service.clock.set(Timestamp::from_secs(12).after(Period::from_secs(48)));
    assert_eq!(door.json(ACME).await.status, 200);
}

#[tokio::test]
async fn every_field_of_a_request_is_understood() {
    let modes = Modes { metadata: true, ..Modes::default() };
    let settings = DecisionSettings { modes, ..DecisionSettings::default() };
    let service = Service::with(vec![unlimited("tenant", "")], Stats::default(), settings);
    let styles = vec![HeaderStyle::LimitRemainingReset(HeaderNames::default())];
    let context = Context { headers: ResponseHeaders { styles }, ..context(&service) };
    let door = Door::open(http::router(&context)).await;
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
    let answer = door.json(&request.to_string()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    let remaining: Vec<u64> =
        (0..4).map(|i| body["statuses"][i]["limitRemaining"].as_u64().unwrap_or_default()).collect();
    assert_eq!(remaining, [3, 1, 5, u64::from(u32::MAX)]);
    assert_eq!(body["dynamicMetadata"]["domain"], "shop");
    assert_eq!(body["responseHeadersToAdd"][0], json!({"key": "RateLimit-Limit", "value": "10"}));
}

#[tokio::test]
async fn what_is_no_request_is_refused_with_the_reason() {
    let service = Service::new(vec![limited("tenant", "acme", 2)]);
    let door = door(&service).await;
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
        let answer = door.json(body).await;
        assert_eq!(answer.status, 400, "{answer:?}");
        assert!(answer.body.contains(reason), "{} should say {reason}", answer.body);
    }
    let answer = door.send("POST", "/json", b"{\"domain\": \"\xff\"}").await;
    assert_eq!(answer.status, 400, "{answer:?}");
    assert_eq!(door.json(ACME).await.status, 200, "the door is still open");
}

#[tokio::test]
async fn without_rules_requests_are_refused() {
    let service = Service::empty(Stats::default(), DecisionSettings::default());
    let answer = door(&service).await.json(ACME).await;
    assert_eq!((answer.status, answer.body.trim_end()), (400, "no rate limit configuration loaded"));
}

#[tokio::test]
async fn large_bodies_other_methods_and_other_paths_are_refused() {
    let service = Service::new(vec![limited("tenant", "acme", 2)]);
    let door = door(&service).await;
    assert_eq!(door.send("POST", "/json", &vec![b' '; (4 << 20) + 1]).await.status, 413);
    assert_eq!(door.get("/json").await.status, 405);
    assert_eq!(door.get("/nothing").await.status, 404);
}

#[tokio::test]
async fn the_healthcheck_follows_health() {
    let service = Service::new(Vec::new());
    let context = context(&service);
    let health = context.health.clone();
    let door = Door::open(http::router(&context)).await;
    let answer = door.get("/healthcheck").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "OK"));
    health.fail(Reason::Stopping);
    let answer = door.get("/healthcheck").await;
    assert_eq!((answer.status, answer.body.as_str()), (500, "stopping"));
    health.ok(Reason::Stopping);
    assert_eq!(door.get("/healthcheck").await.status, 200);
}

#[tokio::test]
async fn metrics_are_on_every_port() {
    let service = Service::new(vec![limited("tenant", "acme", 2)]);
    let main = door(&service).await;
    main.json(ACME).await;
    let debug = debug_door(&service).await;
    let elsewhere = http::metrics_router(&service.stats, "/my/{metrics".to_owned(), TimeUnit::Milliseconds);
    let elsewhere = Door::open(elsewhere).await;
    for (door, path) in [(&main, "/metrics"), (&debug, "/metrics"), (&elsewhere, "/my/{metrics")] {
        let answer = door.get(path).await;
        assert_eq!(answer.status, 200);
        assert!(answer.head.contains(&format!("content-type: {CONTENT_TYPE}")), "{}", answer.head);
        for line in [
            r#"ratelimit_service_rate_limit_total_hits{domain="shop",key1="tenant_acme"} 1"#,
            r#"ratelimit_service_total_requests{grpc_method="json"} 1"#,
            r#"ratelimit_service_response_time_seconds_count{grpc_method="json"} 1"#,
        ] {
            assert!(answer.body.lines().any(|has| has == line), "{line} is not in\n{}", answer.body);
        }
    }
    assert_eq!(elsewhere.get("/metrics").await.status, 404);
}

#[tokio::test]
async fn the_debug_port_lists_its_pages() {
    let service = Service::new(Vec::new());
    let door = debug_door(&service).await;
    let answer = door.get("/").await;
    assert_eq!(answer.status, 200);
    let mut pages = 0;
    for line in answer.body.lines() {
        let (path, help) = line.split_once(": ").unwrap();
        assert!(!help.is_empty());
        assert_eq!(door.get(path).await.status, 200, "{path}");
        pages += 1;
    }
    assert_eq!(pages, 3, "{}", answer.body);
}

#[tokio::test]
async fn stats_are_a_sorted_line_each() {
    let service = Service::new(vec![limited("tenant", "acme", 2)]);
    service.ask(&[("tenant", "acme")], 3).await;
    service.stats.method("ShouldRateLimit").record(1, Duration::from_micros(1_500));
    let body = debug_door(&service).await.get("/stats").await.body;
    let lines: Vec<&str> = body.lines().collect();
    assert!(lines.is_sorted(), "{body}");
    for line in [
        "ratelimit.service.rate_limit.shop.tenant_acme.over_limit: 1",
        "ratelimit.service.config_load_success: 0",
        "ratelimit_server.ShouldRateLimit.total_requests: 1",
        "ratelimit_server.ShouldRateLimit.response_time.count: 1",
        "ratelimit_server.ShouldRateLimit.response_time.sum_ms: 1.500",
        "weir.counters.live: 1",
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
    let door = debug_door(&service).await;
    let answer = door.get("/rlconfig").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, ""));
    service.limiter.load(stats_support::rules(
        "shop",
        vec![
            quota,
            above(node("path", "/*"), vec![unlimited("method", "GET")]),
            limited("ip", "10.0.0.1", 1),
        ],
    ));
    assert_eq!(
        door.get("/rlconfig").await.body,
        "shop.tenant_acme: unit=MINUTE requests_per_unit=3, shadow_mode: false, quota_mode: true\n\
         shop.path_/*.method_GET: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false\n\
         shop.ip_10.0.0.1: unit=MINUTE requests_per_unit=1, shadow_mode: false, quota_mode: false\n"
    );
}

#[tokio::test]
async fn a_stop_answers_what_was_begun() {
    let service = Service::new(vec![limited("tenant", "acme", 2)]);
    let door = door(&service).await;
    let address = door.address;
    let mut begun = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let length = ACME.len();
        write!(
            stream,
            "POST /json HTTP/1.1\r\nhost: weir\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
        )
        .unwrap();
        // the server asks for the body once it has begun to answer
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            asked.push(byte[0]);
        }
        assert!(asked.starts_with(b"HTTP/1.1 100"));
        stream
    })
    .await
    .unwrap();
    let Door { stop, running, .. } = door;
    stop.send(()).unwrap();
    let answer = tokio::task::spawn_blocking(move || {
        begun.write_all(ACME.as_bytes()).unwrap();
        let mut answer = String::new();
        begun.read_to_string(&mut answer).unwrap();
        answer
    })
    .await
    .unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    timeout(DEADLINE, running).await.expect("it ends").unwrap().unwrap();
    assert!(TcpStream::connect(address).is_err(), "the door is closed");
}
