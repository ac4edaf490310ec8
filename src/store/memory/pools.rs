//! The pools whose members share a capacity.
//!
//! Each pool has a lock of its own, since its shares are computed under it. The number of all members is bounded: beyond the bound, the
//! pool that was used the longest ago is dropped.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use hashbrown::HashTable;
use parking_lot::Mutex;

use crate::{
    limit::{
        CounterKey, Hits, LimitCheck, Timestamp,
        share::{MAX_MEMBERS, Pool, PoolDecision, PoolRule},
    },
    observe::Metric,
};

/// The number of tables of pools; a power of two.
const TABLES: usize = 16;

/// The number of counters for which there may be one member of a pool: members are larger, and fewer.
const COUNTERS_PER_MEMBER: usize = 20;

/// The most bytes of a member's name. A longer one keeps its first bytes, and gets the key of its counter.
const MAX_NAME: usize = 256;

/// The bytes that are left of a longer one.
const SHORTENED_NAME: usize = 128;

/// The most members that have metrics.
const MAX_REPORTED: usize = 2_000;

/// All pools of a store.
#[derive(Debug)]
pub(super) struct Pools {
    tables: Box<[Mutex<HashTable<Slot>>]>,
    /// The number of the members of all pools.
    members: AtomicUsize,
    max_members: usize,
    evicted: AtomicU64,
    /// The number of instances that have a part of each pool.
    instances: AtomicU32,
}

#[derive(Debug)]
struct Slot {
    key: CounterKey,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The name of its rule.
    rule: Box<str>,
    pool: Mutex<Pool>,
    /// In nanoseconds since the Unix epoch.
    idle_at: AtomicU64,
}

/// A pool, locked for one decision.
pub(super) struct LockedPool<'a> {
    pool: parking_lot::MutexGuard<'a, Pool>,
    rule: PoolRule<'a>,
    member: std::borrow::Cow<'a, str>,
    now: Timestamp,
}

// === impl Pools ===

impl Pools {
    /// Returns room for one member for every [`COUNTERS_PER_MEMBER`] counters that there may be.
    pub(super) fn new(max_counters: usize) -> Self {
        Self {
            tables: (0..TABLES).map(|_| Mutex::default()).collect(),
            members: AtomicUsize::new(0),
            max_members: (max_counters / COUNTERS_PER_MEMBER).max(MAX_MEMBERS as usize),
            evicted: AtomicU64::new(0),
            instances: AtomicU32::new(1),
        }
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
        let shared = self.find(key.of_tier(tier), check);
        let (done, before, after) = {
            let pool = shared.pool.lock();
            let before = pool.members().len();
            let mut locked = LockedPool { pool, rule, member: name(check), now };
            let done = act(&mut locked);
            shared.idle_at.store(locked.pool.idle_at(&rule).as_nanos(), Ordering::Relaxed);
            (done, before, locked.pool.members().len())
        };
        if after > before {
            let members = self.members.fetch_add(after - before, Ordering::Relaxed) + after - before;
            if members > self.max_members {
                self.evict(key.of_tier(tier));
            }
        } else if after < before {
            self.members.fetch_sub(before - after, Ordering::Relaxed);
        }
        Some(done)
    }

    fn find(&self, key: CounterKey, check: &LimitCheck<'_>) -> Arc<Shared> {
        let mut table = self.tables[index(key)].lock();
        let found = table.find(key.hash(), |slot| slot.key == key);
        if let Some(slot) = found {
            return Arc::clone(&slot.shared);
        }
        let shared = Arc::new(Shared {
            rule: check.rule.label().into(),
            pool: Mutex::default(),
            idle_at: AtomicU64::new(0),
        });
        let slot = Slot { key, shared: Arc::clone(&shared) };
        table.insert_unique(key.hash(), slot, |slot| slot.key.hash());
        shared
    }

    /// Drops the pools that were used the longest ago until the bound holds, but not the one of `kept`.
    #[cold]
    fn evict(&self, kept: CounterKey) {
        for table in &self.tables {
            while self.members.load(Ordering::Relaxed) > self.max_members {
                let mut table = table.lock();
                let others = table.iter().filter(|slot| slot.key != kept);
                let oldest = others.min_by_key(|slot| slot.shared.idle_at.load(Ordering::Relaxed));
                let Some(key) = oldest.map(|slot| slot.key) else { break };
                if self.remove(&mut table, key) {
                    self.evicted.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Removes the pools of one table whose members would all be forgotten at `now`.
    pub(super) fn sweep(&self, step: usize, now: Timestamp) {
        let mut table = self.tables[step % TABLES].lock();
        let idle = |slot: &&Slot| slot.shared.idle_at.load(Ordering::Relaxed) <= now.as_nanos();
        let keys: Vec<CounterKey> = table.iter().filter(idle).map(|slot| slot.key).collect();
        for key in keys {
            self.remove(&mut table, key);
        }
        if table.len() * 8 < table.capacity() {
            let room = table.len() * 2;
            table.shrink_to(room, |slot| slot.key.hash());
        }
    }

    fn remove(&self, table: &mut HashTable<Slot>, key: CounterKey) -> bool {
        let Ok(entry) = table.find_entry(key.hash(), |slot| slot.key == key) else { return false };
        let (slot, _) = entry.remove();
        let members = slot.shared.pool.lock().members().len();
        self.members.fetch_sub(members, Ordering::Relaxed);
        true
    }

    /// Returns the metrics of the members, of as many as have metrics.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let mut metrics = vec![
            Metric::gauge(
                "weir.pools.members",
                "Members of all pools.",
                self.members.load(Ordering::Relaxed) as u64,
            ),
            Metric::counter(
                "weir.pools.evicted",
                "Pools dropped while they had members, because there were too many of these.",
                self.evicted.load(Ordering::Relaxed),
            ),
        ];
        let shared: Vec<Arc<Shared>> = self
            .tables
            .iter()
            .flat_map(|table| table.lock().iter().map(|slot| Arc::clone(&slot.shared)).collect::<Vec<_>>())
            .collect();
        let mut reported = 0;
        for shared in shared {
            let pool = shared.pool.lock();
            for (name, member) in pool.members() {
                reported += 1;
                if reported > MAX_REPORTED {
                    return metrics;
                }
                let borrowed = member.allowance.saturating_sub(member.default);
                let lent = member.default.saturating_sub(member.allowance);
                let series = [
                    Metric::gauge(
                        "weir.pool.asked",
                        "Hits that a member asked for in its last cycle.",
                        member.demand.into(),
                    ),
                    Metric::gauge(
                        "weir.pool.share",
                        "Hits that a member may have in this cycle.",
                        member.allowance.into(),
                    ),
                    Metric::gauge(
                        "weir.pool.borrowed",
                        "Hits of a share above the default.",
                        borrowed.into(),
                    ),
                    Metric::gauge("weir.pool.lent", "Hits of a share below the default.", lent.into()),
                    Metric::counter(
                        "weir.pool.admitted",
                        "Hits of a member that were admitted.",
                        member.admitted_in_all,
                    ),
                    Metric::counter(
                        "weir.pool.rejected",
                        "Hits of a member that were rejected.",
                        member.rejected_in_all,
                    ),
                ];
                metrics
                    .extend(series.map(|metric| metric.label("rule", &*shared.rule).label("member", name)));
            }
        }
        metrics
    }
}

fn index(key: CounterKey) -> usize {
    // any of its bits are suitable
    usize::try_from(key.shard() % TABLES as u64).unwrap_or_default()
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
