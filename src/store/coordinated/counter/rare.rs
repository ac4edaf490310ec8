//! What few local counters have at a time, in the space of a pointer.

use super::{fetch::LeaseFetch, sibling_hits::Siblings, states::States};

/// What few counters have at a time.
#[derive(Debug, Default)]
pub(super) struct Rare {
    /// The leases and the state of fetching them. None until a lease is needed.
    pub(super) fetch: Option<LeaseFetch>,
    /// While the store is unavailable: the states as if every instance counted the same hits.
    pub(super) fallback: Option<Box<States>>,
    /// What it knows about its siblings. None if it has none.
    pub(super) siblings: Option<Box<Siblings>>,
}

// === impl Rare ===

impl Rare {
    pub(super) const fn is_empty(&self) -> bool {
        self.fetch.is_none() && self.fallback.is_none() && self.siblings.is_none()
    }

    pub(super) fn fetch_mut(&mut self) -> &mut LeaseFetch {
        self.fetch.get_or_insert_default()
    }
}
