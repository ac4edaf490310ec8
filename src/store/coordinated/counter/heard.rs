//! What a counter has heard of the store.

use std::num::NonZeroU64;

use crate::limit::{Timestamp, algorithm::IdleAt};

/// What the store's replies have told of a counter besides its states.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// The version of the store's sliding windows and buckets as of its last reply, if all have the same.
    pub(super) version: Version,
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

/// What is known of the [version](crate::store::remote::Reply::version) of a tier in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Version(u64);

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

// === impl Version ===

impl Version {
    /// Nothing is counted there, as far as it is known.
    pub(super) const NONE: Self = Self(0);

    /// It is not known how the store's state differs from the estimate. Versions in the store are below 2^48.
    pub(super) const LOST: Self = Self(u64::MAX);

    pub(super) const fn of(version: u64) -> Self {
        Self(version)
    }

    /// Returns the version; none if it is lost.
    pub(super) const fn known(self) -> Option<u64> {
        if self.0 == Self::LOST.0 { None } else { Some(self.0) }
    }
}
