//! What instances tell each other: Redis keeps and returns it as the simulated store does.

use std::sync::Arc;

use weir_coordinate::simulated::{Random, SimulatedBoard};
use weir_limit::{Period, Timestamp};
use weir_remotes::redis::{Address, RedisRemote};
use weir_store::{
    board::BoardPost,
    clock::{Clock as _, ManualClock},
    remote::Remote as _,
};

use crate::support::{Lua54, Server, address, settings, until};

const NAMES: [&str; 3] = ["b", "a", "ä 1"];

const NOTES: [&[u8]; 4] = [b"one", b"two two", &[0xff, 0, b'\n'], b"1700000000000000"];

#[tokio::test]
async fn redis_carries_what_instances_write_as_the_model_does() {
    let server = Server::start();
    carries_as_the_model_does(&server, address(server.port()), 20).await;
}

#[tokio::test]
async fn redis_carries_what_instances_write_as_the_model_does_in_lua_5_4() {
    let lua = Lua54::start();
    carries_as_the_model_does(&lua.server, address(lua.port()), 5).await;
}

/// Compares `cases` random cases of the server at `address`, which keeps its keys in `server`.
async fn carries_as_the_model_does(server: &Server, address: Address, cases: u64) {
    for seed in 0..cases {
        let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_700_000_000_100)));
        let mut settings = settings(address.clone());
        settings.keys.prefix = format!("{seed}:").into();
        let redis = RedisRemote::with_clock(settings, Arc::clone(&clock) as _).expect("it needs no files");
        until("redis is connected", async || redis.state().is_connected()).await;
        let (mut model, mut random) = (SimulatedBoard::default(), Random::new(seed));
        let mut read_until = Timestamp::default();
        for step in 0..60 {
            let millis = match random.next() % 8 {
                0 | 1 => 0,
                2 => 3_600_000,
                _ => random.next() % 7_000,
            };
            clock.advance(Period::from_millis(millis));
            let summary = [&[][..], &[1, 2, 255], b"a b"][usize::try_from(random.next() % 3).expect("a few")];
            let post = BoardPost {
                instance: NAMES[usize::try_from(random.next() % 3).expect("a few")],
                summary: Some(summary).filter(|summary| !summary.is_empty()),
                note: random.chance(0.4).then(|| NOTES[usize::try_from(random.next() % 4).expect("a few")]),
                read_until: if random.chance(0.2) { Timestamp::default() } else { read_until },
                reads_summaries: random.chance(0.5),
            };
            let expected = model.execute(&post, clock.now());
            let mut reply = redis.post(post).await.expect("it replies");
            reply.summaries.sort();
            assert_eq!(reply, expected, "step {step} of case {seed}: {post:?}");
            if let Some((at, _)) = reply.notes.last() {
                read_until = *at;
            }
        }
        let keys = server.send::<Vec<String>>(&["KEYS", &format!("{seed}:*")]);
        assert!(keys.len() <= 2, "{keys:?}");
    }
}

#[tokio::test]
async fn a_board_has_room_for_a_bounded_number_of_notes() {
    let server = Server::start();
    let redis = RedisRemote::new(settings(address(server.port()))).expect("it needs no files");
    until("redis is connected", async || redis.state().is_connected()).await;
    let key = "{weir:instances}:notes";
    let now = std::time::UNIX_EPOCH.elapsed().expect("it is later").as_micros();
    for i in 0..BoardPost::MAX_NOTES {
        server.send::<i64>(&["ZADD", key, &now.to_string(), &i.to_string()]);
    }
    let post = async |note: &[u8]| {
        let read_until = Timestamp::from_nanos(u64::MAX >> 2);
        let (instance, note) = ("one", Some(note));
        let post = BoardPost { instance, summary: None, note, read_until, reads_summaries: false };
        redis.post(post).await.expect("it replies").is_written
    };
    assert!(!post(b"another").await);
    assert!(post(b"7").await, "it is there");
}
