//! What a mode answers: a decision, or what it waits for.

use super::table::Waiting;
use crate::limit::Decision;

/// A decision that needed no wait, or what it waits for.
pub(super) enum Step {
    Done(Decision),
    /// Done without the store, which is unavailable.
    Fallback(Decision),
    /// The store decides.
    Wait(Waiting),
    /// The hits were given back here; the store counts that and says how it stands.
    Counted(Waiting),
    /// Too many decisions wait for the store.
    Full,
}

// === impl Step ===

impl Step {
    /// Returns the step that waits for the store, if there was room.
    pub(super) fn wait(waiting: Option<Waiting>) -> Self {
        waiting.map_or(Self::Full, Self::Wait)
    }

    /// Returns whether the decision waits for the store.
    pub(super) const fn waits(&self) -> bool {
        self.decision().is_none()
    }

    /// Returns the decision, if there is one.
    pub(super) const fn decision(&self) -> Option<Decision> {
        match self {
            Self::Done(decision) | Self::Fallback(decision) => Some(*decision),
            Self::Wait(_) | Self::Counted(_) | Self::Full => None,
        }
    }
}
