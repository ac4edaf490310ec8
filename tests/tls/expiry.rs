//! When certificates end: in metrics, and in the log before they do.

use std::{
    fs,
    net::TcpListener,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::{
    authority::{Authority, Pair},
    child::Serving,
    local,
    mounted::Mounted,
    service::{DEADLINE, RULES, Weir},
};

const DAY: u64 = 24 * 60 * 60;

/// Returns a Redis that says nothing, and its URL.
fn silent_redis() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let url = format!("rediss://{}", listener.local_addr().expect("its address"));
    (listener, url)
}

#[expect(clippy::disallowed_methods, reason = "certificates are verified by the system's clock")]
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_secs()
}

/// Returns the lines of a metric.
async fn lines(weir: &Weir, name: &str) -> Vec<String> {
    let page = local::get(weir.addresses.http, "/metrics").await;
    page.lines().filter_map(|line| line.strip_prefix(name)).map(str::to_owned).collect()
}

/// Returns the value of a line with `labels`, if there is one.
fn value(lines: &[String], labels: &str) -> Option<u64> {
    let line = lines.iter().find(|line| line.contains(labels))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[tokio::test]
async fn every_certificate_has_a_metric_of_its_end() {
    let root = Authority::new("authority of servers");
    let between = root.intermediate("between");
    let own = between.sign(&["localhost"]);
    let chain = Pair { certificate: own.certificate + &between.pem(), key: own.key };
    let (first, last) = (now() - 80 * DAY, now() + 20 * DAY);
    let (clients, ended) =
        (Authority::lasting("clients", [first, last]), Authority::lasting("ended", [first, first + DAY]));
    let mounted = Mounted::new(&chain, Some(&(ended.pem() + &clients.pem())));
    let redis_ca = mounted.path("redis-ca.crt");
    fs::write(&redis_ca, clients.pem()).expect("a file");
    let (_silent, redis) = silent_redis();
    let weir = Weir::start(
        &mounted,
        &[
            ("REDIS_URL", &redis),
            ("REDIS_TLS_CACERT", redis_ca.to_str().expect("UTF-8")),
            // two exports with the same file
            ("TRACING_ENABLED", "true"),
            ("OTEL_METRICS_EXPORTER", "otlp"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:1"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", redis_ca.to_str().expect("UTF-8")),
        ],
    )
    .await;
    // the files of clients are read soon after the start
    weir.until_metric(
        "weir_certificate_expires_seconds{setting=\"REDIS_TLS_CACERT\",position=\"1\",subject=\"CN=clients\"}",
        1.0,
    )
    .await;
    let left = lines(&weir, "weir_certificate_expires_seconds{").await;
    assert_eq!(left.len(), 6, "{left:?}");
    for labels in [
        "setting=\"OTEL_EXPORTER_OTLP_CERTIFICATE\",position=\"1\",subject=\"CN=clients\"",
        "setting=\"REDIS_TLS_CACERT\",position=\"1\",subject=\"CN=clients\"",
        "setting=\"GRPC_CLIENT_TLS_CACERT\",position=\"2\",subject=\"CN=clients\"",
    ] {
        let seconds = value(&left, labels).expect("a line");
        assert!((19 * DAY..=20 * DAY).contains(&seconds), "{labels}: {left:?}");
    }
    assert_eq!(
        value(&left, "setting=\"GRPC_CLIENT_TLS_CACERT\",position=\"1\",subject=\"CN=ended\""),
        Some(0)
    );
    for position in ["1", "2"] {
        let labels = format!("setting=\"GRPC_SERVER_TLS_CERT\",position=\"{position}\"");
        assert!(value(&left, &labels).is_some_and(|left| left > 365 * DAY), "{labels}: {left:?}");
    }
    let lifetimes = lines(&weir, "weir_certificate_lifetime_seconds{").await;
    assert_eq!(value(&lifetimes, "setting=\"REDIS_TLS_CACERT\""), Some(100 * DAY), "{lifetimes:?}");

    // a certificate that takes its place
    let renewed = Authority::lasting("clients", [first, last + 100 * DAY]);
    mounted.update(&chain, Some(&renewed.pem()));
    let labels = "{setting=\"GRPC_CLIENT_TLS_CACERT\",position=\"1\",subject=\"CN=clients\"}";
    weir.until_metric(&format!("weir_certificate_expires_seconds{labels}"), 119.0 * 86_400.0).await;
    weir.stop().await;
}

#[test]
fn the_log_warns_before_a_certificate_ends() {
    let server = Authority::new("authority of servers");
    let first = now() - 300 * DAY;
    let soon = Authority::lasting("soon", [first, now() + 29 * DAY + DAY / 2]);
    let (ended, fine) = (
        Authority::lasting("ended", [first, now() - DAY]),
        Authority::lasting("fine", [first, now() + 31 * DAY]),
    );
    let mounted =
        Mounted::new(&server.sign(&["localhost"]), Some(&(soon.pem() + &ended.pem() + &fine.pem())));
    let rules = tempfile::tempdir().expect("a directory");
    fs::write(rules.path().join("rules.yaml"), RULES).expect("a file");
    let files: Vec<(&str, String)> = mounted.variables().collect();
    let mut variables: Vec<(&str, &str)> =
        files.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let ca = mounted.text("ca.crt");
    variables.extend([("WEIR_STOP_DELAY", "0"), ("LOG_FORMAT", "json")]);
    let (_silent, redis) = silent_redis();
    variables.extend([("REDIS_URL", redis.as_str()), ("REDIS_TLS_CACERT", &ca)]);
    let serving = Serving::start(rules.path().to_str().expect("a path in UTF-8"), &variables);
    // those of Redis are in the metrics when all are in the log
    let address = serving.address("http").parse().expect("an address");
    let waiting = async {
        while !local::get(address, "/metrics").await.contains("setting=\"REDIS_TLS_CACERT\"") {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(DEADLINE, waiting).await }).expect("the files are read");
    serving.signal("TERM");
    let (_, log) = serving.ended();
    let warned = |setting: &str, message: &str| {
        let lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let subject = |line: serde_json::Value| {
            (line["subject"].as_str().unwrap_or_default().to_owned(), line["days"].clone())
        };
        let of_setting = |line: &serde_json::Value| line["setting"] == setting && line["@message"] == message;
        lines.filter(of_setting).map(subject).collect::<Vec<_>>()
    };
    for setting in ["GRPC_CLIENT_TLS_CACERT", "REDIS_TLS_CACERT"] {
        let (soon, ended) =
            (warned(setting, "a certificate expires soon"), warned(setting, "a certificate has expired"));
        assert_eq!(soon, [("CN=soon".to_owned(), serde_json::json!(29))], "{log}");
        assert_eq!(ended, [("CN=ended".to_owned(), serde_json::Value::Null)], "{log}");
    }
}
