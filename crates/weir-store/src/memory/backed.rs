//! What a store that keeps counters elsewhere needs of the memory in front of it.

use std::{iter, sync::atomic::Ordering};

use smallvec::SmallVec;

use super::{MemoryStore, Notes, Slot};
use crate::Decisions;
use weir_limit::{
    CounterKey, Decision, Hits, LimitCheck, OverLimitPolicy, Scope, Timestamp,
    algorithm::CounterState,
    request_bucket::{BucketName, BucketReply, BucketRequest},
};

impl<N: Notes> MemoryStore<N> {
    /// None if a counter of some check is not in memory.
    pub fn decide_known(&self, checks: &[LimitCheck<'_>], scope: Scope, now: Timestamp) -> Option<Decisions> {
        let [check] = checks else {
            return checks.iter().all(|check| self.is_known(check)).then(|| self.decide(checks, scope, now));
        };
        // under one lock, so that nobody evicts the counter before the decision
        let mut locked = self.lock_all(checks);
        let shard = locked.of(self.index(check.key));
        let policy = check.over_limit_policy_in(scope);
        if !shard.has_all(check) {
            return None;
        }
        Some(iter::once(self.decide_locked(shard, check, policy, true, now).0).collect())
    }

    pub fn is_known(&self, check: &LimitCheck<'_>) -> bool {
        self.shards[self.index(check.key)].lock().has_all(check)
    }

    /// The states of the counters of `check`. None if one is not here.
    pub fn known(&self, check: &LimitCheck<'_>) -> Option<SmallVec<[CounterState; 1]>> {
        self.shards[self.index(check.key)].lock().states(check).into_iter().collect()
    }

    /// Counts the hits whether or not they fit.
    pub fn admit(&self, check: &LimitCheck<'_>, now: Timestamp) -> Decision {
        self.decide_by(check, OverLimitPolicy::Count, now);
        self.bound(check.key, now);
        Decision { over: false, ..self.look(check, Hits(0), now) }
    }

    /// Decides about a bucket that is here; none if it is not.
    pub fn decide_known_bucket(
        &self,
        name: &BucketName<'_>,
        request: &BucketRequest,
        now: Timestamp,
    ) -> Option<BucketReply> {
        let key = name.counter(&request.kind());
        let mut shard = self.shards[self.index(key)].lock();
        shard.slot(key)?;
        Some(shard.decide_bucket(name, request, now))
    }

    pub fn for_each_bucket(&self, name: &BucketName<'_>, mut visit: impl FnMut(&mut Slot<N>)) {
        self.retain_buckets(name, |slot| {
            visit(slot);
            true
        });
    }

    pub fn with_slot<T>(&self, key: CounterKey, act: impl FnOnce(Option<&mut Slot<N>>) -> T) -> T {
        act(self.shards[self.index(key)].lock().slot(key))
    }

    /// Runs `act` on the slot; or if none is in memory and one `is_wanted`, adds what `make` returns.
    pub fn insert_if(
        &self,
        key: CounterKey,
        is_wanted: impl FnOnce() -> bool,
        make: impl FnOnce() -> (CounterState, N),
        act: impl FnOnce(&mut Slot<N>),
    ) {
        let mut shard = self.shards[self.index(key)].lock();
        if let Some(slot) = shard.slot(key) {
            return act(slot);
        }
        if is_wanted() {
            let (counter, notes) = make();
            self.counting(&mut shard, |shard| shard.insert(key, counter, notes));
        }
    }

    pub fn for_each_log(&self, mut act: impl FnMut(&mut N::Log)) {
        for shard in &self.shards {
            act(&mut shard.lock().log);
        }
    }

    pub fn with_log<T>(&self, key: CounterKey, act: impl FnOnce(&mut N::Log) -> T) -> T {
        act(&mut self.shards[self.index(key)].lock().log)
    }

    /// The number of counters that were evicted with what was noted.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Whether counters that are not removable must go soon: more than so many `quarters` of the slack are used.
    pub fn is_crowded(&self, key: CounterKey, quarters: usize, now: Timestamp) -> bool {
        self.bound(key, now);
        self.live.load(Ordering::Relaxed) > self.max_counters + self.slack() / 4 * quarters
    }
}
