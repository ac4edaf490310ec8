//! A client with many connections on one thread. It shares the machine with the measured server, so it does little
//! work: it reads and writes all ready data of a connection at once.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use mio::{
    Events, Interest, Poll, Token,
    event::Source,
    net::{TcpStream, UnixStream},
};

use super::{
    connection::{Connection, Fault},
    histogram::Histogram,
    message::{Requests, Workload},
};

/// The time to wait for a response before the server counts as hung.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// The resolution of the system's timers: shorter waits poll.
const TICK: Duration = Duration::from_millis(2);

const BUFFER: usize = 64 * 1024;

/// The address of a server.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// The number of connections, and of requests in flight on each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) connections: usize,
    pub(crate) in_flight: usize,
}

/// The condition that ends a run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    Elapsed(Duration),
    Requests(u64),
}

/// The result of a run.
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    pub(crate) elapsed: Duration,
    pub(crate) latencies: Histogram,
}

trait Stream: Read + Write + Source {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

struct Socket {
    stream: Box<dyn Stream>,
    connection: Connection,
    /// Received bytes that are not processed yet, at the beginning: an incomplete frame.
    buffer: Box<[u8]>,
    filled: usize,
    /// The bytes of the connection's output that were sent.
    sent: usize,
}

pub(crate) struct Client {
    poll: Poll,
    events: Events,
    sockets: Vec<Socket>,
    requests: Requests,
}

// === impl Target ===

impl Target {
    /// Parses an address as weir prints it: `127.0.0.1:8081`, or `unix:/run/weir.sock`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix("unix:") {
            Some(path) => Some(Self::Unix(path.into())),
            None => text.parse().ok().map(Self::Tcp),
        }
    }

    fn connect(&self) -> io::Result<Box<dyn Stream>> {
        // blocks until connected, unlike mio's own connect
        Ok(match self {
            Self::Tcp(address) => {
                let stream = std::net::TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Box::new(TcpStream::from_std(stream))
            }
            Self::Unix(path) => {
                let stream = std::os::unix::net::UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                Box::new(UnixStream::from_std(stream))
            }
        })
    }
}

// === impl Client ===

impl Client {
    pub(crate) fn connect(target: &Target, load: Load, workload: Workload) -> Result<Self, Fault> {
        let poll = Poll::new()?;
        let mut sockets = Vec::new();
        for token in 0..load.connections {
            let mut stream = target.connect()?;
            poll.registry().register(&mut stream, Token(token), Interest::READABLE | Interest::WRITABLE)?;
            let connection = Connection::new(workload, load.in_flight);
            sockets.push(Socket { stream, connection, buffer: vec![0; BUFFER].into(), filled: 0, sent: 0 });
        }
        let requests = Requests::new(workload);
        Ok(Self { poll, events: Events::with_capacity(load.connections), sockets, requests })
    }

    /// Keeps as many requests in flight as the load allows, then waits for the last responses.
    pub(crate) fn closed(&mut self, until: Until) -> Result<Outcome, Fault> {
        let started = Instant::now();
        let mut now = started;
        let (mut sent, mut latencies) = (0, Histogram::new());
        let may_send = |sent: u64, now: Instant| match until {
            Until::Elapsed(time) => now - started < time,
            Until::Requests(requests) => sent < requests,
        };
        for socket in &mut self.sockets {
            while may_send(sent, now) && socket.connection.send(&mut self.requests, now) {
                sent += 1;
            }
            socket.write()?;
        }
        while self.in_flight() > 0 {
            if !self.wait(RESPONSE_TIMEOUT)? {
                return Err(Fault::Timeout(RESPONSE_TIMEOUT));
            }
            for event in &self.events {
                let socket = &mut self.sockets[event.token().0];
                if event.is_readable() {
                    now = socket.read(&mut latencies)?;
                }
                while may_send(sent, now) && socket.connection.send(&mut self.requests, now) {
                    sent += 1;
                }
                socket.write()?;
            }
        }
        Ok(Outcome { requests: sent, elapsed: started.elapsed(), latencies })
    }

    /// Sends `rate` requests per second, independent of the server's responses. The latency of a delayed request counts
    /// from the time at which it was due.
    pub(crate) fn open(&mut self, rate: u32, time: Duration) -> Result<Outcome, Fault> {
        let started = Instant::now();
        let (mut sent, mut latencies) = (0_u32, Histogram::new());
        let due = |number: u32| started + Duration::from_secs(1) * number / rate;
        let last = u32::try_from(time.as_millis() * u128::from(rate) / 1_000).unwrap_or(u32::MAX);
        let (mut turn, mut last_reply) = (0, started);
        while sent < last || self.in_flight() > 0 {
            let now = Instant::now();
            // skips full connections; if all are full, waits
            let mut full = 0;
            while sent < last && due(sent) <= now && full < self.sockets.len() {
                turn = (turn + 1) % self.sockets.len();
                if self.sockets[turn].connection.send(&mut self.requests, due(sent)) {
                    (sent, full) = (sent + 1, 0);
                } else {
                    full += 1;
                }
            }
            for socket in &mut self.sockets {
                socket.write()?;
            }
            let idle = if sent == last { RESPONSE_TIMEOUT } else { due(sent).saturating_duration_since(now) };
            self.wait(idle.saturating_sub(TICK))?;
            for event in self.events.iter().filter(|event| event.is_readable()) {
                last_reply = self.sockets[event.token().0].read(&mut latencies)?;
            }
            if last_reply.elapsed() > RESPONSE_TIMEOUT {
                return Err(Fault::Timeout(RESPONSE_TIMEOUT));
            }
        }
        Ok(Outcome { requests: sent.into(), elapsed: started.elapsed(), latencies })
    }

    /// Returns the number of tolerated error responses.
    pub(crate) fn errors(&self) -> u64 {
        self.sockets.iter().map(|socket| socket.connection.errors).sum()
    }

    fn in_flight(&self) -> usize {
        self.sockets.iter().map(|socket| socket.connection.in_flight()).sum()
    }

    /// Waits until a socket is readable or writable, and returns whether one is.
    fn wait(&mut self, most: Duration) -> Result<bool, Fault> {
        match self.poll.poll(&mut self.events, Some(most)) {
            // for example when a debugger attaches
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error.into()),
            Ok(()) => Ok(!self.events.is_empty()),
        }
    }
}

// === impl Socket ===

impl Socket {
    /// Reads everything available, and returns when it arrived.
    fn read(&mut self, latencies: &mut Histogram) -> Result<Instant, Fault> {
        loop {
            let space = &mut self.buffer[self.filled..];
            let room = space.len();
            let count = match self.stream.read(space) {
                Ok(0) => return Err(Fault::Closed),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Instant::now()),
                Err(error) => return Err(error.into()),
            };
            let now = Instant::now();
            self.filled += count;
            let done = self.connection.read(&self.buffer[..self.filled], now, latencies)?;
            self.buffer.copy_within(done..self.filled, 0);
            self.filled -= done;
            // a short read: nothing is left, and further bytes raise an event
            if count < room {
                return Ok(now);
            }
        }
    }

    /// Sends as much of the output as the system accepts; the rest waits for the next event.
    fn write(&mut self) -> Result<(), Fault> {
        while self.sent < self.connection.out.len() {
            match self.stream.write(&self.connection.out[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        self.connection.out.clear();
        self.sent = 0;
        Ok(())
    }
}
