//! The life of one connection: serve, then ask the client to open another, then cut.
//!
//! tonic's own server does not tell a client that its connection has grown old where there is a grace, but cuts it
//! after both; and it knows no jitter. So connections are served here, with its services on top.

use std::{future, hash::BuildHasher as _, hash::RandomState, pin::pin, time::Duration};

use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    time,
};
use tonic::service::Routes;

/// Requests that one connection may have open. Each is decided in microseconds; Envoy opens a further connection past it,
/// and what they may send before they are read is bounded by the connection's window anyway.
const MAX_CONCURRENT_STREAMS: u32 = 4096;

/// A connection that is silent for so long is asked whether its client is still there …
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_mins(1);

/// … and is closed if no answer comes within this.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a connection lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// After this, give or take a tenth, the client is told to open another; never if none.
    pub age: Option<Duration>,
    /// After this much more the connection is cut, whatever is still open; never if none.
    pub grace: Option<Duration>,
}

/// How connections are spoken on: HTTP/2 only.
pub(super) fn protocol() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new()).http2_only();
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    builder
}

/// Serves `routes` on `io` until the client leaves, or the connection is old and idle or cut; or `stopping` turns true
/// and what is open has ended.
pub(super) async fn serve<I>(
    io: I,
    protocol: Builder<TokioExecutor>,
    routes: Routes,
    life: Life,
    mut stopping: watch::Receiver<bool>,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = protocol.serve_connection(TokioIo::new(io), TowerToHyperService::new(routes));
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return note(ended),
        () = sleep(life.age.map(jittered)) => tracing::debug!("a connection has grown old"),
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        ended = connection => note(ended),
        () = sleep(life.grace) => tracing::debug!("a connection was cut, for its grace has ended"),
    }
}

/// Clients leave in many ways; none of them is this side's trouble.
fn note<E: std::fmt::Display>(ended: Result<(), E>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

/// Sleeps for `period`; for ever without one.
async fn sleep(period: Option<Duration>) {
    match period {
        Some(period) => time::sleep(period).await,
        None => future::pending().await,
    }
}

/// `age`, give or take up to a tenth, evenly: connections that were opened together, as after a restart, are not all
/// opened again together.
fn jittered(age: Duration) -> Duration {
    const TENTH_MILLIONTHS: u64 = 100_000;
    // std's hash maps are seeded from the system's random numbers, and this needs no further crate
    let random = RandomState::new().hash_one(0_u8) % (2 * TENTH_MILLIONTHS + 1);
    let millionths = 1_000_000 - TENTH_MILLIONTHS + random;
    let nanos = age.as_nanos() * u128::from(millionths) / 1_000_000;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_differ_by_up_to_a_tenth() {
        let ages: Vec<u128> = (0..200).map(|_| jittered(Duration::from_secs(1000)).as_millis()).collect();
        assert!(ages.iter().all(|age| (900_000..=1_100_000).contains(age)));
        assert!(ages.iter().any(|age| *age < 970_000) && ages.iter().any(|age| *age > 1_030_000));
    }
}
