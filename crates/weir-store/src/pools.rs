//! A bounded table of pools, each with a lock of its own: of one instance alone, or of one that shares them with
//! others.
//!
//! The number of all members and pools is bounded: beyond the bound, the pool that was used the longest ago is dropped,
//! with all that it does beside decisions.
//!
//! A [`JobRunner`] computes the shares of many members beside decisions, from a copy of the pool: a decision finds them
//! due, and goes on with those in force.

use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc::{SendError, Sender, channel},
    },
    thread,
};

use hashbrown::HashTable;
use parking_lot::Mutex;

use weir_limit::{
    Basis, CounterKey, Decision, Hits, Period, Timestamp,
    share::{Computation, MAX_MEMBERS, MemberState, Pool, PoolDecision, Shares, Sharing},
};
use weir_observe::Metric;

const TABLES: usize = 16;

/// Members are larger than counters, and fewer.
const COUNTERS_PER_MEMBER: usize = 20;

const MAX_REPORTED: usize = 2_000;

/// A pool of one instance alone, or of one that shares it with others.
pub trait Pooled {
    /// The members that take as much memory as a pool without any.
    const SIZE: usize;

    fn members(&self) -> usize;

    /// Returns copies of the members, each with its hits that were admitted and rejected.
    fn report(&self) -> Vec<(Arc<str>, MemberState, [u64; 2])>;

    /// Returns the pool whose shares are computed, with the capacity, the cycle and the sharing of its rule.
    fn with_rule(&mut self) -> (&mut Pool, u32, Period, &Arc<Sharing>);

    /// Ends what it does beside decisions, since it was dropped.
    fn end(&mut self) {}
}

pub(super) type PoolJob = Box<dyn FnOnce() + Send>;

pub struct JobRunner(Box<dyn Fn(PoolJob) + Send + Sync>);

// === impl JobRunner ===

impl JobRunner {
    pub fn new(run: impl Fn(PoolJob) + Send + Sync + 'static) -> Self {
        Self(Box::new(run))
    }

    /// A thread that starts with the first job and ends when this is dropped. If the system has none, the caller works.
    pub(super) fn thread() -> Self {
        let jobs: OnceLock<Option<Sender<PoolJob>>> = OnceLock::new();
        Self::new(move |job| {
            let unsent = match jobs.get_or_init(|| start_thread().ok()) {
                Some(jobs) => jobs.send(job).err(),
                None => Some(SendError(job)),
            };
            if let Some(SendError(job)) = unsent {
                job();
            }
        })
    }
}

impl fmt::Debug for JobRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobRunner")
    }
}

fn start_thread() -> io::Result<Sender<PoolJob>> {
    let (sender, jobs) = channel::<PoolJob>();
    thread::Builder::new()
        .name("weir-shares".into())
        .spawn(move || jobs.into_iter().for_each(|job| job()))?;
    Ok(sender)
}

#[derive(Debug)]
pub struct Pools<P> {
    tables: Box<[Mutex<HashTable<PoolEntry<P>>>]>,
    members: AtomicUsize,
    slots: AtomicUsize,
    /// Each pool counts as [`Pooled::SIZE`] more.
    max_members: usize,
    evicted: AtomicU64,
    runner: JobRunner,
    reported: Mutex<Reported>,
}

/// Pools of one rule may have members of the same name: their sum must not fall when one pool forgets its member.
#[derive(Debug, Default)]
struct Reported {
    members: BTreeMap<PoolLabels, ReportedMember>,
    report: u64,
}

/// The names of a rule and of a member.
type PoolLabels = (Arc<str>, Arc<str>);

#[derive(Debug, Default)]
struct ReportedMember {
    /// Admitted and rejected.
    totals: [u64; 2],
    /// Of each pool, the number of the last report that it was in, and its totals then.
    pools: BTreeMap<CounterKey, (u64, [u64; 2])>,
}

#[derive(Debug)]
struct PoolEntry<P> {
    pub key: CounterKey,
    shared: Arc<PoolSlot<P>>,
}

#[derive(Debug)]
pub struct PoolSlot<P> {
    key: CounterKey,
    rule: Arc<str>,
    pool: Mutex<P>,
    /// Whether it was dropped, so that its members no longer count. Written under the lock of the pool.
    is_gone: AtomicBool,
    /// In nanoseconds since the Unix epoch; the latest instant until the pool is first used.
    idle_at: AtomicU64,
    is_queued: AtomicBool,
}

// === impl Pools ===

impl<P: Pooled + Send + 'static> Pools<P> {
    pub fn new(max_counters: usize, runner: JobRunner) -> Self {
        Self {
            tables: (0..TABLES).map(|_| Mutex::default()).collect(),
            members: AtomicUsize::new(0),
            slots: AtomicUsize::new(0),
            max_members: (max_counters / COUNTERS_PER_MEMBER).max(MAX_MEMBERS as usize + P::SIZE),
            evicted: AtomicU64::new(0),
            runner,
            reported: Mutex::default(),
        }
    }

    /// The pool of `key`, which `make` makes if there is none.
    pub fn find(
        &self,
        key: CounterKey,
        rule: impl FnOnce() -> Box<str>,
        make: impl FnOnce() -> P,
    ) -> Arc<PoolSlot<P>> {
        {
            let table = self.tables[index(key)].lock();
            if let Some(slot) = table.find(key.hash(), |slot| slot.key == key) {
                return Arc::clone(&slot.shared);
            }
        }
        if self.is_full(self.slots.fetch_add(1, Ordering::Relaxed) + 1) {
            self.evict(key);
        }
        let mut table = self.tables[index(key)].lock();
        if let Some(slot) = table.find(key.hash(), |slot| slot.key == key) {
            // another thread was faster
            self.slots.fetch_sub(1, Ordering::Relaxed);
            return Arc::clone(&slot.shared);
        }
        let shared = Arc::new(PoolSlot {
            key,
            rule: rule().into(),
            pool: Mutex::new(make()),
            is_gone: AtomicBool::new(false),
            idle_at: AtomicU64::new(u64::MAX),
            is_queued: AtomicBool::new(false),
        });
        let slot = PoolEntry { key, shared: Arc::clone(&shared) };
        table.insert_unique(key.hash(), slot, |slot| slot.key.hash());
        shared
    }

    /// The pool is idle from the instant that `act` returns.
    pub fn with<T>(&self, slot: &Arc<PoolSlot<P>>, act: impl FnOnce(&mut P) -> (T, Timestamp)) -> T {
        let (done, has_more, is_due) = {
            let mut pool = slot.pool.lock();
            let before = pool.members();
            let (done, idle_at) = act(&mut pool);
            slot.idle_at.store(idle_at.as_nanos(), Ordering::Relaxed);
            let after = pool.members();
            // only if it changes: all pools share the number
            if after != before && !slot.is_gone.load(Ordering::Relaxed) {
                if after > before {
                    self.members.fetch_add(after - before, Ordering::Relaxed);
                } else {
                    self.members.fetch_sub(before - after, Ordering::Relaxed);
                }
            }
            (done, after > before, pool.with_rule().0.is_due())
        };
        if is_due && !slot.is_queued.swap(true, Ordering::Relaxed) {
            let slot = Arc::clone(slot);
            (self.runner.0)(Box::new(move || slot.compute_shares(Computation::run)));
        }
        if has_more && self.is_full(self.slots.load(Ordering::Relaxed)) {
            self.evict(slot.key);
        }
        done
    }

    pub fn all(&self) -> Vec<Arc<PoolSlot<P>>> {
        let all = |table: &Mutex<HashTable<PoolEntry<P>>>| {
            table.lock().iter().map(|slot| Arc::clone(&slot.shared)).collect::<Vec<_>>()
        };
        self.tables.iter().flat_map(all).collect()
    }

    fn is_full(&self, pools: usize) -> bool {
        self.members.load(Ordering::Relaxed) + pools * P::SIZE > self.max_members
    }

    /// Drops pools until the bound holds, except `kept`: of each table, those first that were used the longest ago.
    #[cold]
    fn evict(&self, kept: CounterKey) {
        for turn in 0..TABLES {
            let table = &self.tables[(index(kept) + turn) % TABLES];
            while self.is_full(self.slots.load(Ordering::Relaxed)) {
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

    /// Removes pools that nobody uses, in one of the steps of a sweep.
    pub fn sweep(&self, step: usize, now: Timestamp) {
        let mut table = self.tables[step % TABLES].lock();
        let idle = |slot: &&PoolEntry<P>| slot.shared.idle_at.load(Ordering::Relaxed) <= now.as_nanos();
        let keys: Vec<CounterKey> = table.iter().filter(idle).map(|slot| slot.key).collect();
        for key in keys {
            self.remove(&mut table, key);
        }
        if table.len() * 8 < table.capacity() {
            let room = table.len() * 2;
            table.shrink_to(room, |slot| slot.key.hash());
        }
    }

    fn remove(&self, table: &mut HashTable<PoolEntry<P>>, key: CounterKey) -> bool {
        let Ok(entry) = table.find_entry(key.hash(), |slot| slot.key == key) else { return false };
        let (slot, _) = entry.remove();
        {
            // whoever has it still uses it, but nobody else
            let mut pool = slot.shared.pool.lock();
            slot.shared.is_gone.store(true, Ordering::Relaxed);
            self.members.fetch_sub(pool.members(), Ordering::Relaxed);
            pool.end();
        }
        self.slots.fetch_sub(1, Ordering::Relaxed);
        true
    }

    pub fn summarize(&self, summary: &mut PoolSummary) {
        summary.members += self.members.load(Ordering::Relaxed);
        summary.evicted += self.evicted.load(Ordering::Relaxed);
        let mut reported = self.reported.lock();
        reported.report += 1;
        for slot in self.all() {
            let ((used, capacity), members) = {
                let mut pool = slot.pool.lock();
                (pool.with_rule().0.usage(), pool.report())
            };
            if capacity > 0 {
                let usage = summary.pools.entry(Arc::clone(&slot.rule)).or_default();
                usage[0] = usage[0].saturating_add(used.into());
                usage[1] = usage[1].saturating_add(capacity.into());
            }
            for (name, member, totals) in members {
                let series = (Arc::clone(&slot.rule), name);
                if reported.count(&series, slot.key, totals) {
                    summary.add(series, &member);
                }
            }
        }
        reported.forget_others();
        for (series, member) in &reported.members {
            summary.add_totals(series, member.totals);
        }
    }
}

// === impl Reported ===

impl Reported {
    fn count(&mut self, series: &PoolLabels, key: CounterKey, totals: [u64; 2]) -> bool {
        if !self.members.contains_key(series) {
            if self.members.len() >= MAX_REPORTED {
                return false;
            }
            self.members.insert(series.clone(), ReportedMember::default());
        }
        let Some(member) = self.members.get_mut(series) else { return false };
        let last = member.pools.insert(key, (self.report, totals)).map_or([0; 2], |(_, last)| last);
        // a pool that has forgotten the member since begins again at zero
        let has_restarted = totals.iter().zip(last).any(|(total, last)| *total < last);
        let last = if has_restarted { [0; 2] } else { last };
        for ((sum, total), last) in member.totals.iter_mut().zip(totals).zip(last) {
            *sum = sum.saturating_add(total - last);
        }
        true
    }

    fn forget_others(&mut self) {
        let current = self.report;
        self.members.retain(|_, member| {
            member.pools.retain(|_, (report, _)| *report == current);
            !member.pools.is_empty()
        });
    }
}

// === impl PoolSlot ===

impl<P: Pooled> PoolSlot<P> {
    /// While the caller has the pool locked, nobody drops it.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }

    /// The lock is held only to copy the pool and to install the shares.
    #[cold]
    pub(super) fn compute_shares(&self, run: impl Fn(&Computation) -> Shares) {
        self.is_queued.store(false, Ordering::Relaxed);
        loop {
            let begun = {
                let mut pool = self.pool.lock();
                let (pool, capacity, cycle, sharing) = pool.with_rule();
                pool.begin_shares(capacity, cycle, sharing)
            };
            let Some(computation) = begun else { return };
            let shares = run(&computation);
            self.pool.lock().with_rule().0.install(shares);
        }
    }
}

#[derive(Debug, Default)]
pub struct PoolSummary {
    members: usize,
    evicted: u64,
    /// The hits granted in the last cycle, and the capacities, by the name of the rule.
    pools: BTreeMap<Arc<str>, [u64; 2]>,
    /// Asked, share, borrowed, lent, admitted, rejected.
    series: BTreeMap<PoolLabels, [u64; 6]>,
}

// === impl PoolSummary ===

impl PoolSummary {
    #[cfg(test)]
    pub(super) const fn members(&self) -> usize {
        self.members
    }

    fn add(&mut self, series: PoolLabels, member: &MemberState) {
        let borrowed = member.allowance.saturating_sub(member.default);
        let lent = member.default.saturating_sub(member.allowance);
        let [asked, share, borrowed, lent] = [member.demand, member.allowance, borrowed, lent].map(u64::from);
        self.sum(series, [asked, share, borrowed, lent, 0, 0]);
    }

    fn add_totals(&mut self, series: &PoolLabels, [admitted, rejected]: [u64; 2]) {
        self.sum(series.clone(), [0, 0, 0, 0, admitted, rejected]);
    }

    fn sum(&mut self, series: PoolLabels, values: [u64; 6]) {
        let sums = self.series.entry(series).or_default();
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum = sum.saturating_add(value);
        }
    }

    pub(super) fn metrics(self) -> Vec<Metric> {
        let mut metrics = vec![
            Metric::gauge("weir.pools.members", "Members of all pools.", self.members as u64),
            Metric::counter(
                "weir.pools.evicted",
                "Pools dropped while they had members, because there were too many of these.",
                self.evicted,
            ),
        ];
        for (rule, [used, capacity]) in self.pools {
            let series = [
                Metric::gauge(
                    "weir.pool.used",
                    "Hits of all members that were granted in the last cycle.",
                    used,
                ),
                Metric::gauge("weir.pool.capacity", "Hits of all members in a cycle.", capacity),
            ];
            metrics.extend(series.map(|metric| metric.label("rule", &*rule)));
        }
        for ((rule, member), [asked, share, borrowed, lent, admitted, rejected]) in self.series {
            let series = [
                Metric::gauge("weir.pool.asked", "Hits that a member asked for in its last cycle.", asked),
                Metric::gauge("weir.pool.share", "Hits that a member may have in this cycle.", share),
                Metric::gauge("weir.pool.borrowed", "Hits of a share above the default.", borrowed),
                Metric::gauge("weir.pool.lent", "Hits of a share below the default.", lent),
                Metric::counter("weir.pool.admitted", "Hits of a member that were admitted.", admitted),
                Metric::counter("weir.pool.rejected", "Hits of a member that were rejected.", rejected),
            ];
            metrics.extend(series.map(|metric| metric.label("rule", &*rule).label("member", &*member)));
        }
        metrics
    }
}

fn index(key: CounterKey) -> usize {
    // any of its bits are suitable
    usize::try_from(key.shard() % TABLES as u64).unwrap_or_default()
}

/// Returns the hits that a pool counts, which counts no more.
pub fn clamped(hits: Hits) -> u32 {
    u32::try_from(hits.0).unwrap_or(u32::MAX)
}

pub fn decision_of(decided: PoolDecision, hits: Hits) -> Decision {
    let PoolDecision { is_admitted, share, before, remaining, reset } = decided;
    Decision {
        tier: 0,
        over: !is_admitted && hits > Hits(0),
        before: Hits(before.into()),
        remaining,
        reset,
        basis: Basis::Counters,
        share: Some(share),
    }
}

/// Returns the one of both decisions that is reported: the rejection with the longer wait, or the one with less left.
pub fn combined(own: Decision, beside: Option<Decision>) -> Decision {
    let Some(beside) = beside else { return own };
    let beside = Decision { tier: beside.tier + 1, ..beside };
    let is_beside = match (own.over, beside.over) {
        (true, true) => beside.reset > own.reset,
        (true, false) | (false, true) => beside.over,
        (false, false) => beside.remaining < own.remaining,
    };
    if is_beside { beside } else { own }
}
