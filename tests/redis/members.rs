//! The epochs of the instances' membership: Redis keeps those that the simulated store keeps.

use std::sync::Arc;

use weir::{
    clock::ManualClock,
    limit::{
        Period, Timestamp,
        demand::{Demand, FollowedWindow},
        part::Place,
    },
    store::{
        redis::{Address, RedisRemote},
        remote::{Epoch, FirstEpoch, Heartbeat, KeyDemand, KeyPart, Members, Remote as _},
        simulated::{Random, SimulatedServer},
    },
};

use crate::support::{Lua54, Server, settings, until};

const NAMES: [&str; 5] = ["b", "a", "ä", "a-1", "B"];

/// Connects to `server` with a clock that the test sets.
async fn with_clock(server: &Server, prefix: &str) -> (RedisRemote, Arc<ManualClock>) {
    with_clock_at(server.address(), prefix).await
}

async fn with_clock_at(server: Address, prefix: &str) -> (RedisRemote, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_700_000_000_100)));
    let mut settings = settings(server);
    settings.prefix = prefix.into();
    let redis = RedisRemote::with_clock(settings, Arc::clone(&clock) as _).expect("it needs no files");
    until("redis is connected", async || redis.state().is_connected()).await;
    (redis, clock)
}

async fn beat(redis: &RedisRemote, name: &str, ttl: Period) -> Members {
    redis.heartbeat(Heartbeat::new(name, ttl)).await.expect("it replies")
}

#[tokio::test]
async fn redis_keeps_the_epochs_of_the_model() {
    let server = Server::start();
    keeps_the_epochs_of_the_model(&server, server.address(), 40).await;
}

#[tokio::test]
async fn redis_keeps_the_epochs_of_the_model_in_lua_5_4() {
    let lua = Lua54::start();
    keeps_the_epochs_of_the_model(&lua.server, lua.address(), 10).await;
}

/// Compares `cases` random cases of the server at `address`, which keeps its keys in `server`.
async fn keeps_the_epochs_of_the_model(server: &Server, address: Address, cases: u64) {
    // so long that no registration ends by Redis' own clock
    let ttl = Period::from_secs(60);
    for seed in 0..cases {
        // a hash tag of its own for each case
        let prefix = if seed % 2 == 0 { format!("{seed}:") } else { format!("p{{{seed}}}:") };
        let (redis, clock) = with_clock_at(address.clone(), &prefix).await;
        let (mut model, mut random) = (SimulatedServer::default(), Random::new(seed));
        // the first epochs that any instance may know
        let mut known: Vec<Option<Timestamp>> = vec![None];
        let mut told = Vec::new();
        for step in 0..60 {
            let millis = match random.next() % 8 {
                0 => 0,
                1 => 61_000,
                2 => 30_000 - clock_millis(&clock) % 1_000,
                _ => random.next() % 1_300,
            };
            clock.set(Timestamp::from_millis(clock_millis(&clock) + millis));
            let name = NAMES[usize::try_from(random.next() % 5).expect("a few")];
            let ttl = if random.chance(0.2) { Period::default() } else { ttl };
            if random.chance(0.05) {
                let prefix = prefix.trim_end_matches(':');
                let all = server.send::<Vec<String>>(&["KEYS", &format!("*{prefix}*")]);
                for key in all {
                    server.send::<()>(&["DEL", &key]);
                }
                model.flush();
            }
            let first_epoch = known[usize::try_from(random.next()).unwrap_or_default() % known.len()];
            let demands = demands(&mut random, &told);
            let heartbeat = Heartbeat { first_epoch, demands: &demands, ..Heartbeat::new(name, ttl) };
            let expected = model.heartbeat(heartbeat, clock_now(&clock));
            let members = redis.heartbeat(heartbeat).await.expect("it replies");
            assert_eq!(members, expected, "step {step} of case {seed}: {name}");
            known.extend(expected.first.map(|first| Some(first.from)));
            told.extend(expected.parts);
        }
    }
}

/// Returns the demands of a heartbeat for some of 40 limits, with any versions of what was `told`.
fn demands(random: &mut Random, told: &[KeyPart]) -> Vec<KeyDemand> {
    let mut next = |below: u64| random.next() % below;
    (0..40_u64)
        .filter_map(|i| {
            let period = Period::from_secs(1 + i % 3);
            // the product of the largest and its demand is above the integers of Lua 5.4
            let limit = if i % 8 == 7 { 3 << 30 } else { 7 + 50 * u32::try_from(i).expect("few") };
            let window = FollowedWindow { limit, period };
            let key = window.key(i << 58);
            let of_key: Vec<u64> =
                told.iter().filter(|part| part.key == key).map(|told| told.part.version).collect();
            let any = usize::try_from(next(1 << 20)).expect("few");
            let acknowledged =
                if of_key.is_empty() { 0 } else { of_key[of_key.len() - 1 - any % of_key.len().min(3)] };
            let most = if next(3) == 0 { (3 * u64::from(limit)).min(u32::MAX.into()) } else { 4 };
            let hits = u32::try_from(next(most)).expect("few");
            (next(4) > 0).then_some(KeyDemand { key, window, demand: Demand { hits, acknowledged } })
        })
        .take(32)
        .collect()
}

fn clock_now(clock: &ManualClock) -> Timestamp {
    use weir::clock::Clock as _;
    clock.now()
}

fn clock_millis(clock: &ManualClock) -> u64 {
    clock_now(clock).as_nanos() / 1_000_000
}

#[tokio::test]
async fn every_reply_has_the_epoch_in_force_and_all_to_come() {
    let server = Server::start();
    let (redis, clock) = with_clock(&server, "").await;
    let ttl = Period::from_secs(60);
    let at = |millis: u64| clock.set(Timestamp::from_millis(1_700_000_000_000 + millis));
    let epoch = |second: u64, instances, rank: Option<u32>| Epoch {
        from: Timestamp::from_secs(1_700_000_000 + second),
        place: rank.and_then(|rank| Place::new(instances, rank)),
    };
    assert_eq!(beat(&redis, "b", ttl).await.epochs[..], [epoch(3, 1, Some(0))]);
    // the same instant: replaced
    at(999);
    assert_eq!(beat(&redis, "c", ttl).await.epochs[..], [epoch(3, 2, Some(1))]);
    at(1_001);
    assert_eq!(beat(&redis, "a", ttl).await.epochs[..], [epoch(3, 2, None), epoch(4, 3, Some(0))]);
    at(2_000);
    // exactly two seconds ahead
    let left = beat(&redis, "c", Period::default()).await;
    assert_eq!(left.epochs[..], [epoch(3, 2, Some(1)), epoch(4, 2, None)]);
    at(2_001);
    let joined = beat(&redis, "d", ttl).await;
    assert_eq!(joined.epochs[..], [epoch(3, 2, None), epoch(4, 2, None), epoch(5, 3, Some(2))]);
    at(5_000);
    let members = beat(&redis, "b", ttl).await;
    assert_eq!(members.epochs[..], [epoch(5, 3, Some(1))]);
    let first =
        |follows_others| Some(FirstEpoch { from: Timestamp::from_secs(1_700_000_003), follows_others });
    assert_eq!(members.first, first(false));
    let heartbeat = |seconds: u64| Heartbeat {
        first_epoch: Some(Timestamp::from_secs(1_700_000_000 + seconds)),
        ..Heartbeat::new("b", ttl)
    };
    assert_eq!(redis.heartbeat(heartbeat(3)).await.expect("it replies").first, first(false));
    // one that had its parts by another epoch
    assert_eq!(redis.heartbeat(heartbeat(2)).await.expect("it replies").first, first(true));
    assert_eq!(beat(&redis, "b", ttl).await.first, first(true));
    assert_eq!(
        server.send::<Vec<String>>(&["ZRANGE", "{weir:instances}:in_force", "0", "-1"]),
        ["a", "b", "d"]
    );
}

/// An instance of an earlier version registers by the set alone.
#[tokio::test]
async fn whoever_came_or_went_without_an_epoch_is_noticed() {
    let server = Server::start();
    let (redis, clock) = with_clock(&server, "").await;
    let ttl = Period::from_secs(60);
    beat(&redis, "b", ttl).await;
    clock.set(Timestamp::from_millis(1_700_000_005_500));
    let expiry = "1700000065000";
    server.send::<()>(&["ZADD", "weir:instances", expiry, "a"]);
    let place = |members: &Members| members.epochs.last().and_then(|epoch| epoch.place);
    assert_eq!(place(&beat(&redis, "b", ttl).await), Place::new(2, 1));
    server.send::<()>(&["ZREM", "weir:instances", "a"]);
    assert_eq!(place(&beat(&redis, "b", ttl).await), Place::new(1, 0));
    // the keys of epochs were evicted
    server.send::<()>(&["DEL", "{weir:instances}:epochs"]);
    assert_eq!(place(&beat(&redis, "b", ttl).await), Place::new(1, 0));
}

/// A prefix with a brace of its own leaves no room for other keys in the slot.
#[tokio::test]
async fn without_keys_in_the_same_slot_there_is_a_number_only() {
    let server = Server::start();
    let (redis, _clock) = with_clock(&server, "a}").await;
    let members = beat(&redis, "b", Period::from_secs(60)).await;
    assert_eq!((members.instances, members.epochs.len()), (1, 0));
    assert_eq!(server.send::<Vec<String>>(&["KEYS", "*"]), ["a}weir:instances"]);
}
