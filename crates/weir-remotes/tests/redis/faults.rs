//! Failures of Redis: stopped, killed, frozen, flushed, overloaded.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::time::{sleep, timeout};
use weir_limit::{Algorithm, OverLimitPolicy, Period, Timestamp};
use weir_observe::Source as _;
use weir_remotes::redis::{Address, RedisRemote};
use weir_store::remote::{Heartbeat, Remote as _, RemoteError, Reply, Target};

use crate::proxy::Proxy;
use crate::support::{
    Op, Server, address, compatible, free_port, now, remote, send, settings, target, tier, until,
};

const AT: Timestamp = Timestamp::from_secs(3_600);

fn sliding() -> Arc<Target> {
    target("d_", OverLimitPolicy::Ignore, vec![tier(1_000_000, 86_400, Algorithm::SlidingWindow)])
}

async fn take(remote: &RedisRemote, target: &Arc<Target>) -> Result<Reply, RemoteError> {
    send(remote, target, AT, Op::Take { hits: 1 }).await
}

/// Returns the sum of the metrics with this name and label.
fn metric(remote: &RedisRemote, name: &str, label: &str) -> u64 {
    let labelled = |labels: &[(&str, String)]| labels.iter().any(|(_, value)| value == label);
    let metrics = remote.metrics().into_iter();
    metrics.filter(|metric| metric.name == name && labelled(&metric.labels)).map(|metric| metric.value).sum()
}

#[tokio::test]
async fn a_remote_starts_without_redis_and_connects_when_redis_starts() {
    let mut server = Server::start();
    server.kill();
    let remote = RedisRemote::new(settings(address(server.port()))).expect("no server is needed yet");
    let failed = take(&remote, &sliding()).await;
    assert!(matches!(failed, Err(RemoteError::NotSent(_))), "{failed:?}");
    assert!(failed.expect_err("it is down").to_string().contains("refused"));
    assert!(!remote.state().is_connected());
    server.restart();
    until("redis counts", async || take(&remote, &sliding()).await.is_ok()).await;
    assert!(remote.state().is_connected() && remote.state().servers[0].error.is_none());
}

#[tokio::test]
async fn without_redis_calls_fail_at_once() {
    let remote = RedisRemote::new(settings(Address::tcp("127.0.0.1", free_port()))).expect("no files");
    until("the failure is noticed", async || take(&remote, &sliding()).await.is_err()).await;
    let begun = Instant::now();
    for _ in 0..1_000 {
        assert!(matches!(take(&remote, &sliding()).await, Err(RemoteError::NotSent(_))));
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(metric(&remote, "weir.redis.errors", "not_sent") >= 1_000);
}

#[tokio::test]
async fn a_restarted_server_is_reconnected() {
    let mut server = Server::start();
    let remote = remote(&server).await;
    assert!(take(&remote, &sliding()).await.is_ok());
    server.kill();
    until("the failure is noticed", async || take(&remote, &sliding()).await.is_err()).await;
    server.restart();
    until("redis counts", async || take(&remote, &sliding()).await.is_ok()).await;
    // the counts are lost, and the script is loaded again
    assert!(take(&remote, &sliding()).await.expect("it counts").counters[0].used().0 <= 2);
}

#[tokio::test]
async fn commands_in_flight_are_never_sent_twice() {
    let server = Server::start();
    let remote = Arc::new(remote(&server).await);
    let (done, unknown) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let stop = Arc::new(AtomicBool::new(false));
    let senders: Vec<_> = (0..8)
        .map(|i| {
            let (remote, done, unknown, stop) =
                (Arc::clone(&remote), Arc::clone(&done), Arc::clone(&unknown), Arc::clone(&stop));
            let target = if i % 2 == 0 { sliding() } else { compatible("r_", 1_000_000, 86_400) };
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    match take(&remote, &target).await {
                        Ok(reply) => done.fetch_add(reply.granted, Ordering::Relaxed),
                        Err(error) if error.is_definitely_not_applied() => 0,
                        Err(_) => unknown.fetch_add(1, Ordering::Relaxed),
                    };
                }
            })
        })
        .collect();
    for disconnects in 1..=20 {
        let before = done.load(Ordering::Relaxed);
        server.send::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        until("20 more commands succeed", async || done.load(Ordering::Relaxed) > before + 20 * disconnects)
            .await;
    }
    stop.store(true, Ordering::Relaxed);
    for sender in senders {
        sender.await.expect("it ends");
    }
    let counted = take(&remote, &sliding()).await.expect("it counts").counters[0].used().0
        + take(&remote, &compatible("r_", 1_000_000, 86_400)).await.expect("it counts").counters[0].used().0;
    let (done, unknown) = (done.load(Ordering::Relaxed), unknown.load(Ordering::Relaxed));
    assert!((done..=done + unknown).contains(&counted), "{counted} of {done}, and {unknown} unknown");
}

/// A broken connection is replaced at once, and only once.
#[tokio::test]
async fn a_reply_that_is_missing_on_one_connection_does_not_affect_the_next_connection() {
    let server = Server::start();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into());
    let address = Address::tcp("127.0.0.1", proxy.address().port());
    let remote = crate::support::connected(settings(address)).await;
    for breaks in 1..=5 {
        assert!(take(&remote, &sliding()).await.is_ok(), "{breaks}: it did not connect at once");
        // brief connections are retried with a delay
        sleep(Duration::from_millis(150)).await;
        proxy.cut_reply_to("d_", 40);
        let cut = take(&remote, &sliding()).await;
        assert!(matches!(cut, Err(RemoteError::Unreachable(_))), "{cut:?}");
        until("the failure is noticed", async || {
            metric(&remote, "weir.redis.disconnected", "main") >= breaks
        })
        .await;
    }
    assert!(take(&remote, &sliding()).await.is_ok());
    assert_eq!(metric(&remote, "weir.redis.disconnected", "main"), 5);
}

#[tokio::test]
async fn calls_to_a_frozen_server_fail_at_the_timeout() {
    let server = Server::start();
    let mut settings = settings(address(server.port()));
    settings.main.timeout = Duration::from_millis(300);
    let remote = crate::support::connected(settings).await;
    assert!(take(&remote, &sliding()).await.is_ok());
    server.signal("STOP");
    let begun = Instant::now();
    let failed = take(&remote, &sliding()).await;
    assert_eq!(failed, Err(RemoteError::TimedOut(Period::from_millis(300))));
    assert!(begun.elapsed() < Duration::from_millis(900), "{:?}", begun.elapsed());
    until("later calls are not sent", async || {
        matches!(take(&remote, &sliding()).await, Err(RemoteError::NotSent(_)))
    })
    .await;
    server.signal("CONT");
    until("redis counts", async || take(&remote, &sliding()).await.is_ok()).await;
}

#[tokio::test]
async fn the_queue_is_bounded_and_late_replies_are_not_lost() {
    let server = Server::start();
    let remote = Arc::new(remote(&server).await);
    let target = compatible("r_", 1_000_000, 86_400);
    server.signal("STOP");
    let senders: Vec<_> = (0..6_000)
        .map(|_| {
            let (remote, target) = (Arc::clone(&remote), Arc::clone(&target));
            tokio::spawn(async move { take(&remote, &target).await })
        })
        .collect();
    until("some calls are not sent", async || metric(&remote, "weir.redis.errors", "not_sent") > 1_000).await;
    server.signal("CONT");
    let (mut done, mut not_sent) = (0, 0);
    for sender in senders {
        match sender.await.expect("it ends") {
            Ok(_) => done += 1,
            Err(RemoteError::NotSent(_)) => not_sent += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(done >= 4_000 && done + not_sent == 6_000, "{done} and {not_sent}");
    let counted: u64 = server.send(&["GET", "r_0"]);
    assert_eq!(counted, done);
    // calls that arrived together were sent together
    assert!(metric(&remote, "weir.redis.pipelines", "main") < 100);
}

#[tokio::test]
async fn a_call_whose_caller_has_given_up_is_not_counted_later() {
    let server = Server::start();
    let remote = Arc::new(remote(&server).await);
    let target = compatible("r_", 1_000_000, 86_400);
    server.signal("STOP");
    for _ in 0..50 {
        let reply = timeout(Duration::from_millis(2), take(&remote, &target)).await;
        assert!(reply.is_err(), "it is frozen");
    }
    server.signal("CONT");
    assert!(take(&remote, &target).await.is_ok());
    // only the calls that were in flight already are counted: sixteen, the last one, and what was sent before the stop
    assert!(server.send::<u64>(&["GET", "r_0"]) <= 18);
}

#[tokio::test]
async fn counters_restart_after_a_flush() {
    let server = Server::start();
    let remote = remote(&server).await;
    for _ in 0..3 {
        take(&remote, &sliding()).await.expect("it counts");
    }
    server.send::<()>(&["FLUSHALL"]);
    assert_eq!(take(&remote, &sliding()).await.expect("it counts").counters[0].used().0, 0);
    server.send::<()>(&["SCRIPT", "FLUSH"]);
    let commands = (0..50).map(|_| Op::Take { hits: 1 }.command(&sliding(), AT)).collect();
    let replies = remote.call(commands).await.expect("it replies").replies;
    assert!(replies.iter().all(Result::is_ok), "{replies:?}");
    assert_eq!(take(&remote, &sliding()).await.expect("it counts").counters[0].used().0, 51);
    server.send::<()>(&["SCRIPT", "FLUSH"]);
    assert_eq!(
        remote
            .heartbeat(Heartbeat { instance: "one", ttl: Period::from_secs(60) })
            .await
            .map(|members| members.instances),
        Ok(1)
    );
    assert!(metric(&remote, "weir.redis.retries", "main") >= 51);
}

#[tokio::test]
async fn a_rejected_command_is_not_counted_and_reports_the_error_of_redis() {
    let server = Server::start();
    let remote = remote(&server).await;
    for target in [sliding(), compatible("r_", 10, 86_400)] {
        let rejected = async |code: &str| {
            let rejected = take(&remote, &target).await;
            let is_reported = matches!(&rejected, Err(RemoteError::Rejected(text)) if text.contains(code));
            assert!(is_reported, "{code}: {rejected:?}");
        };
        server.send::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        rejected("NOREPLICAS").await;
        server.send::<()>(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
        server.send::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        rejected("OOM").await;
        server.send::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        let reply = take(&remote, &target).await.expect("it counts again");
        assert_eq!((reply.granted, reply.counters[0].used().0), (1, 0));
    }
    assert_eq!(metric(&remote, "weir.redis.errors", "rejected"), 4);
}

#[tokio::test]
async fn disk_failures_are_reported() {
    let server = Server::start();
    let remote = remote(&server).await;
    server.send::<()>(&["SET", "a", "b"]);
    // the snapshot fails, because a directory has the name of its file
    server.send::<()>(&["CONFIG", "SET", "save", "3600 1000000"]);
    std::fs::create_dir(server.path("dump.rdb")).expect("a directory");
    server.send::<redis::Value>(&["BGSAVE"]);
    until("the snapshot fails", async || {
        let info: String = server.send(&["INFO", "persistence"]);
        info.contains("rdb_last_bgsave_status:err")
    })
    .await;
    for target in [sliding(), compatible("r_", 10, 86_400)] {
        let rejected = take(&remote, &target).await;
        let is_reported = matches!(&rejected, Err(RemoteError::Rejected(text)) if text.contains("MISCONF"));
        assert!(is_reported, "{rejected:?}");
    }
    server.send::<()>(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    assert!(take(&remote, &sliding()).await.is_ok());
}

#[tokio::test]
async fn a_server_that_becomes_a_replica_rejects_until_it_is_a_master_again() {
    let (server, other) = (Server::start(), Server::start());
    let remote = remote(&server).await;
    server.send::<()>(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    for target in [sliding(), compatible("r_", 10, 86_400)] {
        let rejected = take(&remote, &target).await;
        assert!(
            matches!(&rejected, Err(RemoteError::Rejected(text)) if text.contains("READONLY")),
            "{rejected:?}"
        );
    }
    // a new connection may lead to another server, so one is made, but not for every command
    until("a new connection is made", async || {
        sleep(Duration::from_millis(20)).await;
        let _ = take(&remote, &sliding()).await;
        metric(&remote, "weir.redis.disconnected", "main") >= 1
    })
    .await;
    server.send::<()>(&["REPLICAOF", "NO", "ONE"]);
    until("redis counts", async || take(&remote, &sliding()).await.is_ok()).await;
    assert!(metric(&remote, "weir.redis.disconnected", "main") < 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_share_round_trips() {
    let server = Server::start();
    let remote = Arc::new(remote(&server).await);
    now(&remote).await;
    let before = metric(&remote, "weir.redis.pipelines", "main");
    let senders: Vec<_> = (0..64)
        .map(|_| {
            let remote = Arc::clone(&remote);
            tokio::spawn(async move {
                for _ in 0..50 {
                    take(&remote, &sliding()).await.expect("it counts");
                }
            })
        })
        .collect();
    for sender in senders {
        sender.await.expect("it ends");
    }
    let pipelines = metric(&remote, "weir.redis.pipelines", "main") - before;
    assert!(pipelines < 1_600, "{pipelines} round trips for 3,200 calls");
    assert_eq!(take(&remote, &sliding()).await.expect("it counts").counters[0].used().0, 3_200);
}
