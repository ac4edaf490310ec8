//! The slots of a cluster whose servers fail, or do not agree.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use weir_limit::{Algorithm, OverLimitPolicy, Timestamp};
use weir_observe::Source as _;
use weir_remotes::redis::{RedisRemote, Topology};
use weir_store::remote::{Command, Remote as _, RemoteError};

use crate::support::{
    Cluster, FakeRedis, Op, address, addresses, compatible, connected, free_port, send, settings, target,
    tier, until,
};

const AT: Timestamp = Timestamp::from_secs(3_600);

const DOWN: &str = "-CLUSTERDOWN The cluster is down\r\n";

/// Replies to `CLUSTER SLOTS` that the server at `port` holds all slots, and to `INCRBY` as `count` says.
fn holder(server: &FakeRedis, port: u16, count: impl Fn() -> Option<String> + Send + Sync + 'static) {
    server.reply(move |command| match command[0].as_str() {
        "CLUSTER" => Some(format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n")),
        "INCRBY" => count(),
        _ => None,
    });
}

async fn servers() -> [FakeRedis; 3] {
    [FakeRedis::start().await, FakeRedis::start().await, FakeRedis::start().await]
}

async fn open(servers: &[FakeRedis]) -> RedisRemote {
    let mut settings = settings(address(servers[0].port()));
    settings.main.topology = Topology::Cluster(servers.iter().map(|server| address(server.port())).collect());
    settings.main.timeout = Duration::from_secs(20);
    connected(settings).await
}

async fn take(remote: &RedisRemote) -> Result<u64, RemoteError> {
    Ok(send(remote, &compatible("k_", 100, 3_600), AT, Op::Take { hits: 1 }).await?.granted)
}

/// Replies that the cluster is down to the next `times` commands that count.
fn down(times: usize) -> impl Fn() -> Option<String> + Send + Sync {
    let left = AtomicUsize::new(times);
    let less = |left: usize| left.checked_sub(1);
    move || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok().then(|| DOWN.into())
}

#[tokio::test]
async fn a_cluster_that_is_down_is_asked_again() {
    let servers = servers().await;
    let [first, second, third] = &servers;
    for server in [second, third] {
        holder(server, first.port(), || None);
    }
    // longer than any other retry
    holder(first, first.port(), down(12));
    let remote = open(&servers).await;
    let asked = first.received("CLUSTER");
    assert_eq!(take(&remote).await, Ok(1));
    assert_eq!(first.received("INCRBY"), 13, "until it is carried out, once");
    until("the slots are looked up", async || first.received("CLUSTER") > asked).await;
}

#[tokio::test]
async fn a_cluster_that_stays_down_rejects_within_the_timeout() {
    let servers = servers().await;
    for server in &servers {
        holder(server, servers[0].port(), || Some(DOWN.into()));
    }
    let mut settings = settings(address(servers[0].port()));
    settings.main.topology = Topology::Cluster(vec![address(servers[0].port())]);
    settings.main.timeout = Duration::from_millis(400);
    let remote = connected(settings).await;
    let failed = take(&remote).await.expect_err("it is down");
    assert!(failed.is_definitely_not_applied() && failed.to_string().contains("CLUSTERDOWN"), "{failed:?}");
}

#[tokio::test]
async fn servers_that_redirect_to_each_other_do_not_move_the_slot_back_and_forth() {
    let servers = servers().await;
    let [first, second, third] = &servers;
    let moved = |port: u16| move || Some(format!("-MOVED 1 127.0.0.1:{port}\r\n"));
    holder(first, first.port(), moved(second.port()));
    holder(second, first.port(), moved(first.port()));
    holder(third, first.port(), || None);
    let remote = open(&servers).await;
    let failed = take(&remote).await.expect_err("nobody carries it out");
    assert!(failed.is_definitely_not_applied(), "{failed:?}");
    // the next look-up says where it belongs
    holder(first, first.port(), || None);
    until("the first server counts", async || take(&remote).await.is_ok()).await;
    let before = second.received("INCRBY");
    assert_eq!(take(&remote).await, Ok(1));
    assert_eq!(second.received("INCRBY"), before);
}

#[tokio::test]
async fn a_seed_that_hangs_does_not_delay_the_first_look_up() {
    let servers = servers().await;
    let [hanging, master, third] = &servers;
    hanging.hold(true);
    for server in [master, third] {
        holder(server, master.port(), || None);
    }
    let mut settings = settings(address(master.port()));
    settings.main.topology = Topology::Cluster(servers.iter().map(|server| address(server.port())).collect());
    // longer than any test waits
    settings.main.timeout = Duration::from_mins(1);
    let remote = connected(settings).await;
    assert_eq!(take(&remote).await, Ok(1));
}

#[tokio::test]
async fn seeds_that_hang_are_named_while_they_are_waited_for() {
    let hanging = FakeRedis::start().await;
    hanging.hold(true);
    let mut settings = settings(address(hanging.port()));
    settings.main.topology = Topology::Cluster(vec![address(hanging.port())]);
    settings.main.timeout = Duration::from_mins(1);
    let remote = RedisRemote::new(settings).expect("no files are needed");
    assert_eq!(remote.state().failures(), "no server has replied yet");
    let expected = format!("{}: no reply yet", address(hanging.port()));
    until("it is named", async || remote.state().failures() == expected).await;
    assert!(remote.state().has_failed());
}

#[tokio::test]
async fn seeds_are_not_asked_while_a_server_is_lost() {
    let [master, seed, _] = servers().await;
    let (port, lost) = (master.port(), free_port());
    for server in [&master, &seed] {
        server.reply(move |command| match command[0].as_str() {
            "CLUSTER" => Some(format!(
                "*2\r\n*3\r\n:0\r\n:16382\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n\
                 *3\r\n:16383\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{lost}\r\n"
            )),
            // every command makes weir ask for the slots again
            "INCRBY" => Some("-MOVED 1 ?:1\r\n".into()),
            _ => None,
        });
    }
    let mut settings = settings(address(seed.port()));
    settings.main.topology = Topology::Cluster(vec![address(seed.port())]);
    let remote = RedisRemote::new(settings).expect("no files are needed");
    until("the known server is asked often", async || {
        let _ = take(&remote).await;
        master.received("CLUSTER") >= 20
    })
    .await;
    assert_eq!(seed.received("CLUSTER"), 1);
    assert_eq!(seed.received("SCRIPT"), 0, "it runs none");
}

#[tokio::test]
async fn a_redirect_to_an_unknown_host_is_followed_by_a_look_up() {
    let servers = servers().await;
    let [first, second, third] = &servers;
    for server in &servers {
        holder(server, first.port(), || None);
    }
    let remote = open(&servers).await;
    assert_eq!(take(&remote).await, Ok(1));
    for server in [second, third] {
        holder(server, second.port(), || None);
    }
    let moved = format!("-MOVED 1 ?:{}\r\n", second.port());
    holder(first, second.port(), move || Some(moved.clone()));
    until("the second server counts", async || take(&remote).await.is_ok()).await;
    assert_eq!(second.received("INCRBY"), 1);
}

/// A command waits for a real cluster to be whole again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_waits_until_the_majority_is_back() {
    let cluster = Cluster::start().await;
    let mut settings = settings(address(cluster.nodes[0].port()));
    settings.main.topology = Topology::Cluster(addresses(&cluster.nodes));
    settings.main.timeout = Duration::from_secs(25);
    let remote = Arc::new(connected(settings).await);
    let key = |c: &char| cluster.holder(&format!("{{d_{c}_}}")).1 == 0;
    let path = format!("d_{}_", ('a'..='z').find(key).expect("a third of them"));
    let target = target(&path, OverLimitPolicy::Ignore, vec![tier(100, 3_600, Algorithm::SlidingWindow)]);
    cluster.nodes[1..].iter().for_each(|node| node.signal("STOP"));
    until("the first node has noticed", async || {
        let info: String = cluster.nodes[0].send(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:fail")
    })
    .await;
    let (waiting, waits_for) = (Arc::clone(&remote), Arc::clone(&target));
    let waiting = tokio::spawn(async move { send(&waiting, &waits_for, AT, Op::Take { hits: 1 }).await });
    until("it is sent again", async || {
        let metrics = remote.metrics().into_iter();
        metrics.filter(|metric| metric.name == "weir.redis.retries").map(|metric| metric.value).sum::<u64>()
            > 3
    })
    .await;
    cluster.nodes[1..].iter().for_each(|node| node.signal("CONT"));
    let reply = waiting.await.expect("it ends").expect("it is carried out");
    assert_eq!((reply.granted, reply.counters[0].used().0), (1, 0));
}

/// Within one call, the other nodes carry out their commands at once, also those that have to be sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_node_delays_no_command_for_another_node_within_one_call() {
    let cluster = Cluster::start().await;
    let mut settings = settings(address(cluster.nodes[0].port()));
    settings.main.topology = Topology::Cluster(addresses(&cluster.nodes));
    // longer than the test waits
    settings.main.timeout = Duration::from_mins(1);
    let remote = connected(settings).await;
    let command = |node: usize| {
        let on = |value: &char| cluster.holder(&format!("{{d_{value}_}}")).1 == node;
        let path = format!("d_{}_", ('a'..='z').find(on).expect("each node holds a third of the slots"));
        let sliding = target(&path, OverLimitPolicy::Ignore, vec![tier(100, 60, Algorithm::SlidingWindow)]);
        Op::Take { hits: 1 }.command(&sliding, Timestamp::from_secs(3_600))
    };
    let commands: Vec<Command> = (0..3).map(command).collect();
    // unknown scripts are sent again
    cluster.nodes.iter().for_each(|node| node.send::<()>(&["SCRIPT", "FLUSH"]));
    cluster.nodes[0].signal("STOP");
    let call = tokio::spawn(async move { remote.call(commands).await });
    until("the other nodes count", async || {
        cluster.nodes[1..].iter().all(|node| node.send::<u64>(&["DBSIZE"]) == 1)
    })
    .await;
    assert!(!call.is_finished(), "the frozen node has not replied");
    cluster.nodes[0].signal("CONT");
    let replies = call.await.expect("it ends").expect("all reply").replies;
    assert_eq!(replies.iter().filter(|reply| reply.is_ok()).count(), 3);
}
