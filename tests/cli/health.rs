//! `weir health`, the health check of a container.

use std::net::TcpListener;

use crate::{
    NO_DELAY, RULES,
    child::{Serving, run, stderr, stdout},
    path, rules,
};

fn port(address: &str) -> &str {
    address.rsplit_once(':').expect("a port").1
}

#[test]
fn health_is_that_of_the_server_of_the_same_environment() {
    let dir = rules(RULES);
    let weir = Serving::start(path(&dir), &[NO_DELAY]);
    for address in ["127.0.0.1", "0.0.0.0"] {
        let healthy = run(&["health"], &[("HOST", address), ("PORT", port(weir.address("http")))]);
        assert_eq!((healthy.status.code(), &*stdout(&healthy)), (Some(0), "OK\n"), "{}", stderr(&healthy));
    }
    let named = run(&["health", "--address", weir.address("http")], &[("PORT", "1")]);
    assert_eq!(named.status.code(), Some(0), "{}", stderr(&named));
    for (command, of) in [("health", "http"), ("hot", "debug")] {
        let address = format!("localhost:{}", port(weir.address(of)));
        let named = run(&[command, "--address", &address], &[]);
        assert_eq!(named.status.code(), Some(0), "{command}: {}", stderr(&named));
        let unknown = run(&[command, "--address", "weir.invalid:80"], &[]);
        assert!(stderr(&unknown).contains("no reply from weir.invalid:80: "), "{}", stderr(&unknown));
        let wrong = run(&[command, "--address", "localhost"], &[]);
        assert!(stderr(&wrong).contains("write it as HOST:PORT"), "{}", stderr(&wrong));
    }
    let hot = run(&["hot", "--json", "--address", weir.address("debug")], &[]);
    let page: serde_json::Value = serde_json::from_str(&stdout(&hot)).expect("valid JSON");
    assert_eq!((&page["window"], &page["items"]), (&"1m".into(), &serde_json::json!([])), "{page}");
}

#[test]
fn another_port_of_weir_is_told() {
    let dir = rules(RULES);
    let weir = Serving::start(path(&dir), &[NO_DELAY]);
    for (command, port, right) in
        [("hot", "http", "debug port, 6070 by default"), ("health", "debug", "HTTP port, 8080 by default")]
    {
        let wrong = run(&[command, "--address", weir.address(port)], &[]);
        assert_eq!(wrong.status.code(), Some(1), "{command}");
        let expected = format!("at {}: name weir's {right}", weir.address(port));
        assert!(stderr(&wrong).contains(&expected), "{command}: {}", stderr(&wrong));
    }
}

#[test]
fn an_unhealthy_server_is_reported_with_its_reasons() {
    let dir = tempfile::tempdir().expect("a directory");
    let weir = Serving::start(path(&dir), &[NO_DELAY, ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true")]);
    let unhealthy = run(&["health", "--address", weir.address("http")], &[]);
    assert_eq!(unhealthy.status.code(), Some(1));
    assert!(stdout(&unhealthy).contains("no "), "{}", stdout(&unhealthy));
}

#[test]
fn no_server_and_a_silent_server_are_errors() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("its address").to_string();
    let timed_out = run(&["health", "--address", &address, "--timeout", "50"], &[]);
    assert_eq!(timed_out.status.code(), Some(1));
    assert!(
        stderr(&timed_out).contains(&format!("no reply from {address}: timed out")),
        "{}",
        stderr(&timed_out)
    );
    drop(silent);
    let refused = run(&["health", "--address", &address], &[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("no reply from"), "{}", stderr(&refused));
    let wrong = run(&["health"], &[("PORT", "many")]);
    assert!(wrong.status.code() == Some(1) && stderr(&wrong).contains("PORT"), "{}", stderr(&wrong));
}
