//! The rights that `docs/security.md` gives weir's user of Redis.

use std::collections::BTreeSet;

use redis::Value;
use weir_limit::{Algorithm, Bucket, Hits, OverLimitPolicy, Period, PlaceName, Refill, Timestamp};
use weir_remotes::redis::{Auth, RedisRemote};
use weir_store::{
    board::BoardPost,
    place_command::{PlaceCommand, PlaceOp},
    pool_command::{MemberNews, PoolCommand, PoolMember, PoolOp, PoolReport},
    remote::{Heartbeat, Remote as _},
};

use crate::support::{Op, Server, address, compatible, connected, now, send, settings, target, tier};

const SCRIPTS: [&str; 5] = [
    include_str!("../../src/redis/heartbeat.lua"),
    include_str!("../../src/redis/board.lua"),
    include_str!("../../src/redis/places.lua"),
    include_str!("../../src/redis/pools.lua"),
    include_str!("../../src/redis/take.lua"),
];

/// Returns a server with the user of the page, and weir as that user.
async fn with_least_rights() -> (Server, RedisRemote) {
    let page = include_str!("../../../../docs/security.md");
    let rights = page.lines().find_map(|line| line.strip_prefix("ACL SETUSER weir on >PASSWORD "));
    let rights: Vec<&str> = rights.expect("the page names the rights").split(' ').collect();
    let server = Server::start_with_password("s3cret", &[]);
    let command = [&["ACL", "SETUSER", "weir", "on", ">hunter2"][..], &rights].concat();
    assert_eq!(server.send::<String>(&command), "OK");
    let mut settings = settings(address(server.port()));
    settings.main.auth = Some(Auth { user: Some("weir".into()), password: "hunter2".into() });
    settings.keys.prefix = "weir:".into();
    let remote = connected(settings).await;
    (server, remote)
}

#[tokio::test]
async fn the_least_rights_of_the_page_suffice() {
    let (_server, remote) = with_least_rights().await;
    let at = now(&remote).await;
    let counted = compatible("d_k_", 5, 60);
    for hits in [1, 0] {
        send(&remote, &counted, at, Op::Take { hits }).await.expect("it may count");
    }
    let bucket = Algorithm::TokenBucket(Bucket { burst: 5, refill: Refill::Continuous, strict: false });
    for (i, algorithm) in [Algorithm::FixedWindow, Algorithm::SlidingWindow, bucket].into_iter().enumerate() {
        let tiers = vec![tier(5, 60, algorithm), tier(50, 3_600, algorithm)];
        let target = target(&format!("d|k={i}"), OverLimitPolicy::Ignore, tiers);
        for _ in 0..6 {
            send(&remote, &target, at, Op::Take { hits: 1 }).await.expect("it may run the script");
        }
    }
    for name in ["one", "two", "one"] {
        remote
            .heartbeat(Heartbeat { instance: name, ttl: Period::from_secs(60) })
            .await
            .expect("it may register");
    }
    let (read_until, summary) = (Timestamp::default(), Some(&b"{}"[..]));
    let post =
        BoardPost { instance: "one", summary, note: Some(b"reset"), read_until, reads_summaries: true };
    let board = remote.post(post).await.expect("it may tell others");
    assert_eq!((board.notes.len(), board.summaries.len()), (1, 1));
    let pool =
        target("d|service=kyc|client", OverLimitPolicy::Ignore, vec![tier(9, 60, Algorithm::FixedWindow)]);
    let member = PoolMember { name: "A".into(), is_named: false };
    let report = PoolReport { member, news: MemberNews { asked: 1, granted: 1, late: 0 } };
    let op = PoolOp::Exchange(vec![report]);
    let cycle = at.as_nanos() / Period::from_secs(60).as_nanos();
    let command = PoolCommand { target: pool, cycle, places: 9, forget_after: 2, op };
    remote.call_pool(command).await.expect("it may keep pools");
    let name = PlaceName::new(at, 1, true);
    let add = PlaceOp::Add { names: vec![(name, Hits(9))], most: 9 };
    for op in [add, PlaceOp::End(vec![Some(name)])] {
        let command = PlaceCommand { path: "d|user=1".into(), give_up_after: Period::from_secs(60), op };
        let replies = remote.call_places(vec![command]).await.expect("a reply").replies;
        replies[0].clone().expect("it may keep places");
    }
}

/// The script of a case that the test above does not reach has its commands, too.
#[tokio::test]
async fn the_rights_of_the_page_have_every_command_of_the_scripts() {
    let (server, _remote) = with_least_rights().await;
    let mut commands = BTreeSet::from(["EVAL", "EVALSHA", "EXPIRE", "GET", "INCRBY"]);
    for script in SCRIPTS {
        for call in script.split("call('").skip(1).filter_map(|rest| rest.split('\'').next()) {
            commands.insert(call);
        }
    }
    assert!(commands.len() > 15, "{commands:?}");
    for command in commands {
        let arguments = match command {
            // the number of keys
            "EVAL" | "EVALSHA" => vec!["weir:a", "1", "weir:b"],
            _ => vec!["weir:a"; arguments_of(&server, command)],
        };
        let tried = [&["ACL", "DRYRUN", "weir", command][..], &arguments].concat();
        assert_eq!(server.send::<String>(&tried), "OK", "{tried:?}");
    }
    assert_ne!(server.send::<String>(&["ACL", "DRYRUN", "weir", "KEYS", "*"]), "OK");
    assert_ne!(server.send::<String>(&["ACL", "DRYRUN", "weir", "GET", "other"]), "OK");
}

/// Returns the least number of arguments of `command`.
fn arguments_of(server: &Server, command: &str) -> usize {
    let infos: Vec<Vec<Value>> = server.send(&["COMMAND", "INFO", command]);
    let Value::Int(arity) = infos[0][1] else { panic!("{infos:?}") };
    usize::try_from(arity.unsigned_abs()).expect("a few") - 1
}
