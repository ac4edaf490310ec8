//! What a shared store does for requests in flight: operations on one counter's set of names, each atomic.

use std::sync::Arc;

use weir_limit::{Period, PlaceName, Timestamp};

use super::remote::RemoteError;

/// An operation on the places of one counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceCommand {
    /// The [path](super::path) of the counter.
    pub path: Arc<str>,
    /// The age at which a place is given up, by the store's clock, before anything else is done.
    pub give_up_after: Period,
    /// The operation.
    pub op: PlaceOp,
}

/// What is done with the places of a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaceOp {
    /// Inserts as many of the names as fit, in their order.
    Take {
        /// At most [`PlaceCommand::MAX_TAKEN`] names; without any, the places are only counted.
        names: Vec<PlaceName>,
        /// The most places.
        most: u32,
        /// Beyond this instant of the store's clock nothing is taken: no end overtakes a late take.
        valid_until: Timestamp,
    },
    /// Removes names, at least one. Those [without the store](PlaceName::is_without_store) are marked for 30 s, found or not.
    End(Vec<PlaceName>),
    /// Inserts names that were admitted without the store, above the limit too, unless they are there or marked.
    Add(Vec<PlaceName>),
}

/// The reply to a [`PlaceCommand`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaceReply {
    /// The store's clock when it carried out the command.
    pub now: Timestamp,
    /// The first so many names of a [`PlaceOp::Take`] have places.
    pub taken: u32,
    /// The places that are left taken.
    pub places: u32,
    /// The places that were given up.
    pub given_up: u32,
    /// The names of a [`PlaceOp::End`] that had a place.
    pub ended: u32,
}

/// The replies to some commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceReplies {
    /// The store's clock when it carried out the commands.
    pub now: Timestamp,
    /// One for each command.
    pub replies: Vec<Result<PlaceReply, RemoteError>>,
}

// === impl PlaceCommand ===

impl PlaceCommand {
    /// The most names in a [`PlaceOp::Take`].
    pub const MAX_TAKEN: usize = 64;

    /// The most names in another operation.
    pub const MAX_ENDED: usize = 1_024;

    /// How long a store marks a name that has ended.
    pub const MARKED: Period = Period::from_secs(30);

    /// The most marks of a counter: further ones replace the oldest.
    pub const MAX_MARKS: usize = 10_000;
}
