//! What a counter under `lease` has to know from one exchange to the next.

use crate::limit::{Period, Timestamp};

/// What a counter under `lease` has to know from one exchange to the next.
#[derive(Debug, Default)]
pub(super) struct Leasing {
    /// Whether the store counts granted hits whose lease has ended, which the estimate does not count.
    pub(super) is_overcounted: bool,
    /// Whether the store has run out of hits, and has not had enough for all instances again since.
    pub(super) is_scarce: bool,
    /// The time of the next look for hits that another instance has given back, while nothing is left.
    pub(super) probe_at: Timestamp,
    /// The wait after that. Zero while something is left.
    pub(super) probe_after: Period,
}

// === impl Leasing ===

impl Leasing {
    /// Returns whether it says nothing that a counter has to know.
    pub(super) fn is_over(&self) -> bool {
        self.is_forgettable() && !self.is_scarce
    }

    /// Returns whether it says nothing that a counter has to know which has not been checked lately.
    pub(super) fn is_forgettable(&self) -> bool {
        !self.is_overcounted && self.probe_after == Period::default()
    }
}
