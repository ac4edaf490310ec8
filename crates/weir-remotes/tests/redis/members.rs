//! The registration of instances: Redis counts and ranks them as the simulated store does.

use std::sync::Arc;

use weir_coordinate::simulated::{Random, SimulatedServer};
use weir_limit::{Period, Timestamp};
use weir_remotes::redis::{Address, RedisRemote};
use weir_store::{
    clock::{Clock as _, ManualClock},
    remote::{Heartbeat, Remote as _},
};

use crate::support::{Lua54, Server, address, settings, until};

const NAMES: [&str; 5] = ["b", "a", "ä", "a-1", "B"];

/// Connects to `server` with a clock that the test sets.
async fn with_clock(server: Address, prefix: &str) -> (RedisRemote, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_700_000_000_100)));
    let mut settings = settings(server);
    settings.keys.prefix = prefix.into();
    let redis = RedisRemote::with_clock(settings, Arc::clone(&clock) as _).expect("it needs no files");
    until("redis is connected", async || redis.state().is_connected()).await;
    (redis, clock)
}

#[tokio::test]
async fn redis_counts_instances_as_the_model_does() {
    let server = Server::start();
    counts_as_the_model_does(&server, address(server.port()), 40).await;
}

#[tokio::test]
async fn redis_counts_instances_as_the_model_does_in_lua_5_4() {
    let lua = Lua54::start();
    counts_as_the_model_does(&lua.server, address(lua.port()), 10).await;
}

/// Compares `cases` random cases of the server at `address`, which keeps its keys in `server`.
async fn counts_as_the_model_does(server: &Server, address: Address, cases: u64) {
    // so long that no registration ends by Redis' own clock
    let ttl = Period::from_secs(60);
    for seed in 0..cases {
        let prefix = format!("{seed}:");
        let (redis, clock) = with_clock(address.clone(), &prefix).await;
        let (mut model, mut random) = (SimulatedServer::default(), Random::new(seed));
        for step in 0..60 {
            let millis = match random.next() % 8 {
                0 => 0,
                1 => 61_000,
                _ => random.next() % 15_000,
            };
            clock.advance(Period::from_millis(millis));
            let name = NAMES[usize::try_from(random.next() % 5).expect("a few")];
            let ttl = if random.chance(0.2) { Period::default() } else { ttl };
            if random.chance(0.05) {
                server.send::<()>(&["DEL", &format!("{prefix}weir:instances")]);
                model.flush();
            }
            let heartbeat = Heartbeat { instance: name, ttl };
            let expected = model.heartbeat(heartbeat, clock.now());
            let members = redis.heartbeat(heartbeat).await.expect("it replies");
            assert_eq!(members, expected, "step {step} of case {seed}: {name}");
        }
        let keys = server.send::<Vec<String>>(&["KEYS", &format!("{prefix}*")]);
        assert!(keys.len() <= 1, "{keys:?}");
    }
}
