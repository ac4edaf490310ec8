use std::{
    future::{self, Future},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::time::timeout;

use super::{
    budget::Budget,
    data_dir::{DataDir, OpenData},
    error::DiskError,
    expiry::DiskExpiry,
    maintenance::Maintenance,
    merge::RETRY,
    notes::{Changed, DiskNotes},
    reader::Readers,
    settings::{DiskSettings, DiskSync},
    state::{Pins, SharedDisk},
    writer::{self, RecordWriter, report_lost},
};
use weir_limit::{
    Decision, Direction, Hits, LimitCheck, OnStoreFailure, OverLimitPolicy, Period, PlaceCheck, Reservation,
    ReservationRequest, ReservedHits, ReservedSpan, Scope, Timestamp,
    line::Estimate,
    request_bucket::{BucketName, BucketReply, BucketRequest},
};
use weir_observe::{Metric, PlaceStats, Source, throttle::Throttle};
use weir_store::{
    CounterSight, Decisions, EndedPlace, MemoryStore, PlaceRequest, ReturnedHits, SightSource, Store,
    StoreError, TakeOptions, TakenPlaces, WaitRoom, clock::Clock, memory::Counted, pools::PoolSummary,
};

/// Counters in memory and on this instance's disk.
pub struct DiskStore {
    pub(super) shared: Arc<SharedDisk>,
    pub(super) readers: Readers,
    writer: Mutex<Option<JoinHandle<()>>>,
    reported_fallback: Throttle,
}

// === impl DiskStore ===

impl DiskStore {
    /// Opens the data, or creates them, and starts the threads that read and write. Fails if the directory is in use,
    /// was written by a newer version, cannot be read or written, or if its files are damaged and the settings say that
    /// this must not be passed over.
    pub fn open(settings: DiskSettings, clock: Arc<dyn Clock>) -> Result<Self, DiskError> {
        let dir = DataDir::open_or_create(&settings.dir)?;
        let expiry = Arc::<DiskExpiry>::default();
        let data = dir.open_data(&expiry, settings.on_damage, clock.now())?;
        let OpenData { engine, progress, last_batch, lost } = data;
        report_lost(&lost);
        let shared = Arc::new(SharedDisk::new(settings, engine, expiry, clock));
        shared.metrics.damaged.add(lost.len() as u64);
        shared.expiry.set_now(shared.seconds());
        let maintenance = Maintenance::start(&shared, &dir.engine_dir())?;
        let readers = Readers::start(&shared)?;
        let writer = RecordWriter::new(Arc::clone(&shared), dir, progress, last_batch, maintenance);
        let writer = Mutex::new(Some(writer::start(writer)?));
        Ok(Self { shared, readers, writer, reported_fallback: Throttle::default() })
    }

    /// Returns the counters in memory. They are swept by the owner of the store.
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

    /// Decides once the counters have been read, or without the disk if that takes too long.
    async fn take_unknown(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        budget: Budget<'_>,
        now: Timestamp,
    ) -> Decisions {
        if let Some(_pins) = self.read_tiers(checks, budget).await {
            return self.shared.memory.decide(checks, scope, now);
        }
        let memory = &self.shared.memory;
        let unknown = |check: &LimitCheck<'_>| !memory.is_known(check);
        // looked at before: a decision makes its counter known
        let unread: SmallVec<[bool; 4]> = checks.iter().map(unknown).collect();
        self.count_fallback(unread.iter().filter(|is_unread| **is_unread).count(), budget);
        let decisions: Decisions = if scope == Scope::Request {
            let denies = |check: &LimitCheck<'_>| self.policy(check) == OnStoreFailure::Deny && takes(check);
            if checks.iter().any(|check| unknown(check) && denies(check)) {
                for check in checks.iter().filter(|check| check.stands()) {
                    memory.decide_one(check, scope, now);
                }
                let decide = |check: &LimitCheck<'_>| {
                    if unknown(check) && denies(check) {
                        rejection()
                    } else {
                        memory.look(check, Hits(0), now)
                    }
                };
                checks.iter().map(decide).collect()
            } else {
                memory.decide(checks, scope, now)
            }
        } else {
            let decide = |check: &LimitCheck<'_>| match self.policy(check) {
                OnStoreFailure::Deny if unknown(check) && takes(check) => {
                    if check.is_cost() {
                        memory.decide_one(check, scope, now);
                    }
                    rejection()
                }
                OnStoreFailure::Allow if unknown(check) && takes(check) => memory.admit(check, now),
                _ => memory.decide_one(check, scope, now),
            };
            checks.iter().map(decide).collect()
        };
        let made = decisions.into_iter().zip(unread);
        made.map(|(decision, is_unread)| if is_unread { decision.by_fallback() } else { decision }).collect()
    }

    async fn read_tiers(&self, checks: &[LimitCheck<'_>], budget: Budget<'_>) -> Option<Pins> {
        let mut counted = SmallVec::<[Counted<'_>; 4]>::new();
        for check in checks {
            counted.extend(check.own_tiers().iter().map(|tier| Counted::Tier(check, tier)));
        }
        self.read(&counted, budget).await
    }

    /// Reads what memory lacks and the disk may have, and keeps it all in memory. None if that takes too long.
    pub(super) async fn read(&self, counted: &[Counted<'_>], budget: Budget<'_>) -> Option<Pins> {
        let (mut counters, mut new) = (Vec::new(), Vec::new());
        let mut known = Pins { shared: Arc::clone(&self.shared), keys: Vec::new() };
        for counted in counted {
            let key = counted.key();
            let pinned = self.shared.memory.with_slot(key, |slot| slot.map(|slot| slot.notes.pins += 1));
            if pinned.is_some() {
                known.keys.push(key);
                continue;
            }
            let unknown = Changed::of(counted);
            if self.shared.filter.may_have(&unknown.name) { &mut counters } else { &mut new }.push(unknown);
        }
        for unknown in new {
            // while they come faster than changed ones are written; those that the disk has need not wait for them
            while self.shared.is_crowded(unknown.key) {
                if !self.wait_for_round(0, budget).await {
                    return None;
                }
            }
            if self.shared.load_new(&unknown) {
                known.keys.push(unknown.key);
            } else {
                counters.push(unknown);
            }
        }
        let count = counters.len();
        if count == 0 {
            return Some(known);
        }
        let read = self.readers.read(move |shared| shared.load_all(&counters))?;
        let mut pins = budget.wait(count, async { read.await.ok().flatten() }).await?;
        pins.keys.append(&mut known.keys);
        Some(pins)
    }

    /// Waits until `decisions` are on disk, if they must be; if late, `on_store_failure` decides, but the hits count.
    async fn synced(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        mut decisions: Decisions,
        budget: Budget<'_>,
    ) -> Decisions {
        let counts = |(check, decision): (&LimitCheck<'_>, &Decision)| {
            let policy = check.over_limit_policy_in(scope);
            check.hits > Hits(0) && (!decision.over || policy == OverLimitPolicy::Count)
        };
        let counted = checks.iter().zip(&decisions).filter(|pair| counts(*pair)).count();
        if counted == 0 || self.wait_for_round(counted, budget).await {
            return decisions;
        }
        self.count_fallback(decisions.len(), budget);
        for (check, decision) in checks.iter().zip(&mut decisions).filter(|(check, _)| takes(check)) {
            match self.policy(check) {
                OnStoreFailure::Local => {}
                OnStoreFailure::Allow => decision.over = false,
                OnStoreFailure::Deny => *decision = Decision { before: decision.before, ..rejection() },
            }
        }
        decisions
    }

    /// Waits until all changes up to now are on disk, `counters` of them by this decision. Returns whether they are.
    pub(super) async fn wait_for_round(&self, counters: usize, budget: Budget<'_>) -> bool {
        let round = self.shared.request_round();
        let mut finished = self.shared.finished.subscribe();
        let written = async { finished.wait_for(|finished| *finished >= round).await.ok().map(|_| ()) };
        budget.wait(counters, written).await.is_some()
    }

    pub(super) fn budget<'a>(&self, options: &TakeOptions<'a>) -> Budget<'a> {
        Budget::begin(self.shared.settings.budget.into(), options)
    }

    pub(super) fn count_fallback(&self, decisions: usize, budget: Budget<'_>) {
        if let Some(suppressed) = self.reported_fallback.admit(Instant::now()) {
            tracing::warn!(
                decisions,
                suppressed,
                "the disk did not answer within WEIR_DECISION_BUDGET or the timeout of the caller; decided by \
                 on_store_failure"
            );
        }
        self.shared.metrics.fallback.add(decisions as u64);
        budget.record_fallback();
    }

    pub(super) fn is_synced_first(&self) -> bool {
        self.shared.settings.sync == DiskSync::Always
    }

    fn policy(&self, check: &LimitCheck<'_>) -> OnStoreFailure {
        let declared = check.rule.declared().and_then(|rule| rule.coordination.on_store_failure);
        declared.unwrap_or(self.shared.settings.on_store_failure)
    }
}

fn takes(check: &LimitCheck<'_>) -> bool {
    check.direction != Direction::GiveBack
}

fn rejection() -> Decision {
    Decision { over: true, ..Decision::unknown(RETRY) }.by_fallback()
}

impl Store for DiskStore {
    fn longest_wait(&self) -> Duration {
        self.shared.settings.budget.into()
    }

    fn wait_room(&self) -> Option<&Arc<WaitRoom>> {
        Some(self.shared.memory.wait_room())
    }

    async fn sight(&self, check: &LimitCheck<'_>, now: Timestamp) -> CounterSight {
        let looked = LimitCheck { hits: Hits(0), direction: Direction::Look, ..check.copied() };
        // a look reads what is on the disk alone
        drop(self.take_with(&[looked], Scope::Descriptor, now, TakeOptions::default()).await);
        CounterSight { source: SightSource::Disk, ..self.shared.memory.sight_now(check, now) }
    }

    fn estimate(&self, check: &LimitCheck<'_>, now: Timestamp) -> Option<Estimate> {
        let counters = self.shared.memory.known(check)?;
        Some(Estimate { counters, at: now, part: None })
    }

    async fn take_with(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
        options: TakeOptions<'_>,
    ) -> Result<Decisions, StoreError> {
        let known = self.shared.memory.decide_known(checks, scope, now);
        match known {
            Some(decisions) if !self.is_synced_first() => Ok(decisions),
            // boxed to keep the future of all other requests small
            known => Ok(Box::pin(async move {
                let budget = self.budget(&options);
                let decisions = match known {
                    Some(decisions) => decisions,
                    None => self.take_unknown(checks, scope, budget, now).await,
                };
                let is_synced_first = self.is_synced_first();
                if is_synced_first { self.synced(checks, scope, decisions, budget).await } else { decisions }
            })
            .await),
        }
    }

    fn take_places(
        &self,
        places: &[PlaceRequest<'_>],
        serial: u64,
        now: Timestamp,
        _: TakeOptions<'_>,
    ) -> impl Future<Output = Result<TakenPlaces, StoreError>> + Send {
        future::ready(Ok(self.shared.memory.take_places_now(places, serial, now)))
    }

    fn end_places(
        &self,
        ended: &[EndedPlace<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<ReturnedHits, StoreError>> + Send {
        future::ready(Ok(self.shared.memory.end_places_now(ended, now)))
    }

    fn free_places(
        &self,
        check: &PlaceCheck<'_>,
        _: &Arc<PlaceStats>,
        older_than: Period,
        now: Timestamp,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send {
        future::ready(Ok(self.shared.memory.free_places_now(check, older_than, now)))
    }

    fn given_up(&self, check: &PlaceCheck<'_>, _: &Arc<PlaceStats>, now: Timestamp) -> Vec<ReservedHits> {
        self.shared.memory.given_up_now(check, now)
    }

    async fn reserve(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Result<Reservation, StoreError> {
        let checks = std::slice::from_ref(check);
        let budget = self.budget(&TakeOptions::default());
        let is_known = self.shared.memory.is_known(check);
        let pins = if is_known { None } else { Box::pin(self.read_tiers(checks, budget)).await };
        if !is_known && pins.is_none() {
            self.count_fallback(1, budget);
            if self.policy(check) == OnStoreFailure::Deny {
                let counted = ReservedSpan { from: now, until: now, is_reported: false };
                return Ok(Reservation { hits: Hits(0), until: now, decision: rejection(), counted });
            }
        }
        let reservation = self.shared.memory.reserve_now(check, request, now);
        if self.is_synced_first() {
            let decisions = std::iter::once(reservation.decision).collect();
            let decision = Box::pin(self.synced(checks, Scope::Descriptor, decisions, budget)).await[0];
            if decision.over && !reservation.decision.over {
                let (hits, until, counted) = (reservation.hits, reservation.until, reservation.counted);
                self.release(check, reservation, hits, now).await?;
                return Ok(Reservation { hits: Hits(0), until, decision, counted });
            }
        }
        drop(pins);
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
        let budget = self.budget(&TakeOptions::default());
        let checks = std::slice::from_ref(check);
        let _pins = if is_known { None } else { Box::pin(self.read_tiers(checks, budget)).await };
        self.shared.memory.release_now(check, reservation, unused, now);
        Ok(())
    }

    async fn decide_bucket(
        &self,
        name: &BucketName<'_>,
        request: &BucketRequest,
        now: Timestamp,
    ) -> Result<BucketReply, StoreError> {
        match self.shared.memory.decide_known_bucket(name, request, now) {
            Some(reply) if !self.is_synced_first() => Ok(reply),
            known => Ok(Box::pin(self.decide_bucket_waiting(name, request, known, now)).await),
        }
    }

    async fn find_buckets(
        &self,
        name: &BucketName<'_>,
        deletes: bool,
        now: Timestamp,
    ) -> Result<Option<Period>, StoreError> {
        Box::pin(self.find_buckets_of(name, deletes, now)).await
    }
}

impl Source for DiskStore {
    fn metrics(&self) -> Vec<Metric> {
        let SharedDisk { memory, expiry, metrics, .. } = &*self.shared;
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
