use crate::units::{Period, Timestamp};

/// Identifies a waiter among all that a line has ever had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueuePosition(pub(super) u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    Timeout {
        /// The wait after which they would be taken, if nobody leaves the line.
        retry_after: Period,
    },
    /// They are more than the limit ever admits at once.
    Never,
    Full {
        retry_after: Period,
    },
    Closed,
}

/// What becomes of a caller that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    Admitted,
    /// It waits, and must [poll](super::Line::poll) for its answer or [leave](super::Line::leave).
    Waits(QueuePosition),
    Rejected(Rejection),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Its hits were taken at this instant.
    Admitted(Timestamp),
    Rejected(Rejection),
    /// Other rules apply now: it must be decided again.
    AskAgain,
}

// === impl Rejection ===

impl Rejection {
    /// Returns when hits are `served`, if that is within `max_wait` and one more may wait.
    pub(super) fn unless_in_time(
        served: Option<Timestamp>,
        now: Timestamp,
        max_wait: Period,
        room: bool,
    ) -> Result<Timestamp, Self> {
        match served {
            Some(served) if served.since(now) <= max_wait && room => Ok(served),
            Some(served) if served.since(now) <= max_wait => {
                Err(Self::Full { retry_after: served.since(now) })
            }
            served => Err(Self::until(served, now)),
        }
    }

    /// The hits would be `served` too late, or never.
    pub(super) fn until(served: Option<Timestamp>, now: Timestamp) -> Self {
        served.map_or(Self::Never, |served| Self::Timeout { retry_after: served.since(now) })
    }
}
