//! What a counter has heard of the store.

use crate::{
    limit::{Timestamp, algorithm::IdleAt},
    store::remote::TierSet,
};

/// What the store's replies have told of a counter besides its states.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Sliding windows and buckets whose estimate has all that the store counted as of the last reply. While nobody
    /// else changes them, it is more exact than the store's state, which dates reported hits by the last of them.
    pub(super) exact: TierSet,
    /// On the store's clock. The epoch before the first one.
    pub(super) replied_at: Timestamp,
    /// The instant from which the store counts none of the granted hits, used or not.
    pub(super) granted_until: IdleAt,
    /// The number of the command whose reply was applied last.
    pub(super) applied: u32,
}

// === impl Heard ===

impl Heard {
    pub(super) fn last_reply_at(&self) -> Option<Timestamp> {
        (self.replied_at > Timestamp::default()).then_some(self.replied_at)
    }
}
