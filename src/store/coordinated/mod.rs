//! The coordinated store: this instance's memory in front of a store that all instances share.
//!
//! Four coordination modes keep the counts together, each with its price and its bound: see `docs/coordination.md`.
//!
//! - `local`: instances do not share counts.
//! - `interval` (`interval.rs`): every instance counts by itself; counts are exchanged at an interval.
//! - `lease` (`lease.rs`): every instance reserves some of the limit in advance.
//! - `strict` (`strict.rs`): the shared store makes every decision.
//!
//! In every mode a decision waits no longer than its budget. Past it, and while the store is unavailable,
//! `on_store_failure` decides (`fallback.rs`).
//!
//! The modes use the table of local counters (`table/`) and the store client (`client/`); the table flushes through the client. The state of
//! one counter is in `counter/`, which is pure.

mod all_or_none;
mod client;
mod counter;
mod delivery;
mod fallback;
mod interval;
mod lease;
mod metrics;
mod reservation;
mod settings;
mod source;
mod store_time;
mod strict;
mod table;
mod target;

use std::sync::Arc;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::{task::JoinSet, time::timeout};

pub use metrics::CoordinationMetrics;
pub use settings::CoordinationSettings;

use self::{
    all_or_none::{Counted, Made},
    client::StoreClient,
    delivery::{Delivery, Undecided},
    fallback::Fallback,
    interval::Interval,
    lease::Lease,
    reservation::Reservations,
    strict::{Prepared, Strict},
    table::{CounterTable, flush},
};
use super::{
    Decisions, MemoryStore, Store, StoreError,
    remote::{Remote, Target},
};
use crate::{
    clock::Clock,
    limit::{
        Coordination, Decision, Hits, LimitCheck, Period, Reservation, ReservationRequest, Scope, Timestamp,
    },
};

/// Memory in front of a shared store.
pub struct Coordinated<R: Remote> {
    /// The counters of `local` rules.
    memory: MemoryStore,
    table: Arc<CounterTable<R>>,
    client: Arc<StoreClient<R>>,
    interval: Interval<R>,
    lease: Lease<R>,
    strict: Strict<R>,
    fallback: Fallback<R>,
    reservations: Reservations<R>,
    metrics: Arc<CoordinationMetrics>,
    /// The longest that a decision waits for the store.
    budget: Period,
    /// The background work, which ends with the store.
    _tasks: JoinSet<()>,
}

/// A decision that needed no wait, or the mode that has to wait for the store.
enum Step {
    Done(Decision),
    /// Done without the store, which is unavailable.
    Fallback(Decision),
    Strict(Arc<Target>),
    Lease,
}

// === impl Coordinated ===

impl<R: Remote> Coordinated<R> {
    /// Creates a store in front of `remote`, which need not be reachable yet. Must be called within a tokio runtime, which
    /// then runs the background work.
    #[expect(clippy::needless_pass_by_value, reason = "callers make the settings for one store")]
    pub fn new(remote: R, clock: Arc<dyn Clock>, settings: CoordinationSettings) -> Self {
        let metrics = Arc::<CoordinationMetrics>::default();
        let client = Arc::new(StoreClient::new(remote, clock, &settings, Arc::clone(&metrics)));
        let table = Arc::new(CounterTable::new(Arc::clone(&client), &settings, Arc::clone(&metrics)));
        let mut tasks = JoinSet::new();
        tasks.spawn(flush::run(Arc::clone(&table)));
        client.start(&mut tasks);
        let CoordinationSettings { budget, local_cache, on_store_failure, .. } = settings;
        let shared = || (Arc::clone(&table), Arc::clone(&client));
        Self {
            memory: MemoryStore::new(settings.max_counters),
            interval: Interval::new(shared()),
            lease: Lease::new(shared()),
            strict: Strict::new(shared(), budget, local_cache),
            fallback: Fallback::new(shared(), on_store_failure),
            reservations: Reservations::new(shared(), budget),
            table,
            client,
            metrics,
            budget,
            _tasks: tasks,
        }
    }

    /// Returns the metrics of coordination.
    #[must_use]
    pub fn coordination_metrics(&self) -> &CoordinationMetrics {
        &self.metrics
    }

    /// Returns the counters of `local` rules. They are swept by the owner of the store.
    #[must_use]
    pub const fn memory(&self) -> &MemoryStore {
        &self.memory
    }

    /// Returns the shared store.
    #[must_use]
    pub fn remote(&self) -> &R {
        self.client.remote()
    }

    /// Returns the number of instances that share the store, this one included, as of the last heartbeat.
    #[must_use]
    pub fn instances(&self) -> usize {
        self.client.instances()
    }

    /// Returns whether the store, or a node of it, has stopped replying, so that no decision waits for it.
    #[must_use]
    pub fn is_store_unavailable(&self) -> bool {
        self.client.is_unavailable()
    }

    /// Returns the number of counters of coordinated rules that are held in memory.
    #[must_use]
    pub fn counters(&self) -> usize {
        self.table.len()
    }

    /// Returns how far the store's clock is ahead of this instance's, in nanoseconds.
    #[must_use]
    pub fn clock_offset(&self) -> i64 {
        self.client.clock_offset()
    }

    /// Reports all pending hits, returns unused leases, and deregisters this instance. Must be called after the last
    /// decision.
    pub async fn close(&self) {
        flush::final_flush(&self.table).await;
        self.client.leave().await;
    }

    /// Decides `check`, if that needs no wait.
    fn step(&self, check: &LimitCheck<'_>, scope: Scope, now: Timestamp) -> Step {
        let mut mode = self.table.requested_mode(check);
        let time = self.client.time_at(now);
        if mode != Coordination::Local && self.client.is_unavailable() {
            let (target, supported) = self.table.target_and_mode(check, time.now);
            mode = supported;
            if mode != Coordination::Local && self.client.is_unavailable_for(&target, time.now) {
                let held =
                    if mode == Coordination::Lease { self.lease.decide_from_held(check, time) } else { None };
                return held.map_or_else(
                    || Step::Fallback(self.fallback.decide(check, Delivery::NotApplied, time.now)),
                    Step::Done,
                );
            }
        }
        loop {
            let step = match mode {
                Coordination::Local => Ok(Step::Done(self.decide_locally(check, scope, now))),
                Coordination::Interval => self.interval.decide(check, scope, time.now).map(Step::Done),
                Coordination::Lease => self
                    .lease
                    .decide_at_once(check, time)
                    .map(|decision| decision.map_or(Step::Lease, Step::Done)),
                Coordination::Strict => self.strict.prepare(check, time.now).map(|prepared| match prepared {
                    Prepared::Rejected(decision) => Step::Done(decision),
                    Prepared::Send(target) => Step::Strict(target),
                }),
            };
            match step {
                Ok(step) => return step,
                // the store does not support the requested mode
                Err(supported) => mode = supported,
            }
        }
    }

    fn decide_locally(&self, check: &LimitCheck<'_>, scope: Scope, now: Timestamp) -> Decision {
        self.metrics.local.add(1);
        self.memory.decide(std::slice::from_ref(check), scope, now)[0]
    }

    /// Returns the coordination mode of `check`: the requested one, or the nearest that the store supports.
    fn mode(&self, check: &LimitCheck<'_>, now: Timestamp) -> Coordination {
        match self.table.requested_mode(check) {
            Coordination::Local => Coordination::Local,
            _ => self.table.target_and_mode(check, now).1,
        }
    }

    /// Completes `step`, which waits no longer than the budget.
    async fn finish(&self, check: &LimitCheck<'_>, scope: Scope, step: Step, now: Timestamp) -> Made {
        let at = self.client.time_at(now).now;
        let decided = match step {
            Step::Done(decision) => return Made { decision, counted: Counted::ByMode, at },
            Step::Fallback(decision) => {
                return Made { decision, counted: Counted::ByFallback(Delivery::NotApplied), at };
            }
            Step::Strict(target) => self.strict.decide(check, target, scope).await,
            // a lease that arrives late is not lost, and no hit has been counted
            Step::Lease => match timeout(self.budget.into(), self.lease.decide(check)).await {
                Ok(Some(decision)) => Ok((decision, self.client.time().now)),
                Ok(None) => Err(Undecided { delivery: Delivery::NotApplied, late: false }),
                Err(_) => Err(Undecided { delivery: Delivery::NotApplied, late: true }),
            },
        };
        match decided {
            Ok((decision, at)) => {
                self.metrics.waited.add(1);
                Made { decision, counted: Counted::ByMode, at }
            }
            Err(undecided) => {
                self.record_late(check, undecided);
                let (delivery, at) = (undecided.delivery, self.client.time_since(now).now);
                let decision = self.fallback.decide(check, delivery, at);
                Made { decision, counted: Counted::ByFallback(delivery), at }
            }
        }
    }

    fn record_late(&self, check: &LimitCheck<'_>, undecided: Undecided) {
        if undecided.late {
            let at = self.client.time().now;
            self.client.record_late_decision(&self.table.target(check, at), at);
        }
    }
}

impl<R: Remote> Store for Coordinated<R> {
    async fn take(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
    ) -> Result<Decisions, StoreError> {
        if checks.iter().all(|check| self.table.requested_mode(check) == Coordination::Local) {
            self.metrics.local.add(checks.len() as u64);
            return Ok(self.memory.decide(checks, scope, now));
        }
        if scope == Scope::Request {
            // boxed to keep the future of all other requests small
            return Ok(Box::pin(self.take_all_or_none(checks, now)).await);
        }
        let steps: SmallVec<[Step; 2]> = checks.iter().map(|check| self.step(check, scope, now)).collect();
        let waits = steps.iter().any(|step| matches!(step, Step::Strict(_) | Step::Lease));
        let decisions: Decisions = if waits {
            let decisions =
                checks.iter().zip(steps).map(|(check, step)| self.finish(check, scope, step, now));
            join_all(decisions).await.into_iter().map(|made| made.decision).collect()
        } else {
            steps.into_iter().filter_map(Step::done).collect()
        };
        Ok(decisions)
    }

    async fn reserve(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Result<Reservation, StoreError> {
        let at = self.client.time_at(now).now;
        if self.mode(check, at) == Coordination::Local {
            return Ok(self.memory.reserve_now(check, request, now));
        }
        let target = self.table.target(check, at);
        let reserved = if self.client.is_unavailable_for(&target, at) {
            Err(Undecided { delivery: Delivery::NotApplied, late: false })
        } else {
            self.reservations.reserve(check, target, request, now).await
        };
        Ok(reserved.unwrap_or_else(|undecided| {
            self.record_late(check, undecided);
            self.fallback.reserve(check, request, undecided.delivery, now)
        }))
    }

    async fn release(
        &self,
        check: &LimitCheck<'_>,
        reservation: Reservation,
        unused: Hits,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let at = self.client.time_at(now).now;
        if self.mode(check, at) == Coordination::Local {
            self.memory.release_now(check, reservation, unused, now);
            return Ok(());
        }
        let hits = unused.min(reservation.hits);
        self.reservations.release(check, reservation.counted, hits, at);
        Ok(())
    }
}

// === impl Step ===

impl Step {
    fn done(self) -> Option<Decision> {
        match self {
            Self::Done(decision) | Self::Fallback(decision) => Some(decision),
            Self::Strict(_) | Self::Lease => None,
        }
    }
}
