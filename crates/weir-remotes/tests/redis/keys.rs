//! Keys, formats and expiries in Redis.

use weir_limit::{Algorithm, Bucket, Hits, OverLimitPolicy, Period, Refill, Timestamp};
use weir_remotes::redis::RedisRemote;
use weir_store::remote::{Heartbeat, Remote as _, RemoteError, Report};

use crate::support::{
    Op, Server, address, compatible, connected, now, remote, send, settings, target, tier, until,
};

#[tokio::test]
async fn a_rule_of_envoyproxy_ratelimit_uses_its_key_and_its_commands() {
    let server = Server::start();
    let mut settings = settings(address(server.port()));
    settings.keys.prefix = "eu:".into();
    settings.keys.jitter_seconds = 0;
    let remote = connected(settings).await;
    let target = compatible("shop_tenant_acme_", 3, 60);
    let at = Timestamp::from_secs(1_234_567_890);
    let read = send(&remote, &target, at, Op::Take { hits: 0 }).await.expect("it replies");
    assert_eq!((read.granted, read.counters[0].used()), (0, Hits(0)));
    assert!(server.send::<Vec<String>>(&["KEYS", "*"]).is_empty(), "a check creates no key");
    server.send::<()>(&["CONFIG", "RESETSTAT"]);
    let granted = async |op| send(&remote, &target, at, op).await.expect("it replies").granted;
    assert_eq!(granted(Op::Take { hits: 2 }).await, 2);
    assert_eq!(granted(Op::Take { hits: 2 }).await, 0);
    assert_eq!(granted(Op::Add { report: Report::of(at, 5) }).await, 5);
    assert_eq!(server.send::<String>(&["GET", "eu:shop_tenant_acme_1234567860"]), "9");
    let read = send(&remote, &target, at, Op::Take { hits: 0 }).await.expect("it replies");
    assert_eq!((read.granted, read.counters[0].used()), (0, Hits(9)));
    assert_eq!(server.send::<Vec<String>>(&["KEYS", "*"]).len(), 1);
    let ttl: i64 = server.send(&["TTL", "eu:shop_tenant_acme_1234567860"]);
    assert!((59..=60).contains(&ttl), "{ttl}");
    let commands: String = server.send(&["INFO", "commandstats"]);
    let calls = |name: &str| {
        let line = format!("cmdstat_{name}:calls=3,");
        commands.contains(&line)
    };
    assert!(calls("incrby") && calls("expire"), "{commands}");
    assert!(!commands.contains("evalsha"), "{commands}");
}

#[tokio::test]
async fn a_counter_of_envoyproxy_ratelimit_is_continued() {
    let server = Server::start();
    let remote = remote(&server).await;
    let at = now(&remote).await;
    let start = at.as_nanos() / 1_000_000_000 / 3_600 * 3_600;
    server.send::<()>(&["SET", &format!("d_k_v_{start}"), "7"]);
    let target = compatible("d_k_v_", 10, 3_600);
    let grant = Op::Grant { report: None, least: 1, want: 5, hold: Period::from_secs(1) };
    let granted = send(&remote, &target, at, grant.clone()).await.expect("it replies").granted;
    assert_eq!(granted, 3);
    assert_eq!(server.send::<String>(&["GET", &format!("d_k_v_{start}")]), "10");
    assert_eq!(send(&remote, &target, at, grant).await.expect("it replies").granted, 0);
    assert_eq!(
        send(&remote, &target, at, Op::Add { report: Report::of(at, -20) })
            .await
            .expect("it replies")
            .granted,
        0
    );
    assert_eq!(server.send::<String>(&["GET", &format!("d_k_v_{start}")]), "0");
}

#[tokio::test]
async fn keys_expire_when_their_hits_no_longer_count_plus_a_jitter() {
    let server = Server::start();
    let bucket = Algorithm::TokenBucket(Bucket { burst: 10, refill: Refill::Continuous, strict: false });
    for (jitter, slack) in [(0, 0), (100, 99)] {
        let mut settings = settings(address(server.port()));
        settings.keys.prefix = format!("{jitter}:").into();
        settings.keys.jitter_seconds = jitter;
        let remote = connected(settings).await;
        let tiers = vec![
            tier(10, 50, bucket),
            tier(10, 50, Algorithm::SlidingWindow),
            tier(9, 50, Algorithm::FixedWindow),
        ];
        let target = target("d_", OverLimitPolicy::Ignore, tiers);
        let at = now(&remote).await;
        send(&remote, &target, at, Op::Take { hits: 2 }).await.expect("it replies");
        let ttl = |kind: &str| {
            let keys: Vec<String> = server.send(&["KEYS", &format!("{jitter}:{{d_}}{kind}*")]);
            assert_eq!(keys.len(), 1, "{keys:?}");
            server.send::<i64>(&["PTTL", &keys[0]])
        };
        for (kind, least, most) in [("b50s", 8_000, 10_000), ("s50s", 48_000, 50_000), ("f50s", 0, 50_000)] {
            let ttl = ttl(kind);
            assert!((least..=most + slack * 1_000).contains(&ttl), "{kind} with a jitter of {jitter}: {ttl}");
        }
    }
}

#[tokio::test]
async fn jitter_spreads_expiries() {
    let server = Server::start();
    let remote = remote(&server).await;
    let at = Timestamp::from_secs(120);
    for i in 0..50 {
        let target = compatible(&format!("d_{i}_"), 1, 60);
        send(&remote, &target, at, Op::Take { hits: 1 }).await.expect("it replies");
    }
    let ttls: std::collections::BTreeSet<i64> =
        (0..50).map(|i| server.send(&["TTL", &format!("d_{i}_120")])).collect();
    assert!(ttls.len() > 20, "{ttls:?}");
    assert!(ttls.iter().all(|ttl| (50..360).contains(ttl)), "{ttls:?}");
}

#[tokio::test]
async fn foreign_values_are_rejected_without_affecting_other_keys() {
    let server = Server::start();
    let remote = remote(&server).await;
    let at = now(&remote).await;
    let bucket = Algorithm::TokenBucket(Bucket { burst: 5, refill: Refill::Continuous, strict: false });
    let sliding =
        |path: &str| target(path, OverLimitPolicy::Ignore, vec![tier(5, 60, Algorithm::SlidingWindow)]);
    server.send::<()>(&["SET", "{text_}s1m", "hello"]);
    server.send::<()>(&["LPUSH", "{list_}s1m", "hello"]);
    server.send::<()>(&["SET", "{bucket_}b1m", "b 7 12 nan"]);
    let day = at.as_nanos() / 1_000_000_000 / 86_400 * 86_400;
    server.send::<()>(&["SET", &format!("text_{day}"), "hello"]);
    server.send::<()>(&["LPUSH", &format!("list_{day}"), "hello"]);
    let targets = [
        sliding("text_"),
        sliding("list_"),
        target("bucket_", OverLimitPolicy::Ignore, vec![tier(5, 60, bucket)]),
        compatible("text_", 5, 86_400),
        compatible("list_", 5, 86_400),
        sliding("good_"),
        compatible("good_", 5, 86_400),
    ];
    for op in [
        Op::Take { hits: 0 },
        Op::Take { hits: 1 },
        Op::Add { report: Report::of(at, 1) },
        Op::Add { report: Report::of(at, -1) },
        Op::Grant { report: None, least: 1, want: 1, hold: Period::default() },
    ] {
        let commands = targets.iter().map(|target| op.command(target, at)).collect();
        let replies = remote.call(commands).await.expect("it replies").replies;
        for (target, reply) in targets.iter().zip(&replies) {
            match &*target.path {
                "good_" | "good" => assert!(reply.is_ok(), "{op:?} {reply:?}"),
                path => {
                    assert!(matches!(reply, Err(RemoteError::Rejected(_))), "{op:?} on {path}: {reply:?}");
                }
            }
        }
    }
    assert_eq!(server.send::<String>(&["GET", "{text_}s1m"]), "hello");
    assert_eq!(server.send::<i64>(&["LLEN", "{list_}s1m"]), 1);
}

#[tokio::test]
async fn limits_by_the_second_use_the_per_second_redis() {
    let (main, seconds) = (Server::start(), Server::start());
    let mut settings = settings(address(main.port()));
    settings.per_second = Some(self::settings(address(seconds.port())).main);
    let remote: RedisRemote = connected(settings).await;
    let at = now(&remote).await;
    let targets = [compatible("s_", 5, 1), compatible("m_", 5, 60)];
    let commands =
        targets.iter().map(|target| Op::Add { report: Report::of(at, 3) }.command(target, at)).collect();
    let replies = remote.call(commands).await.expect("both reply").replies;
    assert!(
        replies.iter().all(|reply| reply.as_ref().is_ok_and(|reply| reply.counters[0].used() == Hits(3)))
    );
    let keys = |server: &Server| -> Vec<String> { server.send(&["KEYS", "?_[0-9]*"]) };
    assert!(keys(&seconds).iter().all(|key| key.starts_with("s_")) && keys(&seconds).len() == 1);
    assert!(keys(&main).iter().all(|key| key.starts_with("m_")) && keys(&main).len() == 1);
}

#[tokio::test]
async fn instances_see_each_other_until_their_registration_ends() {
    let server = Server::start();
    let mut settings = settings(address(server.port()));
    settings.keys.prefix = "p:".into();
    let (one, two) = (connected(settings.clone()).await, connected(settings).await);
    let long = Period::from_secs(60);
    assert_eq!(
        one.heartbeat(Heartbeat { instance: "one", ttl: long }).await.map(|members| members.instances),
        Ok(1)
    );
    assert_eq!(
        two.heartbeat(Heartbeat { instance: "two", ttl: long }).await.map(|members| members.instances),
        Ok(2)
    );
    assert_eq!(
        one.heartbeat(Heartbeat { instance: "one", ttl: long }).await.map(|members| members.instances),
        Ok(2)
    );
    assert_eq!(server.send::<Vec<String>>(&["KEYS", "*"]), ["p:weir:instances"]);
    assert!(server.send::<i64>(&["PTTL", "p:weir:instances"]) > 50_000);
    assert_eq!(
        two.heartbeat(Heartbeat { instance: "two", ttl: Period::default() })
            .await
            .map(|members| members.instances),
        Ok(1)
    );
    assert_eq!(
        two.heartbeat(Heartbeat { instance: "two", ttl: Period::from_millis(20) })
            .await
            .map(|members| members.instances),
        Ok(2)
    );
    until("the registration of the second ends", async || {
        one.heartbeat(Heartbeat { instance: "one", ttl: long })
            .await
            .is_ok_and(|members| members.instances == 1)
    })
    .await;
}

/// Rules of one entry and of two, whose names are the same text when joined.
#[tokio::test]
async fn entries_that_join_to_the_same_text_have_keys_of_their_own() {
    let server = Server::start();
    let mut settings = settings(address(server.port()));
    settings.keys.unambiguous = true;
    let remote = connected(settings).await;
    let paths = ["d|tenant=acme_path_/login", "d|tenant=acme|path=/login"];
    for policy in [OverLimitPolicy::Count, OverLimitPolicy::Ignore] {
        let targets = paths.map(|path| target(path, policy, vec![tier(10, 86_400, Algorithm::FixedWindow)]));
        let at = now(&remote).await;
        assert_eq!(
            send(&remote, &targets[0], at, Op::Take { hits: 10 }).await.expect("it replies").granted,
            10
        );
        assert_eq!(
            send(&remote, &targets[1], at, Op::Take { hits: 10 }).await.expect("it replies").granted,
            10
        );
        assert_eq!(
            send(&remote, &targets[1], at, Op::Take { hits: 1 }).await.expect("it replies").granted,
            0
        );
    }
    let mut keys: Vec<String> = server.send(&["KEYS", "*"]);
    keys.sort();
    let begins = [
        "{d|tenant=acme_path_/login}c1d_",
        "{d|tenant=acme_path_/login}f1d_",
        "{d|tenant=acme|path=/login}c1d_",
        "{d|tenant=acme|path=/login}f1d_",
    ];
    assert!(
        keys.len() == 4 && keys.iter().zip(begins).all(|(key, begin)| key.starts_with(begin)),
        "{keys:?}"
    );
}

/// A Redis without memory rejects a command over several tiers before any of them has changed.
#[tokio::test]
async fn without_memory_no_tier_is_written() {
    let server = Server::start();
    let remote = remote(&server).await;
    let at = now(&remote).await;
    let bucket = Algorithm::TokenBucket(Bucket { burst: 50, refill: Refill::Continuous, strict: true });
    let tiers = vec![
        tier(50, 86_400, Algorithm::FixedWindow),
        tier(50, 86_400, Algorithm::SlidingWindow),
        tier(50, 86_400, bucket),
    ];
    let counted = target("counted", OverLimitPolicy::Ignore, tiers.clone());
    let other = target("other", OverLimitPolicy::Ignore, tiers);
    send(&remote, &counted, at, Op::Take { hits: 9 }).await.expect("it replies");
    let values = || -> Vec<String> {
        let mut keys: Vec<String> = server.send(&["KEYS", "*"]);
        keys.sort();
        keys.iter().map(|key| format!("{key} {}", server.send::<String>(&["GET", key]))).collect()
    };
    let before = values();
    assert_eq!(before.len(), 3);
    server.send::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let report = Report { rejected_at: Some(at), ..Report::of(at, 3) };
    for target in [&counted, &other] {
        for op in [
            Op::Take { hits: 1 },
            Op::Add { report: report.clone() },
            Op::Add { report: Report::of(at, -1) },
            Op::Grant { report: Some(report.clone()), least: 1, want: 5, hold: Period::default() },
        ] {
            // nothing is counted there that could be given back
            let is_nothing = target.path == other.path && op == Op::Add { report: Report::of(at, -1) };
            let reply = send(&remote, target, at, op.clone()).await;
            match reply {
                Err(RemoteError::Rejected(error)) => assert!(error.contains("OOM"), "{error}"),
                Ok(_) if is_nothing => {}
                reply => panic!("{op:?}: {reply:?}"),
            }
        }
    }
    // what needs no write is answered
    let read = send(&remote, &counted, at, Op::Take { hits: 0 }).await.expect("it replies");
    assert!(read.counters.iter().all(|counter| counter.used() == Hits(9)), "{read:?}");
    assert_eq!(values(), before);
    server.send::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(send(&remote, &counted, at, Op::Take { hits: 41 }).await.expect("it replies").granted, 41);
}
