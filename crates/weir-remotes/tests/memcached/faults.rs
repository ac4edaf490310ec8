//! Servers that are killed, frozen, restarted, or speak something else.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use weir_limit::{Coordination, Limit, OnStoreFailure, OverLimitPolicy, Rule, RuleCoordination};
use weir_remotes::{
    memcached::{MemcachedRemote, MemcachedSettings, ServerSource},
    redis::Address,
};
use weir_store::clock::SystemClock;

use crate::support::{Instance, Server, YEAR, settings, until, window};

fn instance(servers: &[&Server], requests: u32, mode: Coordination, failure: OnStoreFailure) -> Instance {
    let coordination =
        RuleCoordination { mode: Some(mode), on_store_failure: Some(failure), ..RuleCoordination::default() };
    let limit =
        Limit::Tiers { tiers: [window(requests, YEAR)].into(), over_limit_policy: OverLimitPolicy::Count };
    let rule = Rule { coordination, ..Rule::new(limit) };
    Instance::with(settings(servers), rule, Arc::new(SystemClock))
}

#[tokio::test]
async fn without_the_server_on_store_failure_decides_and_a_restarted_one_counts_anew() {
    for (failure, admits) in
        [(OnStoreFailure::Deny, false), (OnStoreFailure::Allow, true), (OnStoreFailure::Local, true)]
    {
        let mut server = Server::start();
        let weir = instance(&[&server], 5, Coordination::Strict, failure);
        weir.wait_until_connected().await;
        assert!(!weir.send("v", 3).await.over);
        server.kill();
        until("the loss is noticed", async || !weir.store.remote().state().is_connected()).await;
        assert_eq!(!weir.send("w", 1).await.over, admits, "{failure:?}");
        server.restart();
        until("it is connected again", async || weir.store.remote().state().is_connected()).await;
        until("it counts again", async || {
            let before = weir.store.coordination_metrics().decisions.waited.get();
            weir.send("x", 0).await;
            weir.store.coordination_metrics().decisions.waited.get() > before
        })
        .await;
        // Memcached keeps nothing on disk
        assert!(!weir.send("v", 5).await.over && weir.send("v", 1).await.over, "{failure:?}");
    }
}

#[tokio::test]
async fn interval_reports_what_it_counted_without_the_server() {
    let mut server = Server::start();
    let weir = instance(&[&server], 1_000, Coordination::Interval, OnStoreFailure::Local);
    weir.wait_until_connected().await;
    server.kill();
    until("the loss is noticed", async || !weir.store.remote().state().is_connected()).await;
    for _ in 0..20 {
        assert!(!weir.send("v", 10).await.over);
    }
    server.restart();
    let year = weir_store::clock::Clock::now(&SystemClock).as_nanos() / 1_000_000_000 / YEAR * YEAR;
    let key = format!("fleet_k_v_{year}");
    until("all hits are reported", async || server.get(&key).as_deref() == Some("200")).await;
}

#[tokio::test]
async fn a_dead_server_affects_only_its_own_keys() {
    let mut servers = [Server::start(), Server::start()];
    let weir = instance(&[&servers[0], &servers[1]], 1_000_000, Coordination::Strict, OnStoreFailure::Deny);
    weir.wait_until_connected().await;
    let values: Vec<String> = (0..40).map(|i| format!("v{i}")).collect();
    let year = weir_store::clock::Clock::now(&SystemClock).as_nanos() / 1_000_000_000 / YEAR * YEAR;
    let mut on_first = Vec::new();
    for value in &values {
        assert!(!weir.send(value, 1).await.over);
        on_first.push(servers[0].get(&format!("fleet_k_{value}_{year}")).is_some());
    }
    assert!(on_first.contains(&true) && on_first.contains(&false));
    servers[0].kill();
    until("the loss is noticed", async || !weir.store.remote().state().is_connected()).await;
    for _ in 0..3 {
        for (value, on_first) in values.iter().zip(&on_first) {
            assert_eq!(weir.send(value, 1).await.over, *on_first, "{value}");
        }
    }
    servers[0].restart();
    until("its keys are counted again", async || {
        let mut all = true;
        for value in &values {
            all &= !weir.send(value, 1).await.over;
        }
        all
    })
    .await;
}

#[tokio::test]
async fn a_frozen_server_delays_no_decision_for_longer_than_the_breaker_takes() {
    let server = Server::start();
    let weir = instance(&[&server], 1_000, Coordination::Strict, OnStoreFailure::Allow);
    weir.wait_until_connected().await;
    assert!(!weir.send("v", 1).await.over);
    server.signal("STOP");
    until("the breaker opens", async || {
        weir.send("v", 1).await;
        weir.store.is_store_unavailable()
    })
    .await;
    let begun = Instant::now();
    for _ in 0..100 {
        assert!(!weir.send("v", 1).await.over);
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    server.signal("CONT");
    until("it is used again", async || !weir.store.is_store_unavailable()).await;
    let before = weir.store.coordination_metrics().decisions.fallback.get();
    assert!(!weir.send("w", 1).await.over);
    assert_eq!(weir.store.coordination_metrics().decisions.fallback.get(), before);
}

/// Each second a key belongs to another server.
#[tokio::test]
async fn a_frozen_server_of_two_delays_nothing_when_windows_end() {
    let servers = [Server::start(), Server::start()];
    let coordination = RuleCoordination {
        mode: Some(Coordination::Strict),
        on_store_failure: Some(OnStoreFailure::Allow),
        ..RuleCoordination::default()
    };
    let limit = Limit::Tiers { tiers: [window(1_000, 1)].into(), over_limit_policy: OverLimitPolicy::Count };
    let rule = Rule { coordination, ..Rule::new(limit) };
    let weir = Instance::with(settings(&[&servers[0], &servers[1]]), rule, Arc::new(SystemClock));
    weir.wait_until_connected().await;
    servers[0].signal("STOP");
    until("the breaker opens", async || {
        for value in ["a", "b", "c", "d"] {
            weir.send(value, 1).await;
        }
        weir.store.is_store_unavailable()
    })
    .await;
    for i in 0..100 {
        let begun = Instant::now();
        assert!(!weir.send(&format!("v{i}"), 1).await.over);
        // less than a call to the frozen server takes
        assert!(begun.elapsed() < Duration::from_millis(2_500), "{:?}", begun.elapsed());
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    assert!(weir.store.coordination_metrics().decisions.waited.get() > 0, "the other server counts");
    servers[0].signal("CONT");
    until("it is used again", async || !weir.store.is_store_unavailable()).await;
}

#[tokio::test]
async fn a_server_that_forgets_its_counters_admits_the_limit_again() {
    let server = Server::start();
    let weir = instance(&[&server], 2, Coordination::Strict, OnStoreFailure::Deny);
    weir.wait_until_connected().await;
    assert!(!weir.send("v", 2).await.over && weir.send("v", 1).await.over);
    assert_eq!(server.send("flush_all"), "OK");
    assert!(!weir.send("v", 2).await.over && weir.send("v", 1).await.over);
    until("the instance counts itself again", async || weir.store.instances() == 1).await;
}

/// Starts a server that answers every line with `reply`. Returns its address.
fn answering(reply: &'static [u8]) -> Address {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let address = Address::tcp("127.0.0.1", listener.local_addr().expect("its address").port());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut stream = BufReader::new(stream);
                let mut line = Vec::new();
                while stream.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                    if stream.get_mut().write_all(reply).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn servers_that_speak_something_else_are_reported() {
    let endless: &'static [u8] = vec![b'x'; 1 << 20].leak();
    for (reply, reason) in [
        (&b"ERROR\r\n"[..], "Memcached 1.6.10"),
        (b"ERROR Too many open connections\r\n", "Too many open connections"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "malformed"),
        (b"HD\r\n", "not those to the commands"),
        (endless, "malformed"),
    ] {
        let source = ServerSource::List(vec![answering(reply)]);
        let clock = Arc::new(SystemClock);
        let remote =
            MemcachedRemote::new(MemcachedSettings::new(source), clock).expect("no files are needed");
        until("the attempt has failed", async || remote.state().has_failed()).await;
        let failures = remote.state().failures();
        assert!(failures.contains(reason), "{reason}: {failures}");
    }
}

#[tokio::test]
async fn a_server_of_a_unix_socket_is_used() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("memcached.sock");
    let mut child = std::process::Command::new("memcached")
        .args(["-u", "root", "-t", "1", "-s"])
        .arg(&path)
        .spawn()
        .expect("memcached is installed");
    let source = ServerSource::List(vec![Address::Unix(path)]);
    let weir = Instance::new(
        MemcachedSettings::new(source),
        &[window(2, YEAR)],
        OverLimitPolicy::Count,
        Coordination::Strict,
    );
    weir.wait_until_connected().await;
    assert!(!weir.send("v", 2).await.over && weir.send("v", 1).await.over);
    child.kill().expect("it can be killed");
    child.wait().expect("its end");
}
