//! One shard: a hash table of counters.

use std::slice;

use hashbrown::HashTable;
use smallvec::SmallVec;

use super::{
    lines::Lines,
    notes::{Counted, Notes, before},
};
use weir_limit::{
    self as limit, CounterKey, Decision, Direction, Hits, LimitCheck, OverLimitPolicy, Reservation,
    ReservationRequest, ReservedSpan, Tier, Timestamp,
    algorithm::CounterState,
    decide,
    request_bucket::{BucketName, BucketReply, BucketRequest, decide_bucket},
    take_one, take_two,
};

/// Buckets that an eviction samples: an order of all counters would cost memory for each, and work for each hit.
const SAMPLE: usize = 32;

/// The same if the first sample has no counter that may be removed.
const LARGE_SAMPLE: usize = 512;

/// No two shards have a cache line in common, whose writers would wait for one another.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Shard<N: Notes> {
    table: HashTable<Slot<N>>,
    of_requests: usize,
    next_sample: usize,
    pub(super) log: N::Log,
    pub(super) lines: Lines,
}

/// A counter in the table. 40 bytes without notes.
#[derive(Debug)]
pub struct Slot<N> {
    pub key: CounterKey,
    pub counter: CounterState,
    /// What the store behind the table notes about it.
    pub notes: N,
}

/// Hits, and the counters that take them or get them back.
#[derive(Clone, Copy, Debug)]
pub struct TakeRequest<'a> {
    pub key: CounterKey,
    /// The [key](CounterKey::of_tier) of the first tier, which most limits have alone.
    pub first_key: CounterKey,
    pub tiers: &'a [Tier],
    pub over_limit_policy: OverLimitPolicy,
    pub direction: Direction,
    pub hits: Hits,
}

/// The counters among which one is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Among {
    All,
    Rules,
    /// Those of limits that come with requests.
    Requests,
}

/// One for each tier of a check; none where there is no counter.
pub(super) type CheckStates = SmallVec<[Option<CounterState>; 2]>;

// === impl TakeRequest ===

impl<'a> TakeRequest<'a> {
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    pub fn new(key: CounterKey, tiers: &'a [Tier], over_limit_policy: OverLimitPolicy, hits: Hits) -> Self {
        let first_key = tiers.first().map_or(key, |tier| key.of_tier(tier));
        Self { key, first_key, tiers, over_limit_policy, direction: Direction::Take, hits }
    }

    /// What `check` does in the tiers in which each value counts by itself.
    pub(super) fn of(check: &'a LimitCheck<'_>, over_limit_policy: OverLimitPolicy) -> Self {
        let request = Self::new(check.key, check.own_tiers(), over_limit_policy, check.hits);
        Self { direction: check.direction, ..request }
    }
}

// === impl Shard ===

impl<N: Notes> Shard<N> {
    pub(super) fn new(lines: Lines) -> Self {
        Self { lines, ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn count(&self, among: Among) -> usize {
        match among {
            Among::All => self.len(),
            Among::Rules => self.len() - self.of_requests,
            Among::Requests => self.of_requests,
        }
    }

    /// Notes what changes if there is a `check`.
    pub(super) fn take(
        &mut self,
        request: &TakeRequest<'_>,
        check: Option<&LimitCheck<'_>>,
        now: Timestamp,
    ) -> Decision {
        let TakeRequest { key, tiers, over_limit_policy, direction, hits, .. } = *request;
        if self.has_line(key, tiers) {
            let decided = self.with_line(key, now, |line, counters, woken| {
                line.decide(counters, now, over_limit_policy, direction, hits, woken)
            });
            if let Some(decision) = decided {
                return decision;
            }
        }
        self.update(key, check, tiers, now, |tiers, counters| {
            decide(tiers, counters, over_limit_policy, direction, hits, now)
        })
    }

    /// [`Shard::take`] if only one or two counters change, which are there and need no [claim](Slot::claim), nobody
    /// waits for them and, if `must_fit`, the hits fit.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    pub(super) fn take_in_place(
        &mut self,
        request: &TakeRequest<'_>,
        must_fit: bool,
        now: Timestamp,
    ) -> Option<Decision> {
        let TakeRequest { key, first_key, tiers, over_limit_policy, hits, .. } = *request;
        if self.has_line(key, tiers) {
            return None;
        }
        let may_take = |tier: &Tier, counter: &CounterState| !must_fit || counter.probe(tier, now, hits).fits;
        match tiers {
            [tier] => {
                let slot = self.table.find_mut(first_key.hash(), |slot| slot.key.is_exactly(first_key))?;
                may_take(tier, &slot.counter)
                    .then(|| take_one(tier, &mut slot.counter, over_limit_policy, hits, now))
            }
            [first, second] => {
                let keys = [first_key, key.of_tier(second)];
                if keys[0] == keys[1] {
                    return None;
                }
                let slots = self
                    .table
                    .get_disjoint_mut(keys.map(CounterKey::hash), |i, slot| slot.key.is_exactly(keys[i]));
                let [Some(a), Some(b)] = slots else { return None };
                if !(may_take(first, &a.counter) && may_take(second, &b.counter)) {
                    return None;
                }
                let counters = [&mut a.counter, &mut b.counter];
                Some(take_two([first, second], counters, over_limit_policy, hits, now))
            }
            _ => None,
        }
    }

    pub(super) fn reserve(
        &mut self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Reservation {
        if self.has_line(check.key, check.tiers()) {
            // whoever reserves does not wait, and those who wait come first
            let least = request.least.max(Hits(1));
            let decision = Decision { over: true, ..self.look(check, least, now) };
            let counted = ReservedSpan { from: now, until: now, is_reported: true };
            return Reservation { hits: Hits(0), until: now, decision, counted };
        }
        let reserve = |tiers: &[Tier], counters: &mut [_]| limit::reserve(tiers, counters, request, now);
        self.update(check.key, Some(check), check.own_tiers(), now, reserve)
    }

    pub(super) fn decide_bucket(
        &mut self,
        name: &BucketName<'_>,
        request: &BucketRequest,
        now: Timestamp,
    ) -> BucketReply {
        let counted = Counted::Bucket(name, request);
        let key = counted.key();
        let bucket = self.find(key);
        let slot = bucket.and_then(|bucket| self.table.get_bucket_mut(bucket));
        let mut state = slot.map(|slot| std::mem::take(&mut slot.counter));
        let before = state.as_ref().and_then(before::<N>);
        let reply = decide_bucket(request, &mut state, now);
        match (bucket, state) {
            (Some(bucket), None) if !N::NOTED => {
                self.remove(bucket);
            }
            (Some(bucket), state) => {
                // a full bucket stays until it is swept, since it may be a change
                let state = state.unwrap_or_default();
                let is_changed = N::NOTED && before.as_ref() != Some(&state);
                self.put(bucket, state);
                if is_changed {
                    self.note(bucket, counted);
                }
            }
            (None, Some(state)) => {
                self.insert(key, state, N::default());
                self.note_new(counted);
            }
            (None, None) => {}
        }
        reply
    }

    /// Visits counters with this [`CounterKey::shard`] in `stride` buckets. Returns the next bucket if any are left.
    pub(super) fn retain_all(
        &mut self,
        shard: u64,
        start: usize,
        stride: usize,
        visit: &mut impl FnMut(&mut Slot<N>) -> bool,
    ) -> Option<usize> {
        let end = (start + stride).min(self.table.num_buckets());
        for bucket in start..end {
            let slot = self.table.get_bucket_mut(bucket).filter(|slot| slot.key.shard() == shard);
            if slot.is_some_and(|slot| !visit(slot)) {
                self.remove(bucket);
            }
        }
        (end < self.table.num_buckets()).then_some(end)
    }

    pub(super) fn release(&mut self, check: &LimitCheck<'_>, span: ReservedSpan, hits: Hits, now: Timestamp) {
        let release = |tiers: &[Tier], counters: &mut [_]| limit::release(tiers, counters, span, hits, now);
        self.update(check.key, Some(check), check.own_tiers(), now, release);
        self.serve_line_of(check.key, now);
    }

    /// `act` gets a counter for each of `tiers`; new ones stay if they then hold hits. Without `check` no notes.
    pub(super) fn update<T>(
        &mut self,
        key: CounterKey,
        check: Option<&LimitCheck<'_>>,
        tiers: &[Tier],
        now: Timestamp,
        act: impl FnOnce(&[Tier], &mut [CounterState]) -> T,
    ) -> T {
        if let [tier] = tiers {
            return self.update_one(key, check, tier, now, |counter| act(tiers, slice::from_mut(counter)));
        }
        let mut buckets: SmallVec<[Option<usize>; 2]> = SmallVec::new();
        let mut counters: SmallVec<[CounterState; 2]> = SmallVec::new();
        let mut befores: SmallVec<[Option<CounterState>; 2]> = SmallVec::new();
        for tier in tiers {
            let key = key.of_tier(tier);
            let bucket = self.find(key);
            counters.push(self.lift(bucket, key, tier, now));
            buckets.push(bucket);
        }
        if N::NOTED {
            befores.extend(counters.iter().map(before::<N>));
        }
        let done = act(tiers, &mut counters);
        for (i, counter) in counters.iter_mut().enumerate() {
            if let Some(bucket) = buckets[i] {
                let is_changed = N::NOTED && befores[i].as_ref() != Some(counter);
                self.put(bucket, std::mem::take(counter));
                if let Some(check) = check.filter(|_| is_changed) {
                    self.note(bucket, Counted::Tier(check, &tiers[i]));
                }
            }
        }
        // inserting may move the other counters, so it comes last
        for ((bucket, counter), tier) in buckets.iter().zip(counters).zip(tiers) {
            if bucket.is_none() && counter.used() > Hits(0) {
                self.insert(key.of_tier(tier), counter, N::default());
                if let Some(check) = check {
                    self.note_new(Counted::Tier(check, tier));
                }
            }
        }
        done
    }

    /// [`Shard::update`] for one tier, as most rules have: its counter changes in its place.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    fn update_one<T>(
        &mut self,
        key: CounterKey,
        check: Option<&LimitCheck<'_>>,
        tier: &Tier,
        now: Timestamp,
        act: impl FnOnce(&mut CounterState) -> T,
    ) -> T {
        let key = key.of_tier(tier);
        let mut unused = None;
        let mut slot = self.table.find_mut(key.hash(), |slot| slot.key == key);
        let counter = match &mut slot {
            Some(slot) => {
                slot.claim(key, &mut self.of_requests);
                &mut slot.counter
            }
            None => unused.insert(CounterState::unused(tier, now)),
        };
        let before = before::<N>(counter);
        let done = act(counter);
        if let Some(slot) = slot {
            if let Some(check) = check.filter(|_| N::NOTED && before.as_ref() != Some(&slot.counter)) {
                slot.notes.changed(&mut self.log, Counted::Tier(check, tier));
            }
        } else if let Some(counter) = unused.filter(|counter| counter.used() > Hits(0)) {
            self.insert(key, counter, N::default());
            if let Some(check) = check {
                self.note_new(Counted::Tier(check, tier));
            }
        }
        done
    }

    fn note(&mut self, bucket: usize, counted: Counted<'_>) {
        if let Some(slot) = self.table.get_bucket_mut(bucket).filter(|_| N::NOTED) {
            slot.notes.changed(&mut self.log, counted);
        }
    }

    fn note_new(&mut self, counted: Counted<'_>) {
        if N::NOTED
            && let Some(bucket) = self.find(counted.key())
        {
            self.note(bucket, counted);
        }
    }

    /// Not inlined, so that decisions do not pay for it.
    #[inline(never)]
    pub(super) fn look(&self, check: &LimitCheck<'_>, hits: Hits, now: Timestamp) -> Decision {
        let tiers = check.own_tiers();
        let states = self.states(check).into_iter().zip(tiers);
        let mut counters: SmallVec<[CounterState; 2]> =
            states.map(|(state, tier)| state.unwrap_or_else(|| CounterState::unused(tier, now))).collect();
        let looks = check.direction == Direction::Look;
        let direction = if looks { Direction::Look } else { Direction::Take };
        decide(tiers, &mut counters, OverLimitPolicy::Ignore, direction, hits, now)
    }

    /// Marks `check` as rejected in those of its counters that reject it. It takes no hits.
    pub(super) fn reject(&mut self, check: &LimitCheck<'_>, now: Timestamp) {
        for tier in check.own_tiers() {
            let bucket = self.find(check.key.of_tier(tier));
            if let Some(slot) = bucket.and_then(|bucket| self.table.get_bucket_mut(bucket))
                && !slot.counter.probe(tier, now, check.hits).fits
            {
                let before = before::<N>(&slot.counter);
                slot.counter.reject(tier, now);
                if N::NOTED && before.as_ref() != Some(&slot.counter) {
                    slot.notes.changed(&mut self.log, Counted::Tier(check, tier));
                }
            }
        }
    }

    pub(super) fn states(&self, check: &LimitCheck<'_>) -> CheckStates {
        let keys = check.own_tiers().iter().map(|tier| check.key.of_tier(tier));
        keys.map(|key| {
            self.find(key).and_then(|bucket| self.table.get_bucket(bucket)).map(|slot| slot.counter.clone())
        })
        .collect()
    }

    /// `after` are the states after `check`, if others may have counted since: then only its own hits are taken back.
    pub(super) fn restore(
        &mut self,
        check: &LimitCheck<'_>,
        before: CheckStates,
        after: Option<CheckStates>,
        now: Timestamp,
    ) {
        let mut after = after.map(SmallVec::into_iter);
        for (tier, before) in check.own_tiers().iter().zip(before) {
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
                    slot.notes.changed(&mut self.log, Counted::Tier(check, tier));
                }
                continue;
            }
            match (bucket, before) {
                (Some(bucket), Some(counter)) => {
                    self.put(bucket, counter);
                    self.note(bucket, Counted::Tier(check, tier));
                }
                (Some(bucket), None) => {
                    self.remove(bucket);
                }
                (None, Some(counter)) => {
                    self.insert(key, counter, N::default());
                    self.note_new(Counted::Tier(check, tier));
                }
                (None, None) => {}
            }
        }
    }

    /// Sweeps `stride` buckets. Returns the next bucket if any are left, and the number of removed counters.
    pub(super) fn sweep(&mut self, start: usize, stride: usize, now: Timestamp) -> (Option<usize>, usize) {
        let before = self.table.len();
        let end = (start + stride).min(self.table.num_buckets());
        for bucket in start..end {
            let is_expired = |slot: &Slot<N>| slot.counter.idle_at() <= now && slot.notes.is_removable();
            if self.table.get_bucket(bucket).is_some_and(is_expired) {
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

    /// An eviction lets hits be admitted again until the counter would have expired: it costs the hits times that time.
    /// One that is not removable goes only if `any` may, and a larger sample has no other.
    pub(super) fn evict_cheapest(&mut self, any: bool, among: Among, now: Timestamp) -> Option<N> {
        let buckets = self.table.num_buckets();
        let mut cheapest: Option<((bool, u128), usize)> = None;
        for step in 0..buckets {
            let bucket = (self.next_sample + step) % buckets;
            let may_go = |slot: &&Slot<N>| {
                let is_among = match among {
                    Among::All => true,
                    Among::Rules => !slot.key.is_of_request(),
                    Among::Requests => slot.key.is_of_request(),
                };
                is_among && (any || slot.notes.is_removable())
            };
            if let Some(slot) = self.table.get_bucket(bucket).filter(may_go) {
                let left = slot.counter.idle_at().since(now).as_nanos();
                let cost = u128::from(left) * u128::from(slot.counter.used().0);
                let cost = (!slot.notes.is_removable(), cost);
                if cheapest.is_none_or(|(least, _)| cost < least) {
                    cheapest = Some((cost, bucket));
                }
            }
            let has_removable = cheapest.is_some_and(|((is_last_resort, _), _)| !is_last_resort);
            let has_one = has_removable || any && cheapest.is_some();
            let enough =
                step >= LARGE_SAMPLE && N::NOTED && (!any || has_one) || step >= SAMPLE && has_removable;
            if enough {
                self.next_sample = bucket;
                break;
            }
        }
        Some(self.remove(cheapest?.1)?.notes)
    }

    pub(super) fn has_all(&self, check: &LimitCheck<'_>) -> bool {
        check.own_tiers().iter().all(|tier| self.find(check.key.of_tier(tier)).is_some())
    }

    pub(super) fn slot(&mut self, key: CounterKey) -> Option<&mut Slot<N>> {
        let bucket = self.find(key)?;
        self.table.get_bucket_mut(bucket)
    }

    fn find(&self, key: CounterKey) -> Option<usize> {
        self.table.find_bucket_index(key.hash(), |slot| slot.key == key)
    }

    /// Takes the counter out of its slot until [`put`](Self::put); an unused counter if there is no slot.
    fn lift(&mut self, bucket: Option<usize>, key: CounterKey, tier: &Tier, now: Timestamp) -> CounterState {
        let slot = bucket.and_then(|bucket| self.table.get_bucket_mut(bucket));
        let Some(slot) = slot else { return CounterState::unused(tier, now) };
        slot.claim(key, &mut self.of_requests);
        std::mem::take(&mut slot.counter)
    }

    fn put(&mut self, bucket: usize, counter: CounterState) {
        if let Some(slot) = self.table.get_bucket_mut(bucket) {
            slot.counter = counter;
        }
    }

    /// There must be none with this key.
    pub(super) fn insert(&mut self, key: CounterKey, counter: CounterState, notes: N) {
        self.of_requests += usize::from(key.is_of_request());
        self.table.insert_unique(key.hash(), Slot { key, counter, notes }, |slot| slot.key.hash());
    }

    fn remove(&mut self, bucket: usize) -> Option<Slot<N>> {
        let (slot, _) = self.table.get_bucket_entry(bucket).ok()?.remove();
        self.of_requests -= usize::from(slot.key.is_of_request());
        Some(slot)
    }
}

// === impl Slot ===

impl<N> Slot<N> {
    /// Once a rule counts here, the counter is the rule's, although a request may have brought it.
    fn claim(&mut self, key: CounterKey, of_requests: &mut usize) {
        if self.key.is_of_request() && !key.is_of_request() {
            self.key = key;
            *of_requests -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
