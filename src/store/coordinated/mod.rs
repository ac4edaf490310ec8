//! The store of many instances: this instance's memory in front of a store that they share.
//!
//! Four ways of keeping the counts together, each with its price and its bound: see `docs/coordination.md`.
//!
//! - `local`: not at all.
//! - `interval` (`sync.rs`): every instance counts by itself, and at an interval they tell each other.
//! - `lease` (`lease.rs`): every instance takes some of the limit in advance.
//! - `strict` (`strict.rs`): every decision is the store's.
//!
//! Whatever the way, a decision never waits for longer than its budget; past it, and while the store is known not to
//! answer (`breaker.rs`), `on_store_failure` decides (`alone.rs`).

mod batcher;
mod breaker;
mod client;
mod clock;
mod counter;
mod demand;
mod fallback;
mod flush;
mod heartbeat;
mod lease;
mod metrics;
mod reservation;
mod settings;
mod strict;
mod table;
mod target;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::{runtime::Handle, sync::Notify, task::JoinSet, time::timeout};

pub use metrics::CoordinationMetrics;
pub use settings::CoordinationSettings;

use self::{
    batcher::Batcher,
    breaker::Breaker,
    clock::{StoreClock, StoreTime},
    counter::{LocalCounter, negative},
    fallback::{Told, Undecided},
    table::CounterTable,
};
use super::{
    Decisions, MemoryStore, Store, StoreError,
    remote::{Remote, Target},
};
use crate::{
    clock::Clock,
    limit::{
        Coordination, CounterKey, Decision, Direction, Hits, LimitCheck, OverLimitPolicy, Period,
        Reservation, ReservationRequest, Scope, Timestamp,
    },
};

/// Memory in front of a shared store.
pub struct Coordinated<R: Remote> {
    inner: Arc<Inner<R>>,
    /// What goes on in the background; it ends with the store.
    _tasks: JoinSet<()>,
}

/// What decisions and background share.
struct Inner<R> {
    remote: R,
    /// Where the background work goes on: decisions are made on threads that may end sooner.
    background: Handle,
    clock: Arc<dyn Clock>,
    settings: CoordinationSettings,
    /// The counters of rules that are not coordinated.
    memory: MemoryStore,
    counters: CounterTable,
    /// How many instances there are, this one included.
    instances: AtomicUsize,
    store_clock: StoreClock,
    breaker: Breaker,
    /// This instance has left.
    closed: AtomicBool,
    /// CounterTable that have something to tell, to be looked at once in an interval.
    listed: Mutex<Vec<CounterKey>>,
    /// Those of them that must tell it at once: few, so that it costs no look at all the others.
    pressing: Mutex<Vec<CounterKey>>,
    /// There are pressing cells.
    urgent: Notify,
    /// What is asked decision by decision.
    batcher: Batcher,
    /// The shortest interval of all rules that were met, in nanoseconds.
    shortest_interval: AtomicU64,
    /// The time that the store takes to answer, lately, in nanoseconds.
    round_trip: AtomicU64,
    metrics: CoordinationMetrics,
}

/// A decision that was made without waiting, or what it has to wait for.
enum Step {
    Done(Decision),
    Strict,
    Lease,
}

// === impl Coordinated ===

impl<R: Remote> Coordinated<R> {
    /// A store in front of `remote`, which need not be there yet. Must be called within a tokio runtime, in which the
    /// background work then goes on.
    pub fn new(remote: R, clock: Arc<dyn Clock>, settings: CoordinationSettings) -> Self {
        let inner = Arc::new(Inner {
            remote,
            background: Handle::current(),
            memory: MemoryStore::new(settings.max_counters),
            counters: CounterTable::new(settings.max_counters),
            instances: AtomicUsize::new(1),
            store_clock: StoreClock::default(),
            breaker: Breaker::default(),
            closed: AtomicBool::new(false),
            listed: Mutex::default(),
            pressing: Mutex::default(),
            urgent: Notify::new(),
            batcher: Batcher::default(),
            shortest_interval: AtomicU64::new(settings.sync_interval.as_nanos()),
            round_trip: AtomicU64::new(1_000_000),
            metrics: CoordinationMetrics::default(),
            clock,
            settings,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(flush::run(Arc::clone(&inner)));
        tasks.spawn(heartbeat::run(Arc::clone(&inner)));
        tasks.spawn(batcher::run(Arc::clone(&inner)));
        Self { inner, _tasks: tasks }
    }

    /// What the coordination tells of itself.
    #[must_use]
    pub fn coordination_metrics(&self) -> &CoordinationMetrics {
        &self.inner.metrics
    }

    /// The counters of rules that are not coordinated. Whoever made the store has it swept.
    #[must_use]
    pub fn memory(&self) -> &MemoryStore {
        &self.inner.memory
    }

    /// The shared store.
    #[must_use]
    pub fn remote(&self) -> &R {
        &self.inner.remote
    }

    /// How many instances there are, this one included, as far as is known.
    #[must_use]
    pub fn instances(&self) -> usize {
        self.inner.instances()
    }

    /// Whether the store, or a part of it, is taken not to answer, so that nobody waits for it.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.inner.breaker.is_open()
    }

    /// Counters of coordinated rules that are held.
    #[must_use]
    pub fn counters(&self) -> usize {
        self.inner.counters.len()
    }

    /// How far the store's clock is ahead of this instance's, in nanoseconds.
    #[must_use]
    pub fn clock_offset(&self) -> i64 {
        self.inner.store_clock.offset()
    }

    /// Tells the store everything that it was not told yet, gives back what was granted, and leaves. To be called when no
    /// more decisions are asked for.
    pub async fn close(&self) {
        flush::settle(&self.inner).await;
        heartbeat::leave(&self.inner).await;
    }
}

impl<R: Remote> Store for Coordinated<R> {
    async fn take(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
    ) -> Result<Decisions, StoreError> {
        let inner = &self.inner;
        if checks.iter().all(|check| inner.coordination(check) == Coordination::Local) {
            inner.metrics.local.add(checks.len() as u64);
            return Ok(inner.memory.decide(checks, scope, now));
        }
        let steps: SmallVec<[Step; 2]> = checks.iter().map(|check| inner.step(check, scope, now)).collect();
        let waits = steps.iter().any(|step| !matches!(step, Step::Done(_)));
        let mut decisions: Decisions = if waits {
            let decisions =
                checks.iter().zip(steps).map(|(check, step)| Inner::finish(inner, check, scope, step, now));
            join_all(decisions).await.into_iter().collect()
        } else {
            steps.into_iter().filter_map(Step::done).collect()
        };
        if scope == Scope::Request && decisions.iter().any(|decision| decision.over) {
            inner.undo(checks, &mut decisions, now);
        }
        Ok(decisions)
    }

    async fn reserve(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Result<Reservation, StoreError> {
        match self.inner.coordination(check) {
            Coordination::Local => Ok(self.inner.memory.reserve_now(check, request, now)),
            _ => self.inner.reserve(check, request).await,
        }
    }

    async fn release(
        &self,
        check: &LimitCheck<'_>,
        reservation: Reservation,
        unused: Hits,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        if self.inner.coordination(check) == Coordination::Local {
            self.inner.memory.release_now(check, reservation, unused, now);
            return Ok(());
        }
        let hits = unused.min(reservation.hits);
        if hits == Hits(0) {
            return Ok(());
        }
        self.inner.release(check, reservation.counted, hits).await
    }
}

impl Step {
    fn done(self) -> Option<Decision> {
        match self {
            Self::Done(decision) => Some(decision),
            Self::Strict | Self::Lease => None,
        }
    }
}

// === impl Inner ===

impl<R: Remote> Inner<R> {
    fn coordination(&self, check: &LimitCheck<'_>) -> Coordination {
        check.rule.coordination().unwrap_or(self.settings.coordination)
    }

    fn instances(&self) -> usize {
        self.instances.load(Ordering::Relaxed).max(1)
    }

    fn round_trip(&self) -> Period {
        Period::from_nanos(self.round_trip.load(Ordering::Relaxed))
    }

    /// Decides `ask`, if that can be done at once.
    fn step(self: &Arc<Self>, check: &LimitCheck<'_>, scope: Scope, now: Timestamp) -> Step {
        let coordination = self.coordination(check);
        if coordination == Coordination::Local {
            self.metrics.local.add(1);
            let decision = self.memory.decide(std::slice::from_ref(check), Scope::Descriptor, now);
            return Step::Done(decision[0]);
        }
        let time = self.store_clock.at(now);
        if self.breaker.is_open() && self.is_cut_off(&self.target(check, time.now), time.now) {
            let held =
                if coordination == Coordination::Lease { self.decide_by_held(check, time) } else { None };
            return Step::Done(held.unwrap_or_else(|| self.decide_by_fallback(check, Told::No, time.now)));
        }
        match coordination {
            Coordination::Interval => Step::Done(self.decide_by_interval(check, scope, time.now)),
            Coordination::Lease => self.decide_by_lease(check, time).map_or(Step::Lease, Step::Done),
            _ => self.decide_by_cache(check, time.now).map_or(Step::Strict, Step::Done),
        }
    }

    /// Waits for what a decision has to wait for, but not for longer than its budget.
    async fn finish(
        inner: &Arc<Self>,
        check: &LimitCheck<'_>,
        scope: Scope,
        step: Step,
        now: Timestamp,
    ) -> Decision {
        let decided = match step {
            Step::Done(decision) => return decision,
            Step::Strict => strict::decide(inner, check, scope).await,
            // a lease that comes late is not lost, and no hit yet
            Step::Lease => match timeout(inner.settings.budget.into(), lease::decide(inner, check)).await {
                Ok(decided) => decided.ok_or(Undecided { told: Told::No, late: false }),
                Err(_) => Err(Undecided { told: Told::No, late: true }),
            },
        };
        match decided {
            Ok(decision) => {
                inner.metrics.waited.add(1);
                decision
            }
            Err(Undecided { told, late }) => {
                if late {
                    let at = inner.time().now;
                    let target = inner.target(check, at);
                    inner.breaker.failed(inner.node(Some(&target), at), Some(&target));
                    inner.metrics.failures.add(1);
                }
                inner.decide_by_fallback(check, told, inner.store_clock.at(inner.clock.now().max(now)).now)
            }
        }
    }

    /// One descriptor was over, so the others are not to count.
    fn undo(self: &Arc<Self>, checks: &[LimitCheck<'_>], decisions: &mut Decisions, now: Timestamp) {
        let time = self.store_clock.at(now);
        for (check, decision) in checks.iter().zip(decisions) {
            if decision.over || check.direction == Direction::GiveBack || check.hits == Hits(0) {
                continue;
            }
            match self.coordination(check) {
                Coordination::Local => self.memory.give_back(check, now),
                Coordination::Lease => {
                    self.with_counter(check, time.now, |counter| counter.unspend(check.hits, time.now))
                }
                Coordination::Interval => self.with_counter(check, time.now, |counter| {
                    counter.count(
                        self.instances(),
                        Direction::GiveBack,
                        OverLimitPolicy::Ignore,
                        check.hits,
                        time.now,
                    );
                }),
                Coordination::Strict => self.with_counter(check, time.now, |counter| {
                    counter.owe(negative(check.hits.0), time.now);
                }),
            }
            let left = u64::from(decision.remaining).saturating_add(check.hits.0);
            let most = check.tiers()[decision.tier].capacity();
            decision.remaining = u32::try_from(left).unwrap_or(u32::MAX).min(most);
        }
    }

    /// Runs `act` on the cell of `ask`, made if there is none, and puts it on the list if it then has something to tell.
    fn with_counter<T>(
        &self,
        check: &LimitCheck<'_>,
        now: Timestamp,
        act: impl FnOnce(&mut LocalCounter) -> T,
    ) -> T {
        let mut shard = self.counters.lock(check.key);
        let counter = match shard.get_mut(&check.key) {
            Some(counter) => counter,
            None => self.new_counter(&mut shard, check, now),
        };
        counter.meet(check, now);
        counter.asked_at = now;
        let done = act(counter);
        self.list(check.key, counter, now);
        done
    }

    fn new_counter<'a>(
        &self,
        shard: &'a mut table::Shard,
        check: &LimitCheck<'_>,
        now: Timestamp,
    ) -> &'a mut LocalCounter {
        if self.counters.make_room(shard) {
            self.metrics.forgotten.add(1);
        }
        let interval = check.rule.get().coordination.sync_interval.unwrap_or(self.settings.sync_interval);
        self.shortest_interval.fetch_min(interval.as_nanos(), Ordering::Relaxed);
        shard
            .entry(check.key)
            .or_insert_with(|| Box::new(LocalCounter::new(Arc::new(Target::of(check)), interval, now)))
    }

    /// How long the store may wait for the next word about `cell`. Only where early words are spoken may that be longer than
    /// the interval: they say when the limit is near after all. Long ones are of different lengths, up to a quarter shorter,
    /// so that what became busy together is not told of together for ever.
    fn pause(&self, key: CounterKey, counter: &LocalCounter) -> Period {
        let (pause, interval) = (counter.sync.pause.as_nanos(), counter.sync.interval.as_nanos());
        if !self.settings.early_sync {
            return counter.sync.interval;
        }
        let shorter = pause / 4 / 256 * (key.hash() % 256);
        Period::from_nanos(pause.saturating_sub(shorter).max(interval))
    }

    /// Puts a cell on the list of those that have something to tell, at once if it must be.
    fn list(&self, key: CounterKey, counter: &mut LocalCounter, now: Timestamp) {
        if !counter.has_unsent() {
            return;
        }
        if !counter.sync.listed {
            counter.sync.listed = true;
            counter.sync.due = now.after(self.pause(key, counter));
            self.listed.lock().push(key);
        }
        if self.settings.early_sync
            && !counter.sync.urgent
            && counter.is_urgent(self.instances(), self.round_trip(), now)
        {
            counter.sync.urgent = true;
            self.pressing.lock().push(key);
            self.urgent.notify_one();
        }
    }

    /// The store's time.
    fn time(&self) -> StoreTime {
        self.store_clock.at(self.clock.now())
    }
}
