//! What a counter has done with its hits, checked whenever it is found, in builds with debug assertions, which tests
//! are.
//!
//! > admitted = in the store + owed, and granted = spent + held + returned + stranded
//!
//! So each hit that is admitted here raises the hits owed to the store by one, or takes one of those held; only the
//! store's acknowledgement, a loss that a metric counts, or a return changes them otherwise. The records of both are
//! merged, moved and converted in many places, none of which may change the sums. And what is owed in the open window
//! is in the estimate, whatever replies it has adopted: an estimate that is too low admits hits above the limit. Only
//! what is in flight may be missing: a reply to a later command is taken to count it. If it did not, because the report
//! was lost or came later, the next reply shows it.

use crate::limit::Timestamp;

/// The sums that the records of a counter must have.
#[derive(Debug, Default)]
pub(super) struct Books {
    #[cfg(debug_assertions)]
    sums: Box<Sums>,
}

#[derive(Debug, Default)]
pub(super) struct Sums {
    /// Hits to be added to the store's count, less those to be taken off it.
    pub(super) owed: i128,
    /// Leased hits that are not used.
    pub(super) held: i128,
    /// Whether there were more hits than the records can have.
    is_full: bool,
    /// Whether the estimate is a reply that was taken to count what was in flight.
    pub(super) is_guessed: bool,
    /// The latest instant that it was looked at as of: what has ended at it may be forgotten.
    pub(super) seen_at: Timestamp,
}

/// The hits above which the records, which keep 64 bits, may be less than the sums.
const MOST: u128 = 1 << 61;

// === impl Books ===

impl Books {
    /// Returns the sums, unless they are full. None in other builds.
    #[inline]
    pub(super) fn sums(&self) -> Option<&Sums> {
        #[cfg(debug_assertions)]
        return Some(&*self.sums).filter(|sums| !sums.is_full);
        #[cfg(not(debug_assertions))]
        None
    }

    #[inline]
    fn sums_mut(&mut self) -> Option<&mut Sums> {
        #[cfg(debug_assertions)]
        return Some(&mut *self.sums).filter(|sums| !sums.is_full);
        #[cfg(not(debug_assertions))]
        None
    }

    /// Notes that the store has to count so many `hits`, or so many fewer.
    #[inline]
    pub(super) fn owe(&mut self, hits: impl Into<i128>) {
        if let Some(sums) = self.sums_mut() {
            let hits = hits.into();
            sums.owed += hits;
            sums.is_full = hits.unsigned_abs().max(sums.owed.unsigned_abs()) >= MOST;
        }
    }

    /// Notes that the store does not have to count `taken` hits any more, nor to take off `returned` ones.
    #[inline]
    pub(super) fn settle(&mut self, taken: u64, returned: u64) {
        self.owe(i128::from(returned) - i128::from(taken));
    }

    /// Notes that so many `hits` are held, or so many fewer.
    #[inline]
    pub(super) fn hold(&mut self, hits: impl Into<i128>) {
        if let Some(sums) = self.sums_mut() {
            sums.held += hits.into();
        }
    }

    /// Notes that a reply was adopted, and whether it was taken to count what is in flight.
    #[inline]
    pub(super) fn guess(&mut self, is_guessed: bool) {
        if let Some(sums) = self.sums_mut() {
            sums.is_guessed = is_guessed;
        }
    }

    /// Notes that what has ended at `now` may be forgotten, or not be told apart any more.
    #[inline]
    pub(super) fn see(&mut self, now: Timestamp) {
        if let Some(sums) = self.sums_mut() {
            sums.seen_at = sums.seen_at.max(now);
        }
    }
}
