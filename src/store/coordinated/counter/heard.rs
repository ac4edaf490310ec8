//! What a counter has heard of the store.

use std::num::NonZeroU64;

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
    /// On the store's clock.
    pub(super) last_reply_at: ReplyTime,
    /// The instant from which the store counts none of the granted hits, used or not.
    pub(super) granted_until: IdleAt,
    /// The number of the command whose reply was applied last.
    pub(super) applied: u32,
}

/// The last bit of the nanoseconds says whether the instant is estimated, since the reply did not carry it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReplyTime(Option<NonZeroU64>);

// === impl ReplyTime ===

impl ReplyTime {
    pub(super) fn get(self) -> Option<Timestamp> {
        self.0.map(|nanos| Timestamp::from_nanos(nanos.get() & !1))
    }

    pub(super) fn is_estimated(self) -> bool {
        self.0.is_some_and(|nanos| nanos.get() & 1 == 1)
    }

    /// Rounds `at` to two nanoseconds.
    pub(super) fn set(&mut self, at: Timestamp, is_estimated: bool) {
        self.0 = NonZeroU64::new((at.as_nanos() & !1).max(2) | u64::from(is_estimated));
    }
}
