//! Long windows, and keys that Memcached does not accept: limits hold where those of envoyproxy/ratelimit do not.

use weir_limit::{Coordination, OverLimitPolicy};
use weir_remotes::memcached::MemcachedSettings;
use weir_store::clock::{Clock as _, SystemClock};

use crate::support::{Instance, Server, YEAR, settings, window};

const MONTH: u64 = 30 * 86_400;

fn strict(settings: MemcachedSettings, requests: u32, seconds: u64) -> Instance {
    Instance::new(settings, &[window(requests, seconds)], OverLimitPolicy::Count, Coordination::Strict)
}

/// Returns the seconds until the counter of `value` expires.
fn expiry(server: &Server, value: &str, seconds: u64) -> u64 {
    let now = SystemClock.now().as_nanos() / 1_000_000_000;
    let reply = server.send(&format!("mg fleet_k_{value}_{} t", now - now % seconds));
    reply.strip_prefix("HD t").expect("there is a counter that expires").parse().expect("a number")
}

#[tokio::test]
async fn limits_of_months_and_years_hold() {
    let server = Server::start();
    for seconds in [MONTH, YEAR] {
        let weir = strict(settings(&[&server]), 2, seconds);
        weir.wait_until_connected().await;
        // the jitter is random
        for i in 0..20 {
            let value = format!("v{i}");
            let over = [weir.send(&value, 1).await, weir.send(&value, 1).await, weir.send(&value, 1).await];
            assert_eq!(over.map(|decision| decision.over), [false, false, true]);
            let expiry = expiry(&server, &value, seconds);
            // Memcached's clock may be a second behind
            assert!((seconds - 5..=seconds + 300).contains(&expiry), "{expiry}");
        }
    }
}

#[tokio::test]
async fn counters_live_as_long_as_their_window_and_the_jitter() {
    let server = Server::start();
    for (jitter, longest) in [(0, 86_400), (100, 86_500)] {
        let mut settings = settings(&[&server]);
        settings.keys.jitter_seconds = jitter;
        settings.keys.prefix = format!("{jitter}:").into();
        let weir = strict(settings, 2, 86_400);
        weir.wait_until_connected().await;
        weir.send("v", 1).await;
        let now = SystemClock.now().as_nanos() / 1_000_000_000;
        let reply = server.send(&format!("mg {jitter}:fleet_k_v_{} t", now - now % 86_400));
        let expiry: u64 = reply.strip_prefix("HD t").expect("it expires").parse().expect("a number");
        assert!((86_395..=longest).contains(&expiry), "{expiry}");
    }
}

#[tokio::test]
async fn keys_that_memcached_does_not_accept_are_limited_each_by_itself() {
    let server = Server::start();
    let weir = strict(settings(&[&server]), 2, YEAR);
    weir.wait_until_connected().await;
    let long = |last: &str| format!("{}{last}", "x".repeat(300));
    let values = [
        "a b".to_owned(),
        "a\tb".into(),
        "a\r\nb".into(),
        "a\nb".into(),
        "a\u{7f}b".into(),
        "\u{0}".into(),
        "quit\r\nflush_all\r\n".into(),
        long("a"),
        long("b"),
        "x".repeat(100_000),
    ];
    for value in &values {
        assert!(!weir.send(value, 1).await.over, "{value:?}");
        assert!(!weir.send(value, 1).await.over, "{value:?}");
    }
    for value in &values {
        assert!(weir.send(value, 1).await.over, "{value:?}");
    }
    assert!(server.items() >= values.len() as u64, "{}", server.items());
    // the longest key that is sent as it is, and names with other letters
    let longest = "y".repeat(250 - "fleet_k__1767225600".len());
    for value in [&longest, "sch\u{f6}n"] {
        assert!(!weir.send(value, 2).await.over && weir.send(value, 1).await.over);
    }
    let year = SystemClock.now().as_nanos() / 1_000_000_000 / YEAR * YEAR;
    assert_eq!(server.get(&format!("fleet_k_{longest}_{year}")).as_deref(), Some("3"));
}

#[tokio::test]
async fn a_prefix_and_unambiguous_keys_are_used() {
    let server = Server::start();
    let year = SystemClock.now().as_nanos() / 1_000_000_000 / YEAR * YEAR;
    for (unambiguous, key) in
        [(false, format!("eu:fleet_k_v_{year}")), (true, format!("eu:{{fleet|k=v}}c365d_{year}"))]
    {
        let mut settings = settings(&[&server]);
        settings.keys.prefix = "eu:".into();
        settings.keys.unambiguous = unambiguous;
        let weir = strict(settings, 5, YEAR);
        weir.wait_until_connected().await;
        weir.send("v", 3).await;
        assert_eq!(server.get(&key).as_deref(), Some("3"), "{key}");
    }
}

#[tokio::test]
async fn a_counter_with_a_value_of_someone_else_is_rejected_and_decided_without_memcached() {
    let server = Server::start();
    let weir = strict(settings(&[&server]), 5, YEAR);
    weir.wait_until_connected().await;
    let year = SystemClock.now().as_nanos() / 1_000_000_000 / YEAR * YEAR;
    let foreign = "x".repeat(100_000);
    let set = format!("set fleet_k_v_{year} 0 0 {}\r\n{foreign}", foreign.len());
    assert_eq!(server.send(&set), "STORED");
    assert!(weir.send("v", 1).await.over, "on_store_failure is deny");
    assert!(weir.send("v", 0).await.over);
    assert_eq!(weir.store.coordination_metrics().decisions.fallback.get(), 2);
    assert!(!weir.send("w", 1).await.over, "other counters are not affected");
    assert!(!weir.store.is_store_unavailable());
}
