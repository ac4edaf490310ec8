//! A client of many connections on one thread. It shares the machine with what it measures, so it does little: one read
//! and one write for all that is ready on a connection.

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
    message::{Asked, Requests},
};

/// Who does not answer for so long never will.
const PATIENCE: Duration = Duration::from_secs(20);

/// Shorter waits than this are spent asking again, for the system's timers are no finer.
const TICK: Duration = Duration::from_millis(2);

const BUFFER: usize = 64 * 1024;

/// Where a server listens.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// How many connections, and how many requests are in flight on each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) connections: usize,
    pub(crate) in_flight: usize,
}

/// How long to go on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    Elapsed(Duration),
    Requests(u64),
}

/// What came of it.
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    pub(crate) elapsed: Duration,
    pub(crate) latencies: Histogram,
}

trait Stream: Read + Write + Source {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

struct Link {
    stream: Box<dyn Stream>,
    connection: Connection,
    /// What has come and was not read yet, at the beginning: the rest of a frame is still to come.
    buffer: Box<[u8]>,
    filled: usize,
    /// How much of what is to be sent was sent.
    sent: usize,
}

pub(crate) struct Client {
    poll: Poll,
    events: Events,
    links: Vec<Link>,
    requests: Requests,
}

// === impl Target ===

impl Target {
    /// As it is written in what weir says: `127.0.0.1:8081`, or `unix:/run/weir.sock`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix("unix:") {
            Some(path) => Some(Self::Unix(path.into())),
            None => text.parse().ok().map(Self::Tcp),
        }
    }

    fn connect(&self) -> io::Result<Box<dyn Stream>> {
        // waits until it is connected, unlike mio's own way
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
    pub(crate) fn connect(target: &Target, load: Load, asked: Asked) -> Result<Self, Fault> {
        let poll = Poll::new()?;
        let mut links = Vec::new();
        for token in 0..load.connections {
            let mut stream = target.connect()?;
            poll.registry().register(&mut stream, Token(token), Interest::READABLE | Interest::WRITABLE)?;
            let connection = Connection::new(asked, load.in_flight);
            links.push(Link { stream, connection, buffer: vec![0; BUFFER].into(), filled: 0, sent: 0 });
        }
        let requests = Requests::new(asked);
        Ok(Self { poll, events: Events::with_capacity(load.connections), links, requests })
    }

    /// Keeps as many requests in flight as there may be, then waits for the last answers.
    pub(crate) fn closed(&mut self, until: Until) -> Result<Outcome, Fault> {
        let begun = Instant::now();
        let mut now = begun;
        let (mut asked, mut latencies) = (0, Histogram::new());
        let may_ask = |asked: u64, now: Instant| match until {
            Until::Elapsed(time) => now - begun < time,
            Until::Requests(requests) => asked < requests,
        };
        for link in &mut self.links {
            while may_ask(asked, now) && link.connection.ask(&mut self.requests, now) {
                asked += 1;
            }
            link.write()?;
        }
        while self.in_flight() > 0 {
            if !self.wait(PATIENCE)? {
                return Err(Fault::Silent(PATIENCE));
            }
            for event in &self.events {
                let link = &mut self.links[event.token().0];
                if event.is_readable() {
                    now = link.read(&mut latencies)?;
                }
                while may_ask(asked, now) && link.connection.ask(&mut self.requests, now) {
                    asked += 1;
                }
                link.write()?;
            }
        }
        Ok(Outcome { requests: asked, elapsed: begun.elapsed(), latencies })
    }

    /// LimitChecks `rate` times a second, whatever the server does. What waits for room waits from the moment at which it should
    /// have been sent.
    pub(crate) fn open(&mut self, rate: u32, time: Duration) -> Result<Outcome, Fault> {
        let begun = Instant::now();
        let (mut asked, mut latencies) = (0_u32, Histogram::new());
        let due = |number: u32| begun + Duration::from_secs(1) * number / rate;
        let last = u32::try_from(time.as_millis() * u128::from(rate) / 1_000).unwrap_or(u32::MAX);
        let (mut turn, mut heard) = (0, begun);
        while asked < last || self.in_flight() > 0 {
            let now = Instant::now();
            // who has no room is passed over; if nobody has, everything waits
            let mut full = 0;
            while asked < last && due(asked) <= now && full < self.links.len() {
                turn = (turn + 1) % self.links.len();
                if self.links[turn].connection.ask(&mut self.requests, due(asked)) {
                    (asked, full) = (asked + 1, 0);
                } else {
                    full += 1;
                }
            }
            for link in &mut self.links {
                link.write()?;
            }
            let idle = if asked == last { PATIENCE } else { due(asked).saturating_duration_since(now) };
            self.wait(idle.saturating_sub(TICK))?;
            for event in self.events.iter().filter(|event| event.is_readable()) {
                heard = self.links[event.token().0].read(&mut latencies)?;
            }
            if heard.elapsed() > PATIENCE {
                return Err(Fault::Silent(PATIENCE));
            }
        }
        Ok(Outcome { requests: asked.into(), elapsed: begun.elapsed(), latencies })
    }

    /// Answers that were errors, where those are let pass.
    pub(crate) fn errors(&self) -> u64 {
        self.links.iter().map(|link| link.connection.errors).sum()
    }

    fn in_flight(&self) -> usize {
        self.links.iter().map(|link| link.connection.in_flight()).sum()
    }

    /// Waits until something can be read or written. Whether it can.
    fn wait(&mut self, most: Duration) -> Result<bool, Fault> {
        match self.poll.poll(&mut self.events, Some(most)) {
            // a debugger that looks at this process is no fault
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error.into()),
            Ok(()) => Ok(!self.events.is_empty()),
        }
    }
}

// === impl Link ===

impl Link {
    /// Reads what is there. When it came.
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
            // less than there was room for: there is no more, and the next bytes are an event of their own
            if count < room {
                return Ok(now);
            }
        }
    }

    /// Sends what there is to send. What the system does not take waits for its next event.
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
