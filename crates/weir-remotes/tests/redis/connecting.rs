//! Connections to Redis: sockets, passwords, TLS, sentinels, clusters.

use std::{net::TcpListener, sync::Arc, time::Duration};

use weir_limit::{Algorithm, OverLimitPolicy, Period, Timestamp};
use weir_net::tls::ClientTls;
use weir_remotes::redis::{Address, Auth, RedisEndpoint, RedisRemote, RedisSettings, Topology};
use weir_store::remote::{Heartbeat, Remote as _, Target};

use crate::support::{
    Certificates, Cluster, FakeRedis, MonitoredMaster, Op, Server, address, addresses, compatible, connected,
    now, send, sentinels, settings, target, tier, until,
};

/// Returns whether hits are counted.
async fn counts(remote: &RedisRemote) -> bool {
    let target = compatible("d_k_", 5, 60);
    send(remote, &target, Timestamp::from_secs(60), Op::Take { hits: 1 }).await.is_ok()
}

/// Returns the error of settings with which no connection can be made.
async fn failure(settings: RedisSettings) -> String {
    let remote = RedisRemote::new(settings).expect("the files are valid");
    until("the connection fails", async || remote.state().servers[0].error.is_some()).await;
    assert!(!counts(&remote).await);
    remote.state().servers[0].error.clone().unwrap_or_default()
}

fn credentials(user: Option<&str>, password: &str) -> Auth {
    Auth { user: user.map(str::to_owned), password: password.to_owned() }
}

#[tokio::test]
async fn redis_can_be_reached_by_a_unix_socket() {
    let server = Server::start_with(&["--unixsocket", "{dir}/redis.sock"]);
    let remote = connected(settings(Address::Unix(server.path("redis.sock")))).await;
    assert!(counts(&remote).await);
}

#[tokio::test]
async fn passwords_and_users_are_sent() {
    let server = Server::start_with_password("s3cret", &["--user", "weir", "on", ">hunter2", "~*", "+@all"]);
    for (auth, works) in [
        (Some(credentials(None, "s3cret")), true),
        (Some(credentials(Some("weir"), "hunter2")), true),
        (Some(credentials(Some("weir"), "wr0ng")), false),
        (None, false),
    ] {
        let mut settings = settings(address(server.port()));
        settings.main.auth = auth.clone();
        if works {
            assert!(counts(&connected(settings).await).await, "{auth:?}");
        } else {
            let failure = failure(settings).await;
            assert!(failure.contains("WRONGPASS") || failure.contains("NOAUTH"), "{failure}");
            assert!(!failure.contains("wr0ng"), "{failure}");
        }
    }
}

#[tokio::test]
async fn the_database_of_the_settings_is_used() {
    let server = Server::start();
    let mut settings = settings(address(server.port()));
    settings.main.database = 3;
    let remote = connected(settings).await;
    assert!(counts(&remote).await);
    let info: String = server.send(&["INFO", "keyspace"]);
    assert!(info.contains("db3:keys=1") && !info.contains("db0"), "{info}");
}

#[tokio::test]
async fn connections_use_resp3() {
    let server = Server::start();
    let remote = connected(settings(address(server.port()))).await;
    assert!(counts(&remote).await);
    let clients: String = server.send(&["CLIENT", "LIST"]);
    assert!(clients.lines().any(|client| client.contains("resp=3")), "{clients}");
}

#[tokio::test]
async fn a_server_without_resp3_is_used_with_resp2() {
    // Redis 5 and many proxies lack this command
    let server = Server::start_with(&["--rename-command", "HELLO", ""]);
    let remote = connected(settings(address(server.port()))).await;
    assert!(counts(&remote).await);
}

/// Starts a server that accepts TLS only, with a certificate for `host`; it requires client certificates if `mutual`.
fn tls_server(certificates: &Certificates, host: &str, mutual: bool) -> (Server, Address) {
    let (certificate, key) = certificates.sign("server", host);
    let server = Server::start_with_tls(&certificate, &key, &certificates.path("ca.pem"), mutual);
    let address = Address::tcp("localhost", server.port());
    (server, address)
}

#[tokio::test]
async fn tls_trusts_only_certificates_signed_for_the_name() {
    let certificates = Certificates::new();
    let (_server, address) = tls_server(&certificates, "localhost", false);
    let with = |tls: ClientTls| {
        let mut settings = settings(address.clone());
        settings.main.tls = Some(tls);
        settings
    };
    let ca = Some(certificates.path("ca.pem"));
    assert!(counts(&connected(with(ClientTls { ca: ca.clone(), ..ClientTls::default() })).await).await);
    let other = Certificates::new();
    let other = ClientTls { ca: Some(other.path("ca.pem")), ..ClientTls::default() };
    let rejected = failure(with(other.clone())).await;
    assert!(rejected.contains("TLS") && rejected.contains("certificate"), "{rejected}");
    // `any_name` ignores the name but not the signature
    let rejected = failure(with(ClientTls { any_name: true, ..other })).await;
    assert!(rejected.contains("certificate"), "{rejected}");

    let (_server, address) = tls_server(&certificates, "elsewhere", false);
    let with = |any_name| {
        let mut settings = settings(address.clone());
        settings.main.tls = Some(ClientTls { ca: ca.clone(), any_name, ..ClientTls::default() });
        settings
    };
    let rejected = failure(with(false)).await;
    assert!(rejected.contains("name"), "{rejected}");
    assert!(counts(&connected(with(true)).await).await);
}

#[tokio::test]
async fn tls_sends_a_client_certificate() {
    let certificates = Certificates::new();
    let (_server, address) = tls_server(&certificates, "localhost", true);
    let with = |client| {
        let mut settings = settings(address.clone());
        settings.main.tls =
            Some(ClientTls { ca: Some(certificates.path("ca.pem")), client, ..ClientTls::default() });
        settings
    };
    let client = certificates.sign("client", "weir");
    assert!(counts(&connected(with(Some(client))).await).await);
    failure(with(None)).await;
}

#[tokio::test]
async fn tls_files_are_checked_at_start() {
    let certificates = Certificates::new();
    let (certificate, key) = certificates.sign("client", "weir");
    let ca = certificates.path("ca.pem");
    let missing = certificates.path("missing.pem");
    for (tls, expected) in [
        (ClientTls { ca: Some(missing.clone()), ..ClientTls::default() }, "cannot read REDIS_TLS_CACERT"),
        (ClientTls { ca: Some(key.clone()), ..ClientTls::default() }, "holds no certificate"),
        (
            ClientTls { client: Some((missing, key.clone())), ..ClientTls::default() },
            "cannot read REDIS_TLS_CLIENT_CERT",
        ),
        (
            ClientTls { client: Some((certificate.clone(), ca.clone())), ..ClientTls::default() },
            "holds no private key",
        ),
    ] {
        let mut settings = settings(Address::tcp("localhost", 1));
        settings.main.tls = Some(ClientTls { ca: tls.ca.or(Some(ca.clone())), ..tls });
        let error = RedisRemote::new(settings).expect_err("a file is invalid").to_string();
        assert!(error.contains(expected), "{error}");
    }
}

fn at(topology: Topology) -> RedisSettings {
    let mut settings = settings(Address::tcp("nowhere", 1));
    settings.main = RedisEndpoint { timeout: Duration::from_secs(5), ..RedisEndpoint::new(topology) };
    settings
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_the_new_master_is_used() {
    let mut monitored = MonitoredMaster::start(Some("s3cret")).await;
    let remote = connected(at(sentinels(&monitored))).await;
    let target =
        target("d_", OverLimitPolicy::Ignore, vec![tier(1_000_000, 3_600, Algorithm::SlidingWindow)]);
    let take = async || send(&remote, &target, Timestamp::default(), Op::Take { hits: 1 }).await;
    assert!(take().await.is_ok());
    let written = monitored.master.offset("master_repl_offset:");
    until("it is replicated", async || monitored.replica.offset("slave_repl_offset:") >= written).await;
    let port = monitored.replica.port().to_string();
    monitored.master.kill();
    until("the replica counts", async || take().await.is_ok()).await;
    let state = remote.state();
    assert!(state.servers[0].name.contains(&port), "{state:?}");
    let used = take().await.expect("it counts").counters[0].used();
    assert!(used.0 >= 2, "replicated hits are lost: {used:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_master_is_replaced_when_a_replica_takes_over() {
    let monitored = MonitoredMaster::start(None).await;
    let remote = connected(at(sentinels(&monitored))).await;
    monitored.master.signal("STOP");
    let target = compatible("d_", 5, 60);
    let take = async || {
        let reply = send(&remote, &target, Timestamp::default(), Op::Take { hits: 1 });
        tokio::time::timeout(Duration::from_millis(50), reply).await
    };
    until("the replica counts", async || take().await.is_ok_and(|reply| reply.is_ok())).await;
    assert!(remote.state().servers[0].name.contains(&monitored.replica.port().to_string()));
}

/// Returns `topology` with an address in front of the sentinels that accepts connections and never replies, and
/// settings whose timeout is longer than any test.
fn behind_a_hanging_sentinel(topology: Topology) -> (TcpListener, RedisSettings) {
    let hanging = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let port = hanging.local_addr().expect("its address").port();
    let Topology::Sentinel { master, mut sentinels, auth } = topology else { unreachable!("of sentinels") };
    sentinels.insert(0, Address::tcp("127.0.0.1", port));
    let mut settings = at(Topology::Sentinel { master, sentinels, auth });
    settings.main.timeout = Duration::from_mins(1);
    (hanging, settings)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_hangs_delays_no_failover() {
    let mut monitored = MonitoredMaster::start(None).await;
    let (_hanging, settings) = behind_a_hanging_sentinel(sentinels(&monitored));
    let remote = connected(settings).await;
    assert!(counts(&remote).await);
    monitored.master.kill();
    until("the replica counts", async || counts(&remote).await).await;
    assert!(remote.state().servers[0].name.contains(&monitored.replica.port().to_string()));
}

/// A sentinel that is cut off from the others still reports a master that has been replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_is_out_of_date_is_outvoted() {
    let monitored = MonitoredMaster::start(None).await;
    let outdated = FakeRedis::start().await;
    let port = monitored.replica.port().to_string();
    let reply = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len());
    outdated.reply(move |command| (command[0] == "SENTINEL").then(|| reply.clone()));
    let Topology::Sentinel { master, mut sentinels, auth } = sentinels(&monitored) else { unreachable!() };
    sentinels.insert(0, address(outdated.port()));
    let remote = connected(at(Topology::Sentinel { master, sentinels, auth })).await;
    let polled = outdated.received("SENTINEL");
    until("it is asked again", async || outdated.received("SENTINEL") > polled + 2).await;
    let state = remote.state();
    assert!(state.is_connected() && state.servers[0].name.contains(&monitored.master.port().to_string()));
    assert!(outdated.received("HELLO") <= 2, "one connection to connect, and one to poll");
}

#[tokio::test]
async fn an_unknown_master_is_reported() {
    let sentinel = Server::start_sentinel("sentinel resolve-hostnames no", None);
    let topology =
        Topology::Sentinel { master: "other".into(), sentinels: vec![address(sentinel.port())], auth: None };
    let failure = failure(at(topology)).await;
    assert!(failure.contains("watches no master with the name other"), "{failure}");
}

fn tiered(path: &str) -> Arc<Target> {
    let tiers = vec![tier(100, 60, Algorithm::SlidingWindow), tier(1_000, 3_600, Algorithm::SlidingWindow)];
    target(path, OverLimitPolicy::Ignore, tiers)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_queried_for_its_slots() {
    let cluster = Cluster::start().await;
    // the addresses of the other nodes are found through one of them
    let nodes = addresses(&cluster.nodes);
    let remote = connected(at(Topology::Cluster(vec![nodes[1].clone()]))).await;
    let at = now(&remote).await;
    let targets: Vec<_> =
        (0..60)
            .map(|i| {
                if i % 2 == 0 {
                    tiered(&format!("d_{i}_"))
                } else {
                    compatible(&format!("d_{i}_"), 100, 3_600)
                }
            })
            .collect();
    for round in 1..=2_u64 {
        let command = |target: &Arc<Target>| Op::Take { hits: 2 }.command(target, at);
        let replies =
            remote.call(targets.iter().map(command).collect()).await.expect("all nodes reply").replies;
        assert_eq!(replies.len(), 60);
        for reply in replies {
            let reply = reply.expect("every command is carried out");
            assert_eq!((&reply.taken[..], reply.counters[0].used().0), (&[1][..], (round - 1) * 2));
        }
    }
    let keys = cluster.nodes.iter().map(|node| node.send::<usize>(&["DBSIZE"]));
    let keys: Vec<usize> = keys.collect();
    assert!(keys.iter().all(|keys| *keys > 5) && keys.iter().sum::<usize>() == 90, "{keys:?}");
    assert_eq!(remote.state().servers.len(), 3);
    assert_eq!(
        remote
            .heartbeat(Heartbeat { instance: "one", ttl: Period::from_secs(60) })
            .await
            .map(|members| members.instances),
        Ok(1)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_follow_a_slot_that_moves_to_another_node() {
    let cluster = Cluster::start().await;
    let remote = connected(at(Topology::Cluster(addresses(&cluster.nodes)))).await;
    let at = Timestamp::from_secs(3_600);
    let (compatible, tiered) = (compatible("d_{k}_", 100, 3_600), tiered("k"));
    let take = async |expected: u64| {
        for target in [&compatible, &tiered] {
            let reply = send(&remote, target, at, Op::Take { hits: 1 }).await;
            let reply = reply.unwrap_or_else(|error| panic!("{error} at {expected} of {target:?}"));
            assert_eq!(reply.counters[0].used().0, expected - 1);
        }
    };
    take(1).await;
    let (slot, from) = cluster.holder("k");
    assert_eq!(cluster.holder("d_{k}_3600").0, slot);
    let to = (from + 1) % 3;
    cluster.begin_move(slot, from, to);
    take(2).await;
    cluster.move_keys(slot, from, to);
    // the keys have moved, but the slot has not
    take(3).await;
    cluster.end_move(slot, to);
    take(4).await;
    take(5).await;
    let ttl: i64 = cluster.nodes[to].send(&["TTL", "d_{k}_3600"]);
    assert!(ttl > 3_000, "{ttl}");
}

#[tokio::test]
async fn a_cluster_node_used_as_a_single_server_is_reported() {
    let cluster = Cluster::start().await;
    let remote = connected(settings(address(cluster.nodes[0].port()))).await;
    let targets = (0..20).map(|i| compatible(&format!("d_{i}_"), 5, 60));
    let command = |target| Op::Take { hits: 1 }.command(&target, Timestamp::default());
    let replies = remote.call(targets.map(command).collect()).await.expect("it replies").replies;
    let errors = replies.iter().filter_map(|reply| reply.as_ref().err()).map(ToString::to_string);
    let errors: Vec<String> = errors.collect();
    assert!(errors.iter().any(|error| error.contains("set REDIS_TYPE to CLUSTER")), "{errors:?}");
}
