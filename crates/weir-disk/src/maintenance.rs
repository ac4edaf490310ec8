//! Work on the data that nothing waits for: the check of all files after the start, the count of what has expired, and
//! the compaction of everything when enough has.

use std::{
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{
    checksums,
    engine::{Engine, allocated},
    error::DiskError,
    expiry::ExpiryCounts,
    record::expiry_of,
    state::SharedDisk,
};

const INTERVAL: Duration = Duration::from_secs(5);

/// The records that must have expired before everything is compacted, and the share of all records.
const MIN_EXPIRED: u64 = 10_000;
const MIN_SHARE: u64 = 4;

/// A compaction takes no more than one part in this many of the time.
const SHARE_OF_TIME: u32 = 10;

/// The records that are counted at a time, and how many times as long the count then pauses.
const COUNTED: usize = 20_000;
const PAUSE: u32 = 3;

pub(super) struct Maintenance {
    next: Instant,
    compaction: Option<thread::JoinHandle<Duration>>,
    next_compaction: Instant,
    is_over_bound: bool,
    survey: Option<thread::JoinHandle<()>>,
}

impl Maintenance {
    pub(super) fn start(shared: &Arc<SharedDisk>, engine_dir: &Path) -> Result<Self, DiskError> {
        let (shared, engine_dir) = (Arc::clone(shared), engine_dir.to_owned());
        let survey = thread::Builder::new().name("weir-disk-check".into());
        let survey = survey.spawn(move || survey_all(&shared, &engine_dir)).map_err(DiskError::thread)?;
        Ok(Self {
            next: Instant::now(),
            compaction: None,
            next_compaction: Instant::now(),
            is_over_bound: false,
            survey: Some(survey),
        })
    }

    /// Does what is due. Returns false if the data have reached their bound, so that nothing may be written.
    pub(super) fn run(&mut self, shared: &Arc<SharedDisk>, dir: &Path) -> bool {
        if Instant::now() < self.next {
            return !self.is_over_bound;
        }
        self.next = Instant::now() + INTERVAL;
        let bytes = allocated(dir);
        shared.metrics.bytes.set(bytes);
        self.check_bound(shared, bytes);
        if self.compaction.as_ref().is_some_and(thread::JoinHandle::is_finished)
            && let Some(Ok(took)) = self.compaction.take().map(thread::JoinHandle::join)
        {
            self.next_compaction = Instant::now() + took * SHARE_OF_TIME;
        }
        let (expired, records) = shared.expiry.expired();
        let is_worth_it = expired >= MIN_EXPIRED && expired * MIN_SHARE >= records;
        if (is_worth_it || self.is_over_bound && expired > 0)
            && self.compaction.is_none()
            && Instant::now() >= self.next_compaction
        {
            self.compaction = compact(shared, expired, records);
        }
        !self.is_over_bound
    }

    fn check_bound(&mut self, shared: &SharedDisk, bytes: u64) {
        let max = shared.settings.max_bytes.unwrap_or(u64::MAX);
        let was_over = std::mem::replace(&mut self.is_over_bound, bytes > max);
        match (was_over, self.is_over_bound) {
            (false, true) => {
                tracing::error!(
                    bytes,
                    max,
                    "the data have reached WEIR_DISK_MAX_BYTES; changes stay in memory"
                );
                shared.metrics.available.set(0);
            }
            (true, false) => {
                tracing::warn!(bytes, max, "the data are below WEIR_DISK_MAX_BYTES again");
                shared.metrics.available.set(1);
            }
            _ => {}
        }
    }

    pub(super) fn stop(&mut self) {
        let _ = self.survey.take().map(thread::JoinHandle::join);
        let _ = self.compaction.take().map(thread::JoinHandle::join);
    }
}

fn compact(shared: &Arc<SharedDisk>, expired: u64, records: u64) -> Option<thread::JoinHandle<Duration>> {
    let shared = Arc::clone(shared);
    let compact = move || {
        let begun = Instant::now();
        match shared.engine.read().as_ref().map_or(Ok(()), Engine::compact) {
            Ok(()) => {
                shared.metrics.compactions.add(1);
                tracing::info!(expired, records, took = ?begun.elapsed(), "removed expired counters from the disk");
            }
            Err(error) => shared.report(error),
        }
        let took = begun.elapsed();
        find_all(&shared);
        took
    };
    thread::Builder::new().name("weir-disk-compact".into()).spawn(compact).ok()
}

/// Verifies all tables and counts all records, with pauses, so that little else notices.
fn survey_all(shared: &SharedDisk, engine_dir: &Path) {
    let mut begun = Instant::now();
    let pause = || {
        if !shared.is_stopping() {
            thread::sleep(begun.elapsed().min(Duration::from_millis(100)));
        }
        begun = Instant::now();
    };
    // first, since decisions about new counters wait for a read until all records are found
    find_all(shared);
    if let Err(error) = checksums::tables(engine_dir, pause) {
        shared.report(error);
    }
}

/// Finds all records, unless the store stops: counts them by their expiry, and fills the filter anew, without those that
/// were removed.
fn find_all(shared: &SharedDisk) {
    shared.filter.begin();
    shared.expiry.forget();
    let found = count(shared);
    shared.filter.end(found.as_ref().is_ok_and(Option::is_some));
    match found {
        Ok(Some(found)) => shared.expiry.found(found),
        Ok(None) => {}
        Err(error) => shared.report(error),
    }
}

fn count(shared: &SharedDisk) -> Result<Option<ExpiryCounts>, DiskError> {
    let mut last: Option<Vec<u8>> = None;
    let mut found = ExpiryCounts::default();
    loop {
        let (begun, mut visited) = (Instant::now(), 0);
        {
            let engine = shared.engine.read();
            let Some(engine) = engine.as_ref() else { return Ok(None) };
            let after = last.take();
            engine.visit(&[], after.as_deref(), |key, value| {
                visited += 1;
                found.replace(0, expiry_of(value).unwrap_or_default());
                shared.filter.insert(key);
                if visited == COUNTED {
                    last = Some(key.to_vec());
                }
                visited < COUNTED
            })?;
        }
        if last.is_none() {
            return Ok(Some(found));
        }
        if shared.is_stopping() {
            return Ok(None);
        }
        thread::sleep(begun.elapsed() * PAUSE);
    }
}
