//! The pools whose members share a capacity, in the memory of this instance.
//!
//! Shares are computed under the lock of a pool.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::{
    limit::{
        Hits, LimitCheck, Timestamp,
        share::{Pool, PoolDecision, PoolRule},
    },
    store::pools::{PoolSummary, Pools},
};

/// The most bytes of a member's name. A longer one keeps its first bytes, and gets the key of its counter.
const MAX_NAME: usize = 256;

/// The bytes that are left of a longer one.
const SHORTENED_NAME: usize = 128;

/// All pools of a store in memory.
#[derive(Debug)]
pub(super) struct MemoryPools {
    pools: Pools<Pool>,
    /// The number of instances that have a part of each pool.
    instances: AtomicU32,
}

/// A pool, locked for one decision.
pub(super) struct LockedPool<'a> {
    pool: &'a mut Pool,
    rule: PoolRule<'a>,
    member: std::borrow::Cow<'a, str>,
    now: Timestamp,
}

// === impl MemoryPools ===

impl MemoryPools {
    /// Returns room for as many members as there may be beside `max_counters` counters.
    pub(super) fn new(max_counters: usize) -> Self {
        Self { pools: Pools::new(max_counters), instances: AtomicU32::new(1) }
    }

    /// Divides each pool between `instances`, all of which have the same part.
    #[cfg(feature = "coordinated")]
    pub(super) fn divide_between(&self, instances: usize) {
        self.instances.store(u32::try_from(instances).unwrap_or(u32::MAX).max(1), Ordering::Relaxed);
    }

    /// Calls `act` with the pool of `check`; returns none if it has none.
    pub(super) fn with<T>(
        &self,
        check: &LimitCheck<'_>,
        now: Timestamp,
        act: impl FnOnce(&mut LockedPool<'_>) -> T,
    ) -> Option<T> {
        let (key, sharing) = (check.pool.as_deref()?, check.sharing()?);
        let tier = &check.tiers()[0];
        let instances = if check.is_local() { 1 } else { self.instances.load(Ordering::Relaxed) };
        let rule = PoolRule { capacity: tier.requests / instances, cycle: tier.period, sharing };
        let slot = self.pools.find(key.of_tier(tier), || check.rule.label().into(), Pool::default);
        Some(self.pools.with(&slot, |pool| {
            let mut locked = LockedPool { pool, rule, member: name(check), now };
            let done = act(&mut locked);
            (done, locked.pool.idle_at(&rule))
        }))
    }

    /// Removes the pools of one table whose members would all be forgotten at `now`.
    pub(super) fn sweep(&self, step: usize, now: Timestamp) {
        self.pools.sweep(step, now);
    }

    /// Adds what is known of these pools to `summary`.
    pub(super) fn summarize(&self, summary: &mut PoolSummary) {
        self.pools.summarize(summary);
    }
}

/// Returns the name of the member of `check`.
fn name<'a>(check: &'a LimitCheck<'_>) -> std::borrow::Cow<'a, str> {
    let name = check.member();
    if name.len() <= MAX_NAME {
        return name.into();
    }
    let end = name.floor_char_boundary(SHORTENED_NAME);
    format!("{}%#{:016x}{:016x}", &name[..end], check.key.hash(), check.key.shard()).into()
}

// === impl LockedPool ===

impl LockedPool<'_> {
    /// Decides about `hits`, which are rejected if they do not `fit` elsewhere.
    pub(super) fn decide(&mut self, hits: Hits, fit: bool) -> PoolDecision {
        let hits = u32::try_from(hits.0).unwrap_or(u32::MAX);
        self.pool.decide(&self.rule, &self.member, hits, fit, self.now)
    }

    /// Returns how the member stands.
    pub(super) fn look(&mut self) -> PoolDecision {
        self.pool.look(&self.rule, &self.member, self.now)
    }

    /// Gives `hits` of this cycle back.
    pub(super) fn give_back(&mut self, hits: Hits) {
        let hits = u32::try_from(hits.0).unwrap_or(u32::MAX);
        self.pool.give_back(&self.rule, &self.member, hits, self.now);
    }
}
