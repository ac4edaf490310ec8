//! One shard: a hash table of counters.

use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::limit::{
    self, CounterKey, Decision, Direction, Hits, LimitCheck, OverLimitPolicy, Reservation,
    ReservationRequest, ReservedSpan, Tier, Timestamp, algorithm::CounterState, decide,
};

/// The number of buckets that an eviction samples. To find the cheapest counter of all would need an order over them, and with
/// it more memory for each counter and more work for each hit.
const SAMPLE: usize = 32;

/// Counters by key.
#[derive(Debug, Default)]
pub(super) struct Shard {
    table: HashTable<Slot>,
    /// The bucket at which the next sample begins.
    hand: usize,
}

/// A counter with its key. 40 bytes.
#[derive(Debug)]
struct Slot {
    key: CounterKey,
    counter: CounterState,
}

/// The earlier states of the counters of a check.
pub(super) type Undo = SmallVec<[(CounterKey, Option<CounterState>); 2]>;

impl Shard {
    /// Returns the number of counters.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Decides `check` and counts its hits.
    pub(super) fn take(
        &mut self,
        check: &LimitCheck<'_>,
        over_limit_policy: OverLimitPolicy,
        now: Timestamp,
    ) -> Decision {
        self.update(check, now, |tiers, counters| {
            decide(tiers, counters, over_limit_policy, check.direction, check.hits, now)
        })
    }

    /// Reserves hits in all tiers of `check`, or in none.
    pub(super) fn reserve(
        &mut self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Reservation {
        self.update(check, now, |tiers, counters| limit::reserve(tiers, counters, request, now))
    }

    /// Gives back `hits` that were reserved for `span`.
    pub(super) fn release(&mut self, check: &LimitCheck<'_>, span: ReservedSpan, hits: Hits, now: Timestamp) {
        self.update(check, now, |tiers, counters| limit::release(tiers, counters, span, hits, now));
    }

    /// Runs `act` on the counters of `check`, one for each tier. New ones are kept if they then count something.
    fn update<T>(
        &mut self,
        check: &LimitCheck<'_>,
        now: Timestamp,
        act: impl FnOnce(&[Tier], &mut [CounterState]) -> T,
    ) -> T {
        let tiers = check.tiers();
        let mut places: SmallVec<[Option<usize>; 2]> = SmallVec::new();
        let mut counters: SmallVec<[CounterState; 2]> = SmallVec::new();
        for tier in tiers {
            let place = self.place(check.key.of_tier(tier));
            counters.push(self.lift(place, tier, now));
            places.push(place);
        }
        let done = act(tiers, &mut counters);
        for (place, counter) in places.iter().zip(&mut counters) {
            if let Some(place) = *place {
                self.put(place, std::mem::take(counter));
            }
        }
        // inserting may move the other counters, so it comes last
        for ((place, counter), tier) in places.iter().zip(counters).zip(tiers) {
            if place.is_none() && counter.used() > Hits(0) {
                self.insert(check.key.of_tier(tier), counter);
            }
        }
        done
    }

    /// Gives back the hits that `check` took.
    #[cfg(feature = "coordinated")]
    pub(super) fn give_back(&mut self, check: &LimitCheck<'_>, now: Timestamp) {
        for tier in check.tiers() {
            let place = self.place(check.key.of_tier(tier));
            if let Some(slot) = place.and_then(|place| self.table.get_bucket_mut(place)) {
                slot.counter.give_back(tier, now, check.hits);
            }
        }
    }

    /// Returns the decision of `check` without its hits, counting nothing.
    pub(super) fn look(&self, check: &LimitCheck<'_>, now: Timestamp) -> Decision {
        let tiers = check.tiers();
        let mut counters: SmallVec<[CounterState; 2]> = tiers
            .iter()
            .map(|tier| {
                let place = self.place(check.key.of_tier(tier));
                let slot = place.and_then(|place| self.table.get_bucket(place));
                slot.map_or_else(|| CounterState::unused(tier, now), |slot| slot.counter.clone())
            })
            .collect();
        decide(tiers, &mut counters, OverLimitPolicy::Ignore, Direction::Take, Hits(0), now)
    }

    /// Marks `check` as rejected in those of its counters that reject it. It takes no hits.
    pub(super) fn reject(&mut self, check: &LimitCheck<'_>, now: Timestamp) {
        for tier in check.tiers() {
            let place = self.place(check.key.of_tier(tier));
            if let Some(slot) = place.and_then(|place| self.table.get_bucket_mut(place))
                && !slot.counter.probe(tier, now, check.hits).fits
            {
                slot.counter.reject(tier, now);
            }
        }
    }

    /// Returns the states of the counters of `check`, to [restore](Self::restore) them later.
    pub(super) fn undo(&self, check: &LimitCheck<'_>) -> Undo {
        let keys = check.tiers().iter().map(|tier| check.key.of_tier(tier));
        keys.map(|key| {
            let slot = self.place(key).and_then(|place| self.table.get_bucket(place));
            (key, slot.map(|slot| slot.counter.clone()))
        })
        .collect()
    }

    /// Restores earlier states.
    pub(super) fn restore(&mut self, undo: Undo) {
        for (key, counter) in undo {
            match (self.place(key), counter) {
                (Some(place), Some(counter)) => self.put(place, counter),
                (Some(place), None) => self.remove(place),
                // does not happen: no counter is removed between the take and its undoing, since the lock is held
                (None, Some(counter)) => self.insert(key, counter),
                (None, None) => {}
            }
        }
    }

    /// Removes the counters that have expired at `now` from `stride` buckets, beginning with `start`. Returns the next bucket, if
    /// any are left, and the number of removed counters.
    pub(super) fn sweep(&mut self, start: usize, stride: usize, now: Timestamp) -> (Option<usize>, usize) {
        let before = self.table.len();
        let end = (start + stride).min(self.table.num_buckets());
        for place in start..end {
            if self.table.get_bucket(place).is_some_and(|slot| slot.counter.idle_at() <= now) {
                self.remove(place);
            }
        }
        let swept = before - self.table.len();
        if end < self.table.num_buckets() {
            return (Some(end), swept);
        }
        // return the memory of a flood of keys after they have expired
        if self.table.num_buckets() > 64 && self.table.len() * 8 < self.table.num_buckets() {
            self.table.shrink_to(self.table.len() * 2, |slot| slot.key.hash());
        }
        (None, swept)
    }

    /// Evicts the cheapest counter of a sample, and returns whether there was one. Evicting a counter lets its hits be admitted
    /// again until it would have expired, so the cost is its hits times its remaining time.
    pub(super) fn evict_cheapest(&mut self, now: Timestamp) -> bool {
        let buckets = self.table.num_buckets();
        let mut cheapest: Option<(u128, usize)> = None;
        for step in 0..buckets {
            let place = (self.hand + step) % buckets;
            if let Some(slot) = self.table.get_bucket(place) {
                let left = slot.counter.idle_at().since(now).as_nanos();
                let cost = u128::from(left) * u128::from(slot.counter.used().0);
                if cheapest.is_none_or(|(least, _)| cost < least) {
                    cheapest = Some((cost, place));
                }
            }
            if step >= SAMPLE && cheapest.is_some() {
                self.hand = place;
                break;
            }
        }
        if let Some((_, place)) = cheapest {
            self.remove(place);
        }
        cheapest.is_some()
    }

    fn place(&self, key: CounterKey) -> Option<usize> {
        self.table.find_bucket_index(key.hash(), |slot| slot.key == key)
    }

    /// Takes the counter out of its slot until [`put`](Self::put); an unused counter if there is no slot.
    fn lift(&mut self, place: Option<usize>, tier: &Tier, now: Timestamp) -> CounterState {
        let slot = place.and_then(|place| self.table.get_bucket_mut(place));
        slot.map_or_else(|| CounterState::unused(tier, now), |slot| std::mem::take(&mut slot.counter))
    }

    fn put(&mut self, place: usize, counter: CounterState) {
        if let Some(slot) = self.table.get_bucket_mut(place) {
            slot.counter = counter;
        }
    }

    fn insert(&mut self, key: CounterKey, counter: CounterState) {
        self.table.insert_unique(key.hash(), Slot { key, counter }, |slot| slot.key.hash());
    }

    fn remove(&mut self, place: usize) {
        if let Ok(slot) = self.table.get_bucket_entry(place) {
            slot.remove();
        }
    }
}
