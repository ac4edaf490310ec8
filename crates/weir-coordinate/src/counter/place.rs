//! When a counter is due in the queue of those that need attention.

/// How soon a counter needs attention. Ordered by urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// When a lease may have to be returned, or a node that does not reply may do so again.
    Idle,
    /// After the pause.
    Pause,
    /// Within a sync interval, and a tenth of a second.
    Interval,
    /// With the next batch.
    Tick,
    Now,
}

/// Where a counter is queued: by the time at which it is due, in units of eight nanoseconds since the queue began. The
/// three lowest bits are the urgency and one; zero if it is not queued.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueuePlace(u64);

// === impl QueuePlace ===

impl QueuePlace {
    pub(crate) fn due_at(self) -> Option<u64> {
        (self.0 != 0).then_some(self.0 >> 3)
    }

    pub(crate) const fn is_due_for(self, urgency: Urgency) -> bool {
        self.0 & 7 > urgency as u64
    }

    /// Returns whether the counter was not due so early. The higher urgency is kept, so that it is not computed again
    /// for every hit.
    pub(crate) fn make_due(&mut self, at: u64, urgency: Urgency) -> bool {
        let (before, own) = (self.due_at(), urgency as u64 + 1);
        let is_earlier = before.is_none_or(|before| at < before);
        self.0 = if is_earlier { at << 3 | own } else { self.0 & !7 | own.max(self.0 & 7) };
        is_earlier
    }

    /// Returns whether the counter is due at this very time, and then is due no more.
    pub(crate) fn take_turn(&mut self, at: u64) -> bool {
        let is_due = self.due_at() == Some(at);
        if is_due {
            self.0 = 0;
        }
        is_due
    }
}
