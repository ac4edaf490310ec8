//! The coordinated store: this instance's memory in front of a store that all instances share.
//!
//! Five coordination modes keep the counts together, each with its price and its bound: see `docs/coordination.md`.
//!
//! - `local`: instances do not share counts.
//! - `interval`: every instance counts by itself; counts are exchanged at an interval.
//! - `lease`: every instance reserves some of the limit in advance.
//! - `strict`: the shared store makes every decision.
//! - `split` (`split.rs`): every instance has its own part of the limit, and asks nobody.
//!
//! `auto` chooses `lease` or `interval` for each counter.
//!
//! In every mode a decision waits no longer than its budget. Past it, and while the store is unavailable,
//! `on_store_failure` decides (`fallback.rs`).
//!
//! Entries have one counter, whatever limits a reload or requests bring for them (`counter/limits.rs`).
//!
//! The modes use the table of local counters (`table/`) and the store client (`client/`); the table flushes through the
//! client. The state of one counter is in `counter/`, which is pure.

mod all_or_none;
mod buckets;
mod client;
mod counter;
mod delivery;
mod fallback;
mod link;
mod metrics;
mod modes;
mod pools;
mod reservation;
mod settings;
mod source;
mod split;
mod table;
mod target;
mod turn;
// the tests that use it need the simulated store
#[cfg(all(test, feature = "server"))]
mod test_tiers;

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use smallvec::{SmallVec, smallvec};
use tokio::task::JoinSet;

pub use metrics::CoordinationMetrics;
pub use settings::CoordinationSettings;

use self::{
    client::{AskedHits, StoreClient},
    delivery::{Delivery, Undecided},
    modes::{CoordinationModes, Step},
    pools::SharedPools,
    split::Split,
    table::{CounterTable, flush},
    turn::Turn,
};
use super::{Decisions, MemoryStore, Store, StoreError, TakeOptions, remote::Remote};
use crate::{
    clock::Clock,
    limit::{
        Coordination, Direction, Hits, LimitCheck, Period, Reservation, ReservationRequest, Scope,
        SharedCounts, Timestamp,
        line::Estimate,
        part::Place,
        request_bucket::{BucketName, BucketReply, BucketRequest},
    },
};

/// Memory in front of a shared store.
pub struct Coordinated<R: Remote> {
    modes: CoordinationModes<R>,
    /// What applies to rules that name nothing else.
    defaults: SharedCounts,
    /// The background work, which ends with the store.
    _tasks: JoinSet<()>,
}

// === impl Coordinated ===

impl<R: Remote> Coordinated<R> {
    /// Creates a store in front of `remote`, which need not be reachable yet. Must be called within a tokio runtime with
    /// time and IO, which then runs the background work.
    #[expect(clippy::needless_pass_by_value, reason = "callers make the settings for one store")]
    pub fn new(remote: R, clock: Arc<dyn Clock>, settings: CoordinationSettings) -> Self {
        let metrics = Arc::<CoordinationMetrics>::default();
        let defaults = SharedCounts {
            mode: settings.coordination,
            sync_interval: settings.sync_interval,
            on_store_failure: settings.on_store_failure,
            ..SharedCounts::default()
        };
        let client = Arc::new(StoreClient::new(remote, clock, &settings, Arc::clone(&metrics)));
        let table = Arc::new(CounterTable::new(Arc::clone(&client), &settings, Arc::clone(&metrics)));
        let mut tasks = JoinSet::new();
        tasks.spawn(flush::run(Arc::clone(&table)));
        client.start(Arc::clone(&table), &mut tasks);
        let pools = SharedPools::new(Arc::clone(&client), &settings, Arc::clone(&metrics));
        tasks.spawn(Arc::clone(&pools).sweep());
        let CoordinationSettings { budget, on_store_failure, .. } = settings;
        let modes = CoordinationModes {
            memory: MemoryStore::new(settings.max_counters),
            split: Split::new(Arc::clone(&client), on_store_failure, Arc::clone(&metrics)),
            pools,
            table,
            client,
            metrics,
            budget,
            on_store_failure,
        };
        Self { modes, defaults, _tasks: tasks }
    }

    /// Returns the metrics of coordination.
    #[must_use]
    pub fn coordination_metrics(&self) -> &CoordinationMetrics {
        &self.modes.metrics
    }

    /// Returns the counters of `local` rules. They are swept by the owner of the store.
    #[must_use]
    pub const fn memory(&self) -> &MemoryStore {
        &self.modes.memory
    }

    /// Returns the shared store.
    #[must_use]
    pub fn remote(&self) -> &R {
        self.modes.client.remote()
    }

    /// Returns the number of instances that share the store, this one included, as of the last heartbeat.
    #[must_use]
    pub fn instances(&self) -> usize {
        self.modes.client.instances()
    }

    /// Returns the number of limits of which this instance has a part that follows demand.
    #[must_use]
    pub fn limits_by_demand(&self) -> usize {
        self.modes.client.demands().told()
    }

    /// Returns whether the store, or a node of it, has stopped replying, so that no decision waits for it.
    #[must_use]
    pub fn is_store_unavailable(&self) -> bool {
        self.modes.client.is_unavailable()
    }

    /// Returns the number of counters of coordinated rules that are held in memory.
    #[must_use]
    pub fn counters(&self) -> usize {
        self.modes.table.len()
    }

    /// Returns the most counters of coordinated rules that may be held in memory.
    pub(super) fn max_counters(&self) -> usize {
        self.modes.table.max_counters()
    }

    /// Returns the bytes of the names of these counters.
    #[must_use]
    pub fn counter_name_bytes(&self) -> usize {
        self.modes.table.name_bytes()
    }

    /// Returns how far the store's clock is ahead of this instance's, in nanoseconds.
    #[must_use]
    pub fn clock_offset(&self) -> i64 {
        self.modes.client.clock_offset()
    }

    /// Reports all pending hits, returns unused leases, and deregisters this instance. Must be called after the last
    /// decision.
    pub async fn close(&self) {
        self.modes.pools.close().await;
        flush::final_flush(&self.modes.table).await;
        self.modes.client.leave().await;
    }
}

impl<R: Remote> Coordinated<R> {
    /// Decides `checks`, of which some have pools.
    async fn take_with_pools(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
        TakeOptions { record, wait, .. }: TakeOptions<'_>,
    ) -> Decisions {
        let turn = || Turn::begin(now, self.modes.budget, wait, record);
        if let [check] = checks {
            match self.modes.decide_pool_at_once(check, now, record) {
                Some(Ok(decision)) => return smallvec![decision],
                Some(Err(step)) => {
                    return smallvec![Box::pin(self.modes.finish_pool(check, step, turn())).await];
                }
                None => {}
            }
        }
        Box::pin(self.modes.take_with_pools(checks, scope, turn())).await
    }

    /// Reserves hits, and waits no longer than `budget` for the shared store.
    async fn reserve_within(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        budget: Period,
        now: Timestamp,
    ) -> Result<Reservation, StoreError> {
        if check.pool.is_some() {
            if let Some(mode) = self.modes.pool_mode(check) {
                return Ok(Box::pin(self.modes.reserve_shared(check, mode, request, now)).await);
            }
            return Ok(self.modes.memory.reserve_now(check, request, now));
        }
        let at = self.modes.client.time_at(now).now;
        match self.modes.mode(check, at) {
            Coordination::Local => return Ok(self.modes.memory.reserve_now(check, request, now)),
            Coordination::Split => {
                let asked = AskedHits { new: request.want, ..AskedHits::default() };
                return Ok(self.modes.split.reserve(&self.modes.memory, check, request, asked, now));
            }
            _ => {}
        }
        let target = self.modes.table.target(check, at);
        let reserved = if self.modes.client.is_unavailable_for(&target, at) {
            Err(Undecided { delivery: Delivery::NotApplied, late: false })
        } else {
            self.modes.reserve_in_store(check, &target, request, budget, now).await
        };
        Ok(reserved.unwrap_or_else(|undecided| {
            self.modes.record_late(check, undecided);
            self.modes.reserve_without_store(check, request, undecided.delivery, now)
        }))
    }
}

/// Returns whether two of `checks` count on the same counter, so that the second one has to see the hits of the first
/// one.
fn has_repeated(checks: &[LimitCheck<'_>]) -> bool {
    checks.iter().enumerate().any(|(i, check)| checks[..i].iter().any(|other| other.key == check.key))
}

impl<R: Remote> Store for Coordinated<R> {
    fn longest_wait(&self) -> Duration {
        self.modes.budget.into()
    }

    fn shared_counts(&self) -> SharedCounts {
        SharedCounts {
            store: Some(self.remote().shared_store()),
            instances: Some(self.instances()),
            ..self.defaults
        }
    }

    fn memory(&self) -> Option<&MemoryStore> {
        Some(self.memory())
    }

    fn lines_for(&self, check: &LimitCheck<'_>) -> Option<&MemoryStore> {
        // the counters of other modes are not in this memory alone
        let is_local = self.modes.table.requested_mode(check) == Coordination::Local;
        is_local.then(|| self.memory())
    }

    fn place(&self, check: &LimitCheck<'_>, now: Timestamp) -> Place {
        if self.modes.table.requested_mode(check) == Coordination::Split {
            // nobody else asks for this instance's part
            return Place::ALONE;
        }
        self.modes.client.place(now)
    }

    fn note_demand(&self, check: &LimitCheck<'_>, now: Timestamp) {
        if self.modes.table.requested_mode(check) == Coordination::Split {
            self.modes.split.note_demand(check, now);
        }
    }

    fn estimate(&self, check: &LimitCheck<'_>, now: Timestamp) -> Option<Estimate> {
        if self.modes.table.requested_mode(check) == Coordination::Split {
            return self.modes.split.estimate(&self.modes.memory, check, now);
        }
        let at = self.modes.client.time_at(now).now;
        let counters = self.modes.table.with_counter(check, at, |counter| counter.estimated().into());
        Some(Estimate { counters, at, part: None })
    }

    async fn reserve_for_waiters(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        patience: Period,
        now: Timestamp,
    ) -> Result<Reservation, StoreError> {
        if check.pool.is_none() && self.modes.table.requested_mode(check) == Coordination::Split {
            let asked = AskedHits { waiting: request.want, ..AskedHits::default() };
            return Ok(self.modes.split.reserve(&self.modes.memory, check, request, asked, now));
        }
        self.reserve_within(check, request, patience, now).await
    }

    async fn take_with(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
        TakeOptions { record, wait, all_quotas }: TakeOptions<'_>,
    ) -> Result<Decisions, StoreError> {
        let has_pools = checks.iter().any(|check| check.pool.is_some());
        if checks.iter().all(|check| self.modes.table.requested_mode(check) == Coordination::Local) {
            self.modes.metrics.decisions.local.add(checks.len() as u64);
            if has_pools {
                self.modes.memory.divide_pools_between(self.modes.client.instances());
            }
            if let Some(record) = record.filter(|_| !checks.is_empty()) {
                record.add_mode(Coordination::Local.name());
            }
            return Ok(self.modes.memory.decide(checks, scope, now));
        }
        if has_pools {
            return Ok(self
                .take_with_pools(checks, scope, now, TakeOptions { record, wait, all_quotas })
                .await);
        }
        let turn = || Turn::begin(now, self.modes.budget, wait, record);
        if scope == Scope::Request
            && let Some(decisions) = self.modes.split_together(checks, now, record)
        {
            return Ok(decisions);
        }
        if scope == Scope::Request {
            // boxed to keep the future of all other requests small
            return Ok(Box::pin(self.modes.take_all_or_none(checks, turn(), all_quotas)).await);
        }
        if let [check] = checks {
            let step = match self.modes.step(check, scope, now, record) {
                Step::Done(decision) | Step::Fallback(decision) => return Ok(smallvec![decision]),
                step @ Step::Wait(_) => step,
            };
            return Ok(smallvec![self.modes.finish(check, scope, step, turn()).await.decision]);
        }
        // the store carries out commands for one counter in their order
        let is_strict =
            |check: &LimitCheck<'_>| self.modes.table.requested_mode(check) == Coordination::Strict;
        // but the local cache does not know of hits that are about to be given back
        let gives_back = |check: &LimitCheck<'_>| check.direction == Direction::GiveBack;
        if has_repeated(checks) && (!checks.iter().all(is_strict) || checks.iter().any(gives_back)) {
            return Ok(Box::pin(self.modes.take_in_turn(checks, scope, turn())).await);
        }
        let steps: SmallVec<[Step; 2]> =
            checks.iter().map(|check| self.modes.step(check, scope, now, record)).collect();
        let waits = steps.iter().any(Step::waits);
        let decisions: Decisions = if waits {
            let turn = turn();
            let decisions = checks.iter().zip(steps);
            let decisions = decisions.map(|(check, step)| self.modes.finish(check, scope, step, turn));
            join_all(decisions).await.into_iter().map(|made| made.decision).collect()
        } else {
            steps.iter().filter_map(Step::decision).collect()
        };
        Ok(decisions)
    }

    async fn reserve(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Result<Reservation, StoreError> {
        self.reserve_within(check, request, self.modes.budget, now).await
    }

    async fn release(
        &self,
        check: &LimitCheck<'_>,
        reservation: Reservation,
        unused: Hits,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let at = self.modes.client.time_at(now).now;
        if let Some(mode) = self.modes.pool_mode(check) {
            let hits = unused.min(reservation.hits);
            let from = reservation.counted.from;
            Box::pin(self.modes.release_shared(check, mode, from, hits, now)).await;
            return Ok(());
        }
        if check.pool.is_some() || self.modes.mode(check, at) == Coordination::Local {
            self.modes.memory.release_now(check, reservation, unused, now);
            return Ok(());
        }
        if self.modes.mode(check, at) == Coordination::Split {
            self.modes.split.release(&self.modes.memory, check, reservation, unused, now);
            return Ok(());
        }
        let hits = unused.min(reservation.hits);
        self.modes.release_in_store(check, reservation.counted, hits, at);
        Ok(())
    }

    async fn decide_bucket(
        &self,
        name: &BucketName<'_>,
        request: &BucketRequest,
        now: Timestamp,
    ) -> Result<BucketReply, StoreError> {
        self.decide_bucket_of(name, request, now).await
    }

    async fn find_buckets(
        &self,
        name: &BucketName<'_>,
        deletes: bool,
        now: Timestamp,
    ) -> Result<Option<Period>, StoreError> {
        self.find_buckets_of(name, deletes, now).await
    }
}
