//! Servers that are known from SRV records: look-ups that fail, and servers that change.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use weir_limit::{Coordination, OverLimitPolicy};
use weir_remotes::memcached::{DnsName, MemcachedRemote, MemcachedSettings, NameServers, ServerSource};
use weir_store::clock::{Clock as _, SystemClock};

use crate::{
    name_server::{Answers, NameServer, records},
    proxy::{Faults, Proxy},
    support::{Instance, Server, YEAR, until, window},
};

/// The time between two look-ups.
const REFRESH: Duration = Duration::from_millis(20);

fn settings(name_servers: &[&NameServer], refresh: Option<Duration>) -> MemcachedSettings {
    let servers = ServerSource::Srv {
        name: DnsName::parse_service("_memcache._tcp.example.org").expect("it is valid"),
        refresh,
        name_servers: NameServers::List(name_servers.iter().map(|server| server.address).collect()),
    };
    MemcachedSettings { timeout: Duration::from_secs(5), ..MemcachedSettings::new(servers) }
}

fn open(name_servers: &[&NameServer], refresh: Option<Duration>) -> MemcachedRemote {
    let remote = MemcachedRemote::new(settings(name_servers, refresh), Arc::new(SystemClock));
    remote.expect("no files are needed")
}

fn instance(name_server: &NameServer, requests: u32) -> Instance {
    let settings = settings(&[name_server], Some(REFRESH));
    Instance::new(settings, &[window(requests, YEAR)], OverLimitPolicy::Count, Coordination::Strict)
}

/// Returns the ports of the known servers, in their order.
fn ports(remote: &MemcachedRemote) -> Vec<u16> {
    let names = remote.state().servers.into_iter().map(|server| server.name);
    names.map(|name| name.rsplit_once(':').expect("a port").1.parse().expect("a number")).collect()
}

async fn until_known(remote: &MemcachedRemote, servers: &[&Server]) {
    // sorted as text
    let expected: BTreeSet<String> = servers.iter().map(|server| server.port().to_string()).collect();
    let expected: Vec<u16> = expected.iter().map(|port| port.parse().expect("a number")).collect();
    until("the servers are known", async || ports(remote) == expected).await;
}

/// Returns the count of `value` on `server`.
fn count(server: &Server, value: &str) -> Option<String> {
    let now = SystemClock.now().as_nanos() / 1_000_000_000;
    server.get(&format!("fleet_k_{value}_{}", now - now % YEAR))
}

#[tokio::test]
async fn an_answer_that_is_too_long_for_a_datagram_is_read_over_tcp() {
    let server = Server::start();
    // more than the 4,096 bytes of a datagram
    let mut all = records(&[&server]);
    all.extend((0..200).map(|i| (i, format!("cache-{i}.cache.default.svc.cluster.invalid"))));
    let name_server = NameServer::start(Answers::LongRecords(all)).await;
    let remote = open(&[&name_server], None);
    until("the servers are known", async || !remote.state().servers.is_empty()).await;
    assert_eq!(ports(&remote).len(), 201);
    assert_eq!(name_server.queries(), (1, 1));
    until("it is connected", async || remote.state().servers.iter().any(|server| server.connected)).await;
}

#[tokio::test]
async fn name_servers_that_fail_are_passed_over() {
    let server = Server::start();
    // the part of an answer after its id
    let header = [0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0];
    for (answers, reason) in [
        (Answers::Failure(2), "fails with code 2"),
        (Answers::Truncated, "is truncated"),
        (Answers::Bytes(header.to_vec()), "is malformed"),
        (Answers::Bytes([&header[..], &[0xff; 400]].concat()), "is malformed"),
        // a name that is followed by itself
        (Answers::Bytes([&header[..], &[0xc0, 12]].concat()), "is malformed"),
        (Answers::Bytes(vec![0x81, 0x80]), "is malformed"),
    ] {
        let bad = NameServer::start(answers).await;
        let failed = open(&[&bad], None);
        until("the look-up has failed", async || failed.state().failures().contains(reason)).await;
        assert!(bad.queries().0 >= 2, "every name server is asked twice");
        let good = NameServer::start(Answers::Records(records(&[&server]))).await;
        let remote = open(&[&bad, &good], None);
        until("it is connected", async || remote.state().is_connected()).await;
    }
}

#[tokio::test]
async fn a_name_server_that_does_not_answer_delays_no_decision() {
    let server = Server::start();
    let (silent, good) =
        (NameServer::start(Answers::Silence).await, NameServer::start(Answers::Silence).await);
    let weir = Instance::new(
        settings(&[&silent, &good], None),
        &[window(5, YEAR)],
        OverLimitPolicy::Count,
        Coordination::Strict,
    );
    until("the first one is asked", async || silent.queries().0 == 1).await;
    let mut decided = 0;
    until("the second one is asked", async || {
        assert!(weir.send("v", 1).await.over, "without servers the rule's fallback rejects");
        decided += 1;
        good.queries().0 > 0
    })
    .await;
    // a decision that waited for the first name server would be the only one
    assert!(decided > 5, "{decided}");
    good.answer(Answers::Records(records(&[&server])));
    weir.wait_until_connected().await;
    until("it counts", async || {
        let before = weir.store.coordination_metrics().decisions.waited.get();
        weir.send("x", 0).await;
        weir.store.coordination_metrics().decisions.waited.get() > before
    })
    .await;
    assert!(!weir.send("w", 5).await.over && weir.send("w", 1).await.over);
}

#[tokio::test]
async fn silence_and_missing_records_are_reported_and_the_look_up_is_repeated() {
    let server = Server::start();
    let silent = NameServer::start(Answers::Silence).await;
    let waiting = open(&[&silent], None);
    let name_server = NameServer::start(Answers::Records(Vec::new())).await;
    let remote = open(&[&name_server], None);
    until("there are no records", async || remote.state().failures().contains("has no SRV records")).await;
    name_server.answer(Answers::Records(records(&[&server])));
    until("it is connected", async || remote.state().is_connected()).await;
    until("it gives up", async || waiting.state().failures().contains("does not answer")).await;
}

#[tokio::test]
async fn counters_of_a_removed_server_move_and_no_decision_fails() {
    let (first, mut second) = (Server::start(), Server::start());
    let name_server = NameServer::start(Answers::Records(records(&[&second]))).await;
    let weir = instance(&name_server, 1_000_000);
    weir.wait_until_connected().await;
    let values: Vec<String> = (0..20).map(|i| format!("v{i}")).collect();
    let decide = async || {
        for value in &values {
            assert!(!weir.send(value, 1).await.over, "{value}");
        }
    };
    decide().await;
    let changes = [vec![&first, &second], vec![&first]];
    for servers in &changes {
        name_server.answer(Answers::Records(records(servers)));
        tokio::select! {
            () = async { loop { decide().await } } => {}
            () = until_known(weir.store.remote(), servers) => {}
        }
        decide().await;
    }
    let on = |server: &Server| -> Vec<bool> {
        values.iter().map(|value| count(server, value).is_some()).collect()
    };
    assert_eq!(on(&first), [true; 20], "all counters have moved");
    let moved = count(&first, "v0");
    second.kill();
    decide().await;
    assert_ne!(count(&first, "v0"), moved);
    assert_eq!(
        weir.store.coordination_metrics().decisions.fallback.get(),
        0,
        "the store has made every decision"
    );
}

#[tokio::test]
async fn new_servers_are_used_once_they_are_connected() {
    let (known, new) = (Server::start(), Server::start());
    let proxy = Proxy::start(([127, 0, 0, 1], new.port()).into());
    proxy.set(Faults { delay: Duration::from_millis(200), ..Faults::default() });
    let name_server = NameServer::start(Answers::Records(records(&[&known]))).await;
    let weir = instance(&name_server, 1_000_000);
    weir.wait_until_connected().await;
    let both = [known.port(), proxy.address().port()].map(|port| (port, "127.0.0.1".to_owned()));
    name_server.answer(Answers::Records(both.into()));
    until("both are used", async || {
        assert!(weir.store.remote().state().is_connected());
        ports(weir.store.remote()).len() == 2
    })
    .await;
}

#[tokio::test]
async fn a_new_server_that_cannot_be_reached_does_not_keep_others_out() {
    let (known, new, mut dead) = (Server::start(), Server::start(), Server::start());
    dead.kill();
    let name_server = NameServer::start(Answers::Records(records(&[&known]))).await;
    let weir = instance(&name_server, 1_000_000);
    weir.wait_until_connected().await;
    name_server.answer(Answers::Records(records(&[&known, &new, &dead])));
    until_known(weir.store.remote(), &[&known, &new, &dead]).await;
    let servers = weir.store.remote().state().servers;
    assert_eq!(servers.iter().filter(|server| server.connected).count(), 2, "{servers:?}");
}

#[tokio::test]
async fn a_look_up_that_fails_later_keeps_the_servers() {
    let server = Server::start();
    let name_server = NameServer::start(Answers::Records(records(&[&server]))).await;
    let weir = instance(&name_server, 5);
    weir.wait_until_connected().await;
    assert!(!weir.send("v", 3).await.over);
    for answers in [Answers::Failure(2), Answers::Records(Vec::new())] {
        let before = name_server.queries().0;
        name_server.answer(answers);
        until("it is looked up", async || name_server.queries().0 > before).await;
        until_known(weir.store.remote(), &[&server]).await;
        assert!(weir.store.remote().state().is_connected());
    }
    assert!(!weir.send("v", 2).await.over && weir.send("v", 1).await.over, "the counter is still there");
}
