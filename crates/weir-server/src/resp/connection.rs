//! One connection: reads commands, has them carried out in their order, and writes the replies.

use std::{
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::watch,
    time::{Instant, sleep, timeout_at},
};

use super::{
    commands,
    parse::{Parsed, Ranges, parse},
    reply::CommandReplies,
    service::Service,
    session::{CommandQueue, Session},
};
use crate::{
    bounds::Bound,
    connections::{AccountHold, Connection, Metered},
    listening::TLS_HANDSHAKE,
};
use weir_limit::Timestamp;
use weir_store::Store;

/// The bytes of an empty buffer that is kept, as part of what each connection takes. Longer commands are accounted for.
const READ: usize = 16 << 10;

/// The bytes that a read has room for at least.
const ROOM: usize = READ / 4;

/// The bytes of replies that are written before the next command is carried out.
const WRITTEN_AT_ONCE: usize = 64 << 10;

/// What smyte/ratelimit says to a line, and why.
const INLINE: &str =
    "Protocol Error: Invalid Array length: inline commands are not supported, send arrays of bulk strings";

/// Serves until the client closes the connection, or `stopping` becomes true and the commands that have arrived are
/// carried out. Ends at once if the client reads no replies, or `open` has to be closed because of what it holds.
pub(super) async fn serve<S: Store, I>(
    io: I,
    open: &Connection,
    service: &Service<S>,
    stopping: watch::Receiver<bool>,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send,
{
    let account = open.account();
    let Ok(hold) = account.hold(0) else { return };
    let mut driver = ConnectionDriver {
        io: Metered::new(io, Arc::clone(account)),
        open,
        service,
        session: Session::new(service.settings.auth.is_none()),
        buffer: Vec::with_capacity(READ),
        ahead: Ahead::default(),
        hold,
        replies: CommandReplies::default(),
        stopping,
        begun: None,
        is_new: true,
    };
    let overrun = pin!(account.overrun(service.connections.bounds().sending));
    tokio::select! {
        biased;
        ended = driver.run() => if let Err(error) = ended {
            tracing::debug!(%error, "connection lost");
        },
        () = overrun => {}
    }
}

struct ConnectionDriver<'a, S, I> {
    io: Metered<I>,
    open: &'a Connection,
    service: &'a Service<S>,
    session: Session,
    buffer: Vec<u8>,
    ahead: Ahead,
    hold: AccountHold,
    replies: CommandReplies,
    stopping: watch::Receiver<bool>,
    /// When the command began that has arrived in part.
    begun: Option<Instant>,
    is_new: bool,
}

/// What was read while a command was carried out: by that it is known that a client has left.
#[derive(Default)]
struct Ahead {
    /// About as many bytes as a buffer has at most.
    bytes: Vec<u8>,
    /// How often commands go on, once the client has left.
    turns_left: Option<usize>,
}

// === impl ConnectionDriver ===

impl<S: Store, I: AsyncRead + AsyncWrite + Unpin> ConnectionDriver<'_, S, I> {
    async fn run(&mut self) -> io::Result<()> {
        while self.read().await? {
            self.carry_out().await?;
            self.write().await?;
            if self.session.is_closing {
                return self.io.shutdown().await;
            }
        }
        Ok(())
    }

    /// Returns whether anything has arrived.
    async fn read(&mut self) -> io::Result<bool> {
        if self.buffer.is_empty() && self.buffer.capacity() > READ {
            self.buffer = Vec::with_capacity(READ);
            if let Ok(hold) = self.open.account().hold(0) {
                self.hold = hold;
            }
        }
        let ahead = std::mem::take(&mut self.ahead.bytes);
        self.buffer.extend_from_slice(&ahead);
        // a command that has arrived in part needs no more room before that is used up
        if self.buffer.capacity() - self.buffer.len() < ROOM {
            self.buffer.reserve(READ);
        }
        if self.hold.grow_to(self.buffer.capacity().saturating_sub(READ)).is_err() {
            return Ok(false);
        }
        self.open.report();
        if !ahead.is_empty() {
            return Ok(true);
        }
        // a client that has begun a command has to finish it
        let begun = (!self.buffer.is_empty()).then(|| *self.begun.get_or_insert_with(Instant::now));
        let reading = self.io.read_buf(&mut self.buffer);
        let arriving = async {
            let Some(begun) = begun else { return reading.await };
            let latest = begun + self.service.connections.bounds().arrival;
            timeout_at(latest, reading).await.unwrap_or_else(|_| {
                self.open.account().exceeded().add(Bound::RequestTimeout);
                Err(io::Error::new(io::ErrorKind::TimedOut, "a command did not arrive in time"))
            })
        };
        let read = tokio::select! {
            biased;
            read = arriving => read?,
            _ = self.stopping.wait_for(|stopping| *stopping) => return Ok(false),
        };
        if std::mem::take(&mut self.is_new) && self.buffer.first() == Some(&TLS_HANDSHAKE) {
            self.reject("the client speaks TLS, and WEIR_REDIS_TLS is not on");
            return Ok(false);
        }
        Ok(read > 0)
    }

    async fn carry_out(&mut self) -> io::Result<()> {
        let (mut at, mut now, mut commands) = (0, self.service.clock.now(), 0);
        let mut ranges = Ranges::new();
        // moved out, since commands borrow from it while their replies are written
        let mut buffer = std::mem::take(&mut self.buffer);
        while !self.session.is_closing {
            let rest = &buffer[at..];
            match parse(rest, self.session.bounds(), &mut ranges) {
                Parsed::Incomplete => break,
                Parsed::Empty(length) => at += length,
                Parsed::Inline(length) => {
                    self.answer_line(&rest[..length]);
                    at += length;
                }
                Parsed::Command(length) => {
                    let arguments: SmallVec<[&[u8]; 12]> =
                        ranges.iter().map(|range| &rest[range.clone()]).collect();
                    let (session, replies) = (&mut self.session, &mut self.replies);
                    let account = self.open.account();
                    let carried_out =
                        commands::carry_out(self.service, session, account, &arguments, now, replies);
                    now = after(self.service, now, carried_out, &mut self.io, &mut self.ahead).await?;
                    if let Some(pause) = self.session.take_pause() {
                        now = self.hold_back(pause).await;
                    }
                    if self.session.is_authenticated {
                        self.open.authenticated();
                    }
                    if let Some(queue) = self.session.executing.take() {
                        now = self.execute(&queue, now).await?;
                    }
                    commands += 1;
                    at += length;
                }
                Parsed::Broken(broken) => {
                    if broken.is_bound() {
                        self.open.account().exceeded().add(Bound::MessageBytes);
                    }
                    self.replies.error(&broken.to_string());
                    self.session.is_closing = true;
                }
            }
            self.write_many().await?;
        }
        buffer.drain(..at);
        self.buffer = buffer;
        if at > 0 {
            self.begun = None;
        }
        // a connection that has to authenticate first is closed before others
        if self.session.is_authenticated && commands > 0 {
            self.open.account().record_calls(commands);
        }
        self.service.stats.errors.add(self.replies.take_errors());
        Ok(())
    }

    /// Carries out the commands of a transaction, each by itself. Returns the time for the next command.
    async fn execute(&mut self, queue: &CommandQueue, mut now: Timestamp) -> io::Result<Timestamp> {
        for command in queue.commands() {
            let (session, replies) = (&mut self.session, &mut self.replies);
            let carried_out = commands::carry_out_queued(self.service, session, command, now, replies);
            now = after(self.service, now, carried_out, &mut self.io, &mut self.ahead).await?;
            if let Some(pause) = self.session.take_pause() {
                now = self.hold_back(pause).await;
            }
            if self.session.is_closing {
                break;
            }
            self.write_many().await?;
        }
        Ok(now)
    }

    /// Holds back the reply to a wrong password, for `pause` or until a stop. Returns the time for the next command.
    async fn hold_back(&mut self, pause: Duration) -> Timestamp {
        tokio::select! {
            () = sleep(pause) => {}
            _ = self.stopping.wait_for(|stopping| *stopping) => {}
        }
        self.service.clock.now()
    }

    /// Refuses a line. Closes the connection of an HTTP client, whose body might hold commands of somebody else.
    fn answer_line(&mut self, line: &[u8]) {
        let line = line.trim_ascii();
        let is_http =
            line.ends_with(b"HTTP/1.1") || line.ends_with(b"HTTP/1.0") || line.starts_with(b"PRI * HTTP");
        if is_http || line.get(..5).is_some_and(|start| start.eq_ignore_ascii_case(b"host:")) {
            self.reject("the client speaks HTTP");
            self.session.is_closing = true;
        } else if !line.is_empty() {
            self.replies.error(INLINE);
        }
    }

    fn reject(&self, reason: &str) {
        if let Some(suppressed) = self.service.rejected.admit(Instant::now().into_std()) {
            tracing::warn!(suppressed, "connection to the port of Redis' protocol rejected: {reason}");
        }
    }

    async fn write_many(&mut self) -> io::Result<()> {
        if self.replies.bytes().len() > WRITTEN_AT_ONCE { self.write().await } else { Ok(()) }
    }

    async fn write(&mut self) -> io::Result<()> {
        let mut rest = self.replies.bytes();
        while !rest.is_empty() {
            let mut writing = pin!(self.io.write(rest));
            let written = if let Some(written) = poll_once(writing.as_mut()).await {
                written?
            } else {
                let account = self.open.account();
                account.respond(rest.len());
                self.open.report();
                let written = writing.await;
                account.wrote(rest.len());
                self.open.report();
                written?
            };
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            rest = &rest[written..];
        }
        self.replies.clear();
        self.io.flush().await
    }
}

/// Reads `ahead` while a command is carried out. Returns the time for the next command, which begins after it.
async fn after<S, I: AsyncRead + Unpin>(
    service: &Service<S>,
    now: Timestamp,
    carried_out: impl Future<Output = ()>,
    io: &mut Metered<I>,
    ahead: &mut Ahead,
) -> io::Result<Timestamp> {
    let (mut carried_out, mut has_waited) = (pin!(carried_out), false);
    poll_fn(|context| match carried_out.as_mut().poll(context) {
        Poll::Ready(()) => Poll::Ready(Ok(())),
        Poll::Pending => {
            has_waited = true;
            ahead.poll(io, context)
        }
    })
    .await?;
    Ok(if has_waited { service.clock.now() } else { now })
}

// === impl Ahead ===

impl Ahead {
    /// The turns of commands after their client has left, for one that sends commands and does not wait for replies.
    const TURNS: usize = 1_024;

    /// Reads on, at the end of one turn of a command. Fails if the client has left and there were enough turns since.
    fn poll<I: AsyncRead + Unpin>(
        &mut self,
        io: &mut Metered<I>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.turns_left.is_none() && self.bytes.len() < READ {
            match pin!(io.read_buf(&mut self.bytes)).poll(context) {
                Poll::Ready(Ok(read)) if read > 0 => {}
                Poll::Ready(_) => self.turns_left = Some(Self::TURNS),
                Poll::Pending => break,
            }
        }
        match &mut self.turns_left {
            Some(0) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the client has left while its commands were carried out",
            ))),
            Some(turns) => {
                *turns -= 1;
                Poll::Pending
            }
            None => Poll::Pending,
        }
    }
}

async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}
