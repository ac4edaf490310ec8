//! Tests the program's commands, exit codes and signals.

mod admin;
mod completions;
mod config_map;
mod credentials;
mod health;
mod log;
mod man;
mod replay;
mod rules;
mod secrets;
mod simulate;
mod tenants;
mod terminal;

use weir_testing::{child, skipped};

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
};

use tempfile::TempDir;

use crate::child::{Serving, run, stderr, stdout};

const RULES: &str = "
domain: shop
descriptors:
  - key: hello
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: free
    rate_limit: { unlimited: true }
";

fn rules(text: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("rules.yaml"), text).expect("a file in it");
    dir
}

fn path(dir: &TempDir) -> &str {
    dir.path().to_str().expect("a plain path")
}

const NO_DELAY: (&str, &str) = ("WEIR_STOP_DELAY", "0");

#[test]
fn call_prints_the_reply_and_exits_with_its_code() {
    let dir = rules(RULES);
    let weir = Serving::start(path(&dir), &[]);
    let call = |arguments: &[&str]| {
        run(&[&["call", "--address", weir.address("grpc"), "--domain", "shop"], arguments].concat(), &[])
    };
    let first = call(&["hello=world"]);
    assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
    let text = stdout(&first);
    assert!(text.starts_with("OK\n  hello=world: OK, 1 of 2 left in each year, reset in "), "{text}");
    assert_eq!(call(&["--hits", "0", "hello=world"]).status.code(), Some(0));
    assert_eq!(call(&["hello=world"]).status.code(), Some(0));
    let over = call(&["hello=world", "--and", "free=a"]);
    assert_eq!(over.status.code(), Some(2));
    assert!(stdout(&over).starts_with("OVER_LIMIT\n  hello=world: OVER_LIMIT"), "{}", stdout(&over));
    assert!(stdout(&over).contains("\n  free=a: OK, unlimited\n"), "{}", stdout(&over));
    assert_eq!(call(&["--refund", "--hits", "2", "hello=world"]).status.code(), Some(0));
    assert_eq!(call(&["hello=world"]).status.code(), Some(0));
    assert_eq!(call(&["--limit", "0/day", "any=thing"]).status.code(), Some(2));
    let json = call(&["--json", "free=x"]);
    let json: serde_json::Value = serde_json::from_str(&stdout(&json)).expect("valid JSON");
    let expected = serde_json::json!({
        "overallCode": "OK",
        "statuses": [{ "code": "OK", "limitRemaining": u32::MAX }],
    });
    assert_eq!(json, expected);
}

#[test]
fn call_begins_and_ends_a_request_by_its_name() {
    let dir = rules(
        "domain: shop\ndescriptors:\n- {key: tenant, rate_limit: {requests: 1000, per: 365d, reserve: 100}}\n\
         - {key: user, rate_limit: {in_flight: 1}}\n- {key: hello, rate_limit: {requests: 2, per: 365d}}\n",
    );
    let weir = Serving::start(path(&dir), &[]);
    let call = |arguments: &[&str]| {
        let all = [&["call", "--address", weir.address("grpc"), "--domain", "shop"], arguments].concat();
        let output = run(&all, &[]);
        (output.status.code(), format!("{}{}", stdout(&output), stderr(&output)))
    };
    let name_of = |text: &str| {
        let name = text.split_once(" --name ").and_then(|(_, rest)| rest.lines().next());
        name.unwrap_or_else(|| panic!("a name: {text}")).to_owned()
    };
    // a check holds nothing
    for _ in 0..2 {
        let (_, check) = call(&["--hits", "0", "tenant=a", "--and", "user=a", "--and", "hello=world"]);
        for line in [
            "tenant=a in_flight=check: OK, 1000 of 1000 left",
            "user=a: OK",
            "hello=world: OK, 2 of 2 left",
            "in flight: 1 more may begin",
        ] {
            assert!(check.contains(line), "{line}: {check}");
        }
        assert!(!check.contains("--name"), "{check}");
    }
    let left = || call(&["--hits", "0", "tenant=a"]).1;
    let names = [(); 2].map(|()| name_of(&call(&["tenant=a"]).1));
    assert!(left().contains(" 798 of 1000 left"), "{}", left());
    let (code, settled) = call(&["--name", &names[0], "--hits", "300"]);
    assert_eq!((code, settled), (Some(0), format!("OK\n  in_flight={}: OK\n", names[0])));
    call(&["--name", &names[1], "tenant=a"]);
    assert!(left().contains(" 698 of 1000 left"), "{}", left());
    // a place
    let name = name_of(&call(&["user=a"]).1);
    assert_eq!(call(&["user=a"]).0, Some(2));
    call(&["--name", &name]);
    assert_eq!(call(&["user=a"]).0, Some(0));
    for (arguments, error) in [
        (&["--name", "check"][..], "write the name of an admitted request"),
        (&["--name", &name, "--refund"], "cannot be used with"),
        (&[], "required"),
    ] {
        let (code, text) = call(arguments);
        assert!(code == Some(1) && text.contains(error), "{text}");
    }
}

#[test]
fn call_says_that_a_domain_does_not_exist() {
    let dir = rules(RULES);
    let weir = Serving::start(path(&dir), &[]);
    let call =
        |arguments: &[&str]| run(&[&["call", "--address", weir.address("grpc")], arguments].concat(), &[]);
    let no_domain = "the server has no rules for the domain \"shpo\"";
    let unknown = call(&["--domain", "shpo", "hello=world"]);
    assert_eq!(unknown.status.code(), Some(0));
    assert!(stdout(&unknown).contains(no_domain), "{}", stdout(&unknown));
    let unmatched = call(&["--domain", "shop", "nobody=x"]);
    let expected =
        "OK\n  nobody=x: OK, no limit\n  the server has no rule with the key \"nobody\" at its level\n";
    assert_eq!(stdout(&unmatched), expected);
    for (arguments, code) in [
        (["--domain", "shpo", "hello=world"], 4),
        (["--domain", "shop", "nobody=x"], 4),
        (["--domain", "shop", "hello=world"], 0),
        (["--domain", "shop", "free=x"], 0),
    ] {
        let called = call(&[&["--require-limit"], &arguments[..]].concat());
        assert_eq!(called.status.code(), Some(code), "{arguments:?}");
    }
}

#[test]
fn call_suggests_what_a_misspelled_name_was_meant_to_be_and_counts_once() {
    let dir = rules(RULES);
    let weir = Serving::start(path(&dir), &[]);
    let call = |domain, entries: &[&str]| {
        let arguments = ["call", "--address", weir.address("grpc"), "--domain", domain];
        stdout(&run(&[&arguments, entries].concat(), &[]))
    };
    let text = call("shop", &["helo=world", "--and", "hello=world"]);
    let line = "\n  the server has no rule with the key \"helo\" at its level; did you mean `hello`?\n";
    assert!(text.contains(line) && text.matches("server has").count() == 1, "{text}");
    let text = call("shpo2", &["helo=world"]);
    assert!(
        text.contains("has no rules for the domain \"shpo2\"") && !text.contains("did you mean"),
        "{text}"
    );
    let text = call("shopp", &["hello=world"]);
    assert!(text.contains("admits every request to it; did you mean `shop`?\n"), "{text}");
    let page = get(weir.address("http"), "/metrics");
    for line in [
        "ratelimit_service_rate_limit_domain_not_found{domain=\"shopp\"} 1",
        "weir_unmatched_descriptors_total{domain=\"shop\",key=\"helo\"} 1",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}: {page}");
    }
    assert!(!page.contains("weir_call"), "{page}");
}

#[test]
fn one_file_of_rules_is_served_and_watched() {
    let dir = rules("domain: other\n");
    let file = dir.path().join("shop.yaml");
    fs::write(&file, RULES).expect("the file");
    let weir = Serving::start(file.to_str().expect("a plain path"), &[]);
    let call = |entry| {
        let arguments =
            ["call", "--address", weir.address("grpc"), "--domain", "shop", "--require-limit", entry];
        run(&arguments, &[]).status.code()
    };
    assert_eq!((call("hello=world"), call("late=x")), (Some(0), Some(4)));
    fs::write(&file, RULES.replace("key: free", "key: late")).expect("the file");
    let started = std::time::Instant::now();
    while call("late=x") != Some(0) {
        assert!(started.elapsed() < std::time::Duration::from_secs(30), "not reloaded");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn a_command_that_the_help_does_not_list_is_not_suggested() {
    for (mistyped, suggested) in [("mann", false), ("/man", false), ("serv", true), ("helth", true)] {
        let output = run(&[mistyped], &[]);
        assert_eq!(output.status.code(), Some(1), "{mistyped}");
        let text = stderr(&output);
        assert!(text.contains("unrecognized subcommand"), "{text}");
        assert_eq!(text.contains("similar subcommand"), suggested, "{text}");
    }
}

#[test]
fn a_call_to_a_port_of_http_says_what_it_found() {
    let dir = rules(RULES);
    let weir = Serving::start(path(&dir), &[]);
    for port in ["http", "debug"] {
        let called = run(&["call", "--address", weir.address(port), "--domain", "shop", "hello=world"], &[]);
        assert_eq!(called.status.code(), Some(1));
        assert!(stderr(&called).contains("gRPC port"), "{port}: {}", stderr(&called));
    }
    let https = format!("https://{}", weir.address("grpc"));
    let called = run(&["call", "--address", &https, "--domain", "shop", "hello=world"], &[]);
    assert!(stderr(&called).contains("write http://"), "{}", stderr(&called));
}

#[test]
fn a_failed_call_prints_the_reason() {
    let dir = rules(RULES);
    let weir = Serving::start(path(&dir), &[]);
    let rejected = run(&["call", "--address", weir.address("grpc"), "--domain", "", "hello=world"], &[]);
    assert_eq!(rejected.status.code(), Some(1));
    assert!(
        stderr(&rejected).contains("Unknown: rate limit domain must not be empty"),
        "{}",
        stderr(&rejected)
    );
    let unreachable = run(&["call", "--address", "unix:/nowhere/weir.sock", "--domain", "d", "a=b"], &[]);
    assert_eq!(unreachable.status.code(), Some(1));
    assert!(
        stderr(&unreachable).starts_with("weir: error: cannot reach unix:/nowhere/weir.sock: "),
        "{}",
        stderr(&unreachable)
    );
}

#[test]
fn invalid_arguments_exit_with_1() {
    for arguments in [
        &["call", "--domain", "d", "hello"][..],
        &["call", "--domain", "d", "--limit", "10/fortnight", "a=b"],
        &["call", "a=b"],
        &["serve", "--no-such-flag"],
        &["explain", "--domain", "d", "=x"],
        &["nonsense"],
    ] {
        let output = run(arguments, &[]);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).starts_with("error: "), "{}", stderr(&output));
    }
}

#[test]
fn help_and_version_are_printed() {
    let help = run(&["--help"], &[]);
    assert_eq!(help.status.code(), Some(0));
    for word in ["serve", "check", "explain", "call", "--config", "GRPC_PORT", "RUNTIME_ROOT", "Examples:"] {
        assert!(stdout(&help).contains(word), "{word}: {}", stdout(&help));
    }
    let help = stdout(&help);
    let (_, variables) = help.split_once("\nEnvironment").expect("the variables are listed");
    let longest = variables.lines().map(|line| line.chars().count()).max();
    assert!(longest <= Some(80), "a longer line would be wrapped: {variables}");
    let version = run(&["--version"], &[]);
    assert_eq!(stdout(&version), format!("weir {}\n", env!("CARGO_PKG_VERSION")));
    assert!(stdout(&run(&["call", "--help"], &[])).contains("--and"));
}

#[test]
fn a_signal_stops_gracefully() {
    let dir = rules(RULES);
    for signal in ["TERM", "INT"] {
        let weir = Serving::start(path(&dir), &[NO_DELAY, ("LOG_LEVEL", "info")]);
        weir.signal(signal);
        let (status, log) = weir.ended();
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(log.contains("stopping"), "{log}");
    }
}

#[test]
fn a_second_signal_stops_immediately() {
    let dir = rules(RULES);
    let weir = Serving::start(path(&dir), &[("WEIR_STOP_DELAY", "1h")]);
    weir.signal("TERM");
    // health checks fail once the first signal is received
    while get(weir.address("http"), "/healthcheck").starts_with("HTTP/1.1 200") {
        std::thread::yield_now();
    }
    weir.signal("TERM");
    let (status, log) = weir.ended();
    assert_eq!(status.code(), Some(1), "{log}");
}

#[test]
fn sighup_reloads_the_rules() {
    let dir = rules(RULES);
    let weir = Serving::start(path(&dir), &[]);
    let loads = || {
        let page = get(weir.address("debug"), "/stats");
        let line = page.lines().find_map(|line| line.strip_prefix("ratelimit.service.config_load_success: "));
        line.map(str::to_owned)
    };
    assert_eq!(loads().as_deref(), Some("1"));
    weir.signal("HUP");
    let started = std::time::Instant::now();
    while loads().as_deref() != Some("2") {
        assert!(started.elapsed().as_secs() < 20, "not in time");
        std::thread::yield_now();
    }
}

#[test]
fn the_variables_of_envoyproxy_ratelimit_are_recognized() {
    let root = tempfile::tempdir().expect("a directory");
    fs::create_dir_all(root.path().join("sub/config")).expect("directories in it");
    fs::write(root.path().join("sub/config/rules.yaml"), RULES).expect("a file in them");
    let socket = root.path().join("weir.sock");
    let variables = [
        ("RUNTIME_ROOT", path(&root)),
        ("RUNTIME_SUBDIRECTORY", "sub"),
        ("GRPC_UDS", socket.to_str().expect("a plain path")),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", "127.0.0.1:0"),
        ("PROMETHEUS_PATH", "/custom-metrics"),
        NO_DELAY,
    ];
    let weir = Serving::start_by_environment(&variables);
    assert_eq!(weir.address("grpc"), format!("unix:{}", socket.display()));
    let called = run(&["call", "--address", weir.address("grpc"), "--domain", "shop", "hello=x"], &[]);
    assert_eq!(called.status.code(), Some(0), "{}", stderr(&called));
    let page = get(weir.address("prometheus"), "/custom-metrics");
    assert!(
        page.contains("ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"hello\"} 1"),
        "{page}"
    );
}

#[test]
fn invalid_settings_are_all_reported_and_prevent_the_start() {
    let variables = [("GRPC_PORT", "99999"), ("SHADOW_MODE", "maybe"), ("MEMCACHE_SRV", "cache")];
    let output = run(&[], &variables);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    for part in
        ["GRPC_PORT is \"99999\"", "SHADOW_MODE is \"maybe\"", "MEMCACHE_SRV must be a name with SRV records"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let level = run(&["--log-level", "loud"], &[("WEIR_WORKER", "2")]);
    assert_eq!(level.status.code(), Some(1));
    let text = stderr(&level);
    assert!(
        text.contains("--log-level is \"loud\"") && text.contains("did you mean WEIR_WORKERS?"),
        "{text}"
    );
}

#[test]
fn invalid_rules_at_the_start_exit_with_their_position() {
    let dir = rules("domain: shop\ndescriptors:\n  - key: hello\n    rate_limit:\n      unit: fortnight\n");
    let output =
        run(&["serve", "--config", path(&dir), "--grpc-port", "0", "--port", "0", "--debug-port", "0"], &[]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.contains("rules.yaml:5:13: ") && text.contains("invalid rate limit unit 'fortnight'"),
        "{text}"
    );
    assert!(!text.contains("listening"), "{text}");
    let missing = run(&["serve", "--config", "/nowhere/at/all"], &[]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(stderr(&missing).contains("/nowhere/at/all"), "{}", stderr(&missing));
}

#[test]
fn a_missing_certificate_prevents_the_start() {
    let dir = rules(RULES);
    let variables =
        [("REDIS_URL", "127.0.0.1:1"), ("REDIS_TLS", "true"), ("REDIS_TLS_CACERT", "/nowhere/ca.pem")];
    let output =
        run(&["--config", path(&dir), "--grpc-port", "0", "--port", "0", "--debug-port", "0"], &variables);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let text = stderr(&output);
    assert!(text.contains("weir: error: ") && text.contains("/nowhere/ca.pem"), "{text}");
}

#[test]
fn a_port_in_use_is_reported() {
    let dir = rules(RULES);
    let weir = Serving::start(path(&dir), &[]);
    let port = weir.address("grpc").rsplit_once(':').expect("a port").1;
    let arguments = ["--config", path(&dir), "--grpc-host", "127.0.0.1", "--grpc-port", port];
    let second = run(&[&arguments[..], &["--port", "0", "--debug-port", "0"]].concat(), &[]);
    assert_eq!(second.status.code(), Some(1));
    let expected = format!("weir: error: GRPC_PORT (--grpc-port): cannot listen on 127.0.0.1:{port}: ");
    assert!(stderr(&second).contains(&expected), "{}", stderr(&second));
}

#[test]
fn check_and_explain_exit_with_0_or_1() {
    let good = rules(RULES);
    let checked = run(&["check", path(&good)], &[]);
    assert_eq!(checked.status.code(), Some(0), "{}", stdout(&checked));
    let bad = rules("domain: shop\ndescriptors:\n  - kee: hello\n");
    let checked = run(&["check", path(&bad)], &[]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(stdout(&checked).contains("rules.yaml:3:5: "), "{}", stdout(&checked));
    let explained = run(&["explain", "--config", path(&good), "--domain", "shop", "hello=world"], &[]);
    assert_eq!(explained.status.code(), Some(0), "{}", stderr(&explained));
    assert!(stdout(&explained).contains("rules.yaml:4"), "{}", stdout(&explained));
}

/// Returns a page with its status line.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a connection");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .expect("a sent request");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("a page");
    page
}
