//! The instant of the store's last reply, in eight bytes.

use std::num::NonZeroU64;

use crate::limit::Timestamp;

/// The instant of the store's last reply, if there was one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReplyTime(Option<NonZeroU64>);

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
