//! The hits that the store has not acknowledged, in the space of a pointer.

use smallvec::SmallVec;

use super::records::PendingDelta;

/// The hits that the store has not acknowledged, oldest first: those in flight, and then the pending ones. Takes eight bytes while
/// there are none, as nearly always, and one allocation otherwise.
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

    /// Returns whether some were sent, and the store has not replied yet.
    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight_len() > 0
    }

    /// Returns those that were sent, and to which the store has not replied yet.
    pub(super) fn in_flight(&self) -> &[PendingDelta] {
        &self.all()[..self.in_flight_len()]
    }

    /// Returns those that were not sent yet.
    pub(super) fn pending(&self) -> &[PendingDelta] {
        &self.all()[self.in_flight_len()..]
    }

    pub(super) fn in_flight_mut(&mut self) -> &mut [PendingDelta] {
        self.0.as_mut().map_or(&mut [], |deltas| &mut deltas.list[..deltas.in_flight])
    }

    pub(super) fn pending_mut(&mut self) -> &mut [PendingDelta] {
        self.0.as_mut().map_or(&mut [], |deltas| &mut deltas.list[deltas.in_flight..])
    }

    /// Adds `delta` to the pending ones.
    pub(super) fn push(&mut self, delta: PendingDelta) {
        self.0.get_or_insert_default().list.push(delta);
    }

    /// Adds `delta` in front of the pending ones.
    pub(super) fn insert_first_pending(&mut self, delta: PendingDelta) {
        let deltas = self.0.get_or_insert_default();
        deltas.list.insert(deltas.in_flight, delta);
    }

    /// Adds `delta` to those in flight.
    pub(super) fn push_in_flight(&mut self, delta: PendingDelta) {
        self.insert_first_pending(delta);
        self.0.get_or_insert_default().in_flight += 1;
    }

    /// Removes those in flight.
    pub(super) fn take_in_flight(&mut self) -> List {
        let Some(deltas) = &mut self.0 else { return List::new() };
        let taken = deltas.list.drain(..deltas.in_flight).collect();
        deltas.in_flight = 0;
        self.free_if_empty();
        taken
    }

    /// Removes the pending ones.
    pub(super) fn take_pending(&mut self) -> List {
        let Some(deltas) = &mut self.0 else { return List::new() };
        let taken = deltas.list.drain(deltas.in_flight..).collect();
        self.free_if_empty();
        taken
    }

    /// Removes each pending one for which `merge` returns true, after it has been merged into the one before it, which is the first
    /// argument.
    pub(super) fn merge_pending(&mut self, mut merge: impl FnMut(&mut PendingDelta, &PendingDelta) -> bool) {
        if self.pending().len() < 2 {
            return;
        }
        let mut pending = self.take_pending();
        pending.dedup_by(|later, earlier| merge(earlier, later));
        self.0.get_or_insert_default().list.extend(pending);
    }

    /// Keeps the pending ones for which `keep` returns true.
    pub(super) fn retain_pending(&mut self, mut keep: impl FnMut(&PendingDelta) -> bool) {
        let Some(deltas) = &mut self.0 else { return };
        let mut left_in_flight = deltas.in_flight;
        deltas.list.retain(|delta| {
            let is_in_flight = left_in_flight > 0;
            left_in_flight = left_in_flight.saturating_sub(1);
            is_in_flight || keep(delta)
        });
        self.free_if_empty();
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
    use super::*;
    use crate::limit::Timestamp;

    fn hits(deltas: &[PendingDelta]) -> Vec<i64> {
        deltas.iter().map(|delta| delta.change.hits).collect()
    }

    #[test]
    fn those_in_flight_precede_the_pending_ones() {
        assert_eq!(size_of::<Unacknowledged>(), 8);
        let delta = |hits| PendingDelta::of(hits, Timestamp::from_secs(1));
        let mut all = Unacknowledged::default();
        all.push(delta(3));
        all.push_in_flight(delta(1));
        all.push_in_flight(delta(2));
        all.push(delta(4));
        assert_eq!((hits(all.in_flight()), hits(all.pending())), (vec![1, 2], vec![3, 4]));
        all.merge_pending(|earlier, later| {
            earlier.append(later);
            true
        });
        assert_eq!(
            (hits(all.all()), all.in_flight_mut().len(), all.pending_mut().len()),
            (vec![1, 2, 7], 2, 1)
        );
        all.push(delta(8));
        all.retain_pending(|delta| delta.change.hits == 8);
        assert_eq!(hits(all.all()), [1, 2, 8]);
        for delta in all.take_in_flight().into_iter().rev() {
            all.insert_first_pending(delta);
        }
        assert_eq!((all.is_in_flight(), hits(all.pending())), (false, vec![1, 2, 8]));
        assert_eq!(hits(&all.take_pending()), [1, 2, 8]);
        assert!(all.is_empty());
        all.push(delta(1));
        all.retain_pending(|_| false);
        assert!(all.is_empty());
    }
}
