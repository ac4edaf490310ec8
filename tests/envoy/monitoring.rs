//! A real Prometheus scrapes weir: its tool accepts the metrics and the alerts, and every panel of the dashboard has
//! data.

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    process::Command,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use weir_testing::repository;

use crate::support::{
    http::{self, HttpRequest},
    process::Process,
    prometheus::{Prometheus, promtool},
    wait,
    weir::Weir,
};

/// A weir with the rules of `config/` that shares its counts through a store of its own.
struct Monitored {
    weir: Weir,
    _store: Process,
    folder: TempDir,
}

/// A pool, a limit in the shadow of another, and a budget, whose metrics the rules of `config/` do not have.
const MORE_RULES: &str = "domain: more
descriptors:
- {key: client, rate_limit: {requests: 20, per: 1s, share: {}}}
- {key: lowered, rate_limit: {requests: 100, per: 1s, shadow: {requests: 5, per: 1s}}}
- {key: tokens, rate_limit: {requests: 1000000, per: 1s, reserve: auto, give_up_after: 1s, coordination: local}}
";

/// A store: its program with the arguments before the path of its socket, the variable of weir that names it, and the
/// beginning of its metrics.
struct Store {
    name: &'static str,
    program: &'static [&'static str],
    variable: &'static str,
    metrics: &'static str,
}

const REDIS: Store = Store {
    name: "redis",
    program: &["redis-server", "--port", "0", "--save", "", "--unixsocket"],
    variable: "REDIS_URL",
    metrics: "weir_redis_",
};

const MEMCACHED: Store = Store {
    name: "memcached",
    // the user matters only to root
    program: &["memcached", "-u", "root", "-s"],
    variable: "MEMCACHE_HOST_PORT",
    metrics: "weir_memcached_",
};

impl Monitored {
    fn start(store: &Store) -> Self {
        Self::start_with(store, &[])
    }

    /// Like [`Self::start`], with `settings` as further variables of weir.
    fn start_with(store: &Store, settings: &[(&str, &str)]) -> Self {
        let folder = TempDir::new().expect("a folder");
        let socket = folder.path().join("store.sock");
        let mut command = Command::new(store.program[0]);
        command.args(&store.program[1..]).arg(&socket).current_dir(folder.path());
        let process = Process::start(store.name, &mut command, folder.path());
        wait::until("the store listens", || socket.exists().then_some(()));
        let path = socket.to_str().expect("UTF-8");
        let rules = folder.path().join("rules");
        fs::create_dir(&rules).expect("a folder");
        for file in fs::read_dir(repository("config")).expect("the rules") {
            let file = file.expect("a file");
            fs::copy(file.path(), rules.join(file.file_name())).expect("a copy");
        }
        fs::write(rules.join("more.yaml"), MORE_RULES).expect("a file");
        let settings = [&[(store.variable, path)], settings].concat();
        let weir = Weir::start(&rules, &settings, folder.path());
        Self { weir, _store: process, folder }
    }
}

fn decide(weir: SocketAddr, domain: &str, entries: &[(&str, &str)]) {
    let entries: Vec<Value> =
        entries.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
    let request = json!({ "domain": domain, "descriptors": [{ "entries": entries }] });
    http::send(weir, &HttpRequest::post("/json", request.to_string()));
}

/// Sends requests that pass, are rejected, have no rules and are errors, until `done`.
fn load(weir: SocketAddr, done: &AtomicBool) {
    while !done.load(Relaxed) {
        decide(weir, "shop", &[("hello", "world")]);
        decide(weir, "shop", &[("tenant", "acme"), ("path", "/v1/checkout"), ("method", "POST")]);
        decide(weir, "shop", &[("tenant", "acme"), ("path", "/v1/cart"), ("method", "GET")]);
        decide(weir, "more", &[("client", "a")]);
        decide(weir, "more", &[("lowered", "a")]);
        decide(weir, "more", &[("tokens", "a")]);
        decide(weir, "nowhere", &[("a", "b")]);
        decide(weir, "", &[("a", "b")]);
    }
}

/// Returns every query of the dashboard that has data with `store`, with its panel and without Grafana's variables.
fn queries(store: &Store) -> Vec<(String, String)> {
    let text = fs::read_to_string(repository("charts/weir/files/dashboard.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let mut ids = BTreeSet::new();
    let mut queries = Vec::new();
    let panels = dashboard["panels"].as_array().expect("panels");
    // a closed row has its panels within it
    let nested = panels.iter().filter_map(|panel| panel["panels"].as_array()).flatten();
    for panel in panels.iter().chain(nested) {
        assert!(ids.insert(panel["id"].as_u64()), "{}: its id is used twice", panel["title"]);
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().expect("a query");
            let query =
                query.replace("$__rate_interval", "10s").replace("$job", "weir").replace("$domain", ".*");
            assert!(!query.contains('$'), "{query}");
            queries.push((panel["title"].to_string(), query));
        }
    }
    let of_others = [REDIS, MEMCACHED].map(|other| other.metrics).into_iter();
    for other in of_others.filter(|metrics| *metrics != store.metrics) {
        queries.retain(|(_, query)| !query.contains(other));
    }
    assert!(queries.iter().filter(|(_, query)| query.contains(store.metrics)).count() >= 8);
    queries
}

#[test]
fn every_panel_of_the_dashboard_has_data_with_redis() {
    every_panel_has_data(&REDIS);
}

#[test]
fn every_panel_of_the_dashboard_has_data_with_memcached() {
    every_panel_has_data(&MEMCACHED);
}

fn every_panel_has_data(store: &Store) {
    let monitored = Monitored::start(store);
    let prometheus = Prometheus::start(monitored.weir.http, monitored.folder.path());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| load(monitored.weir.http, &done));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let queries = queries(store);
            assert!(queries.len() > 40);
            for (panel, query) in queries {
                wait::until(&format!("{panel} has data: {query}"), || {
                    let values = prometheus.query(&query).unwrap_or_else(|error| panic!("{query}: {error}"));
                    values.iter().any(|value| value.is_finite()).then_some(())
                });
            }
            // the load exceeds this limit, so all of it is in use
            let used = "sum(rate(ratelimit_service_rate_limit_over_limit{key1=\"hello\"}[10s]))";
            wait::until("a rule is over its limit", || {
                prometheus
                    .query(used)
                    .is_ok_and(|values| values.iter().any(|value| *value > 0.0))
                    .then_some(())
            });
            alerts_are_healthy(&prometheus);
        }));
        done.store(true, Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn a_full_table_of_coordinated_counters_raises_its_alerts() {
    let monitored = Monitored::start_with(&REDIS, &[("WEIR_MAX_COUNTERS", "10")]);
    let prometheus = Prometheus::start(monitored.weir.http, monitored.folder.path());
    let mut tenants = 0..;
    for alert in ["WeirCountersEvicted", "WeirCountersNearlyFull"] {
        let query = format!("ALERTS{{alertname=\"{alert}\",table=\"coordinated\"}}");
        wait::until(alert, || {
            for tenant in tenants.by_ref().take(20) {
                let tenant = format!("tenant-{tenant}");
                decide(
                    monitored.weir.http,
                    "shop",
                    &[("tenant", &tenant), ("path", "/v1/cart"), ("method", "GET")],
                );
            }
            prometheus.query(&query).is_ok_and(|values| !values.is_empty()).then_some(())
        });
    }
}

/// Asserts that Prometheus evaluates every alert without an error.
fn alerts_are_healthy(prometheus: &Prometheus) {
    let rules = wait::until("alerts are evaluated", || {
        let rules = prometheus.get("/api/v1/rules");
        let rules = rules["data"]["groups"][0]["rules"].as_array().expect("rules").clone();
        rules.iter().all(|rule| rule["health"] != "unknown").then_some(rules)
    });
    assert!(rules.len() > 10);
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
}

#[test]
fn promtool_accepts_the_metrics() {
    for store in [REDIS, MEMCACHED] {
        promtool_accepts_the_metrics_with(&store);
    }
}

fn promtool_accepts_the_metrics_with(store: &Store) {
    let monitored = Monitored::start(store);
    decide(monitored.weir.http, "shop", &[("hello", "world")]);
    decide(monitored.weir.http, "nowhere", &[("a", "b")]);
    let page = monitored.folder.path().join("metrics");
    fs::write(&page, http::send(monitored.weir.http, &HttpRequest::get("/metrics")).body).expect("a file");
    let output = promtool(&["check", "metrics"], Some(&page));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    // the exit code 3 is for style only; envoyproxy/ratelimit's names are not in Prometheus' style,
    // and weir's gauges are whole numbers
    assert!(matches!(output.status.code(), Some(0 | 3)), "{text}");
    let known = ["ratelimit_", "weir_store_clock_offset_nanoseconds use base unit"];
    let own: Vec<&str> =
        text.lines().filter(|line| !known.iter().any(|known| line.starts_with(known))).collect();
    assert_eq!(own, [""; 0]);
}

#[test]
fn promtool_accepts_the_alerts_which_fire_in_trouble_only() {
    for arguments in [
        ["check", "rules", "--lint-fatal", "charts/weir/files/alerts.yaml"].as_slice(),
        &["test", "rules", "tests/monitoring/alerts.test.yaml"],
    ] {
        let output = promtool(arguments, None);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    }
}

#[test]
fn every_alert_is_tested_and_documented() {
    let read = |path: &str| fs::read_to_string(repository(path)).expect("the file");
    let alerts: Value = serde_saphyr::from_str(&read("charts/weir/files/alerts.yaml")).expect("YAML");
    let (tests, docs) = (read("tests/monitoring/alerts.test.yaml"), read("docs/operations.md"));
    for alert in alerts["groups"][0]["rules"].as_array().expect("rules") {
        let name = alert["alert"].as_str().expect("a name");
        assert!(tests.contains(&format!("alertname=\"{name}\"")), "{name} has no test");
        assert!(docs.contains(name), "docs/operations.md does not name {name}");
    }
}
