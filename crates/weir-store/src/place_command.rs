//! What a shared store does for requests in flight: operations on one counter's set of names, each atomic.

use std::sync::Arc;

use weir_limit::{Hits, Period, PlaceName, Timestamp};

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

/// A name, and the hits that its request has reserved.
pub type NamedHits = (PlaceName, Hits);

/// What is done with the places of a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaceOp {
    /// Inserts as many of the names as fit, in their order.
    Take {
        /// At most [`PlaceCommand::MAX_TAKEN`] names; without any, the places are only counted.
        names: Vec<NamedHits>,
        /// The most places.
        most: u32,
        /// Beyond this instant of the store's clock nothing is taken: no end overtakes a late take.
        valid_until: Timestamp,
    },
    /// Removes names, and then as many of the newest places as there are without a name. These, and names
    /// [without the store](PlaceName::is_without_store), found or not, are marked for 30 s.
    End(Vec<Option<PlaceName>>),
    /// Inserts names that were admitted without the store, above the limit too, unless they are there or marked. What they
    /// have reserved is given up if they are marked and had not been found. Without names, old places are given up.
    Add {
        /// The names.
        names: Vec<NamedHits>,
        /// Beyond so many places the oldest ones are given up.
        most: u32,
    },
}

/// The reply to a [`PlaceCommand`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaceReply {
    /// The store's clock when it carried out the command.
    pub now: Timestamp,
    /// The first so many names of a [`PlaceOp::Take`] have places.
    pub taken: u32,
    /// The places that are left taken.
    pub places: u32,
    /// The places that were given up.
    pub given_up: u32,
    /// The requests of a [`PlaceOp::End`] that had a place.
    pub ended: u32,
    /// Those of them that have reserved hits, and those without a name in the command.
    pub ended_hits: Vec<NamedHits>,
    /// The reserved hits of requests that were given up.
    pub given_up_hits: Vec<NamedHits>,
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

    /// The most names in another operation, and the most requests with reserved hits that one gives up.
    pub const MAX_ENDED: usize = 1_024;

    /// The most places of a counter that is not [limited](weir_limit::InFlight::UNLIMITED).
    pub const MAX_RESERVING: u32 = 10_000;

    /// How long a store marks a name that has ended.
    pub const MARKED: Period = Period::from_secs(30);

    /// The most marks of a counter: further ones replace the oldest.
    pub const MAX_MARKS: usize = 10_000;
}
