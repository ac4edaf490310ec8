//! One shard: a hash table of counters.

use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::limit::{
    self, CounterKey, Decision, Direction, Hits, LimitCheck, OverLimitPolicy, Reservation,
    ReservationRequest, ReservedSpan, Tier, Timestamp, algorithm::CounterState, decide,
};

/// The number of buckets that an eviction samples. Finding the cheapest counter of all would require an order, and so more
/// memory for each counter and more work for each hit.
const SAMPLE: usize = 32;

/// Counters by key.
#[derive(Debug, Default)]
pub(super) struct Shard {
    table: HashTable<Slot>,
    /// The bucket at which the next sample begins.
    next_sample: usize,
}

/// A counter with its key. 40 bytes.
#[derive(Debug)]
struct Slot {
    key: CounterKey,
    counter: CounterState,
}

/// The states of the counters of a check, one for each tier; none where there is no counter.
pub(super) type States = SmallVec<[Option<CounterState>; 2]>;

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
        self.take_in(check.key, check.tiers(), over_limit_policy, check.direction, check.hits, now)
    }

    /// Decides about `hits` in these `tiers` of `key`, and counts them.
    pub(super) fn take_in(
        &mut self,
        key: CounterKey,
        tiers: &[Tier],
        over_limit_policy: OverLimitPolicy,
        direction: Direction,
        hits: Hits,
        now: Timestamp,
    ) -> Decision {
        self.update(key, tiers, now, |tiers, counters| {
            decide(tiers, counters, over_limit_policy, direction, hits, now)
        })
    }

    /// Reserves hits in all tiers of `check`, or in none.
    pub(super) fn reserve(
        &mut self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Reservation {
        let reserve = |tiers: &[Tier], counters: &mut [_]| limit::reserve(tiers, counters, request, now);
        self.update(check.key, check.tiers(), now, reserve)
    }

    /// Gives back `hits` that were reserved for `span`.
    pub(super) fn release(&mut self, check: &LimitCheck<'_>, span: ReservedSpan, hits: Hits, now: Timestamp) {
        let release = |tiers: &[Tier], counters: &mut [_]| limit::release(tiers, counters, span, hits, now);
        self.update(check.key, check.tiers(), now, release);
    }

    /// Runs `act` on the counters of `key`, one for each of `tiers`. New counters are kept if they then hold hits.
    fn update<T>(
        &mut self,
        key: CounterKey,
        tiers: &[Tier],
        now: Timestamp,
        act: impl FnOnce(&[Tier], &mut [CounterState]) -> T,
    ) -> T {
        let mut buckets: SmallVec<[Option<usize>; 2]> = SmallVec::new();
        let mut counters: SmallVec<[CounterState; 2]> = SmallVec::new();
        for tier in tiers {
            let bucket = self.find(key.of_tier(tier));
            counters.push(self.lift(bucket, tier, now));
            buckets.push(bucket);
        }
        let done = act(tiers, &mut counters);
        for (bucket, counter) in buckets.iter().zip(&mut counters) {
            if let Some(bucket) = *bucket {
                self.put(bucket, std::mem::take(counter));
            }
        }
        // inserting may move the other counters, so it comes last
        for ((bucket, counter), tier) in buckets.iter().zip(counters).zip(tiers) {
            if bucket.is_none() && counter.used() > Hits(0) {
                self.insert(key.of_tier(tier), counter);
            }
        }
        done
    }

    /// Gives back the hits that `check` took.
    pub(super) fn give_back(&mut self, check: &LimitCheck<'_>, now: Timestamp) {
        for tier in check.tiers() {
            let bucket = self.find(check.key.of_tier(tier));
            if let Some(slot) = bucket.and_then(|bucket| self.table.get_bucket_mut(bucket)) {
                slot.counter.give_back(tier, now, check.hits);
            }
        }
    }

    /// Returns the decision about `hits` of `check`, after `earlier` ones. Counts nothing.
    pub(super) fn look(&self, check: &LimitCheck<'_>, earlier: Hits, hits: Hits, now: Timestamp) -> Decision {
        self.look_in(check.key, check.tiers(), earlier, hits, now)
    }

    /// As [`Shard::look`], in these `tiers` of `key`.
    pub(super) fn look_in(
        &self,
        key: CounterKey,
        tiers: &[Tier],
        earlier: Hits,
        hits: Hits,
        now: Timestamp,
    ) -> Decision {
        let mut counters: SmallVec<[CounterState; 2]> = tiers
            .iter()
            .map(|tier| {
                let bucket = self.find(key.of_tier(tier));
                let slot = bucket.and_then(|bucket| self.table.get_bucket(bucket));
                slot.map_or_else(|| CounterState::unused(tier, now), |slot| slot.counter.clone())
            })
            .collect();
        for (counter, tier) in counters.iter_mut().zip(tiers).filter(|_| earlier > Hits(0)) {
            counter.take(tier, now, earlier);
        }
        decide(tiers, &mut counters, OverLimitPolicy::Ignore, Direction::Take, hits, now)
    }

    /// Marks `check` as rejected in those of its counters that reject it. It takes no hits.
    pub(super) fn reject(&mut self, check: &LimitCheck<'_>, now: Timestamp) {
        for tier in check.tiers() {
            let bucket = self.find(check.key.of_tier(tier));
            if let Some(slot) = bucket.and_then(|bucket| self.table.get_bucket_mut(bucket))
                && !slot.counter.probe(tier, now, check.hits).fits
            {
                slot.counter.reject(tier, now);
            }
        }
    }

    /// Returns the states of the counters of `check`, to [restore](Self::restore) them later.
    pub(super) fn states(&self, check: &LimitCheck<'_>) -> States {
        let keys = check.tiers().iter().map(|tier| check.key.of_tier(tier));
        keys.map(|key| {
            self.find(key).and_then(|bucket| self.table.get_bucket(bucket)).map(|slot| slot.counter.clone())
        })
        .collect()
    }

    /// Restores the states that the counters of `check` had `before` its hits were counted. `after` are those that they had
    /// then, if other requests may have counted since: their hits must stay, so the hits of `check` are taken back.
    pub(super) fn restore(
        &mut self,
        check: &LimitCheck<'_>,
        before: States,
        after: Option<States>,
        now: Timestamp,
    ) {
        let mut after = after.map(SmallVec::into_iter);
        for (tier, before) in check.tiers().iter().zip(before) {
            let key = check.key.of_tier(tier);
            let bucket = self.find(key);
            let current = bucket.and_then(|bucket| self.table.get_bucket(bucket)).map(|slot| &slot.counter);
            if let Some(after) = after.as_mut().and_then(Iterator::next)
                && current != after.as_ref()
            {
                // as of now: what has ended or flowed back since was not given back
                let used = |state: &Option<CounterState>| {
                    state.as_ref().map_or(Hits(0), |state| state.probe(tier, now, Hits(0)).used)
                };
                let (taken, given) = (used(&after).minus(used(&before)), used(&before).minus(used(&after)));
                if let Some(slot) = bucket.and_then(|bucket| self.table.get_bucket_mut(bucket)) {
                    slot.counter.give_back(tier, now, taken);
                    slot.counter.take(tier, now, given);
                }
                continue;
            }
            match (bucket, before) {
                (Some(bucket), Some(counter)) => self.put(bucket, counter),
                (Some(bucket), None) => self.remove(bucket),
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
        for bucket in start..end {
            if self.table.get_bucket(bucket).is_some_and(|slot| slot.counter.idle_at() <= now) {
                self.remove(bucket);
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
            let bucket = (self.next_sample + step) % buckets;
            if let Some(slot) = self.table.get_bucket(bucket) {
                let left = slot.counter.idle_at().since(now).as_nanos();
                let cost = u128::from(left) * u128::from(slot.counter.used().0);
                if cheapest.is_none_or(|(least, _)| cost < least) {
                    cheapest = Some((cost, bucket));
                }
            }
            if step >= SAMPLE && cheapest.is_some() {
                self.next_sample = bucket;
                break;
            }
        }
        if let Some((_, bucket)) = cheapest {
            self.remove(bucket);
        }
        cheapest.is_some()
    }

    fn find(&self, key: CounterKey) -> Option<usize> {
        self.table.find_bucket_index(key.hash(), |slot| slot.key == key)
    }

    /// Takes the counter out of its slot until [`put`](Self::put); an unused counter if there is no slot.
    fn lift(&mut self, bucket: Option<usize>, tier: &Tier, now: Timestamp) -> CounterState {
        let slot = bucket.and_then(|bucket| self.table.get_bucket_mut(bucket));
        slot.map_or_else(|| CounterState::unused(tier, now), |slot| std::mem::take(&mut slot.counter))
    }

    fn put(&mut self, bucket: usize, counter: CounterState) {
        if let Some(slot) = self.table.get_bucket_mut(bucket) {
            slot.counter = counter;
        }
    }

    fn insert(&mut self, key: CounterKey, counter: CounterState) {
        self.table.insert_unique(key.hash(), Slot { key, counter }, |slot| slot.key.hash());
    }

    fn remove(&mut self, bucket: usize) {
        if let Ok(slot) = self.table.get_bucket_entry(bucket) {
            slot.remove();
        }
    }
}
