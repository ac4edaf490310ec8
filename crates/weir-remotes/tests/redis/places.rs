//! Places of requests in flight in Redis: the script compared with the simulated store, and the life of its keys.

use std::sync::Arc;

use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestRunner},
};
use weir_coordinate::simulated::SimulatedPlaces;
use weir_limit::{Hits, Period, PlaceName, Timestamp};
use weir_remotes::redis::{RedisRemote, Topology};
use weir_store::{
    clock::Clock as _,
    place_command::{NamedHits, PlaceCommand, PlaceOp, PlaceReply},
    remote::{Remote as _, RemoteError},
};

use crate::{
    algorithms::RedisWithClock,
    support::{Cluster, Server, address, addresses, connected, remote, settings, until},
};

const GIVE_UP_AFTER: Period = Period::from_secs(2);

const FAR: Timestamp = Timestamp::from_nanos(u64::MAX);

#[derive(Clone, Debug)]
enum Action {
    /// What is left until nothing is taken, in milliseconds.
    Take(Vec<usize>, u32, i64),
    /// And so many of the newest.
    End(Vec<usize>, usize),
    Add(Vec<usize>, u32),
}

/// The flags of a name are those of its use. A start may be ahead of the clock, or long ago.
fn name(i: usize, begun: Timestamp, flagged: bool) -> PlaceName {
    let start = begun.after(Period::from_millis([0, 0, 1, 500, 9_000][i % 5]));
    let start = if i % 7 == 6 { start.before(Period::from_secs(3)) } else { start };
    PlaceName::new(start, i as u64 * 0x0001_0203, flagged)
}

/// Each after some milliseconds; a clock may be set back.
fn steps() -> impl Strategy<Value = Vec<(i64, Action)>> {
    let names = |most: usize| vec(0..24_usize, 1..most);
    let take = (vec(0..24_usize, 0..6), 0..9_u32, prop_oneof![5 => Just(10), 1 => -1..2_i64]);
    let action = prop_oneof![
        5 => take.prop_map(|(names, most, left)| Action::Take(names, most, left)),
        4 => (names(5), 0..3_usize).prop_map(|(names, newest)| Action::End(names, newest)),
        1 => Just(Action::End(Vec::new(), 1)),
        2 => (names(5), prop_oneof![3 => Just(u32::MAX), 1 => 0..6_u32]).prop_map(|(names, most)| Action::Add(names, most)),
    ];
    let later =
        prop_oneof![8 => 0..300_i64, 2 => 1_900..2_100_i64, 1 => 29_000..31_000_i64, 1 => -500..0_i64];
    vec((later, action), 1..60)
}

#[test]
fn the_script_does_what_the_simulated_store_does() {
    compare_with_the_simulated_store(&RedisWithClock::new(), 200);
}

#[test]
fn the_script_does_in_lua_5_4_what_the_simulated_store_does() {
    compare_with_the_simulated_store(&RedisWithClock::in_lua_5_4(), 50);
}

fn compare_with_the_simulated_store(redis: &RedisWithClock, cases: u32) {
    let mut runner = TestRunner::new(Config { failure_persistence: None, cases, ..Config::default() });
    let checked = runner.run(&steps(), |steps| {
        let mut model = SimulatedPlaces::default();
        let (path, begun) = (redis.target(&[]).path.clone().into(), redis.clock.now());
        // some counters reserve nothing
        let reserves = steps.len() % 3 > 0;
        let with_flags = |names: Vec<usize>, flagged: bool| -> Vec<PlaceName> {
            // one in three ends has a flag
            names.into_iter().map(|i| name(i, begun, flagged && i % 3 == 0)).collect()
        };
        let with_hits = |names: Vec<usize>| -> Vec<NamedHits> {
            let hits = |i| Hits(if reserves { i as u64 % 4 * 1_000 } else { 0 });
            let names = with_flags(names.clone(), true).into_iter().zip(names);
            names.map(|(name, i)| (name, hits(i))).collect()
        };
        for (later, action) in steps {
            let nanos = redis.clock.now().as_nanos().saturating_add_signed(later * 1_000_000);
            redis.clock.set(Timestamp::from_nanos(nanos));
            let now = redis.clock.now();
            let op = match action.clone() {
                Action::Take(names, most, left) => PlaceOp::Take {
                    names: with_hits(names),
                    most,
                    valid_until: Timestamp::from_nanos(nanos.saturating_add_signed(left * 1_000_000)),
                },
                Action::End(names, newest) => {
                    let all = with_flags(names, true).into_iter().map(Some);
                    PlaceOp::End(all.chain(std::iter::repeat_n(None, newest)).collect())
                }
                Action::Add(names, most) => PlaceOp::Add { names: with_hits(names), most },
            };
            let command = PlaceCommand { path: Arc::clone(&path), give_up_after: GIVE_UP_AFTER, op };
            let expected = model.execute(&command, now);
            let reply = redis.call_places(vec![command]).remove(0).expect("it replies");
            prop_assert_eq!(reply, expected, "{:?}", action);
        }
        Ok(())
    });
    if let Err(error) = checked {
        panic!("{error}");
    }
}

async fn call(remote: &RedisRemote, path: &str, op: PlaceOp) -> Result<PlaceReply, RemoteError> {
    let command = PlaceCommand { path: path.into(), give_up_after: GIVE_UP_AFTER, op };
    remote.call_places(vec![command]).await?.replies.remove(0)
}

fn take(names: &[PlaceName]) -> PlaceOp {
    PlaceOp::Take { names: plain(names), most: 100, valid_until: FAR }
}

fn plain(names: &[PlaceName]) -> Vec<NamedHits> {
    names.iter().map(|name| (*name, Hits(0))).collect()
}

fn add(names: Vec<NamedHits>) -> PlaceOp {
    PlaceOp::Add { names, most: PlaceCommand::MAX_RESERVING }
}

#[tokio::test]
async fn both_keys_are_in_one_slot_and_expire_after_the_newest_place() {
    let server = Server::start();
    let mut settings = settings(address(server.port()));
    (settings.keys.jitter_seconds, settings.keys.prefix) = (1, "weir:".into());
    let remote = connected(settings).await;
    let now = crate::support::now(&remote).await;
    let (one, other) = (PlaceName::new(now, 1, false), PlaceName::new(now, 2, true));
    assert_eq!(call(&remote, "d|user=1", take(&[one])).await.expect("a reply").taken, 1);
    let ended = call(&remote, "d|user=1", PlaceOp::End(vec![Some(other)])).await.expect("a reply");
    assert_eq!((ended.ended, ended.places), (0, 1));
    let mut keys: Vec<String> = server.send(&["KEYS", "*"]);
    keys.sort_unstable();
    assert_eq!(keys, ["weir:{d|user=1}i", "weir:{d|user=1}ie"]);
    let left = |key: &str| server.send::<i64>(&["PTTL", key]);
    assert!((1..=2_000).contains(&left(&keys[0])), "{}", left(&keys[0]));
    assert!((25_000..=30_000).contains(&left(&keys[1])), "{}", left(&keys[1]));
    // a rejected start does not keep the key, an admitted one does
    assert_eq!(server.send::<i64>(&["PEXPIRE", &keys[0], "700"]), 1);
    let full = PlaceOp::Take { names: plain(&[other]), most: 1, valid_until: FAR };
    assert_eq!(call(&remote, "d|user=1", full).await.expect("a reply").taken, 0);
    assert!(left(&keys[0]) <= 700);
    assert_eq!(call(&remote, "d|user=1", take(&[other])).await.expect("a reply").places, 2);
    assert!(left(&keys[0]) > 700);
    until("the places have expired", async || server.send::<i64>(&["EXISTS", &keys[0]]) == 0).await;
}

#[tokio::test]
async fn marks_are_bounded() {
    let server = Server::start();
    let remote = remote(&server).await;
    let now = crate::support::now(&remote).await;
    for first in (0..12_288_u64).step_by(PlaceCommand::MAX_ENDED) {
        let names =
            (first..).take(PlaceCommand::MAX_ENDED).map(|i| Some(PlaceName::new(now, i, true))).collect();
        call(&remote, "p", PlaceOp::End(names)).await.expect("a reply");
    }
    assert_eq!(server.send::<usize>(&["ZCARD", "{p}ie"]), PlaceCommand::MAX_MARKS);
}

/// What requests have reserved is returned once, and outlives their places until it is told.
#[tokio::test]
async fn reserved_hits_are_returned_once_and_those_given_up_are_told() {
    let server = Server::start();
    let mut settings = settings(address(server.port()));
    settings.keys.jitter_seconds = 1;
    let remote = connected(settings).await;
    let now = crate::support::now(&remote).await;
    let name = |i| PlaceName::new(now, i, false);
    let hits = |i| (name(i), Hits(1_000 + i));
    call(&remote, "p", add((0..4).map(hits).collect())).await.expect("a reply");
    let ended = async |ends: Vec<Option<PlaceName>>| {
        let reply = call(&remote, "p", PlaceOp::End(ends)).await.expect("a reply");
        (reply.ended, reply.ended_hits)
    };
    assert_eq!(
        ended(vec![None, Some(name(1)), Some(name(9)), Some(name(1))]).await,
        (2, vec![hits(1), hits(3)])
    );
    assert_eq!(ended(vec![Some(name(1))]).await, (0, vec![]));
    assert_eq!(server.send::<usize>(&["HLEN", "{p}ih"]), 2);
    for key in ["{p}i", "{p}ih"] {
        let left = server.send::<i64>(&["PTTL", key]);
        assert!((2_500..=4_000).contains(&left), "{key} {left}");
    }
    until("the places are given up", async || {
        let reply = call(&remote, "p", add(vec![])).await.expect("a reply");
        reply.given_up == 2 && reply.given_up_hits == [hits(0), hits(2)]
    })
    .await;
    assert_eq!(server.send::<usize>(&["EXISTS", "{p}ih"]), 0);
}

/// Beyond that the oldest are given up, some at a time, and their hits are told.
#[tokio::test]
async fn places_that_reserve_hits_are_bounded() {
    let server = Server::start();
    let remote = remote(&server).await;
    let now = crate::support::now(&remote).await;
    let (most, step) = (u64::from(PlaceCommand::MAX_RESERVING), PlaceCommand::MAX_ENDED);
    let mut told = Vec::new();
    let mut add = async |names, give_up_after| {
        let command = PlaceCommand { path: "p".into(), give_up_after, op: add(names) };
        let reply =
            remote.call_places(vec![command]).await.expect("a reply").replies.remove(0).expect("its reply");
        let given_up = reply.given_up_hits;
        assert!(reply.given_up as usize == given_up.len() && given_up.len() <= step);
        told.extend(given_up.into_iter().map(|(_, hits)| hits.0));
        reply.places
    };
    for first in (0..most + 3_000).step_by(step) {
        let names = (first..).take(step).map(|i| (PlaceName::new(now, i, false), Hits(i + 1)));
        assert!(add(names.collect(), Period::from_secs(600)).await <= PlaceCommand::MAX_RESERVING);
    }
    assert_eq!(server.send::<u64>(&["HLEN", "{p}ih"]), most);
    // all are old
    while add(Vec::new(), Period::from_millis(1)).await > 0 {}
    assert!(told.len() > 13_000 && told.iter().copied().eq(1..=told.len() as u64), "{}", told.len());
    assert_eq!(server.send::<u64>(&["EXISTS", "{p}i", "{p}ih"]), 0);
}

/// The commands of one call are for many keys, and one of them fails.
#[tokio::test]
async fn each_command_of_a_call_has_its_own_reply() {
    let server = Server::start();
    let remote = remote(&server).await;
    let now = crate::support::now(&remote).await;
    assert_eq!(server.send::<String>(&["SET", "{b}i", "text"]), "OK");
    let command = |path: &str, op| PlaceCommand { path: path.into(), give_up_after: GIVE_UP_AFTER, op };
    let name = PlaceName::new(now, 1, false);
    let commands = vec![
        command("a", take(&[name])),
        command("b", take(&[name])),
        command("a", PlaceOp::End(vec![Some(name)])),
        command("c", add(plain(&[name]))),
    ];
    let replies = remote.call_places(commands).await.expect("the server replies");
    assert!(replies.now >= now);
    let places = replies.replies.iter().map(|reply| reply.as_ref().ok().map(|reply| reply.places));
    assert_eq!(places.collect::<Vec<_>>(), [Some(1), None, Some(0), Some(1)]);
    assert!(matches!(replies.replies[1], Err(RemoteError::Rejected(_))), "{:?}", replies.replies[1]);
}

#[tokio::test]
async fn the_places_of_a_counter_are_on_one_node_of_a_cluster() {
    let cluster = Cluster::start().await;
    let mut settings = settings(address(cluster.nodes[0].port()));
    settings.main.topology = Topology::Cluster(addresses(&cluster.nodes));
    let remote = connected(settings).await;
    let names: Vec<PlaceName> =
        (0..4).map(|i| PlaceName::new(Timestamp::from_secs(2_000_000_000), i, true)).collect();
    let paths = ["d|user=1", "d|user=2", "d|user=3", "d|user=4", "d|user=5", "d|user=6"];
    for op in [add(plain(&names)), PlaceOp::End(names.into_iter().map(Some).collect())] {
        let of =
            |path: &&str| PlaceCommand { path: (*path).into(), give_up_after: GIVE_UP_AFTER, op: op.clone() };
        let replies = remote.call_places(paths.iter().map(of).collect()).await.expect("it replies").replies;
        let places: Vec<u32> =
            replies.into_iter().map(|reply| reply.expect("its node replies").places).collect();
        assert_eq!(places, [if matches!(op, PlaceOp::Add { .. }) { 4 } else { 0 }; 6]);
    }
    for path in paths {
        let holder = cluster.holder(&format!("{{{path}}}")).1;
        let marks = cluster.nodes[holder].send::<usize>(&["ZCARD", &format!("{{{path}}}ie")]);
        assert_eq!(marks, 4, "{path}");
    }
}
