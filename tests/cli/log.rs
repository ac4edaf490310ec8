//! The log: its format, its bounds, and its levels.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use serde_json::Value;

use crate::{
    NO_DELAY, RULES,
    child::{Serving, run, stderr},
    get, path, rules,
};

const JSON: (&str, &str) = ("LOG_FORMAT", "json");

/// Sends `bodies` to `/json`, one after the other.
pub(crate) fn post(address: &str, bodies: &[&str]) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    for (i, body) in bodies.iter().enumerate() {
        let connection = if i + 1 == bodies.len() { "close" } else { "keep-alive" };
        let length = body.len();
        write!(
            stream,
            "POST /json HTTP/1.1\r\nhost: weir\r\nconnection: {connection}\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .expect("it takes it");
    }
    let mut responses = String::new();
    stream.read_to_string(&mut responses).expect("responses");
    assert_eq!(responses.matches("HTTP/1.1 ").count(), bodies.len(), "{responses}");
}

/// Parses every line of `output` as JSON.
fn objects(output: &str) -> Vec<Value> {
    let parse = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(value["@timestamp"].is_string() && value["@message"].is_string(), "{value}");
        assert!(value["level"].is_string(), "{value}");
        value
    };
    output.lines().map(parse).collect()
}

/// The names of metrics must not keep weir from limiting.
#[test]
fn an_invalid_mapper_file_is_an_error_in_the_log_and_the_default_names_stay() {
    let (dir, other) = (rules(RULES), tempfile::tempdir().expect("a directory"));
    let mapper = other.path().join("mapper.yaml");
    std::fs::write(&mapper, "mappings:\n- {match: a, name: a, ttl: 1m}\n- {match: b}\n").expect("a file");
    let mapper = mapper.to_str().expect("UTF-8");
    let weir = Serving::start(path(&dir), &[NO_DELAY, ("PROMETHEUS_MAPPER_YAML", mapper)]);
    let page = get(weir.address("http"), "/metrics");
    assert!(page.contains("\nratelimit_service_rate_limit_total_hits{domain="), "{page}");
    weir.signal("TERM");
    let (_, output) = weir.ended();
    for line in [
        ":2:28: weir's series do not expire",
        ":3:3: the mapping has no 'name'",
        "PROMETHEUS_MAPPER_YAML is not used; metrics keep their default names",
    ] {
        let logged = output.lines().any(|logged| logged.contains("ERROR") && logged.contains(line));
        assert!(logged, "{line}: {output}");
    }
}

#[test]
fn the_end_of_a_rejection_of_rules_is_no_error() {
    let dir = rules(RULES);
    let file = dir.path().join("rules.yaml");
    let weir = Serving::start(path(&dir), &[NO_DELAY, ("LOG_LEVEL", "info")]);
    for (text, rejected) in [("domain: shop\ndescriptors:\n  - kee: hello\n", 1), (RULES, 0)] {
        std::fs::write(&file, text).expect("the file");
        let line = format!("\nweir_rules_rejected {rejected}\n");
        let started = std::time::Instant::now();
        while !get(weir.address("http"), "/metrics").contains(&line) {
            assert!(started.elapsed() < std::time::Duration::from_secs(30), "{line}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
    weir.signal("TERM");
    let (_, output) = weir.ended();
    for (level, line) in
        [("ERROR", "keeping the previous rules"), ("INFO", "the newest rules are valid again, and in force")]
    {
        assert!(output.lines().any(|logged| logged.contains(level) && logged.contains(line)), "{output}");
    }
}

#[test]
fn failed_requests_at_json_do_not_flood_the_log() {
    let dir = rules(RULES);
    let weir = Serving::start(path(&dir), &[NO_DELAY]);
    let started = std::time::Instant::now();
    post(weir.address("http"), &["{\"a\nfake\": 1}"; 500]);
    let seconds = started.elapsed().as_secs();
    std::thread::sleep(std::time::Duration::from_secs(1));
    post(weir.address("http"), &["{"]);
    weir.signal("TERM");
    let (_, output) = weir.ended();
    let lines: Vec<&str> = output.lines().filter(|line| line.contains("request at /json failed")).collect();
    let expected = 2..=usize::try_from(seconds).expect("it is short") + 2;
    assert!(expected.contains(&lines.len()), "{} lines", lines.len());
    assert!(lines.iter().any(|line| line.contains("suppressed=4")), "{lines:?}");
}

#[test]
fn every_line_is_json() {
    let dir = rules(RULES);
    let weir =
        Serving::start(path(&dir), &[NO_DELAY, JSON, ("LOG_LEVEL", "info"), ("TRACING_ENABLED", "true")]);
    post(weir.address("http"), &["{"]);
    weir.signal("TERM");
    let (status, output) = weir.ended();
    assert_eq!(status.code(), Some(0), "{output}");
    let lines = objects(&output);
    let line = |message: &str| lines.iter().find(|line| line["@message"] == message);
    assert!(line("request at /json failed").is_some() && line("stopping").is_some(), "{output}");
    assert!(line("listening").is_some_and(|line| line["level"] == "info"), "{output}");
}

#[test]
fn errors_of_the_start_are_json() {
    let bad = rules("domain: shop\ndescriptors:\n  - kee: hello\n");
    let level = ["--log-level", "loud"];
    for (arguments, variables, expected) in [
        (&["--config", path(&bad)][..], &[JSON][..], "rules.yaml:3:5: "),
        (&[], &[JSON, ("GRPC_PORT", "99999"), ("SHADOW_MODE", "maybe")], "SHADOW_MODE is \"maybe\""),
        (&level, &[JSON], "loud"),
        (&["--log-format", "json", "--grpc-port", "x"], &[], "--grpc-port is \"x\""),
        (&["--no-such-flag"], &[JSON], "--no-such-flag"),
    ] {
        let output = run(arguments, variables);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let lines = objects(&stderr(&output));
        let line = lines.last().expect("a line");
        assert_eq!(line["level"], "error", "{line}");
        assert!(line["@message"].as_str().is_some_and(|text| text.contains(expected)), "{expected}: {line}");
    }
    let text = run(&["--log-format", "xml"], &[JSON]);
    assert!(stderr(&text).starts_with("weir: error: --log-format is \"xml\""), "{}", stderr(&text));
}

#[test]
fn rejections_are_logged_within_a_bound_and_without_values() {
    let dir = rules(RULES);
    let request =
        r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "hello", "value": "secret"}]}]}"#;
    let lines = |variables: &[(&str, &str)]| {
        let weir = Serving::start(path(&dir), &[&[NO_DELAY, JSON], variables].concat());
        post(weir.address("http"), &[request; 12]);
        let hot = run(&["hot", "--address", weir.address("debug")], &[]);
        assert!(crate::child::stdout(&hot).contains("shop.hello hello=secret\n"), "{hot:?}");
        weir.signal("TERM");
        let (_, output) = weir.ended();
        let mut lines = objects(&output);
        lines.retain(|line| line["@message"] == "rejected");
        lines
    };
    let sampled = lines(&[]);
    // two, if a minute ends meanwhile
    assert!((1..=2).contains(&sampled.len()), "{sampled:?}");
    let line = &sampled[0];
    assert_eq!(
        (&line["level"], &line["rule"], &line["hits"]),
        (&"warning".into(), &"shop.hello".into(), &1.into())
    );
    assert!(line["descriptor"].as_str().is_some_and(|text| text.starts_with("hello=*** #")), "{line}");
    assert_eq!((&line["limit"], &line["mode"]), (&"2 requests per 365d".into(), &"local".into()));
    assert_eq!(line["reason"], "limit");
    assert!(
        line["retry_after"].as_str().is_some_and(|text| text.ends_with('s') && text.len() < 14),
        "{line}"
    );
    let all = lines(&[("WEIR_LOG_REJECTIONS", "all"), ("WEIR_LOG_VALUES", "true")]);
    assert_eq!(all.len(), 10);
    assert!(all.iter().all(|line| line["descriptor"] == "hello=secret"), "{all:?}");
    assert!(lines(&[("WEIR_LOG_REJECTIONS", "off")]).is_empty());
}

/// Without Redis, `on_store_failure` decides. Its rejections must not look like those of a limit.
#[test]
fn rejections_without_the_store_say_so() {
    let dir = rules(
        "domain: shop\ndescriptors:\n  \
         - {key: denied, rate_limit: {requests: 9, per: 365d, coordination: strict, on_store_failure: deny}}\n  \
         - {key: own, rate_limit: {requests: 1, per: 365d, coordination: strict, on_store_failure: local}}\n  \
         - {key: alone, rate_limit: {requests: 1, per: 365d, coordination: local}}\n",
    );
    // nothing listens there
    let redis = [("REDIS_URL", "127.0.0.1:1"), ("WEIR_LOG_REJECTIONS", "all")];
    let weir = Serving::start(path(&dir), &[&[NO_DELAY, JSON][..], &redis].concat());
    for key in ["denied", "own", "alone"] {
        let body = format!(
            r#"{{"domain": "shop", "descriptors": [{{"entries": [{{"key": "{key}", "value": "x"}}]}}]}}"#
        );
        post(weir.address("http"), &[&*body; 3]);
    }
    let page = get(weir.address("http"), "/metrics");
    let stats = get(weir.address("debug"), "/stats");
    weir.signal("TERM");
    let (_, output) = weir.ended();
    let mut lines = objects(&output);
    lines.retain(|line| line["@message"] == "rejected");
    let reasons = |rule: &str| -> Vec<&str> {
        let of_rule = lines.iter().filter(|line| line["rule"] == rule);
        of_rule.map(|line| line["reason"].as_str().expect("a reason")).collect()
    };
    assert_eq!(reasons("shop.denied"), ["store"; 3]);
    assert_eq!(reasons("shop.own"), ["store"; 2]);
    assert_eq!(reasons("shop.alone"), ["limit"; 2]);
    let name = "weir_over_limit_hits_total";
    let series: Vec<&str> = page.lines().filter(|line| line.starts_with(name)).collect();
    let expected: Vec<String> =
        [("denied", "limit", 0), ("denied", "store", 3), ("own", "limit", 0), ("own", "store", 2)]
            .map(|(key, reason, hits)| {
                format!(r#"{name}{{domain="shop",key1="{key}",reason="{reason}"}} {hits}"#)
            })
            .into();
    assert_eq!(series, expected, "none of a rule that the store has not failed");
    assert!(stats.contains("weir.over_limit_hits.shop.denied.store: 3\n"), "{stats}");
}

#[test]
fn debug_logs_each_decision_on_one_line() {
    let dir = rules(RULES);
    let request = r#"{"domain": "shop", "hitsAddend": 3, "descriptors": [
        {"entries": [{"key": "hello", "value": "a\nb"}]}, {"entries": [{"key": "free"}, {"key": "x", "value": "y"}]}]}"#;
    let decisions = |level: &str| {
        let weir = Serving::start(path(&dir), &[NO_DELAY, JSON, ("LOG_LEVEL", level)]);
        post(weir.address("http"), &[request]);
        let call = ["call", "--address", weir.address("grpc"), "--domain", "shop", "hello=world"];
        assert_eq!(run(&call, &[]).status.code(), Some(0));
        weir.signal("TERM");
        let (_, output) = weir.ended();
        let mut lines = objects(&output);
        lines.retain(|line| line["@message"] == "decision");
        lines
    };
    let lines = decisions("debug");
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!((&lines[0]["domain"], &lines[0]["code"]), (&"shop".into(), &"OVER_LIMIT".into()));
    assert_eq!(
        lines[0]["descriptors"],
        "hello=a\nb: OVER_LIMIT, rule shop.hello, 0 remaining; free=,x=y: OK, no limit"
    );
    assert_eq!(lines[1]["descriptors"], "hello=world: OK, rule shop.hello, 1 remaining");
    assert!(decisions("info").is_empty());
}
