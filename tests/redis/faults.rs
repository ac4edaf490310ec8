//! Redis as it fails: stopped, killed, frozen, flushed, overtaxed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::time::{sleep, timeout};
use weir::{
    limit::{Algorithm, OverLimitPolicy, Period, Timestamp},
    observe::Source as _,
    store::{
        redis::{Address, RedisRemote},
        remote::{Command, Op, Remote as _, RemoteError, Reply, Target},
    },
};

use crate::proxy::Proxy;
use crate::support::{Server, ask, free_port, now, reference, remote, settings, target, tier, until};

const AT: Timestamp = Timestamp::from_secs(3_600);

fn sliding() -> Arc<Target> {
    target("d_", OverLimitPolicy::Ignore, vec![tier(1_000_000, 86_400, Algorithm::SlidingWindow)])
}

async fn take(remote: &RedisRemote, target: &Arc<Target>) -> Result<Reply, RemoteError> {
    ask(remote, target, AT, Op::Take { hits: 1 }).await
}

/// The sum of the metrics of that name and label.
fn metric(remote: &RedisRemote, name: &str, label: &str) -> u64 {
    let labelled = |labels: &[(&str, String)]| labels.iter().any(|(_, value)| value == label);
    let metrics = remote.metrics().into_iter();
    metrics.filter(|metric| metric.name == name && labelled(&metric.labels)).map(|metric| metric.value).sum()
}

#[tokio::test]
async fn it_starts_without_redis_and_connects_when_there_is_one() {
    let mut server = Server::start();
    server.kill();
    let remote = RedisRemote::new(settings(server.address())).expect("nobody has to listen");
    let failed = take(&remote, &sliding()).await;
    assert!(matches!(failed, Err(RemoteError::NotSent(_))), "{failed:?}");
    assert!(failed.expect_err("it is down").to_string().contains("refused"));
    assert!(!remote.state().is_connected());
    server.restart();
    until("it counts", async || take(&remote, &sliding()).await.is_ok()).await;
    assert!(remote.state().is_connected() && remote.state().servers[0].error.is_none());
}

#[tokio::test]
async fn without_redis_nobody_waits() {
    let remote = RedisRemote::new(settings(Address::tcp("127.0.0.1", free_port()))).expect("no files");
    until("it is known to be down", async || take(&remote, &sliding()).await.is_err()).await;
    let begun = Instant::now();
    for _ in 0..1_000 {
        assert!(matches!(take(&remote, &sliding()).await, Err(RemoteError::NotSent(_))));
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(metric(&remote, "weir.redis.errors", "not_sent") >= 1_000);
}

#[tokio::test]
async fn a_server_that_was_killed_is_found_again() {
    let mut server = Server::start();
    let remote = remote(&server).await;
    assert!(take(&remote, &sliding()).await.is_ok());
    server.kill();
    until("it is missed", async || take(&remote, &sliding()).await.is_err()).await;
    server.restart();
    until("it counts", async || take(&remote, &sliding()).await.is_ok()).await;
    // what it had counted is gone with it, and the script is there again
    assert!(take(&remote, &sliding()).await.expect("it counts").counters[0].used().0 <= 3);
}

#[tokio::test]
async fn what_was_on_its_way_is_never_sent_twice() {
    let server = Server::start();
    let remote = Arc::new(remote(&server).await);
    let (done, unknown) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let stop = Arc::new(AtomicBool::new(false));
    let asking = (0..8).map(|i| {
        let (remote, done, unknown, stop) =
            (Arc::clone(&remote), Arc::clone(&done), Arc::clone(&unknown), Arc::clone(&stop));
        let target = if i % 2 == 0 { sliding() } else { reference("r_", 1_000_000, 86_400) };
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                match take(&remote, &target).await {
                    Ok(reply) => done.fetch_add(reply.granted, Ordering::Relaxed),
                    Err(error) if error.is_definitely_not_applied() => 0,
                    Err(_) => unknown.fetch_add(1, Ordering::Relaxed),
                };
            }
        })
    });
    let asking: Vec<_> = asking.collect();
    for cut in 1..=20 {
        let before = done.load(Ordering::Relaxed);
        server.ask::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        until("it goes on", async || done.load(Ordering::Relaxed) > before + 20 * cut).await;
    }
    stop.store(true, Ordering::Relaxed);
    for asked in asking {
        asked.await.expect("it ends");
    }
    let counted = take(&remote, &sliding()).await.expect("it counts").counters[0].used().0 - 1
        + take(&remote, &reference("r_", 1_000_000, 86_400)).await.expect("it counts").counters[0].used().0
        - 1;
    let (done, unknown) = (done.load(Ordering::Relaxed), unknown.load(Ordering::Relaxed));
    assert!((done..=done + unknown).contains(&counted), "{counted} of {done}, and {unknown} unknown");
}

/// A connection that breaks is made anew at once, and once.
#[tokio::test]
async fn what_an_old_connection_did_not_answer_says_nothing_about_the_next() {
    let server = Server::start();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into());
    let address = Address::tcp("127.0.0.1", proxy.address().port());
    let remote = crate::support::connected(settings(address)).await;
    for breaks in 1..=5 {
        assert!(take(&remote, &sliding()).await.is_ok(), "{breaks}: it did not connect at once");
        // brief connections are another matter
        sleep(Duration::from_millis(150)).await;
        proxy.cut_reply_to("d_", 40);
        let cut = take(&remote, &sliding()).await;
        assert!(matches!(cut, Err(RemoteError::Unreachable(_))), "{cut:?}");
        until("it is missed", async || metric(&remote, "weir.redis.disconnected", "main") >= breaks).await;
    }
    assert!(take(&remote, &sliding()).await.is_ok());
    assert_eq!(metric(&remote, "weir.redis.disconnected", "main"), 5);
}

#[tokio::test]
async fn a_server_that_freezes_is_waited_for_only_so_long() {
    let server = Server::start();
    let mut settings = settings(server.address());
    settings.main.timeout = Duration::from_millis(300);
    let remote = crate::support::connected(settings).await;
    assert!(take(&remote, &sliding()).await.is_ok());
    server.signal("STOP");
    let begun = Instant::now();
    let failed = take(&remote, &sliding()).await;
    assert_eq!(failed, Err(RemoteError::TimedOut(Period::from_millis(300))));
    assert!(begun.elapsed() < Duration::from_millis(900), "{:?}", begun.elapsed());
    until("it is given up", async || matches!(take(&remote, &sliding()).await, Err(RemoteError::NotSent(_))))
        .await;
    server.signal("CONT");
    until("it counts", async || take(&remote, &sliding()).await.is_ok()).await;
}

#[tokio::test]
async fn what_waits_is_bounded_and_late_answers_are_not_lost() {
    let server = Server::start();
    let remote = Arc::new(remote(&server).await);
    let target = reference("r_", 1_000_000, 86_400);
    server.signal("STOP");
    let asking: Vec<_> = (0..6_000)
        .map(|_| {
            let (remote, target) = (Arc::clone(&remote), Arc::clone(&target));
            tokio::spawn(async move { take(&remote, &target).await })
        })
        .collect();
    until("some are turned away", async || metric(&remote, "weir.redis.errors", "not_sent") > 1_000).await;
    server.signal("CONT");
    let (mut done, mut turned_away) = (0, 0);
    for asked in asking {
        match asked.await.expect("it ends") {
            Ok(_) => done += 1,
            Err(RemoteError::NotSent(_)) => turned_away += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(done >= 4_000 && done + turned_away == 6_000, "{done} and {turned_away}");
    let counted: u64 = server.ask(&["GET", "r_0"]);
    assert_eq!(counted, done);
    // what came together left together
    assert!(metric(&remote, "weir.redis.pipelines", "main") < 100);
}

#[tokio::test]
async fn who_has_given_up_is_not_counted_later() {
    let server = Server::start();
    let remote = Arc::new(remote(&server).await);
    let target = reference("r_", 1_000_000, 86_400);
    server.signal("STOP");
    for _ in 0..50 {
        let asked = timeout(Duration::from_millis(2), take(&remote, &target)).await;
        assert!(asked.is_err(), "it is frozen");
    }
    server.signal("CONT");
    assert!(take(&remote, &target).await.is_ok());
    // only those count that were on their way already
    assert!(server.ask::<u64>(&["GET", "r_0"]) <= 6);
}

#[tokio::test]
async fn what_is_flushed_begins_anew() {
    let server = Server::start();
    let remote = remote(&server).await;
    for _ in 0..3 {
        take(&remote, &sliding()).await.expect("it counts");
    }
    server.ask::<()>(&["FLUSHALL"]);
    assert_eq!(take(&remote, &sliding()).await.expect("it counts").counters[0].used().0, 1);
    server.ask::<()>(&["SCRIPT", "FLUSH"]);
    let commands = (0..50).map(|_| Command { target: sliding(), at: AT, op: Op::Take { hits: 1 } }).collect();
    let replies = remote.call(commands).await.expect("it answers").replies;
    assert!(replies.iter().all(Result::is_ok), "{replies:?}");
    assert_eq!(take(&remote, &sliding()).await.expect("it counts").counters[0].used().0, 52);
    server.ask::<()>(&["SCRIPT", "FLUSH"]);
    assert_eq!(remote.heartbeat("one", Period::from_secs(60)).await, Ok(1));
    assert!(metric(&remote, "weir.redis.retries", "main") >= 51);
}

#[tokio::test]
async fn what_redis_refuses_was_not_counted_and_is_told_in_its_words() {
    let server = Server::start();
    let remote = remote(&server).await;
    for target in [sliding(), reference("r_", 10, 86_400)] {
        let refused = async |word: &str| {
            let refused = take(&remote, &target).await;
            let told = matches!(&refused, Err(RemoteError::Rejected(said)) if said.contains(word));
            assert!(told, "{word}: {refused:?}");
        };
        server.ask::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        refused("NOREPLICAS").await;
        server.ask::<()>(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
        server.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        refused("OOM").await;
        server.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        let reply = take(&remote, &target).await.expect("it counts again");
        assert_eq!(reply.counters[0].used().0, 1);
    }
    assert_eq!(metric(&remote, "weir.redis.errors", "rejected"), 4);
}

#[tokio::test]
async fn disks_that_fail_are_told() {
    let server = Server::start();
    let remote = remote(&server).await;
    server.ask::<()>(&["SET", "a", "b"]);
    // a snapshot into a place that is none
    server.ask::<()>(&["CONFIG", "SET", "save", "3600 1000000"]);
    std::fs::create_dir(server.path("dump.rdb")).expect("a directory");
    server.ask::<redis::Value>(&["BGSAVE"]);
    until("the snapshot fails", async || {
        let info: String = server.ask(&["INFO", "persistence"]);
        info.contains("rdb_last_bgsave_status:err")
    })
    .await;
    for target in [sliding(), reference("r_", 10, 86_400)] {
        let refused = take(&remote, &target).await;
        let told = matches!(&refused, Err(RemoteError::Rejected(said)) if said.contains("MISCONF"));
        assert!(told, "{refused:?}");
    }
    server.ask::<()>(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    assert!(take(&remote, &sliding()).await.is_ok());
}

#[tokio::test]
async fn a_server_that_becomes_a_replica_refuses_until_it_is_a_master_again() {
    let (server, other) = (Server::start(), Server::start());
    let remote = remote(&server).await;
    server.ask::<()>(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    for target in [sliding(), reference("r_", 10, 86_400)] {
        let refused = take(&remote, &target).await;
        assert!(
            matches!(&refused, Err(RemoteError::Rejected(said)) if said.contains("READONLY")),
            "{refused:?}"
        );
    }
    // another connection may lead to another server: it is made, but not again and again
    until("it looks for another", async || {
        sleep(Duration::from_millis(20)).await;
        let _ = take(&remote, &sliding()).await;
        metric(&remote, "weir.redis.disconnected", "main") >= 1
    })
    .await;
    server.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
    until("it counts", async || take(&remote, &sliding()).await.is_ok()).await;
    assert!(metric(&remote, "weir.redis.disconnected", "main") < 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_share_round_trips() {
    let server = Server::start();
    let remote = Arc::new(remote(&server).await);
    now(&remote).await;
    let before = metric(&remote, "weir.redis.pipelines", "main");
    let asking: Vec<_> = (0..64)
        .map(|_| {
            let remote = Arc::clone(&remote);
            tokio::spawn(async move {
                for _ in 0..50 {
                    take(&remote, &sliding()).await.expect("it counts");
                }
            })
        })
        .collect();
    for asked in asking {
        asked.await.expect("it ends");
    }
    let pipelines = metric(&remote, "weir.redis.pipelines", "main") - before;
    assert!(pipelines < 1_600, "{pipelines} round trips for 3,200 calls");
    assert_eq!(take(&remote, &sliding()).await.expect("it counts").counters[0].used().0, 3_201);
}
