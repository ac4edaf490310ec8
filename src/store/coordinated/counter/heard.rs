//! What a counter has heard of the store.

use std::num::NonZeroU64;

use crate::{
    limit::{Timestamp, algorithm::IdleAt},
    store::remote::TierSet,
};

/// What the store's replies have told of a counter besides its states.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// The sliding windows and buckets whose estimate has everything that the store counted as of the last reply. While
    /// nobody else changes them, it is more exact than the store's state, which has reported hits as of the last of
    /// them.
    pub(super) exact: TierSet,
    /// The tiers whose estimate a reply has replaced, if there are counters [beside](super::beside) this one: it lacks what
    /// they have counted.
    pub(super) adopted: TierSet,
    /// On the store's clock.
    pub(super) last_reply_at: ReplyTime,
    /// The instant from which the store counts none of the granted hits, used or not.
    pub(super) granted_until: IdleAt,
    /// The number of the command whose reply was applied last.
    pub(super) applied: u32,
}

/// The instant of the store's last reply, if there was one, in eight bytes: the last bit says whether it is estimated,
/// since the reply did not carry it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReplyTime(Option<NonZeroU64>);

// === impl ReplyTime ===

impl ReplyTime {
    /// Returns the instant; none if the store has not replied yet.
    pub(super) fn get(self) -> Option<Timestamp> {
        self.0.map(|nanos| Timestamp::from_nanos(nanos.get() & !1))
    }

    /// Returns whether that is estimated.
    pub(super) fn is_estimated(self) -> bool {
        self.0.is_some_and(|nanos| nanos.get() & 1 == 1)
    }

    /// Sets it to `at`, to two nanoseconds.
    pub(super) fn set(&mut self, at: Timestamp, is_estimated: bool) {
        self.0 = NonZeroU64::new((at.as_nanos() & !1).max(2) | u64::from(is_estimated));
    }
}
