//! What few local counters have at a time, in the space of a pointer.

use super::{fetch::LeaseFetch, records::HeldLeases, sibling_hits::Siblings, states::States};
use crate::limit::Timestamp;

/// What few counters have at a time.
#[derive(Debug, Default)]
pub(super) struct Rare {
    /// Hits that may be admitted without a call, in order of their ends.
    pub(super) held: HeldLeases,
    /// The instant from which the store counts none of the granted hits, used or not.
    pub(super) counted_until: Timestamp,
    /// The state of fetching leases. None until a lease is needed, and while nothing of the last fetch has to be known.
    pub(super) fetch: Option<Box<LeaseFetch>>,
    /// While the store is unavailable: the states as if every instance counted the same hits.
    pub(super) fallback: Option<Box<States>>,
    /// What it knows about its siblings. None if it has none.
    pub(super) siblings: Option<Box<Siblings>>,
}

// === impl Rare ===

impl Rare {
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
            && self.counted_until == Timestamp::default()
            && self.fetch.is_none()
            && self.fallback.is_none()
            && self.siblings.is_none()
    }

    pub(super) fn fetch_mut(&mut self) -> &mut LeaseFetch {
        self.fetch.get_or_insert_default()
    }
}
