//! The pools whose members share a capacity, in the memory of this instance.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use crate::pools::{JobRunner, PoolSummary, Pooled, Pools, clamped};
use weir_limit::{
    CounterValue, Hits, LimitCheck, Period, Timestamp,
    share::{MemberState, Pool, PoolDecision, PoolRule, Sharing},
};

/// In bytes. A longer name keeps its first bytes, and gets the key of its counter.
const MAX_NAME: usize = 256;

const SHORTENED_NAME: usize = 128;

#[derive(Debug)]
pub(super) struct MemoryPools {
    pools: Pools<MemoryPool>,
    instances: AtomicU32,
}

/// A pool, and the rule that it was asked under last.
#[derive(Debug)]
struct MemoryPool {
    pool: Pool,
    capacity: u32,
    cycle: Period,
    sharing: Arc<Sharing>,
}

pub(super) struct LockedPool<'a> {
    pool: &'a mut Pool,
    rule: PoolRule<'a>,
    member: std::borrow::Cow<'a, str>,
    now: Timestamp,
}

// === impl MemoryPools ===

impl MemoryPools {
    pub(super) fn new(max_counters: usize) -> Self {
        Self { pools: Pools::new(max_counters, JobRunner::thread()), instances: AtomicU32::new(1) }
    }

    pub(super) fn divide_between(&self, instances: usize) {
        self.instances.store(u32::try_from(instances).unwrap_or(u32::MAX).max(1), Ordering::Relaxed);
    }

    pub(super) fn with<T>(
        &self,
        check: &LimitCheck<'_>,
        now: Timestamp,
        act: impl FnOnce(&mut LockedPool<'_>) -> T,
    ) -> Option<T> {
        let (key, sharing) = (check.pool.as_deref()?, check.sharing()?);
        let tier = &check.tiers()[0];
        let instances = if check.is_local() { 1 } else { self.instances.load(Ordering::Relaxed) };
        let (capacity, cycle) = (tier.requests / instances, tier.period);
        let rule = PoolRule { capacity, cycle, sharing };
        let slot = self.pools.find(
            key.of_tier(tier),
            || check.rule.label().into(),
            || MemoryPool { pool: Pool::concurrent(), capacity, cycle, sharing: Arc::clone(sharing) },
        );
        Some(self.pools.with(&slot, |pooled| {
            pooled.capacity = capacity;
            if !Arc::ptr_eq(&pooled.sharing, sharing) {
                pooled.sharing = Arc::clone(sharing);
            }
            let mut locked = LockedPool { pool: &mut pooled.pool, rule, member: name(check), now };
            let done = act(&mut locked);
            (done, locked.pool.idle_at(&rule))
        }))
    }

    pub(super) fn sweep(&self, step: usize, now: Timestamp) {
        self.pools.sweep(step, now);
    }

    pub(super) fn summarize(&self, summary: &mut PoolSummary) {
        self.pools.summarize(summary);
    }
}

fn name<'a>(check: &'a LimitCheck<'_>) -> std::borrow::Cow<'a, str> {
    let (CounterValue::Own(name) | CounterValue::Shared(name)) = check.member();
    if name.len() <= MAX_NAME {
        return name;
    }
    let end = name.floor_char_boundary(SHORTENED_NAME);
    format!("{}%#{:016x}{:016x}", &name[..end], check.key.hash(), check.key.shard()).into()
}

impl Pooled for MemoryPool {
    const SIZE: usize = 2;

    fn members(&self) -> usize {
        self.pool.members().len()
    }

    fn report(&self) -> Vec<(Arc<str>, MemberState, [u64; 2])> {
        let members = self.pool.copied().into_iter();
        members
            .map(|(name, member)| {
                let totals = [member.admitted_in_all, member.rejected_in_all];
                (name, member, totals)
            })
            .collect()
    }

    fn with_rule(&mut self) -> (&mut Pool, u32, Period, &Arc<Sharing>) {
        (&mut self.pool, self.capacity, self.cycle, &self.sharing)
    }
}

// === impl LockedPool ===

impl LockedPool<'_> {
    /// `fit` tells whether the hits fit in the tiers beside the pool; otherwise they are rejected.
    pub(super) fn take(&mut self, hits: Hits, fit: bool) -> PoolDecision {
        self.pool.decide(&self.rule, &self.member, clamped(hits), fit, self.now)
    }

    pub(super) fn look(&mut self) -> PoolDecision {
        self.pool.look(&self.rule, &self.member, self.now)
    }

    /// Returns those of the `hits` that the member had been granted in this cycle.
    pub(super) fn give_back(&mut self, hits: Hits) -> i64 {
        self.pool.give_back(&self.rule, &self.member, clamped(hits), self.now)
    }

    /// Undoes a `change` of what the member was granted in this cycle.
    pub(super) fn undo(&mut self, change: i64) {
        self.pool.undo(&self.member, change);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::channel,
        thread,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::pools::PoolSlot;
    use weir_limit::{Entry, KeyHasher, share::Computation};

    const MEMBERS: usize = 400;
    const CAPACITY: u32 = 4_000;
    const CYCLE: Period = Period::from_secs(10);

    /// A pool of a table, and one that computes shares at once.
    struct Both {
        pools: Pools<MemoryPool>,
        slot: Arc<PoolSlot<MemoryPool>>,
        sharing: Arc<Sharing>,
        at_once: Pool,
    }

    impl Both {
        fn new(runner: JobRunner) -> Self {
            let (pools, sharing) = (Pools::new(1_000_000, runner), Arc::new(Sharing::default()));
            let (capacity, cycle) = (CAPACITY, CYCLE);
            let pool = || MemoryPool {
                pool: Pool::concurrent(),
                capacity,
                cycle,
                sharing: Arc::new(Sharing::default()),
            };
            let slot = pools.find(KeyHasher::random().key("d", &[], |_| None), || "rule".into(), pool);
            Self { pools, slot, sharing, at_once: Pool::default() }
        }

        fn decide(&self, member: &str, hits: u32, now: Timestamp) -> PoolDecision {
            let rule = PoolRule { capacity: CAPACITY, cycle: CYCLE, sharing: &self.sharing };
            self.pools.with(&self.slot, |pooled| {
                (pooled.pool.decide(&rule, member, hits, true, now), Timestamp::default())
            })
        }

        fn fill(&mut self, now: Timestamp) {
            let rule = PoolRule { capacity: CAPACITY, cycle: CYCLE, sharing: &self.sharing };
            for i in 0..MEMBERS {
                let hits = u32::try_from(i % 9).expect("small");
                let decided = self.at_once.decide(&rule, &name(i), hits, true, now);
                assert_eq!(self.decide(&name(i), hits, now).is_admitted, decided.is_admitted);
            }
        }

        fn advance(&mut self, now: Timestamp) {
            let rule = PoolRule { capacity: CAPACITY, cycle: CYCLE, sharing: &self.sharing };
            self.at_once.advance(&rule, now);
            self.pools.with(&self.slot, |pooled| (pooled.pool.advance(&rule, now), Timestamp::default()));
        }

        fn allowances(&self) -> Vec<u32> {
            self.pools.with(&self.slot, |pooled| (allowances(&pooled.pool), Timestamp::default()))
        }

        fn is_computing(&self) -> bool {
            self.pools.with(&self.slot, |pooled| (pooled.pool.is_computing(), Timestamp::default()))
        }
    }

    #[test]
    fn pools_without_members_are_bounded() {
        let keys = KeyHasher::random();
        let pools: Pools<MemoryPool> = Pools::new(1_000, JobRunner::new(drop));
        for i in 0..3_000 {
            let value = name(i);
            let key = keys.key("d", &[Entry { key: "service", value: &value }], |_| None);
            let sharing = Arc::new(Sharing::default());
            let make = || MemoryPool { pool: Pool::concurrent(), capacity: 1, cycle: CYCLE, sharing };
            let slot = pools.find(key, || "rule".into(), make);
            pools.with(&slot, |_| ((), Timestamp::default()));
        }
        let most = (1_024 + MemoryPool::SIZE) / MemoryPool::SIZE;
        assert_eq!(pools.all().len(), most);
        pools.sweep(0, start());
        assert!(pools.all().len() < most);
        for step in 1..16 {
            pools.sweep(step, start());
        }
        assert!(pools.all().is_empty());
    }

    #[test]
    fn the_members_of_a_dropped_pool_are_not_counted() {
        let mut both = Both::new(JobRunner::new(drop));
        let now = start();
        assert!(both.decide("a", 1, now).is_admitted);
        for step in 0..16 {
            both.pools.sweep(step, now);
        }
        both.fill(now);
        let members = |both: &Both| {
            let mut summary = PoolSummary::default();
            both.pools.summarize(&mut summary);
            summary.members()
        };
        assert_eq!(members(&both), 0);
        // fewer are no less than none
        let forgotten = now.after(Period::from_secs(1_000_000));
        both.advance(forgotten);
        assert_eq!(members(&both), 0);
    }

    /// Members of one name in several pools of a rule have one metric, which counts on when one of them is forgotten.
    #[test]
    fn totals_of_members_never_fall_while_they_are_reported() {
        let pools: Pools<MemoryPool> = Pools::new(1_000_000, JobRunner::new(drop));
        let (keys, sharing) = (KeyHasher::random(), Arc::new(Sharing::default()));
        let rule = PoolRule { capacity: CAPACITY, cycle: CYCLE, sharing: &sharing };
        let slot = |tenant: &str| {
            let key = keys.key("d", &[Entry { key: "tenant", value: tenant }], |_| None);
            let sharing = Arc::clone(&sharing);
            let make = || MemoryPool { pool: Pool::concurrent(), capacity: CAPACITY, cycle: CYCLE, sharing };
            pools.find(key, || "rule".into(), make)
        };
        let take = |tenant: &str, member: &str, hits: u32, now: Timestamp| {
            pools.with(&slot(tenant), |pooled| {
                let decided = pooled.pool.decide(&rule, member, hits, true, now);
                assert!(decided.is_admitted);
                ((), pooled.pool.idle_at(&rule))
            });
        };
        let admitted = || {
            let mut summary = PoolSummary::default();
            pools.summarize(&mut summary);
            let metrics = summary.metrics().into_iter().filter(|metric| metric.name == "weir.pool.admitted");
            metrics.map(|metric| (metric.labels[1].1.clone(), metric.value)).collect::<Vec<_>>()
        };
        let total = |name: &str, hits| (name.to_owned(), hits);
        take("t1", "a", 10, start());
        take("t2", "a", 5, start());
        assert_eq!(admitted(), [total("a", 15)]);
        let later = start().after(Period::from_secs(10_000));
        take("t1", "a", 1, later);
        assert_eq!(admitted(), [total("a", 16)]);
        for step in 0..16 {
            pools.sweep(step, later);
        }
        assert_eq!((pools.all().len(), admitted()), (1, vec![total("a", 16)]));
        // one that was forgotten and comes back begins again
        take("t2", "a", 2, later);
        assert_eq!(admitted(), [total("a", 18)]);
        let last = later.after(Period::from_secs(10_000));
        take("t1", "b", 3, last);
        for step in 0..16 {
            pools.sweep(step, last);
        }
        assert_eq!(admitted(), [total("b", 3)]);
        take("t1", "a", 4, last);
        assert_eq!(admitted(), [total("a", 4), total("b", 3)]);
        // those that are reported stay, whatever comes
        for i in 0..3_000 {
            take(&format!("0-{i}"), &format!("0-{i}"), 1, last);
        }
        take("t1", "a", 1, last);
        let all = admitted();
        assert!(all.contains(&total("a", 5)) && all.contains(&total("b", 3)));
        assert_eq!(all.len(), 2_000);
    }

    /// Two pools of one slot, such as one of this instance alone beside one of all, may be computed at a time.
    #[test]
    fn shares_of_other_members_are_ignored() {
        let rule = PoolRule { capacity: CAPACITY, cycle: CYCLE, sharing: &Arc::new(Sharing::default()) };
        let sharing = Arc::new(Sharing::default());
        let filled = |members: usize| {
            let mut pool = Pool::concurrent();
            for i in 0..members {
                pool.decide(&rule, &name(i), 1, true, start());
            }
            pool
        };
        let (mut many, mut few) = (filled(100), filled(40));
        let of_many = many.begin_shares(CAPACITY, CYCLE, &sharing).expect("they are due");
        let of_few = few.begin_shares(CAPACITY, CYCLE, &sharing).expect("they are due");
        let before = allowances(&few);
        few.install(of_many.run());
        assert!(few.is_computing() && allowances(&few) == before);
        few.install(of_few.run());
        assert!(!few.is_computing() && allowances(&few) != before);
        many.install(of_few.run());
        assert!(many.is_computing());
    }

    fn name(i: usize) -> String {
        format!("client-{i}")
    }

    fn allowances(pool: &Pool) -> Vec<u32> {
        (0..MEMBERS).map(|i| pool.member(&name(i)).map_or(0, |member| member.allowance)).collect()
    }

    fn start() -> Timestamp {
        Timestamp::from_secs(1_000_000)
    }

    #[test]
    fn decisions_go_on_while_shares_are_computed() {
        let mut both = Both::new(JobRunner::new(drop));
        both.fill(start());
        both.slot.compute_shares(Computation::run);
        let (begun, is_begun) = channel();
        let (go, may_go) = channel::<()>();
        let step = start().after(Period::from_millis(2_600));
        both.advance(step);
        let before = both.allowances();
        thread::scope(|scope| {
            let slot = &both.slot;
            let computing = scope.spawn(move || {
                slot.compute_shares(|computation| {
                    begun.send(()).expect("the test waits");
                    // the first time
                    let _ = may_go.recv();
                    computation.run()
                });
            });
            is_begun.recv().expect("it begins");
            let (both, before) = (&both, &before);
            let deciding = (0..4).map(|part| {
                scope.spawn(move || {
                    for i in (part..MEMBERS).step_by(4).filter(|i| i % 9 > 0) {
                        let decision = both.decide(&name(i), 1, step);
                        let granted = decision.before + u32::from(decision.is_admitted);
                        assert_eq!(decision.share, before[i].max(granted));
                    }
                })
            });
            deciding.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().expect("no panic"));
            // the default of one of 401 members
            let newcomer = both.decide("new", 1, step);
            assert_eq!((newcomer.is_admitted, newcomer.share), (true, 10));
            assert!(both.is_computing() && !computing.is_finished());
            assert_eq!(both.allowances(), *before);
            drop(go);
            computing.join().expect("no panic");
            assert!(!both.is_computing());
        });
        // what the newcomer made due was computed, too
        let rule = PoolRule { capacity: CAPACITY, cycle: CYCLE, sharing: &both.sharing };
        assert_ne!(both.allowances(), before);
        both.pools.with(&both.slot, |pooled| {
            pooled.pool.assert_invariants();
            assert_eq!(pooled.pool.member("new").map(|member| member.default), Some(10));
            ((), pooled.pool.idle_at(&rule))
        });
    }

    #[test]
    fn the_shares_of_a_step_are_the_same_beside_decisions() {
        let mut both = Both::new(JobRunner::thread());
        both.fill(start());
        for millis in [600, 5_100, 10_100, 20_200] {
            both.advance(start().after(Period::from_millis(millis)));
            let expected = allowances(&both.at_once);
            let deadline = Instant::now() + Duration::from_mins(1);
            while both.allowances() != expected {
                assert!(Instant::now() < deadline, "the shares do not come at {millis} ms");
                thread::yield_now();
            }
            both.pools.with(&both.slot, |pooled| (pooled.pool.assert_invariants(), Timestamp::default()));
        }
    }
}
