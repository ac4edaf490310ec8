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

mod alone;
mod asking;
mod breaker;
mod cell;
mod cells;
mod clock;
mod demand;
mod desk;
mod figures;
mod heartbeat;
mod lease;
mod settings;
mod strict;
mod sync;
mod target;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::{runtime::Handle, sync::Notify, task::JoinSet, time::timeout};

pub use figures::Figures;
pub use settings::Settings;

use self::{
    alone::{Told, Undecided},
    breaker::Breaker,
    cell::{Cell, negative},
    cells::Cells,
    clock::{StoreClock, StoreTime},
    desk::Desk,
};
use super::{
    MemoryStore, Store, StoreError, Takens,
    remote::{Remote, Target},
};
use crate::{
    clock::Clock,
    limit::{Ask, Coordination, CounterKey, Direction, Hits, Period, Refused, Scope, Taken, Timestamp},
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
    settings: Settings,
    /// The counters of rules that are not coordinated.
    memory: MemoryStore,
    cells: Cells,
    /// How many instances there are, this one included.
    instances: AtomicUsize,
    store_clock: StoreClock,
    breaker: Breaker,
    /// This instance has left.
    closed: AtomicBool,
    /// Cells that have something to tell, to be looked at once in an interval.
    listed: Mutex<Vec<CounterKey>>,
    /// Those of them that must tell it at once: few, so that it costs no look at all the others.
    pressing: Mutex<Vec<CounterKey>>,
    /// There are pressing cells.
    urgent: Notify,
    /// What is asked decision by decision.
    desk: Desk,
    /// The shortest interval of all rules that were met, in nanoseconds.
    shortest_interval: AtomicU64,
    /// The time that the store takes to answer, lately, in nanoseconds.
    round_trip: AtomicU64,
    figures: Figures,
}

/// A decision that was made without waiting, or what it has to wait for.
enum Step {
    Done(Taken),
    Strict,
    Lease,
}

// === impl Coordinated ===

impl<R: Remote> Coordinated<R> {
    /// A store in front of `remote`, which need not be there yet. Must be called within a tokio runtime, in which the
    /// background work then goes on.
    pub fn new(remote: R, clock: Arc<dyn Clock>, settings: Settings) -> Self {
        let inner = Arc::new(Inner {
            remote,
            background: Handle::current(),
            memory: MemoryStore::new(settings.max_counters),
            cells: Cells::new(settings.max_counters),
            instances: AtomicUsize::new(1),
            store_clock: StoreClock::default(),
            breaker: Breaker::default(),
            closed: AtomicBool::new(false),
            listed: Mutex::default(),
            pressing: Mutex::default(),
            urgent: Notify::new(),
            desk: Desk::default(),
            shortest_interval: AtomicU64::new(settings.sync_interval.as_nanos()),
            round_trip: AtomicU64::new(1_000_000),
            figures: Figures::default(),
            clock,
            settings,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(sync::run(Arc::clone(&inner)));
        tasks.spawn(heartbeat::run(Arc::clone(&inner)));
        tasks.spawn(desk::run(Arc::clone(&inner)));
        Self { inner, _tasks: tasks }
    }

    /// What the coordination tells of itself.
    #[must_use]
    pub fn figures(&self) -> &Figures {
        &self.inner.figures
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
    pub fn cells(&self) -> usize {
        self.inner.cells.len()
    }

    /// How far the store's clock is ahead of this instance's, in nanoseconds.
    #[must_use]
    pub fn clock_offset(&self) -> i64 {
        self.inner.store_clock.offset()
    }

    /// Tells the store everything that it was not told yet, gives back what was granted, and leaves. To be called when no
    /// more decisions are asked for.
    pub async fn close(&self) {
        sync::settle(&self.inner).await;
        heartbeat::leave(&self.inner).await;
    }
}

impl<R: Remote> Store for Coordinated<R> {
    async fn take(&self, asks: &[Ask<'_>], scope: Scope, now: Timestamp) -> Result<Takens, StoreError> {
        let inner = &self.inner;
        if asks.iter().all(|ask| inner.way(ask) == Coordination::Local) {
            inner.figures.local.add(asks.len() as u64);
            return Ok(inner.memory.decide(asks, scope, now));
        }
        let steps: SmallVec<[Step; 2]> = asks.iter().map(|ask| inner.step(ask, scope, now)).collect();
        let waits = steps.iter().any(|step| !matches!(step, Step::Done(_)));
        let mut takens: Takens = if waits {
            let decisions =
                asks.iter().zip(steps).map(|(ask, step)| Inner::finish(inner, ask, scope, step, now));
            join_all(decisions).await.into_iter().collect()
        } else {
            steps.into_iter().filter_map(Step::done).collect()
        };
        if scope == Scope::Request && takens.iter().any(|taken| taken.over) {
            inner.undo(asks, &mut takens, now);
        }
        Ok(takens)
    }
}

impl Step {
    fn done(self) -> Option<Taken> {
        match self {
            Self::Done(taken) => Some(taken),
            Self::Strict | Self::Lease => None,
        }
    }
}

// === impl Inner ===

impl<R: Remote> Inner<R> {
    fn way(&self, ask: &Ask<'_>) -> Coordination {
        ask.rule.way().unwrap_or(self.settings.coordination)
    }

    fn instances(&self) -> usize {
        self.instances.load(Ordering::Relaxed).max(1)
    }

    fn round_trip(&self) -> Period {
        Period::from_nanos(self.round_trip.load(Ordering::Relaxed))
    }

    /// Decides `ask`, if that can be done at once.
    fn step(self: &Arc<Self>, ask: &Ask<'_>, scope: Scope, now: Timestamp) -> Step {
        let way = self.way(ask);
        if way == Coordination::Local {
            self.figures.local.add(1);
            let taken = self.memory.decide(std::slice::from_ref(ask), Scope::Descriptor, now);
            return Step::Done(taken[0]);
        }
        let time = self.store_clock.at(now);
        if self.breaker.is_open() && self.is_cut_off(&self.target(ask, time.now), time.now) {
            let held = if way == Coordination::Lease { self.decide_by_held(ask, time) } else { None };
            return Step::Done(held.unwrap_or_else(|| self.decide_alone(ask, Told::No, time.now)));
        }
        match way {
            Coordination::Interval => Step::Done(self.decide_by_interval(ask, scope, time.now)),
            Coordination::Lease => self.decide_by_lease(ask, time).map_or(Step::Lease, Step::Done),
            _ => self.decide_by_cache(ask, time.now).map_or(Step::Strict, Step::Done),
        }
    }

    /// Waits for what a decision has to wait for, but not for longer than its budget.
    async fn finish(inner: &Arc<Self>, ask: &Ask<'_>, scope: Scope, step: Step, now: Timestamp) -> Taken {
        let decided = match step {
            Step::Done(taken) => return taken,
            Step::Strict => strict::decide(inner, ask, scope).await,
            // a lease that comes late is not lost, and no hit yet
            Step::Lease => match timeout(inner.settings.budget.into(), lease::decide(inner, ask)).await {
                Ok(decided) => decided.ok_or(Undecided { told: Told::No, late: false }),
                Err(_) => Err(Undecided { told: Told::No, late: true }),
            },
        };
        match decided {
            Ok(taken) => {
                inner.figures.waited.add(1);
                taken
            }
            Err(Undecided { told, late }) => {
                if late {
                    let at = inner.time().now;
                    let target = inner.target(ask, at);
                    inner.breaker.failed(inner.node(Some(&target), at), Some(&target));
                    inner.figures.failures.add(1);
                }
                inner.decide_alone(ask, told, inner.store_clock.at(inner.clock.now().max(now)).now)
            }
        }
    }

    /// One descriptor was over, so the others are not to count.
    fn undo(self: &Arc<Self>, asks: &[Ask<'_>], takens: &mut Takens, now: Timestamp) {
        let time = self.store_clock.at(now);
        for (ask, taken) in asks.iter().zip(takens) {
            if taken.over || ask.direction == Direction::GiveBack || ask.hits == Hits(0) {
                continue;
            }
            match self.way(ask) {
                Coordination::Local => self.memory.give_back(ask, now),
                Coordination::Lease => self.with_cell(ask, time.now, |cell| cell.unspend(ask.hits, time.now)),
                Coordination::Interval => self.with_cell(ask, time.now, |cell| {
                    cell.count(self.instances(), Direction::GiveBack, Refused::Vanish, ask.hits, time.now);
                }),
                Coordination::Strict => self.with_cell(ask, time.now, |cell| {
                    cell.owe(negative(ask.hits.0), time.now);
                }),
            }
            let left = u64::from(taken.remaining).saturating_add(ask.hits.0);
            let most = ask.tiers()[taken.tier].capacity();
            taken.remaining = u32::try_from(left).unwrap_or(u32::MAX).min(most);
        }
    }

    /// Runs `act` on the cell of `ask`, made if there is none, and puts it on the list if it then has something to tell.
    fn with_cell<T>(&self, ask: &Ask<'_>, now: Timestamp, act: impl FnOnce(&mut Cell) -> T) -> T {
        let mut shard = self.cells.lock(ask.key);
        let cell = match shard.get_mut(&ask.key) {
            Some(cell) => cell,
            None => self.new_cell(&mut shard, ask, now),
        };
        cell.meet(ask, now);
        cell.asked_at = now;
        let done = act(cell);
        self.list(ask.key, cell, now);
        done
    }

    fn new_cell<'a>(&self, shard: &'a mut cells::Shard, ask: &Ask<'_>, now: Timestamp) -> &'a mut Cell {
        if self.cells.make_room(shard) {
            self.figures.forgotten.add(1);
        }
        let interval = ask.rule.get().coordination.sync_interval.unwrap_or(self.settings.sync_interval);
        self.shortest_interval.fetch_min(interval.as_nanos(), Ordering::Relaxed);
        shard.entry(ask.key).or_insert_with(|| Box::new(Cell::new(Arc::new(Target::of(ask)), interval, now)))
    }

    /// How long the store may wait for the next word about `cell`. Only where early words are spoken may that be longer than
    /// the interval: they say when the limit is near after all. Long ones are of different lengths, up to a quarter shorter,
    /// so that what became busy together is not told of together for ever.
    fn pause(&self, key: CounterKey, cell: &Cell) -> Period {
        let (pause, interval) = (cell.sync.pause.as_nanos(), cell.sync.interval.as_nanos());
        if !self.settings.early_sync {
            return cell.sync.interval;
        }
        let shorter = pause / 4 / 256 * (key.hash() % 256);
        Period::from_nanos(pause.saturating_sub(shorter).max(interval))
    }

    /// Puts a cell on the list of those that have something to tell, at once if it must be.
    fn list(&self, key: CounterKey, cell: &mut Cell, now: Timestamp) {
        if !cell.has_unsent() {
            return;
        }
        if !cell.sync.listed {
            cell.sync.listed = true;
            cell.sync.due = now.after(self.pause(key, cell));
            self.listed.lock().push(key);
        }
        if self.settings.early_sync
            && !cell.sync.urgent
            && cell.is_urgent(self.instances(), self.round_trip(), now)
        {
            cell.sync.urgent = true;
            self.pressing.lock().push(key);
            self.urgent.notify_one();
        }
    }

    /// The store's time.
    fn time(&self) -> StoreTime {
        self.store_clock.at(self.clock.now())
    }
}
