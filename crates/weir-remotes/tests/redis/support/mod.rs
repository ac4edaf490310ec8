//! Real Redis servers on free ports, and helpers for the tests.

mod lua54;

use std::{sync::Arc, time::Duration};

use weir_limit::{Algorithm, OverLimitPolicy, Period, Tier, Timestamp};
use weir_remotes::redis::{Address, Auth, RedisRemote, RedisSettings, Topology};
use weir_store::remote::{Remote as _, RemoteError, Reply, Target};

pub(crate) use weir_testing::{
    certificates::Certificates,
    fake_redis::FakeRedis,
    redis_cluster::Cluster,
    redis_sentinel::{MASTER, MonitoredMaster},
    redis_server::{Server, free_port},
    wait::until,
};

pub(crate) use crate::ops::Op;

pub(crate) use self::lua54::Lua54;

/// Returns the address of the server at `port` of this machine.
pub(crate) fn address(port: u16) -> Address {
    Address::tcp("127.0.0.1", port)
}

/// Returns the addresses of `servers`.
pub(crate) fn addresses(servers: &[Server]) -> Vec<Address> {
    servers.iter().map(|server| address(server.port())).collect()
}

/// Returns how to find the master that sentinels monitor.
pub(crate) fn sentinels(master: &MonitoredMaster) -> Topology {
    let auth = master.password.clone().map(|password| Auth { user: None, password });
    Topology::Sentinel { master: MASTER.into(), sentinels: addresses(&master.sentinels), auth }
}

/// Returns settings for the server at `address`, with shorter timeouts than in production.
pub(crate) fn settings(address: Address) -> RedisSettings {
    let mut settings = RedisSettings::single(address);
    settings.main.timeout = Duration::from_secs(5);
    settings
}

/// Returns a connected remote of `server`.
pub(crate) async fn remote(server: &Server) -> RedisRemote {
    connected(settings(address(server.port()))).await
}

/// Returns a connected remote of `settings`.
pub(crate) async fn connected(settings: RedisSettings) -> RedisRemote {
    let remote = RedisRemote::new(settings).expect("no files are needed, or they are valid");
    until("redis is connected", async || remote.state().is_connected()).await;
    remote
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
    Tier::new(requests, Period::from_secs(seconds), algorithm)
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
