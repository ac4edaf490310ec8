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

/// The instant of the store's last reply, if there was one, in eight bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReplyTime(Option<NonZeroU64>);

/// What is known of the [version](crate::store::remote::Reply::version) of a tier in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Version(u64);

// === impl ReplyTime ===

impl ReplyTime {
    /// Returns the instant; none if the store has not replied yet.
    pub(super) fn get(self) -> Option<Timestamp> {
        self.0.map(|nanos| Timestamp::from_nanos(nanos.get()))
    }

    /// Sets it to `at`, or to a nanosecond later if that is the epoch.
    pub(super) fn set(&mut self, at: Timestamp) {
        self.0 = Some(NonZeroU64::new(at.as_nanos()).unwrap_or(NonZeroU64::MIN));
    }
}

// === impl Version ===

impl Version {
    /// Nothing is counted there, as far as it is known.
    pub(super) const NONE: Self = Self(0);

    /// It is not known how the store's state differs from the last reply. Versions in the store are below 2^48.
    pub(super) const LOST: Self = Self(u64::MAX);

    pub(super) const fn of(version: u64) -> Self {
        Self(version)
    }

    /// Returns the version; none if it is lost.
    pub(super) const fn known(self) -> Option<u64> {
        if self.0 == Self::LOST.0 { None } else { Some(self.0) }
    }
}
