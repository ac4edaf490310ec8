//! The task that owns the connection to one server: it connects, sends the queued calls, and reconnects when the connection
//! breaks.
//!
//! Calls are batched: while pipelines are in flight, calls queue up, and the next pipeline takes all of them. The queue is
//! bounded. Without a connection, calls fail at once instead of waiting: their callers can decide without the store.
//!
//! A command that may have been carried out is never sent again. When a connection breaks, every call in flight on it fails.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::{Cmd, Pipeline, Value};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time,
};

use super::{
    connection::{self, Connection, MAX_IN_FLIGHT},
    metrics::RedisMetrics,
    random::RandomGenerator,
    resolver::Resolver,
    script,
    server_state::ServerState,
    settings::{Address, Backoff, Endpoint},
};
use crate::{
    limit::{Period, Timestamp},
    store::remote::RemoteError,
};

/// A connection that breaks sooner than this counts as a failure to connect, so the next attempt waits.
const BRIEF: Duration = Duration::from_millis(100);

/// The time that callers wait for a connection that is expected to succeed, and for replies of a server that is no longer
/// a master.
const PATIENCE: Duration = Duration::from_secs(1);

/// Calls in one pipeline.
const BATCH: usize = 512;

/// The replies to the commands of one call.
pub(super) struct PipelineReply {
    /// The server's clock when it replied, if it reported it.
    pub(super) now: Option<Timestamp>,
    /// One value for each command.
    pub(super) values: Vec<Value>,
}

/// The commands of one call, which go out in one pipeline.
pub(super) struct Job {
    pub(super) commands: Vec<Cmd>,
    pub(super) reply: oneshot::Sender<Result<PipelineReply, RemoteError>>,
}

/// The state that a worker shares with the handles of its server.
pub(super) struct Shared {
    pub(super) state: Mutex<ServerState>,
    /// Notified when the connection must be replaced.
    pub(super) renew: Notify,
    /// Notified when the server must not be used any more.
    pub(super) close: Notify,
}

/// The task that owns the connection to one server.
pub(super) struct Worker {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) resolver: Resolver,
    pub(super) backoff: Backoff,
    pub(super) queue: mpsc::Receiver<Job>,
    pub(super) shared: Arc<Shared>,
    pub(super) metrics: Arc<RedisMetrics>,
    pub(super) random: Arc<RandomGenerator>,
}

/// The state that one connection shares with its pipelines in flight. Each connection has its own, since a missing reply on an
/// old connection says nothing about its successor.
#[derive(Clone)]
struct ConnectionState {
    in_flight: Arc<Semaphore>,
    /// Notified when a reply did not arrive.
    failed: Arc<Notify>,
}

/// Why a worker stops using its connection.
enum End {
    /// The connection broke, or must be replaced.
    Renew(String),
    /// No handle is left.
    Unused,
}

// === impl Worker ===

impl Worker {
    /// Serves the queue until the last handle is dropped or the server is closed.
    pub(super) async fn run(mut self) {
        let (mut failures, mut expected) = (0, true);
        loop {
            let end = match self.connect(expected).await {
                None => End::Unused,
                Some(Ok((address, connection))) => {
                    tracing::info!(server = %address, "connected to redis");
                    let started = Instant::now();
                    let end = self.serve(address, connection).await;
                    failures = if started.elapsed() < BRIEF { failures + 1 } else { 0 };
                    end
                }
                Some(Err(error)) => {
                    failures += 1;
                    End::Renew(error)
                }
            };
            let End::Renew(error) = end else { return };
            self.metrics.disconnected.add(1);
            self.note(false, Some(error));
            // after a connection that lasted, the next one usually succeeds at once
            expected = failures == 0;
            if expected {
                continue;
            }
            let wait = time::sleep(self.backoff.wait(failures, self.random.next()));
            if self.reject_while(wait).await.is_none() {
                return;
            }
        }
    }

    /// Finds the server and connects to it. Callers wait up to [`PATIENCE`] if the connection is expected to succeed.
    /// Returns none if no handle is left.
    async fn connect(&mut self, expected: bool) -> Option<Result<(Address, Connection), String>> {
        let (endpoint, resolver) = (Arc::clone(&self.endpoint), self.resolver.clone());
        let connecting = async move {
            let address = resolver.find(&endpoint).await?;
            let connection = connection::connect(&endpoint, &address).await;
            let mut connection = connection.map_err(|error| format!("{address}: {error}"))?;
            resolver.check(&address, &mut connection).await?;
            Ok((address, connection))
        };
        tokio::pin!(connecting);
        if expected && let Ok(connected) = time::timeout(PATIENCE, &mut connecting).await {
            return Some(connected);
        }
        self.reject_while(connecting).await
    }

    /// Fails every call until `done` completes. Returns none if no handle is left.
    async fn reject_while<T>(&mut self, done: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(done);
        loop {
            tokio::select! {
                done = &mut done => return Some(done),
                job = self.queue.recv() => {
                    let error = self.shared.state.lock().error.clone();
                    let error = error.unwrap_or_else(|| "no connection yet".into());
                    let _ = job?.reply.send(Err(RemoteError::NotSent(error)));
                }
            }
        }
    }

    /// Updates the state that handles see.
    fn note(&self, connected: bool, error: Option<String>) {
        let mut state = self.shared.state.lock();
        if let Some(error) = &error
            && state.error.as_ref() != Some(error)
        {
            tracing::warn!(%error, server = state.name, "no connection to redis");
        }
        if state.connected != connected {
            state.since = Instant::now();
        }
        state.connected = connected;
        state.error = error;
    }

    /// Sends queued calls until the connection ends.
    async fn serve(&mut self, address: Address, mut connection: Connection) -> End {
        self.shared.state.lock().name = self.resolver.name_at(&address);
        self.note(true, None);
        let mut jobs = Vec::new();
        let state = ConnectionState {
            in_flight: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            failed: Arc::new(Notify::new()),
        };
        let resolver = self.resolver.clone();
        let moved = resolver.moved(&self.endpoint, &address);
        tokio::pin!(moved);
        loop {
            let permit = Arc::clone(&state.in_flight).acquire_owned();
            let next = async {
                let permit = permit.await;
                // cancel-safe: no call is lost if another branch completes first
                let taken = self.queue.recv_many(&mut jobs, BATCH).await;
                (permit, taken)
            };
            tokio::select! {
                // in this order, so that the first cause is reported
                biased;
                () = connection.driver.ended() => return End::Renew("the connection broke".into()),
                // a server that is late may never reply again, and later calls must not wait to find that out
                () = state.failed.notified() => {
                    retire(connection, self.endpoint.timeout);
                    return End::Renew("it did not reply".into());
                }
                () = self.shared.close.notified() => {
                    retire(connection, self.endpoint.timeout.min(PATIENCE));
                    self.queue.close();
                    while let Ok(job) = self.queue.try_recv() {
                        let error = "it is no longer a master".into();
                        let _ = job.reply.send(Err(RemoteError::NotSent(error)));
                    }
                    return End::Unused;
                }
                () = self.shared.renew.notified() => {
                    retire(connection, self.endpoint.timeout);
                    return End::Renew("the connection must be replaced".into());
                }
                to = &mut moved => {
                    retire(connection, self.endpoint.timeout.min(PATIENCE));
                    return End::Renew(format!("the master has moved to {to}"));
                }
                (permit, taken) = next => {
                    let Ok(permit) = permit else { return End::Unused };
                    if taken == 0 {
                        return End::Unused;
                    }
                    self.send(&connection, &state, permit, std::mem::take(&mut jobs));
                }
            }
        }
    }

    /// Sends `jobs` as one pipeline. A task of its own waits for the replies and delivers them.
    fn send(
        &self,
        connection: &Connection,
        state: &ConnectionState,
        permit: OwnedSemaphorePermit,
        mut jobs: Vec<Job>,
    ) {
        // a caller that has given up decides in another way, and its hits must not be counted twice
        jobs.retain(|job| !job.reply.is_closed());
        if jobs.is_empty() {
            return;
        }
        let counts: Vec<usize> = jobs.iter().map(|job| job.commands.len()).collect();
        let mut pipeline = Pipeline::with_capacity(counts.iter().sum::<usize>() + 1);
        pipeline.cmd("TIME");
        for command in jobs.iter_mut().flat_map(|job| std::mem::take(&mut job.commands)) {
            pipeline.add_command(command);
        }
        let mut handle = connection.handle.clone();
        let (metrics, failed, within) =
            (Arc::clone(&self.metrics), Arc::clone(&state.failed), self.endpoint.timeout);
        tokio::spawn(async move {
            let started = Instant::now();
            let reply =
                time::timeout(within, handle.send_packed_commands(&pipeline, 0, pipeline.len())).await;
            drop(permit);
            metrics.pipeline(jobs.len(), started.elapsed());
            let error = match reply {
                Ok(Ok(values)) if values.len() == pipeline.len() => return deliver(jobs, &counts, values),
                Ok(Ok(_)) => RemoteError::Unreachable("its reply is incomplete".into()),
                Ok(Err(error)) => RemoteError::Unreachable(connection::explain(&error)),
                Err(_) => RemoteError::TimedOut(period(within)),
            };
            failed.notify_one();
            for job in jobs {
                let _ = job.reply.send(Err(error.clone()));
            }
        });
    }
}

/// Gives each of `jobs` its part of `values`, the first of which is the time.
fn deliver(jobs: Vec<Job>, counts: &[usize], values: Vec<Value>) {
    let mut values = values.into_iter();
    let now = values.next().and_then(|value| script::time(&value));
    for (job, count) in jobs.into_iter().zip(counts) {
        let values = values.by_ref().take(*count).collect();
        // a caller that has given up has dropped its receiver
        let _ = job.reply.send(Ok(PipelineReply { now, values }));
    }
}

/// Converts a duration to the unit of the store's errors.
pub(super) fn period(length: Duration) -> Period {
    Period::from_nanos(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX))
}

/// Closes the connection after the replies in flight have arrived, or after `within`.
fn retire(connection: Connection, within: Duration) {
    let Connection { handle, mut driver } = connection;
    // the driver ends when the last handle is dropped and every reply has arrived
    drop(handle);
    tokio::spawn(async move { time::timeout(within, driver.ended()).await });
}
