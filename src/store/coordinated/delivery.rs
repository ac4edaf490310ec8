//! Whether the shared store has applied a command.

use crate::store::remote::RemoteError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    Applied,
    /// The store has definitely not applied it, so it may be sent again.
    NotApplied,
    /// The connection broke, or no reply came in time. It must not be repeated: its hits could count twice.
    Unknown,
    /// It is not known yet: this try was sent, and its outcome decides whether the hits of the answer are reported.
    OnWay(SentTry),
}

/// A try that was sent, whose caller waits no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SentTry {
    pub(super) generation: u32,
    pub(super) id: u32,
}

// === impl Delivery ===

impl Delivery {
    pub(super) fn of<T>(outcome: &Result<T, &RemoteError>) -> Self {
        outcome.as_ref().map_or_else(|error| Self::of_error(error), |_| Self::Applied)
    }

    pub(super) const fn of_error(error: &RemoteError) -> Self {
        if error.is_definitely_not_applied() { Self::NotApplied } else { Self::Unknown }
    }
}
