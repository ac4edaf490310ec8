//! When a counter is due in the queue of those that need attention.

/// How soon a counter needs attention. Ordered by urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Urgency {
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

/// Where a counter is queued: by the time at which it is due, in nanoseconds since the queue began.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct QueuePlace(Option<(u64, Urgency)>);

// === impl QueuePlace ===

impl QueuePlace {
    pub(in super::super) fn due_at(self) -> Option<u64> {
        self.0.map(|(at, _)| at)
    }

    pub(in super::super) fn is_due_for(self, urgency: Urgency) -> bool {
        self.0.is_some_and(|(_, own)| own >= urgency)
    }

    /// Returns whether the counter was not due so early. The higher urgency is kept, so that it is not computed again
    /// for every hit.
    pub(in super::super) fn make_due(&mut self, at: u64, urgency: Urgency) -> bool {
        let is_earlier = self.0.is_none_or(|(before, _)| at < before);
        self.0 = match self.0 {
            Some((before, own)) if !is_earlier => Some((before, own.max(urgency))),
            _ => Some((at, urgency)),
        };
        is_earlier
    }

    /// Returns whether the counter is due at this very time, and then is due no more.
    pub(in super::super) fn take_turn(&mut self, at: u64) -> bool {
        self.0.take_if(|(own, _)| *own == at).is_some()
    }
}
