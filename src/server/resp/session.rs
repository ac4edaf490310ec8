//! What a connection has agreed on: whether it is authenticated, its name, the commands of an open transaction.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::parse::{CommandBounds, Ranges};
use crate::server::connections::Hold;

/// The commands that may wait for `EXEC`.
const MAX_QUEUED: usize = 10_000;

/// The wrong passwords after which a connection is closed.
const MAX_WRONG_PASSWORDS: u32 = 10;

/// The time for which the reply to the first wrong password is held back. Each one takes as much longer.
const PAUSE: Duration = Duration::from_millis(100);

/// The number of the last connection.
static LAST_ID: AtomicU64 = AtomicU64::new(0);

/// The state of a connection.
#[derive(Debug)]
pub(super) struct Session {
    /// The connection's number.
    pub(super) id: u64,
    /// Whether the client may send any command.
    pub(super) is_authenticated: bool,
    /// The name that the client has given the connection.
    pub(super) name: Vec<u8>,
    /// The library of the client and its version, as it says.
    pub(super) client_library: [Vec<u8>; 2],
    /// The commands since `MULTI`.
    pub(super) queue: Option<Queue>,
    /// The commands that `EXEC` has carried out next.
    pub(super) executing: Option<Queue>,
    /// Whether the connection is to be closed after the replies.
    pub(super) is_closing: bool,
    /// The wrong passwords that the client has given.
    wrong_passwords: u32,
    /// How long the last reply has to be held back.
    pause: Option<Duration>,
}

/// Commands that wait for `EXEC`.
#[derive(Debug)]
pub(super) struct Queue {
    commands: Vec<QueuedCommand>,
    /// Whether one of them was refused, so that none will be carried out.
    pub(super) is_broken: bool,
    bytes: usize,
    hold: Hold,
}

/// A command that waits.
#[derive(Debug)]
pub(super) struct QueuedCommand {
    /// Its index in the list of commands.
    pub(super) command: usize,
    bytes: Box<[u8]>,
    ranges: Box<[Range<usize>]>,
}

/// Why a command cannot be queued. Clients see the texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum QueueFull {
    /// There are too many.
    #[error("ERR a transaction has at most {MAX_QUEUED} commands")]
    Commands,
    /// They are too long together.
    #[error("ERR the commands of this transaction have too many bytes")]
    Bytes,
}

// === impl Session ===

impl Session {
    /// Returns the state of a new connection.
    pub(super) fn new(is_authenticated: bool) -> Self {
        Self {
            id: LAST_ID.fetch_add(1, Ordering::Relaxed) + 1,
            is_authenticated,
            name: Vec::new(),
            client_library: [Vec::new(), Vec::new()],
            queue: None,
            executing: None,
            is_closing: false,
            wrong_passwords: 0,
            pause: None,
        }
    }

    /// Records a wrong password: its reply is held back, longer each time, and the last one ends the connection.
    /// Returns whether this is the last one.
    pub(super) fn add_wrong_password(&mut self) -> bool {
        self.wrong_passwords += 1;
        self.pause = Some(PAUSE * self.wrong_passwords);
        let is_last = self.wrong_passwords >= MAX_WRONG_PASSWORDS;
        self.is_closing |= is_last;
        is_last
    }

    /// Returns how long the last reply has to be held back, once.
    pub(super) const fn take_pause(&mut self) -> Option<Duration> {
        self.pause.take()
    }

    /// Returns the bounds on the client's commands.
    pub(super) const fn bounds(&self) -> CommandBounds {
        if self.is_authenticated { CommandBounds::FULL } else { CommandBounds::BEFORE_AUTH }
    }
}

// === impl Queue ===

impl Queue {
    /// The memory of a command besides its bytes and ranges.
    const OVERHEAD: usize = size_of::<QueuedCommand>();

    /// Returns an empty queue, whose bytes `hold` accounts for.
    pub(super) const fn new(hold: Hold) -> Self {
        Self { commands: Vec::new(), is_broken: false, bytes: 0, hold }
    }

    /// Adds a command.
    pub(super) fn push(&mut self, command: usize, arguments: &[&[u8]]) -> Result<(), QueueFull> {
        if self.commands.len() == MAX_QUEUED {
            return Err(QueueFull::Commands);
        }
        let mut ranges = Ranges::new();
        let mut end = 0;
        for argument in arguments {
            ranges.push(end..end + argument.len());
            end += argument.len();
        }
        self.bytes += end + arguments.len() * size_of::<Range<usize>>() + Self::OVERHEAD;
        self.hold.grow_to(self.bytes).map_err(|_| QueueFull::Bytes)?;
        let bytes = arguments.concat().into();
        self.commands.push(QueuedCommand { command, bytes, ranges: ranges.into_vec().into() });
        Ok(())
    }

    /// Returns the commands.
    pub(super) fn commands(&self) -> &[QueuedCommand] {
        &self.commands
    }
}

// === impl QueuedCommand ===

impl QueuedCommand {
    /// Returns its name and arguments.
    pub(super) fn arguments(&self) -> impl Iterator<Item = &[u8]> {
        self.ranges.iter().map(|range| &self.bytes[range.clone()])
    }
}
