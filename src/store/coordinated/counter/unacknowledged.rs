//! The hits that the store has not acknowledged, in the space of a pointer.

use smallvec::SmallVec;

use super::records::PendingDelta;
use crate::{limit::Timestamp, store::remote::Target};

/// The hits that the store has not acknowledged, oldest first: those in flight, and then the pending ones. Takes eight
/// bytes while there are none, as nearly always, and one allocation otherwise.
#[derive(Debug, Default)]
pub(super) struct Unacknowledged(Option<Box<Deltas>>);

/// Never empty.
#[derive(Debug, Default)]
struct Deltas {
    /// The number of those in flight, which precede the pending ones.
    in_flight: usize,
    list: List,
}

type List = SmallVec<[PendingDelta; 1]>;

// === impl Unacknowledged ===

impl Unacknowledged {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns all of them.
    pub(super) fn all(&self) -> &[PendingDelta] {
        self.0.as_ref().map_or(&[], |deltas| &deltas.list)
    }

    /// Returns the hits that were admitted here and count in `limit`.
    pub(super) fn admitted_under(&self, limit: &Target) -> u64 {
        let own = self.all().iter().filter(|delta| delta.limit.overlaps(limit));
        own.map(PendingDelta::admitted).fold(0, u64::saturating_add)
    }

    /// Returns those that were sent, and to which the store has not replied yet.
    pub(super) fn in_flight(&self) -> &[PendingDelta] {
        &self.all()[..self.in_flight_len()]
    }

    /// Returns those that were not sent yet.
    pub(super) fn pending(&self) -> &[PendingDelta] {
        &self.all()[self.in_flight_len()..]
    }

    pub(super) fn pending_mut(&mut self) -> &mut [PendingDelta] {
        self.0.as_mut().map_or(&mut [], |deltas| &mut deltas.list[deltas.in_flight..])
    }

    /// Adds `delta` to the pending ones.
    pub(super) fn push(&mut self, delta: PendingDelta) {
        self.0.get_or_insert_default().list.push(delta);
    }

    /// Notes that the first pending one is sent.
    pub(super) fn send_first(&mut self) {
        if let Some(deltas) = &mut self.0 {
            deltas.in_flight = deltas.list.len().min(deltas.in_flight + 1);
        }
    }

    /// Removes the first pending one.
    pub(super) fn remove_first_pending(&mut self) {
        if let Some(deltas) = self.0.as_mut().filter(|deltas| deltas.in_flight < deltas.list.len()) {
            deltas.list.remove(deltas.in_flight);
        }
        self.free_if_empty();
    }

    /// Removes those in flight.
    pub(super) fn end_flight(&mut self) {
        if let Some(deltas) = &mut self.0 {
            let in_flight = std::mem::take(&mut deltas.in_flight);
            if in_flight < deltas.list.len() {
                deltas.list.drain(..in_flight);
            } else {
                self.0 = None;
            }
        }
    }

    /// Notes that those in flight are pending again, and merges them with what was counted since.
    pub(super) fn return_flight(&mut self) {
        if let Some(deltas) = &mut self.0 {
            deltas.in_flight = 0;
        }
        self.merge_pending(Timestamp::default());
    }

    /// Removes the pending ones.
    pub(super) fn take_pending(&mut self) -> List {
        let Some(deltas) = &mut self.0 else { return List::new() };
        let taken = deltas.list.drain(deltas.in_flight..).collect();
        self.free_if_empty();
        taken
    }

    /// [Merges](PendingDelta::merge) pending ones as far as windows that have ended at `now` do not tell them apart.
    pub(super) fn merge_pending(&mut self, now: Timestamp) {
        if self.pending().len() < 2 {
            return;
        }
        for later in self.take_pending() {
            if !PendingDelta::merge(self.pending_mut(), &later, now) {
                self.push(later);
            }
        }
    }

    fn in_flight_len(&self) -> usize {
        self.0.as_ref().map_or(0, |deltas| deltas.in_flight)
    }

    fn free_if_empty(&mut self) {
        if self.all().is_empty() {
            self.0 = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::limit::OverLimitPolicy;

    fn hits(deltas: &[PendingDelta]) -> Vec<i64> {
        deltas.iter().map(|delta| delta.change.hits).collect()
    }

    #[test]
    fn those_in_flight_precede_the_pending_ones() {
        assert_eq!(size_of::<Unacknowledged>(), 8);
        let limit =
            Target { path: "d|k=v".into(), tiers: [].into(), over_limit_policy: OverLimitPolicy::Ignore };
        let limit = Arc::new(limit);
        let delta = |hits| PendingDelta::of(&limit, hits, Timestamp::from_secs(1));
        let mut all = Unacknowledged::default();
        for hits in 1..=4 {
            all.push(delta(hits));
        }
        all.send_first();
        all.send_first();
        assert_eq!((hits(all.in_flight()), hits(all.pending())), (vec![1, 2], vec![3, 4]));
        all.merge_pending(Timestamp::default());
        assert_eq!((hits(all.all()), all.in_flight().len(), all.pending_mut().len()), (vec![1, 2, 7], 2, 1));
        all.return_flight();
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
