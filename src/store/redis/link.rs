//! The way to one server: a task that owns the connection, makes it anew when it breaks, and sends what is waiting.
//!
//! What arrives together leaves together: while pipelines are on their way, callers queue up, and the next pipeline takes
//! all of them. The queue is bounded, and without a connection nothing waits in it: callers have better things to do than to
//! wait for a server that is not there.
//!
//! What may have been carried out is never sent again. When a connection breaks, all that it carried is lost, and its
//! callers are told so.

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
    connect::{self, Connection},
    metrics::RedisMetrics,
    random::RandomGenerator,
    resolver::Resolver,
    script,
    settings::{Address, Backoff, Endpoint},
};
use crate::{
    limit::{Period, Timestamp},
    store::remote::RemoteError,
};

/// Pipelines that may be on their way at once. More than one, so that the wire is not idle while a server works; few, so
/// that what arrives meanwhile leaves together.
pub(super) const IN_FLIGHT: usize = 4;

/// Jobs that may wait to be sent.
const QUEUE: usize = 4_096;

/// A connection that breaks sooner is as good as none: the next one is not made at once.
const BRIEF: Duration = Duration::from_millis(100);

/// How long callers wait for a connection that nothing speaks against, and for answers of a server that is no master any
/// more.
const PATIENCE: Duration = Duration::from_secs(1);

/// Jobs that go into one pipeline.
const BATCH: usize = 512;

/// What a server answered to some commands.
pub(super) struct Answered {
    /// Its clock when it did, if it told it.
    pub(super) now: Option<Timestamp>,
    /// One for each command.
    pub(super) values: Vec<Value>,
}

/// Where an answer will be.
pub(super) type Answer = oneshot::Receiver<Result<Answered, RemoteError>>;

/// The way to one server. Clones are the same way; without any, its task ends.
#[derive(Clone)]
pub(super) struct Link {
    queue: mpsc::Sender<Job>,
    shared: Arc<Shared>,
}

/// How a link is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// The server's address, or what is known of it.
    pub name: String,
    /// Whether there is a connection.
    pub connected: bool,
    /// Since when there is one, or none.
    pub since: Instant,
    /// What went wrong last.
    pub error: Option<String>,
}

struct Shared {
    state: Mutex<LinkState>,
    /// Told when the connection is not what it should be.
    renew: Notify,
    /// Told when the server is not to be asked any more.
    left: Notify,
}

/// Commands that go out in one pipeline.
struct Job {
    commands: Vec<Cmd>,
    answer: oneshot::Sender<Result<Answered, RemoteError>>,
}

/// The task of a link.
struct Worker {
    endpoint: Arc<Endpoint>,
    resolver: Resolver,
    backoff: Backoff,
    queue: mpsc::Receiver<Job>,
    shared: Arc<Shared>,
    metrics: Arc<RedisMetrics>,
    draw: Arc<RandomGenerator>,
}

/// What a connection and those who wait for its answers have to tell each other. Each has its own: what an old one has not
/// answered says nothing about its successor.
#[derive(Clone)]
struct ConnectionState {
    in_flight: Arc<Semaphore>,
    /// Told when an answer did not come.
    failed: Arc<Notify>,
}

/// Why a link has no use for its connection any more.
enum End {
    /// It broke, or another is needed.
    Renew(String),
    /// Nobody is left who could want anything.
    Unused,
}

// === impl Link ===

impl Link {
    /// The way to the server that `finder` finds. It begins to connect at once, in the background.
    pub(super) fn open(
        endpoint: Arc<Endpoint>,
        resolver: Resolver,
        backoff: Backoff,
        metrics: Arc<RedisMetrics>,
        draw: Arc<RandomGenerator>,
    ) -> Self {
        let (sender, queue) = mpsc::channel(QUEUE);
        let state = LinkState { name: resolver.name(), connected: false, since: Instant::now(), error: None };
        let shared = Arc::new(Shared { state: Mutex::new(state), renew: Notify::new(), left: Notify::new() });
        let worker =
            Worker { endpoint, resolver, backoff, queue, shared: Arc::clone(&shared), metrics, draw };
        tokio::spawn(worker.run());
        Self { queue: sender, shared }
    }

    /// Hands over `commands`, to be sent together and in their order.
    pub(super) fn send(&self, commands: Vec<Cmd>) -> Result<Answer, RemoteError> {
        let (answer, answered) = oneshot::channel();
        match self.queue.try_send(Job { commands, answer }) {
            Ok(()) => Ok(answered),
            Err(mpsc::error::TrySendError::Full(_)) => {
                Err(RemoteError::NotSent(format!("{QUEUE} calls are waiting for it already")))
            }
            Err(mpsc::error::TrySendError::Closed(_)) => {
                Err(RemoteError::NotSent("it is not asked any more".into()))
            }
        }
    }

    /// LimitChecks for another connection, unless this one is younger than a moment: it was made in the knowledge of whatever is
    /// wrong with it.
    pub(super) fn renew(&self) {
        const MOMENT: Duration = Duration::from_millis(500);
        let state = self.shared.state.lock();
        if state.connected && state.since.elapsed() > MOMENT {
            self.shared.renew.notify_one();
        }
    }

    /// Leaves a server that is no master any more: what it has not answered in a moment counts for nothing there.
    pub(super) fn leave(&self) {
        self.shared.left.notify_one();
    }

    /// Whether both are the same way.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// How it is.
    pub(super) fn state(&self) -> LinkState {
        self.shared.state.lock().clone()
    }
}

// === impl Worker ===

impl Worker {
    async fn run(mut self) {
        let (mut failures, mut expected) = (0, true);
        loop {
            let end = match self.connect(expected).await {
                None => End::Unused,
                Some(Ok((address, connection))) => {
                    tracing::info!(server = %address, "connected to redis");
                    let begun = Instant::now();
                    let end = self.serve(address, connection).await;
                    failures = if begun.elapsed() < BRIEF { failures + 1 } else { 0 };
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
            // most of the time what comes after a good connection is another
            expected = failures == 0;
            if expected {
                continue;
            }
            let wait = time::sleep(self.backoff.wait(failures, self.draw.next()));
            if self.refuse_while(wait).await.is_none() {
                return;
            }
        }
    }

    /// Finds the server and connects to it. If it may be expected to be there, callers wait for a moment. None if nobody is
    /// left who could want it.
    async fn connect(&mut self, expected: bool) -> Option<Result<(Address, Connection), String>> {
        let (endpoint, resolver) = (Arc::clone(&self.endpoint), self.resolver.clone());
        let connecting = async move {
            let address = resolver.find(&endpoint).await?;
            let connection = connect::connect(&endpoint, &address).await;
            let mut connection = connection.map_err(|error| format!("{address}: {error}"))?;
            resolver.check(&address, &mut connection).await?;
            Ok((address, connection))
        };
        tokio::pin!(connecting);
        if expected && let Ok(connected) = time::timeout(PATIENCE, &mut connecting).await {
            return Some(connected);
        }
        self.refuse_while(connecting).await
    }

    /// Tells whoever comes that there is no connection, until `what` is there. None if nobody is left who could come.
    async fn refuse_while<T>(&mut self, what: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(what);
        loop {
            tokio::select! {
                done = &mut what => return Some(done),
                job = self.queue.recv() => {
                    let error = self.shared.state.lock().error.clone();
                    let error = error.unwrap_or_else(|| "no connection yet".into());
                    let _ = job?.answer.send(Err(RemoteError::NotSent(error)));
                }
            }
        }
    }

    /// Notes how things are now.
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

    /// Sends what comes, for as long as the connection is good.
    async fn serve(&mut self, address: Address, mut connection: Connection) -> End {
        self.shared.state.lock().name = self.resolver.name_at(&address);
        self.note(true, None);
        let mut jobs = Vec::new();
        let course = ConnectionState {
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT)),
            failed: Arc::new(Notify::new()),
        };
        let resolver = self.resolver.clone();
        let moved = resolver.moved(&self.endpoint, &address);
        tokio::pin!(moved);
        loop {
            let permit = Arc::clone(&course.in_flight).acquire_owned();
            let next = async {
                let permit = permit.await;
                // nothing is lost if this is not waited for to its end
                let taken = self.queue.recv_many(&mut jobs, BATCH).await;
                (permit, taken)
            };
            tokio::select! {
                // in this order, so that the reason is told that came first
                biased;
                () = connection.driver.ended() => return End::Renew("the connection broke".into()),
                // a server that is late may never answer again: whatever comes next should not have to find that out
                () = course.failed.notified() => {
                    retire(connection, self.endpoint.timeout);
                    return End::Renew("it did not answer".into());
                }
                () = self.shared.left.notified() => {
                    retire(connection, self.endpoint.timeout.min(PATIENCE));
                    self.queue.close();
                    while let Ok(job) = self.queue.try_recv() {
                        let error = "it is no master any more".into();
                        let _ = job.answer.send(Err(RemoteError::NotSent(error)));
                    }
                    return End::Unused;
                }
                () = self.shared.renew.notified() => {
                    retire(connection, self.endpoint.timeout);
                    return End::Renew("another connection is needed".into());
                }
                to = &mut moved => {
                    retire(connection, self.endpoint.timeout.min(PATIENCE));
                    return End::Renew(format!("the master is at {to} now"));
                }
                (permit, taken) = next => {
                    let Ok(permit) = permit else { return End::Unused };
                    if taken == 0 {
                        return End::Unused;
                    }
                    self.send(&connection, &course, permit, std::mem::take(&mut jobs));
                }
            }
        }
    }

    /// Sends `jobs` as one pipeline, and has the answers handed out when they come.
    fn send(
        &self,
        connection: &Connection,
        course: &ConnectionState,
        permit: OwnedSemaphorePermit,
        mut jobs: Vec<Job>,
    ) {
        // who has given up will do something else, which must not come on top of this
        jobs.retain(|job| !job.answer.is_closed());
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
            (Arc::clone(&self.metrics), Arc::clone(&course.failed), self.endpoint.timeout);
        tokio::spawn(async move {
            let begun = Instant::now();
            let answer =
                time::timeout(within, handle.send_packed_commands(&pipeline, 0, pipeline.len())).await;
            drop(permit);
            metrics.pipeline(jobs.len(), begun.elapsed());
            let error = match answer {
                Ok(Ok(values)) if values.len() == pipeline.len() => return hand_out(jobs, &counts, values),
                Ok(Ok(_)) => RemoteError::Unreachable("it answered too little".into()),
                Ok(Err(error)) => RemoteError::Unreachable(connect::explain(&error)),
                Err(_) => RemoteError::TimedOut(period(within)),
            };
            failed.notify_one();
            for job in jobs {
                let _ = job.answer.send(Err(error.clone()));
            }
        });
    }
}

/// Gives each of `jobs` its part of `values`, the first of which is the time.
fn hand_out(jobs: Vec<Job>, counts: &[usize], values: Vec<Value>) {
    let mut values = values.into_iter();
    let now = values.next().and_then(|value| script::time(&value));
    for (job, count) in jobs.into_iter().zip(counts) {
        let values = values.by_ref().take(*count).collect();
        // whoever has given up is gone
        let _ = job.answer.send(Ok(Answered { now, values }));
    }
}

/// A length of time as the store's errors tell it.
pub(super) fn period(length: Duration) -> Period {
    Period::from_nanos(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX))
}

/// Lets what is on its way arrive, then closes the connection.
fn retire(connection: Connection, within: Duration) {
    let Connection { handle, mut driver } = connection;
    // the driver ends when nobody is left who sends, and all is answered
    drop(handle);
    tokio::spawn(async move { time::timeout(within, driver.ended()).await });
}
