//! Decisions of the store on disk.

use std::{sync::Arc, thread::JoinHandle, time::Duration};

use parking_lot::Mutex;
use tokio::time::timeout;

use super::{
    data_dir::{DataDir, OpenData},
    error::DiskError,
    expiry::Expiry,
    maintenance::Maintenance,
    merge::RETRY,
    notes::{Changed, DiskNotes},
    reader::Readers,
    record,
    settings::{DiskSettings, DiskSync},
    shared::{Pins, Shared, duration},
    writer::{self, Writer, report_lost},
};
use crate::{
    clock::Clock,
    limit::{
        Decision, Direction, Hits, LimitCheck, OnStoreFailure, OverLimitPolicy, Reservation,
        ReservationRequest, ReservedSpan, Scope, Timestamp,
    },
    observe::{Metric, Source},
    store::{Decisions, MemoryStore, Store, StoreError, pools::PoolSummary},
};

/// Counters in memory and on this instance's disk.
pub struct DiskStore {
    shared: Arc<Shared>,
    readers: Readers,
    writer: Mutex<Option<JoinHandle<()>>>,
}

// === impl DiskStore ===

impl DiskStore {
    /// Opens the data, or creates them, and starts the threads that read and write.
    ///
    /// # Errors
    ///
    /// Returns an error if the directory is in use, was written by a newer version, cannot be read or written, or if its files are
    /// damaged and the settings say that this must not be passed over.
    pub fn open(settings: DiskSettings, clock: Arc<dyn Clock>) -> Result<Self, DiskError> {
        let dir = DataDir::open_or_create(&settings.dir)?;
        let expiry = Arc::<Expiry>::default();
        let data = dir.open_data(&expiry, settings.on_damage, clock.now())?;
        let OpenData { engine, mut progress, last_batch, lost } = data;
        report_lost(&lost);
        if !lost.is_empty() {
            // from now on this is what must be there
            progress.record(last_batch, last_batch)?;
        }
        let shared = Arc::new(Shared::new(settings, engine, expiry, clock));
        shared.metrics.damaged.add(lost.len() as u64);
        shared.expiry.set_now(shared.seconds());
        let maintenance = Maintenance::start(&shared, &dir.engine_dir())?;
        let readers = Readers::start(&shared)?;
        let writer = Writer::new(Arc::clone(&shared), dir, progress, last_batch, maintenance);
        let writer = Mutex::new(Some(writer::start(writer)?));
        Ok(Self { shared, readers, writer })
    }

    /// Returns the counters in memory. They are swept by the owner of the store.
    #[must_use]
    pub fn memory(&self) -> &MemoryStore<DiskNotes> {
        &self.shared.memory
    }

    /// Writes and syncs all changes, and closes the data. Must be called after the last decision.
    pub async fn close(&self) {
        self.shared.stop();
        let mut finished = self.shared.finished.subscribe();
        // the writer drops nothing before it ends, so wait for its thread without blocking others
        while self.writer.lock().as_ref().is_some_and(|writer| !writer.is_finished()) {
            let _ = timeout(Duration::from_millis(5), finished.changed()).await;
        }
        self.join();
    }

    fn join(&self) {
        self.readers.stop();
        if let Some(writer) = self.writer.lock().take() {
            let _ = writer.join();
        }
    }

    /// Makes the decisions once the counters that are not in memory have been read, or without the disk if that takes too long.
    async fn take_unknown(&self, checks: &[LimitCheck<'_>], scope: Scope, now: Timestamp) -> Decisions {
        if let Some(_pins) = self.read(checks).await {
            return self.shared.memory.decide(checks, scope, now);
        }
        let memory = &self.shared.memory;
        let unknown = |check: &LimitCheck<'_>| !memory.is_known(check);
        self.shared.metrics.fallback.add(checks.iter().filter(|check| unknown(check)).count() as u64);
        if scope == Scope::Request {
            let denies = |check: &LimitCheck<'_>| self.policy(check) == OnStoreFailure::Deny && takes(check);
            if !checks.iter().any(|check| unknown(check) && denies(check)) {
                return memory.decide(checks, scope, now);
            }
            let decide = |check: &LimitCheck<'_>| {
                if unknown(check) && denies(check) { rejection() } else { memory.glance(check, now) }
            };
            return checks.iter().map(decide).collect();
        }
        let decide = |check: &LimitCheck<'_>| match self.policy(check) {
            OnStoreFailure::Deny if unknown(check) && takes(check) => rejection(),
            OnStoreFailure::Allow if unknown(check) && takes(check) => memory.admit(check, now),
            _ => memory.decide_one(check, scope, now),
        };
        checks.iter().map(decide).collect()
    }

    /// Reads those counters of `checks` that are not in memory. Returns what keeps all of them there, or none if they could not
    /// be read in time.
    async fn read(&self, checks: &[LimitCheck<'_>]) -> Option<Pins> {
        if self.shared.memory.is_crowded() && self.shared.metrics.available.get() == 1 {
            // new counters come faster than changed ones are written
            let round = self.shared.request_round();
            let mut finished = self.shared.finished.subscribe();
            self.within_budget(finished.wait_for(|finished| *finished >= round)).await;
        }
        let mut counters = Vec::new();
        let mut known = Pins { shared: Arc::clone(&self.shared), keys: Vec::new() };
        let counted = checks.iter().flat_map(|check| check.own_tiers().iter().map(move |tier| (check, tier)));
        for (check, tier) in counted {
            let key = check.key.of_tier(tier);
            let pinned = self.shared.memory.with_slot(key, |slot| slot.map(|slot| slot.notes.pins += 1));
            if pinned.is_some() {
                known.keys.push(key);
            } else {
                counters.push(Changed { key, name: record::key(check, tier), tier: tier.clone() });
            }
        }
        let read = self.readers.read(counters)?;
        let mut pins = self.within_budget(read).await?.ok().flatten()?;
        pins.keys.append(&mut known.keys);
        Some(pins)
    }

    /// Waits until `decisions` are on disk, if they must be. Past the decision budget `on_store_failure` decides; the hits count.
    async fn synced(&self, checks: &[LimitCheck<'_>], mut decisions: Decisions) -> Decisions {
        let counts = |(check, decision): (&LimitCheck<'_>, &Decision)| {
            check.hits > Hits(0) && (!decision.over || check.over_limit_policy() == OverLimitPolicy::Count)
        };
        if !checks.iter().zip(&decisions).any(counts) {
            return decisions;
        }
        let round = self.shared.request_round();
        let mut finished = self.shared.finished.subscribe();
        let wait = finished.wait_for(|finished| *finished >= round);
        if self.within_budget(wait).await.is_some_and(|waited| waited.is_ok()) {
            return decisions;
        }
        self.shared.metrics.fallback.add(decisions.len() as u64);
        for (check, decision) in checks.iter().zip(&mut decisions).filter(|(check, _)| takes(check)) {
            match self.policy(check) {
                OnStoreFailure::Local => {}
                OnStoreFailure::Allow => decision.over = false,
                OnStoreFailure::Deny => *decision = Decision { before: decision.before, ..rejection() },
            }
        }
        decisions
    }

    /// Waits for `what`, at most for the decision budget.
    async fn within_budget<T>(&self, what: impl Future<Output = T>) -> Option<T> {
        let budget = duration(self.shared.settings.budget);
        if budget.is_zero() { None } else { timeout(budget, what).await.ok() }
    }

    fn is_synced_first(&self) -> bool {
        self.shared.settings.sync == DiskSync::Always
    }

    fn policy(&self, check: &LimitCheck<'_>) -> OnStoreFailure {
        let declared = check.rule.declared().and_then(|rule| rule.coordination.on_store_failure);
        declared.unwrap_or(self.shared.settings.on_store_failure)
    }
}

fn takes(check: &LimitCheck<'_>) -> bool {
    check.direction == Direction::Take
}

/// Returns a rejection that is made without the disk.
fn rejection() -> Decision {
    Decision {
        tier: 0,
        over: true,
        before: Hits(0),
        remaining: 0,
        reset: RETRY,
        cached: false,
        share: None,
    }
}

impl Store for DiskStore {
    async fn take(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
    ) -> Result<Decisions, StoreError> {
        let decisions = match self.shared.memory.decide_known(checks, scope, now) {
            Some(decisions) => decisions,
            // boxed to keep the future of all other requests small
            None => Box::pin(self.take_unknown(checks, scope, now)).await,
        };
        if self.is_synced_first() {
            return Ok(Box::pin(self.synced(checks, decisions)).await);
        }
        Ok(decisions)
    }

    async fn reserve(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Result<Reservation, StoreError> {
        let checks = std::slice::from_ref(check);
        let is_known = self.shared.memory.is_known(check);
        let pins = if is_known { None } else { Box::pin(self.read(checks)).await };
        if !is_known && pins.is_none() {
            self.shared.metrics.fallback.add(1);
            if self.policy(check) == OnStoreFailure::Deny {
                let counted = ReservedSpan { from: now, until: now, is_reported: false };
                return Ok(Reservation { hits: Hits(0), until: now, decision: rejection(), counted });
            }
        }
        let reservation = self.shared.memory.reserve_now(check, request, now);
        drop(pins);
        if self.is_synced_first() {
            Box::pin(self.synced(checks, std::iter::once(reservation.decision).collect())).await;
        }
        Ok(reservation)
    }

    async fn release(
        &self,
        check: &LimitCheck<'_>,
        reservation: Reservation,
        unused: Hits,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let is_known = self.shared.memory.is_known(check);
        // if it cannot be read, the hits stay counted
        let _pins = if is_known { None } else { Box::pin(self.read(std::slice::from_ref(check))).await };
        self.shared.memory.release_now(check, reservation, unused, now);
        Ok(())
    }
}

impl Source for DiskStore {
    fn metrics(&self) -> Vec<Metric> {
        let Shared { memory, expiry, metrics, .. } = &*self.shared;
        let (expired, records) = expiry.expired();
        // the disk has the others that were evicted
        let lost = memory.lost();
        let mut all = memory.usage_metrics(lost, PoolSummary::default());
        all.extend(metrics.metrics(records, expired, expiry.removed(), memory.usage().evicted - lost));
        all
    }
}

impl Drop for DiskStore {
    fn drop(&mut self) {
        self.shared.stop();
        self.join();
    }
}
