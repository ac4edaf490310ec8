//! The store on disk, in simulated time.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use tokio::{sync::Mutex, task::spawn_blocking};
use weir_coordinate::simulated::SimulatedClock;
use weir_disk::{DiskSettings, DiskStore, DiskSync, OnDamage};
use weir_limit::{
    Hits, LimitCheck, OnStoreFailure, Period, Reservation, ReservationRequest, Scope, Timestamp,
};
use weir_store::{
    Decisions, Store, StoreError, TakeOptions,
    clock::{Clock as _, ManualClock},
};

/// The decisions between two restarts.
const RESTART_AFTER: usize = 25;

/// A store on disk whose memory holds two counters, so that most decisions read theirs, and which restarts now and
/// then.
pub(crate) struct OnDisk {
    opened: Mutex<Opened>,
    settings: DiskSettings,
    clock: SimulatedClock,
    /// Shows the time of the last decision. The threads that read and write are no part of the runtime: the simulated
    /// clock would show them how long the disk takes, and they would find that a counter counts nothing any more.
    last_decision: Arc<ManualClock>,
    _dir: tempfile::TempDir,
}

struct Opened {
    store: Option<DiskStore>,
    decisions: usize,
}

impl OnDisk {
    pub(crate) fn new(clock: SimulatedClock) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let settings = DiskSettings {
            dir: dir.path().join("data"),
            sync: DiskSync::Os,
            interval: Period::from_millis(1),
            on_damage: OnDamage::Refuse,
            max_bytes: None,
            budget: Period::from_secs(3_600),
            on_store_failure: OnStoreFailure::Deny,
            max_counters: 2,
        };
        let last_decision = Arc::new(ManualClock::at(clock.now()));
        let opened = Mutex::new(Opened { store: Some(open(&settings, &last_decision)), decisions: 0 });
        Self { opened, settings, clock, last_decision, _dir: dir }
    }
}

fn open(settings: &DiskSettings, clock: &Arc<ManualClock>) -> DiskStore {
    let clock = Arc::<ManualClock>::clone(clock);
    DiskStore::open(settings.clone(), clock).expect("the data")
}

impl Store for OnDisk {
    async fn take_with(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
        options: TakeOptions<'_>,
    ) -> Result<Decisions, StoreError> {
        // simulated time stands still while a blocking task runs, so that it does not pass the budget while the disk is
        // read
        let (done, wait) = mpsc::channel::<()>();
        let standstill = spawn_blocking(move || wait.recv_timeout(Duration::from_mins(1)));
        let mut opened = self.opened.lock().await;
        opened.decisions += 1;
        self.last_decision.set(now);
        if opened.decisions % RESTART_AFTER == 0 {
            drop(opened.store.take());
            opened.store = Some(open(&self.settings, &self.last_decision));
        }
        let store = opened.store.as_ref().expect("it is open");
        let decided = store.take_with(checks, scope, now, options).await;
        drop(done);
        let _ = standstill.await;
        assert_eq!(self.clock.now(), now, "the time of the decision");
        decided
    }

    async fn reserve(
        &self,
        _check: &LimitCheck<'_>,
        _request: ReservationRequest,
        _now: Timestamp,
    ) -> Result<Reservation, StoreError> {
        unreachable!("requests reserve nothing")
    }

    async fn release(
        &self,
        _check: &LimitCheck<'_>,
        _reservation: Reservation,
        _unused: Hits,
        _now: Timestamp,
    ) -> Result<(), StoreError> {
        unreachable!("requests reserve nothing")
    }
}
