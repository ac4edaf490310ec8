//! When an instance speaks of a counter.

use crate::limit::{Period, Timestamp};

/// While the limit is so many pauses away, at the rate at which all instances take, a pause is longer than the interval …
const FAR: u64 = 50;

/// … up to so many intervals …
const RELAXED: u64 = 10;

/// … and no longer than this, or the interval if that is longer.
const LONGEST_PAUSE: Period = Period::from_secs(1);

/// When the store is to be told.
#[derive(Debug, Default)]
pub(in super::super) struct FlushSchedule {
    /// It is on a list of those that have something to tell.
    pub(in super::super) listed: bool,
    /// It is to be told at once.
    pub(in super::super) urgent: bool,
    /// Not before this instant, if it is not urgent.
    pub(in super::super) due: Timestamp,
    /// From this instant on it is urgent, unless the limit is far off.
    pub(super) early: Option<Timestamp>,
    pub(in super::super) interval: Period,
    /// How long the store may wait for the next word: the interval, or longer while the limit is far off.
    pub(in super::super) pause: Period,
}

impl FlushSchedule {
    pub(super) fn new(interval: Period) -> Self {
        Self { interval, pause: interval, ..Self::default() }
    }

    /// Whether hits that were taken here since the last word, with `part` of what remained for this instance, are more than
    /// what a long pause was planned for: twice as many as an even part of a fiftieth. So a rush after a lull is told of by
    /// all who see something of it. A single hit is no rush.
    pub(super) fn is_outrun(&self, own: u64, part: u64) -> bool {
        self.pause > self.interval && own > (2 * part / FAR).max(1)
    }

    /// Plans the next word at `now`, when the limit will be reached after the time that is `left` if all go on like this.
    pub(super) fn plan(&mut self, left: Period, now: Timestamp) {
        // what all together take in a pause is a fiftieth of what remains, at most
        let far = Period::from_nanos(left.as_nanos() / FAR);
        let most = Period::from_nanos(self.interval.as_nanos().saturating_mul(RELAXED)).min(LONGEST_PAUSE);
        self.pause = far.min(most).max(self.interval);
        // half of the time that is left, so that the last word before the end is a fresh one; while it is far off, words need
        // not be on time, and travel together
        let half = Period::from_nanos(left.as_nanos() / 2);
        self.early = (self.pause == self.interval).then(|| now.after(half.min(self.interval)));
    }
}
