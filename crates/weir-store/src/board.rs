//! What instances tell each other through a shared store, beside counts: notes for all of them, and a summary of each.

use weir_limit::{Period, Timestamp};

use super::remote::RemoteError;

/// What one instance writes and asks, once a second. The store carries it out as a whole.
#[derive(Clone, Copy, Debug)]
pub struct BoardPost<'a> {
    /// The name of the instance.
    pub instance: &'a str,
    /// Replaces what the instance has written before; none keeps it. At most [`BoardPost::MAX_SUMMARY`] bytes.
    pub summary: Option<&'a [u8]>,
    /// For all instances, this one included. At most [`BoardPost::MAX_NOTE`] bytes.
    pub note: Option<&'a [u8]>,
    /// The instant of the last note that the instance has read.
    pub read_until: Timestamp,
    /// Whether to return the summaries.
    pub reads_summaries: bool,
}

/// The reply to a [`BoardPost`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoardReply {
    /// The store's clock.
    pub now: Timestamp,
    /// The first notes after [`BoardPost::read_until`], oldest first, each with the instant at which it was written.
    pub notes: Vec<(Timestamp, Vec<u8>)>,
    /// The summaries by the names of their instances, each written in the last [`BoardPost::SUMMARY_LIFE`].
    pub summaries: Vec<(String, Vec<u8>)>,
    /// Whether there was room for the note.
    pub is_written: bool,
}

// === impl BoardPost ===

impl BoardPost<'_> {
    /// The most bytes of a summary.
    pub const MAX_SUMMARY: usize = 16 << 10;
    /// The most bytes of a note.
    pub const MAX_NOTE: usize = 4 << 10;
    /// The most notes that the store keeps.
    pub const MAX_NOTES: usize = 10_000;
    /// The most notes of a reply. The next one goes on.
    pub const MAX_READ: usize = 200;
    /// How long the store keeps a note: an instance that was cut off for less reads it.
    pub const NOTE_LIFE: Period = Period::from_secs(3_600);
    /// How long a summary is returned.
    pub const SUMMARY_LIFE: Period = Period::from_secs(10);
}

/// The error of stores without a board.
pub(super) fn no_board() -> RemoteError {
    RemoteError::Rejected("it carries no messages between instances".into())
}
