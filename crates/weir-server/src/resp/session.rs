//! What a connection has agreed on: whether it is authenticated, its name, the commands of an open transaction.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::parse::{CommandBounds, Ranges};
use crate::connections::AccountHold;

const MAX_QUEUED: usize = 10_000;

const MAX_WRONG_PASSWORDS: u32 = 10;

/// The time for which the reply to the first wrong password is held back. Each one takes as much longer.
const PAUSE: Duration = Duration::from_millis(100);

static LAST_ID: AtomicU64 = AtomicU64::new(0);

#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) is_authenticated: bool,
    pub(super) name: Vec<u8>,
    pub(super) client_library: [Vec<u8>; 2],
    /// The commands since `MULTI`.
    pub(super) queue: Option<CommandQueue>,
    /// The commands that are carried out next, after `EXEC`.
    pub(super) executing: Option<CommandQueue>,
    pub(super) is_closing: bool,
    wrong_passwords: u32,
    /// How long the last reply has to be held back.
    pause: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct CommandQueue {
    commands: Vec<QueuedCommand>,
    /// Whether one of them was refused, so that none will be carried out.
    pub(super) is_broken: bool,
    bytes: usize,
    hold: AccountHold,
}

#[derive(Debug)]
pub(super) struct QueuedCommand {
    /// Its index in the list of commands.
    pub(super) command: usize,
    bytes: Box<[u8]>,
    ranges: Box<[Range<usize>]>,
}

/// Clients see the texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum QueueFull {
    #[error("ERR a transaction has at most {MAX_QUEUED} commands")]
    Commands,
    #[error("ERR the commands of this transaction have too many bytes")]
    Bytes,
}

// === impl Session ===

impl Session {
    pub(super) fn new(is_authenticated: bool) -> Self {
        Self { id: LAST_ID.fetch_add(1, Ordering::Relaxed) + 1, is_authenticated, ..Self::default() }
    }

    /// Holds the reply back, longer each time; the last one ends the connection. Returns whether this is the last one.
    pub(super) fn add_wrong_password(&mut self) -> bool {
        self.wrong_passwords += 1;
        self.pause = Some(PAUSE * self.wrong_passwords);
        let is_last = self.wrong_passwords >= MAX_WRONG_PASSWORDS;
        self.is_closing |= is_last;
        is_last
    }

    pub(super) const fn take_pause(&mut self) -> Option<Duration> {
        self.pause.take()
    }

    pub(super) const fn bounds(&self) -> CommandBounds {
        if self.is_authenticated { CommandBounds::FULL } else { CommandBounds::BEFORE_AUTH }
    }
}

// === impl CommandQueue ===

impl CommandQueue {
    const OVERHEAD: usize = size_of::<QueuedCommand>();

    pub(super) const fn new(hold: AccountHold) -> Self {
        Self { commands: Vec::new(), is_broken: false, bytes: 0, hold }
    }

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

    pub(super) fn commands(&self) -> &[QueuedCommand] {
        &self.commands
    }
}

// === impl QueuedCommand ===

impl QueuedCommand {
    /// The first is the command's name.
    pub(super) fn arguments(&self) -> impl Iterator<Item = &[u8]> {
        self.ranges.iter().map(|range| &self.bytes[range.clone()])
    }
}
