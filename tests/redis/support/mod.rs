//! Real Redis servers on free ports, and helpers for the tests.

mod certificates;
mod cluster;
mod fake;
mod lua54;
mod sentinel;
mod server;
mod weirs;

use std::{sync::Arc, time::Duration};

use tokio::time;
use weir_limit::{Algorithm, OverLimitPolicy, Period, Tier, Timestamp};
use weir_remotes::redis::{Address, RedisRemote, RedisSettings};
use weir_store::remote::{Remote as _, RemoteError, Reply, Target};

pub(crate) use crate::ops::Op;

pub(crate) use self::{
    certificates::Certificates,
    cluster::Cluster,
    fake::FakeRedis,
    lua54::Lua54,
    sentinel::MonitoredMaster,
    server::{Server, free_port},
    weirs::{Weir, Weirs},
};

/// The longest time that a test waits for anything: sentinels that the machine has held up do nothing for 30 s.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

/// Returns settings for the server at `address`, with shorter timeouts than in production.
pub(crate) fn settings(address: Address) -> RedisSettings {
    let mut settings = RedisSettings::single(address);
    settings.main.timeout = Duration::from_secs(5);
    settings
}

/// Returns a connected remote of `server`.
pub(crate) async fn remote(server: &Server) -> RedisRemote {
    connected(settings(server.address())).await
}

/// Returns a connected remote of `settings`.
pub(crate) async fn connected(settings: RedisSettings) -> RedisRemote {
    let remote = RedisRemote::new(settings).expect("no files are needed, or they are valid");
    until("redis is connected", async || remote.state().is_connected()).await;
    remote
}

/// Waits until `done` returns true; panics at the [`DEADLINE`].
pub(crate) async fn until(what: &str, done: impl AsyncFnMut() -> bool) {
    within(DEADLINE, what, done).await;
}

/// Waits until `done` returns true; panics after the time `longest`.
pub(crate) async fn within(longest: Duration, what: &str, mut done: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !done().await {
            time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(time::timeout(longest, waiting).await.is_ok(), "not in time: {what}");
}

/// Returns a target with one fixed window in the format of envoyproxy/ratelimit, whose key begins with `path`.
pub(crate) fn compatible(path: &str, requests: u32, seconds: u64) -> Arc<Target> {
    target(
        path.strip_suffix('_').expect("every name ends with _"),
        OverLimitPolicy::Count,
        vec![tier(requests, seconds, Algorithm::FixedWindow)],
    )
}

pub(crate) fn target(path: &str, over_limit_policy: OverLimitPolicy, tiers: Vec<Tier>) -> Arc<Target> {
    Arc::new(Target { path: path.into(), tiers: tiers.into(), over_limit_policy })
}

pub(crate) fn tier(requests: u32, seconds: u64, algorithm: Algorithm) -> Tier {
    Tier { requests, period: Period::from_secs(seconds), algorithm }
}

/// Sends one command and returns its reply.
pub(crate) async fn send(
    remote: &RedisRemote,
    target: &Arc<Target>,
    at: Timestamp,
    op: Op,
) -> Result<Reply, RemoteError> {
    let mut replies = remote.call(vec![op.command(target, at)]).await?.replies;
    assert_eq!(replies.len(), 1);
    replies.remove(0).map(|reply| op.counted(reply))
}

/// Returns the clock of the Redis of `remote`.
pub(crate) async fn now(remote: &RedisRemote) -> Timestamp {
    let clock = target("clock_", OverLimitPolicy::Ignore, vec![tier(1, 1, Algorithm::SlidingWindow)]);
    let command = Op::Take { hits: 0 }.command(&clock, Timestamp::default());
    remote.call(vec![command]).await.expect("it replies").now
}
