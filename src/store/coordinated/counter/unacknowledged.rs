//! The hits that the store has not acknowledged, in the space of a pointer.

use smallvec::SmallVec;

use super::records::PendingDelta;
use crate::limit::{Tier, Timestamp};

/// Oldest first: those in flight, then the pending ones. Takes eight bytes while there are none, as nearly always.
#[derive(Debug, Default)]
pub(super) struct Unacknowledged(Option<Box<Deltas>>);

/// Never empty.
#[derive(Debug, Default)]
struct Deltas {
    in_flight: usize,
    /// That of the command that carries those in flight.
    number: u32,
    list: SmallVec<[PendingDelta; 1]>,
}

// === impl Unacknowledged ===

impl Unacknowledged {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn all(&self) -> &[PendingDelta] {
        self.0.as_ref().map_or(&[], |deltas| &deltas.list)
    }

    pub(super) fn in_flight(&self) -> &[PendingDelta] {
        self.0.as_ref().map_or(&[], |deltas| &deltas.list[..deltas.in_flight])
    }

    pub(super) fn pending(&self) -> &[PendingDelta] {
        self.0.as_ref().map_or(&[], |deltas| &deltas.list[deltas.in_flight..])
    }

    pub(super) fn pending_mut(&mut self) -> &mut [PendingDelta] {
        self.0.as_mut().map_or(&mut [], |deltas| &mut deltas.list[deltas.in_flight..])
    }

    pub(super) fn number(&self) -> u32 {
        self.0.as_ref().map_or(0, |deltas| deltas.number)
    }

    pub(super) fn admitted(&self) -> u64 {
        self.all().iter().map(PendingDelta::admitted).fold(0, u64::saturating_add)
    }

    /// One of those pending takes in `delta` if they differ only in windows that have ended at `now`. Only those that
    /// add hits may change their order.
    pub(super) fn add(&mut self, delta: PendingDelta, tiers: &[Tier], now: Timestamp) {
        for earlier in self.pending_mut().iter_mut().rev() {
            if earlier.takes_in(&delta, tiers, now) {
                return;
            }
            if !earlier.only_adds() || !delta.only_adds() {
                break;
            }
        }
        self.0.get_or_insert_default().list.push(delta);
    }

    /// Merges deltas that differ only in windows that have ended at `now`.
    pub(super) fn merge_pending(&mut self, tiers: &[Tier], now: Timestamp) {
        if self.pending().len() < 2 {
            return;
        }
        if let Some(deltas) = &mut self.0 {
            let pending: SmallVec<[_; 1]> = deltas.list.drain(deltas.in_flight..).collect();
            for delta in pending {
                self.add(delta, tiers, now);
            }
        }
    }

    pub(super) fn retain_pending(&mut self, mut keeps: impl FnMut(&mut PendingDelta) -> bool) {
        let Some(deltas) = &mut self.0 else { return };
        let mut place = 0..;
        let in_flight = deltas.in_flight;
        deltas.list.retain(|delta| place.next() < Some(in_flight) || keeps(delta));
        self.free_if_empty();
    }

    /// The first `count` of those pending leave in command `number`.
    pub(super) fn send(&mut self, count: usize, number: u32) {
        if let Some(deltas) = &mut self.0 {
            (deltas.in_flight, deltas.number) = (count, number);
        }
    }

    pub(super) fn end_flight(&mut self) {
        if let Some(deltas) = &mut self.0 {
            deltas.list.drain(..std::mem::take(&mut deltas.in_flight));
        }
        self.free_if_empty();
    }

    pub(super) fn return_flight(&mut self, tiers: &[Tier]) {
        self.send(0, 0);
        self.merge_pending(tiers, Timestamp::default());
    }

    fn free_if_empty(&mut self) {
        self.0.take_if(|deltas| deltas.list.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Algorithm, Period};

    fn hits(deltas: &[PendingDelta]) -> Vec<i64> {
        deltas.iter().map(|delta| delta.change.hits).collect()
    }

    #[test]
    fn those_in_flight_precede_the_pending_ones() {
        assert_eq!(size_of::<Unacknowledged>(), 8);
        let delta = |at: u8| PendingDelta::of(at.into(), Timestamp::from_secs(at.into()));
        let mut all = Unacknowledged::default();
        // each in a window of its own
        let tiers = [Tier { requests: 9, period: Period::from_secs(1), algorithm: Algorithm::FixedWindow }];
        for seconds in 1..=4 {
            all.add(delta(seconds), &tiers, Timestamp::default());
        }
        all.send(2, 7);
        assert_eq!((hits(all.in_flight()), hits(all.pending()), all.number()), (vec![1, 2], vec![3, 4], 7));
        all.merge_pending(&tiers, Timestamp::from_secs(9));
        assert_eq!((hits(all.all()), all.in_flight().len(), all.pending_mut().len()), (vec![1, 2, 7], 2, 1));
        all.return_flight(&[]);
        assert_eq!((hits(all.in_flight()), hits(all.pending())), (vec![], vec![10]), "merged");
        all.add(delta(8), &tiers, Timestamp::default());
        all.send(1, 8);
        all.end_flight();
        assert_eq!((hits(all.in_flight()), hits(all.pending())), (vec![], vec![8]));
        all.retain_pending(|delta| delta.taken() != 8);
        assert!(all.is_empty());
    }
}
