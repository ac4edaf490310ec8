//! An instant on the shared store's clock.

use crate::limit::Timestamp;

/// An instant on the store's clock, as this instance estimates it.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreTime {
    /// The best estimate. Hits are counted in the window of this instant.
    pub(super) now: Timestamp,
    /// The latest instant that it can be. A lease is not used after its end by this clock.
    pub(super) latest: Timestamp,
}
