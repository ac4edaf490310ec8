//! Who splits limits with this instance, now and soon: the epochs of the members.
//!
//! A change of the members takes effect at an instant that the store chooses far enough ahead that all of them have
//! heard of it by then. So at any instant all instances have parts of the same division, whose sum is the limit.

use std::num::NonZeroU32;

use crate::{
    limit::{Period, Timestamp, part::Place},
    store::remote::{Epoch, Members},
};

/// The epochs that are remembered. Windows that are longer than the time in which they came about lose their part.
const MOST: usize = 4_096;

/// The multiple of whole seconds at which numbers without names take effect: until then all instances have seen them.
const STEP: Period = Period::from_secs(10);

/// The time ahead of a first part, or of a larger one, if the store tells numbers without names: all instances have
/// noticed a newcomer by then.
const AHEAD: Period = Period::from_secs(4);

/// How long after the first epoch ever limits begin that matter for longer: instances that start by then have a part
/// from the beginning.
const SETTLING: Period = Period::from_secs(10);

/// The epochs that this instance knows.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Epochs {
    /// In the order of their instants. Each lasts until the next one.
    list: Vec<Epoch>,
    /// From then on, on the store's clock, the members may be others than this instance knows.
    known_until: Timestamp,
    /// How much sooner there may be newcomers that this instance has not heard of: the time after which one is removed
    /// that sends no heartbeats.
    removed_after: Period,
    /// Whether the store has ever replied.
    is_answered: bool,
    /// The first epoch of the last reply.
    first: Option<Timestamp>,
    /// Before this instant nobody has had a part of limits that matter for longer than [`SETTLING`]. None if others may
    /// have had one.
    opening: Option<Timestamp>,
}

// === impl Epochs ===

impl Epochs {
    /// Creates those of an instance that the store has not replied to, and that expects it to until `known_until`.
    pub(super) fn unanswered(known_until: Timestamp, removed_after: Period) -> Self {
        Self { known_until, removed_after, ..Self::default() }
    }

    /// Returns whether the store has ever replied.
    pub(in super::super) const fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// Returns the beginning of the first epoch of the last reply that had one.
    pub(super) const fn first(&self) -> Option<Timestamp> {
        self.first
    }

    /// Returns the instant before which no instance has had a part of limits of which a hit matters for `memory`, if
    /// that is known.
    pub(in super::super) fn opening(&self, memory: Period) -> Option<Timestamp> {
        self.opening.filter(|_| memory > SETTLING)
    }

    /// Returns whether no newcomer can have a part at the instant `at` that this instance has not heard of.
    pub(in super::super) fn is_complete(&self, at: Timestamp) -> bool {
        at.after(self.removed_after) < self.known_until
    }

    /// Returns whether this instance knows for certain whether it is a member at the instant `at`.
    pub(in super::super) fn is_certain(&self, at: Timestamp) -> bool {
        at < self.known_until
    }

    /// Returns the place of this instance at the instant `at`; none if it has no part then.
    pub(in super::super) fn at(&self, at: Timestamp) -> Option<Place> {
        self.list[..self.begun(at)].last()?.place
    }

    /// Returns the places that this instance has had after `from` and until `to`, none where it had no part.
    pub(in super::super) fn between(
        &self,
        from: Timestamp,
        to: Timestamp,
    ) -> impl Iterator<Item = Option<Place>> {
        let first = self.begun(from);
        // what was before the first one is not known: no part
        let at_first = if first == 0 { None } else { self.list[first - 1].place };
        let later = self.list[first..self.begun(to).max(first)].iter().map(|epoch| epoch.place);
        std::iter::once(at_first).chain(later)
    }

    /// Returns when the next epoch begins in which this instance has a part, after the instant `at`.
    pub(in super::super) fn next_part(&self, at: Timestamp) -> Option<Timestamp> {
        self.list[self.begun(at)..].iter().find(|epoch| epoch.place.is_some()).map(|epoch| epoch.from)
    }

    /// Returns since when this instance has had a part without interruption at the instant `at`, or else when its next
    /// one begins. None if that is not known.
    pub(in super::super) fn part_since(&self, at: Timestamp) -> Option<Timestamp> {
        let begun = self.list[..self.begun(at)].iter().rev();
        let since = begun.take_while(|epoch| epoch.place.is_some()).last();
        since.map(|epoch| epoch.from).or_else(|| self.next_part(at))
    }

    /// Returns the number of epochs that have begun at `at`.
    fn begun(&self, at: Timestamp) -> usize {
        self.list.partition_point(|epoch| epoch.from <= at)
    }

    /// Applies a reply of the store, by which the members are known until `known_until`. `now` is the present instant
    /// on the store's clock, and `most_lately` the largest number of instances in the last heartbeats.
    pub(super) fn follow(
        &mut self,
        members: &Members,
        most_lately: usize,
        now: Timestamp,
        known_until: Timestamp,
    ) {
        self.is_answered = true;
        self.known_until = self.known_until.max(known_until);
        match members.epochs.first() {
            Some(first) => {
                // what this instance has heard before and the store does not know any more does not come
                let known = self.begun(now);
                self.list.truncate(known);
                self.list.truncate(self.list.partition_point(|epoch| epoch.from < first.from));
                self.list.extend(members.epochs.iter().copied());
            }
            None => self.follow_number(members.instances, most_lately, now),
        }
        if let Some(first) = members.first {
            self.first = Some(first.from);
            // parts by an opening that has passed are in use
            if self.opening.is_none_or(|opening| opening > now) {
                self.opening = (!first.follows_others).then(|| first.from.after(SETTLING));
            }
        }
        self.list.drain(..self.list.len().saturating_sub(MOST));
    }

    /// Makes an epoch of a number of instances that have no names. A larger number takes effect at once, a smaller one
    /// and a first part later.
    fn follow_number(&mut self, instances: usize, most_lately: usize, now: Timestamp) {
        let number = |instances: usize| {
            u32::try_from(instances).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN)
        };
        let later = Timestamp::from_nanos(now.after(AHEAD).as_nanos().next_multiple_of(STEP.as_nanos()));
        let last = self.list.last().and_then(|epoch| epoch.place).map(|place| place.instances);
        let (most, from) = match last {
            None => (number(most_lately.max(instances)), later),
            Some(last) if number(instances) > last => (number(instances), now),
            Some(last) if number(most_lately) < last => (number(most_lately), later),
            Some(_) => return,
        };
        let place = Some(Place::unranked(most));
        // one that has not begun yet is replaced
        let waiting = self.list.pop_if(|epoch| epoch.from > now);
        let from = waiting.map_or(from, |waiting| waiting.from.max(from));
        self.list.push(Epoch { from, place });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::remote::FirstEpoch;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn epoch(from: u64, place: Option<(u32, u32)>) -> Epoch {
        let place = place.map(|(instances, rank)| Place::new(instances, rank).expect("there is such a rank"));
        Epoch { from: at(from), place }
    }

    fn reply(epochs: &[Epoch]) -> Members {
        Members { epochs: epochs.iter().copied().collect(), ..Members::from(1) }
    }

    fn ranks(epochs: &Epochs, seconds: impl IntoIterator<Item = u64>) -> Vec<Option<u32>> {
        seconds.into_iter().map(|second| epochs.at(at(second)).and_then(|place| place.rank)).collect()
    }

    #[test]
    fn a_newcomer_has_no_part_before_its_first_epoch() {
        let mut epochs = Epochs::unanswered(at(9), Period::from_secs(2));
        assert!(epochs.is_complete(at(6)) && !epochs.is_complete(at(7)));
        assert!(!epochs.is_answered() && epochs.is_certain(at(8)) && !epochs.is_certain(at(9)));
        epochs.follow(&reply(&[epoch(2, None), epoch(12, Some((3, 1)))]), 1, at(10), at(13));
        assert_eq!(ranks(&epochs, [1, 3, 11, 12, 99]), [None, None, None, Some(1), Some(1)]);
        assert_eq!((epochs.next_part(at(10)), epochs.next_part(at(12))), (Some(at(12)), None));
        assert!(epochs.is_answered() && epochs.is_certain(at(12)) && !epochs.is_certain(at(13)));
        assert_eq!([3, 12, 99].map(|second| epochs.part_since(at(second))), [Some(at(12)); 3]);
    }

    #[test]
    fn all_epochs_to_come_are_kept_and_replaced_by_what_the_store_says_later() {
        let mut epochs = Epochs::default();
        epochs.follow(&reply(&[epoch(2, Some((1, 0)))]), 1, at(3), at(7));
        epochs.follow(&reply(&[epoch(2, Some((1, 0))), epoch(12, Some((2, 1)))]), 1, at(10), at(14));
        // another change of the same instant, and one more
        let later = [epoch(2, Some((1, 0))), epoch(12, Some((3, 2))), epoch(13, Some((2, 1)))];
        epochs.follow(&reply(&later), 1, at(11), at(15));
        assert_eq!(ranks(&epochs, [11, 12, 13]), [Some(0), Some(2), Some(1)]);
        assert_eq!(epochs.between(at(11), at(12)).count(), 2);
        assert_eq!(epochs.between(at(12), at(12)).count(), 1);
        assert_eq!(epochs.between(at(1), at(20)).next(), Some(None), "before the first one it had no part");
    }

    #[test]
    fn limits_open_after_the_first_epoch_unless_an_instance_knows_an_older_one() {
        let (minute, short) = (Period::from_secs(60), Period::from_secs(10));
        let first = |from, follows_others| {
            let first = Some(FirstEpoch { from: at(from), follows_others });
            Members { first, ..reply(&[epoch(from, Some((1, 0)))]) }
        };
        let mut epochs = Epochs::default();
        assert_eq!((epochs.first(), epochs.opening(minute)), (None, None));
        epochs.follow(&first(12, false), 1, at(10), at(14));
        assert_eq!(
            (epochs.first(), epochs.opening(minute), epochs.opening(short)),
            (Some(at(12)), Some(at(22)), None)
        );
        // the store has lost its data, and another instance says so
        epochs.follow(&first(14, true), 1, at(11), at(15));
        assert_eq!((epochs.first(), epochs.opening(minute)), (Some(at(14)), None));
        // when the limits have opened, parts are in use
        let mut epochs = Epochs::default();
        epochs.follow(&first(12, false), 1, at(21), at(25));
        epochs.follow(&first(25, true), 1, at(22), at(26));
        assert_eq!((epochs.first(), epochs.opening(minute)), (Some(at(25)), Some(at(22))));
    }

    #[test]
    fn an_epoch_of_a_store_that_lost_its_data_does_not_come() {
        let mut epochs = Epochs::default();
        epochs.follow(&reply(&[epoch(2, Some((2, 0))), epoch(12, Some((3, 0)))]), 1, at(10), at(14));
        epochs.follow(&reply(&[epoch(14, Some((1, 0)))]), 1, at(11), at(15));
        assert_eq!(epochs.at(at(13)), Place::new(2, 0));
        assert_eq!(epochs.at(at(14)), Place::new(1, 0));
    }

    #[test]
    fn numbers_without_names_grow_at_once_and_shrink_later() {
        let mut epochs = Epochs::default();
        let mut told = |instances: usize, most: usize, now| {
            epochs.follow(&Members::from(instances), most, at(now), at(now + 4));
            epochs.clone()
        };
        let number =
            |epochs: &Epochs, second| epochs.at(at(second)).map(|place| (place.instances.get(), place.rank));
        // a newcomer waits until all others have seen it
        let first = told(3, 3, 11);
        assert_eq!((number(&first, 19), number(&first, 20)), (None, Some((3, None))));
        assert_eq!(number(&told(4, 4, 12), 20), Some((4, None)));
        let grown = told(5, 5, 25);
        assert_eq!((number(&grown, 24), number(&grown, 25)), (Some((4, None)), Some((5, None))));
        // others may not have seen yet that one has left
        assert_eq!(number(&told(4, 5, 26), 99), Some((5, None)));
        let shrunk = told(4, 4, 36);
        assert_eq!((number(&shrunk, 39), number(&shrunk, 40)), (Some((5, None)), Some((4, None))));
    }

    #[test]
    fn the_oldest_epochs_are_forgotten_with_their_parts() {
        let mut epochs = Epochs::default();
        for second in 0..5_000 {
            epochs.follow(&reply(&[epoch(second, Some((1, 0)))]), 1, at(second), at(second + 4));
        }
        assert_eq!(ranks(&epochs, [900, 904, 4_999]), [None, Some(0), Some(0)]);
    }
}
