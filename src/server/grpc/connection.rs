//! The life of one connection: greet, serve, then ask the client to open another, then cut.

use std::{
    future,
    hash::BuildHasher as _,
    hash::RandomState,
    pin::pin,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use bytes::Bytes;
use h2::{
    Ping, PingPong, RecvStream,
    server::{Builder, SendResponse},
};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    time::{self, timeout},
};
use tonic::{Status, service::Routes};

use super::{
    health_and_reflection,
    service::Service,
    stream::{Kind, StreamDriver},
};
use crate::{limit::Timestamp, store::Store};

/// Requests that one connection may have open. Each is decided in microseconds; Envoy opens a further connection past it,
/// and what they may send before they are read is bounded by the connection's window anyway.
const MAX_CONCURRENT_STREAMS: u32 = 4096;

/// Bytes that a stream, and a connection, may send before they are read.
const WINDOW: u32 = 1024 * 1024;

/// Bytes of the headers of one request.
const MAX_HEADERS: u32 = 16 * 1024;

/// What HTTP/2 counts against a client that sends small frames, besides their bytes, and takes for an attack past this: as
/// much as honest requests come to that are all sent at once.
const SMALL_FRAMES: usize = MAX_CONCURRENT_STREAMS as usize * 512;

/// A client that has not greeted within this is none.
const GREETING: Duration = Duration::from_secs(20);

/// A connection that is silent for so long is asked whether its client is still there …
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_mins(1);

/// … and is closed if no answer comes within this.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// How long a connection lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionAge {
    /// After this, give or take a tenth, the client is told to open another; never if none.
    pub age: Option<Duration>,
    /// After this much more the connection is cut, whatever is still open; never if none.
    pub grace: Option<Duration>,
}

/// What is served on every connection.
#[derive(Debug)]
pub(super) struct Services<S> {
    pub(super) service: Service<S>,
    /// Those that answer everything else.
    pub(super) health_and_reflection: Routes,
    pub(super) life: ConnectionAge,
}

/// Serves `services` on `io` until the client leaves, or the connection is old and idle or cut; or `stopping` turns true
/// and what is open has ended.
pub(super) async fn serve<S: Store, I>(io: I, services: &Services<S>, mut stopping: watch::Receiver<bool>)
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let mut connection = match timeout(GREETING, protocol().handshake(io)).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return tracing::debug!(%error, "a connection is not HTTP/2"),
        Err(_) => return tracing::debug!("a connection was closed, for its client said nothing"),
    };
    let pings = connection.ping_pong();
    let heard = AtomicBool::new(false);
    let mut gone = pin!(gone(pings, &heard));
    let now = || services.service.now();
    let answer = |call, respond, now| services.answer(call, respond, now);
    let mut exchange = StreamDriver::new(connection, services.service.stats(), &heard, &now, answer);
    tokio::select! {
        biased;
        ended = exchange.run() => return note(ended),
        () = &mut gone => return,
        () = sleep(services.life.age.map(jittered)) => tracing::debug!("a connection has grown old"),
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
    exchange.shut_down();
    tokio::select! {
        biased;
        ended = exchange.run() => note(ended),
        () = &mut gone => {}
        () = sleep(services.life.grace) => tracing::debug!("a connection was cut, for its grace has ended"),
    }
}

/// Waits until the client is gone without a word: nothing was `heard` of it for a while, and it does not answer.
async fn gone(pings: Option<PingPong>, heard: &AtomicBool) {
    let Some(mut pings) = pings else { return future::pending().await };
    loop {
        time::sleep(KEEP_ALIVE_INTERVAL).await;
        if heard.swap(false, Ordering::Relaxed) {
            continue;
        }
        match timeout(KEEP_ALIVE_TIMEOUT, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // the connection says so itself
            Ok(Err(_)) => return future::pending().await,
            Err(_) => return tracing::debug!("a connection was closed, for its client is gone"),
        }
    }
}

/// How connections are spoken on.
fn protocol() -> Builder {
    let mut builder = Builder::new();
    builder
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
        .max_header_list_size(MAX_HEADERS)
        .data_frame_budget(SMALL_FRAMES);
    builder
}

// === impl Services ===

impl<S: Store> Services<S> {
    fn answer(
        &self,
        call: Request<RecvStream>,
        respond: SendResponse<Bytes>,
        now: Timestamp,
    ) -> (Kind, impl Future<Output = ()>) {
        let kind = if call.uri().path() == Service::<S>::PATH { Kind::Decision } else { Kind::Other };
        let answer = async move {
            match kind {
                Kind::Decision => {
                    let answer = self.service.answer(call, now).await;
                    if let Err(error) = send(respond, answer) {
                        tracing::debug!(%error, "a call broke off");
                    }
                }
                // boxed, since every call's place is as large as the largest needs
                Kind::Other => {
                    Box::pin(health_and_reflection::answer(self.health_and_reflection.clone(), call, respond))
                        .await
                }
            }
        };
        (kind, answer)
    }
}

/// Sends a call's answer.
fn send(mut respond: SendResponse<Bytes>, answer: Result<Bytes, Status>) -> Result<(), h2::Error> {
    match answer {
        Ok(message) => {
            let mut head = Response::new(());
            let content_type = HeaderValue::from_static("application/grpc");
            head.headers_mut().insert(header::CONTENT_TYPE, content_type);
            let mut stream = respond.send_response(head, false)?;
            stream.send_data(message, false)?;
            let mut trailers = HeaderMap::with_capacity(1);
            trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
            stream.send_trailers(trailers)
        }
        Err(status) => {
            tracing::debug!(code = ?status.code(), message = status.message(), "a request was not decided");
            respond.send_response(status.into_http(), true).map(drop)
        }
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
