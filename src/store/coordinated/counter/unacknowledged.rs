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
    in_flight: u32,
    /// That of the command that carries those in flight.
    number: u32,
    list: List,
}

type List = SmallVec<[PendingDelta; 1]>;

// === impl Unacknowledged ===

impl Unacknowledged {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn all(&self) -> &[PendingDelta] {
        self.0.as_ref().map_or(&[], |deltas| &deltas.list)
    }

    pub(super) fn admitted(&self) -> u64 {
        self.all().iter().map(PendingDelta::admitted).fold(0, u64::saturating_add)
    }

    pub(super) fn in_flight(&self) -> &[PendingDelta] {
        &self.all()[..self.in_flight_len()]
    }

    pub(super) fn pending(&self) -> &[PendingDelta] {
        &self.all()[self.in_flight_len()..]
    }

    pub(super) fn pending_mut(&mut self) -> &mut [PendingDelta] {
        self.0.as_mut().map_or(&mut [], |deltas| &mut deltas.list[deltas.in_flight as usize..])
    }

    pub(super) fn push(&mut self, delta: PendingDelta) {
        self.0.get_or_insert_default().list.push(delta);
    }

    pub(super) fn send_first(&mut self) {
        if let Some(deltas) = &mut self.0 {
            deltas.in_flight += u32::from((deltas.in_flight as usize) < deltas.list.len());
        }
    }

    pub(super) fn set_number(&mut self, number: u32) {
        if let Some(deltas) = &mut self.0 {
            deltas.number = number;
        }
    }

    pub(super) fn number(&self) -> u32 {
        self.0.as_ref().map_or(0, |deltas| deltas.number)
    }

    pub(super) fn remove_first_pending(&mut self) {
        if let Some(deltas) = self.0.as_mut().filter(|deltas| (deltas.in_flight as usize) < deltas.list.len())
        {
            deltas.list.remove(deltas.in_flight as usize);
        }
        self.free_if_empty();
    }

    pub(super) fn end_flight(&mut self) {
        if let Some(deltas) = &mut self.0 {
            let in_flight = std::mem::take(&mut deltas.in_flight) as usize;
            if in_flight < deltas.list.len() {
                deltas.list.drain(..in_flight);
            } else {
                self.0 = None;
            }
        }
    }

    pub(super) fn return_flight(&mut self, tiers: &[Tier]) {
        if let Some(deltas) = &mut self.0 {
            deltas.in_flight = 0;
        }
        self.merge_pending(tiers, Timestamp::default());
    }

    pub(super) fn take_pending(&mut self) -> List {
        let Some(deltas) = &mut self.0 else { return List::new() };
        let taken = deltas.list.drain(deltas.in_flight as usize..).collect();
        self.free_if_empty();
        taken
    }

    /// [Merges](PendingDelta::merge) deltas that differ only in windows that have ended at `now`.
    pub(super) fn merge_pending(&mut self, tiers: &[Tier], now: Timestamp) {
        if self.pending().len() < 2 {
            return;
        }
        for later in self.take_pending() {
            if !PendingDelta::merge(self.pending_mut(), &later, tiers, now) {
                self.push(later);
            }
        }
    }

    fn in_flight_len(&self) -> usize {
        self.0.as_ref().map_or(0, |deltas| deltas.in_flight as usize)
    }

    fn free_if_empty(&mut self) {
        if self.all().is_empty() {
            self.0 = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(deltas: &[PendingDelta]) -> Vec<i64> {
        deltas.iter().map(|delta| delta.change.hits).collect()
    }

    #[test]
    fn those_in_flight_precede_the_pending_ones() {
        assert_eq!(size_of::<Unacknowledged>(), 8);
        let delta = |hits| PendingDelta::of(hits, Timestamp::from_secs(1));
        let mut all = Unacknowledged::default();
        for hits in 1..=4 {
            all.push(delta(hits));
        }
        all.send_first();
        all.send_first();
        assert_eq!((hits(all.in_flight()), hits(all.pending())), (vec![1, 2], vec![3, 4]));
        all.merge_pending(&[], Timestamp::default());
        assert_eq!((hits(all.all()), all.in_flight().len(), all.pending_mut().len()), (vec![1, 2, 7], 2, 1));
        all.return_flight(&[]);
        assert_eq!((hits(all.in_flight()), hits(all.pending())), (vec![], vec![10]), "merged");
        all.push(delta(8));
        all.send_first();
        all.end_flight();
        assert_eq!((hits(all.in_flight()), hits(all.pending())), (vec![], vec![8]));
        all.remove_first_pending();
        assert!(all.is_empty());
        all.push(delta(1));
        all.push(delta(0));
        all.send_first();
        all.send_first();
        all.send_first();
        assert_eq!(hits(all.in_flight()), [1, 0]);
        all.end_flight();
        assert!(all.is_empty());
        all.push(delta(2));
        assert_eq!(hits(&all.take_pending()), [2]);
        assert!(all.is_empty());
    }
}
