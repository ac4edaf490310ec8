//! The thread that writes changed counters, in numbered batches, and opens the engine again when it has failed.

use std::{
    fs,
    io::Write as _,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{
    data_dir::DataDir,
    engine::RecordChange,
    error::DiskError,
    maintenance::Maintenance,
    notes::Changed,
    progress::ProgressFile,
    record, salvage,
    settings::{DiskSync, OnDamage},
    state::SharedDisk,
};
use weir_limit::Hits;

const MAX_BATCH: usize = 16_384;

const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The same if data are damaged: the engine soon finds the damage again.
const DAMAGED_INTERVAL: Duration = Duration::from_mins(1);

const PROBE: usize = 1 << 20;

const PROBE_FILE: &str = "probe";

pub(super) struct RecordWriter {
    shared: Arc<SharedDisk>,
    dir: DataDir,
    progress: ProgressFile,
    batch: u64,
    maintenance: Maintenance,
    next_attempt: Option<Instant>,
    reported_damage: Option<String>,
}

struct Pending {
    changed: Changed,
    before: u32,
    after: u32,
}

impl RecordWriter {
    pub(super) fn new(
        shared: Arc<SharedDisk>,
        dir: DataDir,
        progress: ProgressFile,
        last_batch: u64,
        maintenance: Maintenance,
    ) -> Self {
        shared.metrics.available.set(1);
        Self {
            shared,
            dir,
            progress,
            batch: last_batch,
            maintenance,
            next_attempt: None,
            reported_damage: None,
        }
    }

    /// Writes until the store is closed, and once more.
    pub(super) fn run(mut self) {
        let interval = self.shared.settings.interval.into();
        loop {
            let stopping = self.shared.is_stopping();
            let round = self.shared.begin_round(interval);
            self.shared.expiry.set_now(self.shared.seconds());
            let has_written = self.round();
            self.shared.end_round(round, has_written);
            if stopping {
                break;
            }
        }
        self.close();
    }

    /// Returns whether all changes are written.
    fn round(&mut self) -> bool {
        self.check_trouble();
        // files that are open can be written even if nobody will find them again
        if self.next_attempt.is_none()
            && let Err(error) = self.dir.check_there()
        {
            self.fail(&error);
        }
        if let Some(next_attempt) = self.next_attempt {
            let is_due = Instant::now() >= next_attempt || self.shared.is_stopping();
            if !is_due || !self.recover() {
                self.count_pending();
                return false;
            }
        }
        // the last changes are written even above the bound
        if !self.maintenance.run(&self.shared, self.dir.path()) && !self.shared.is_stopping() {
            self.count_pending();
            return false;
        }
        let written = self.write_all();
        self.count_pending();
        written
    }

    fn count_pending(&self) {
        let mut pending = 0;
        self.shared.memory.for_each_log(|log| pending += log.len() as u64);
        self.shared.metrics.pending.set(pending);
    }

    /// Skips counters whose record cannot be read: `on_store_failure` decides about them.
    fn write_all(&mut self) -> bool {
        let mut changed = Vec::new();
        self.shared.memory.for_each_log(|log| changed.append(log));
        let mut rest = changed.into_iter();
        loop {
            let batch: Vec<Changed> = rest.by_ref().take(MAX_BATCH).collect();
            if batch.is_empty() {
                return true;
            }
            if let Err(error) = self.write(batch) {
                rest.for_each(|changed| self.log_again(changed, false));
                self.fail(&error);
                return false;
            }
        }
    }

    /// After an error its counters are in the log again.
    fn write(&mut self, batch: Vec<Changed>) -> Result<(), DiskError> {
        let (mut pending, mut changes) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        for changed in batch {
            match self.encode(&changed) {
                Encoded::Gone => {}
                Encoded::Unread => self.log_again(changed, false),
                Encoded::Change { value, before, after } => {
                    changes.push((changed.name.clone(), value));
                    pending.push(Pending { changed, before, after });
                }
            }
        }
        if changes.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        let written = self.commit(&changes);
        // also after an error, since some may have been written
        for (name, _) in &changes {
            self.shared.filter.insert(name);
        }
        self.shared.batches.fetch_add(1, Ordering::AcqRel);
        self.shared.metrics.writes.record(begun.elapsed());
        if let Err(error) = written {
            for pending in pending {
                self.log_again(pending.changed, true);
            }
            return Err(error);
        }
        self.shared.metrics.records_written.add(changes.len() as u64);
        self.shared.expiry.with_counts(|counts| {
            for pending in &pending {
                counts.replace(pending.before, pending.after);
            }
        });
        for pending in pending {
            let is_deleted = self.shared.memory.with_slot(pending.changed.key, |slot| {
                let Some(slot) = slot else { return false };
                // the counter may have been evicted and made anew meanwhile
                slot.notes.pins = slot.notes.pins.saturating_sub(1);
                slot.notes.expiry = pending.after;
                // the search for what is deleted may not have found this record yet
                pending.after > 0 && slot.counter.used() == Hits(0) && !slot.notes.is_logged
            });
            if is_deleted {
                self.log_again(pending.changed, false);
            }
        }
        Ok(())
    }

    fn commit(&mut self, changes: &[RecordChange]) -> Result<(), DiskError> {
        let sync = self.shared.settings.sync != DiskSync::Os;
        self.batch += 1;
        {
            let engine = self.shared.engine.read();
            let Some(engine) = engine.as_ref() else {
                return Err(DiskError::engine(self.dir.path(), "it is not open"));
            };
            engine.write(self.batch, changes, sync)?;
        }
        let synced = if sync { self.batch } else { self.progress.get().synced };
        self.progress.record(self.batch, synced)
    }

    /// Reads the counter from the disk first if its state there is not known.
    fn encode(&self, changed: &Changed) -> Encoded {
        for _ in 0..2 {
            let now = self.shared.clock.now();
            let encoded = self.shared.memory.with_slot(changed.key, |slot| {
                let Some(slot) = slot else { return Encoded::Gone };
                if !slot.notes.is_read {
                    return Encoded::Unread;
                }
                slot.notes.is_logged = false;
                let before = slot.notes.expiry;
                if slot.counter.idle_at() <= now || slot.counter.used() == Hits(0) {
                    if before == 0 {
                        return Encoded::Gone;
                    }
                    slot.notes.pins += 1;
                    return Encoded::Change { value: None, before, after: 0 };
                }
                slot.notes.pins += 1;
                let after = record::expiry(&slot.counter);
                Encoded::Change { value: Some(record::encode(&slot.counter)), before, after }
            });
            if !matches!(encoded, Encoded::Unread) || self.shared.load(changed, false).is_err() {
                return encoded;
            }
        }
        Encoded::Unread
    }

    /// Skips a counter of the failed batch that has changed since, and so is in the log already.
    fn log_again(&self, changed: Changed, was_in_batch: bool) {
        let key = changed.key;
        let is_needed = self.shared.memory.with_slot(key, |slot| {
            let Some(slot) = slot else { return false };
            slot.notes.pins = slot.notes.pins.saturating_sub(u16::from(was_in_batch));
            let is_there = was_in_batch && slot.notes.is_logged;
            slot.notes.is_logged = true;
            !is_there
        });
        if is_needed {
            self.shared.memory.with_log(key, |log| log.push(changed));
        }
    }

    // === failures ===

    /// Changes stay in memory until the engine has been opened again.
    fn fail(&mut self, error: &DiskError) {
        self.shared.metrics.failures.add(1);
        if error.is_damage() {
            self.report_damage(error);
        }
        if self.next_attempt.is_none() {
            tracing::error!(%error, "cannot write counters to the disk; they stay in memory until it is possible again");
        }
        self.shared.metrics.available.set(0);
        let interval = if error.is_damage() || self.reported_damage.is_some() {
            DAMAGED_INTERVAL
        } else {
            RETRY_INTERVAL
        };
        self.next_attempt = Some(Instant::now() + interval);
    }

    fn check_trouble(&mut self) {
        let Some(error) = self.shared.trouble.lock().take() else { return };
        if !error.is_damage() {
            tracing::warn!(%error, "background work on the data failed");
            return;
        }
        self.report_damage(&error);
        if self.shared.settings.on_damage == OnDamage::Continue && !self.shared.is_stopping() {
            self.salvage(&error);
        }
    }

    fn report_damage(&mut self, error: &DiskError) {
        let text = error.to_string();
        if self.reported_damage.as_ref() != Some(&text) {
            self.shared.metrics.damaged.add(1);
            let effect = match self.shared.settings.on_damage {
                OnDamage::Refuse => "on_store_failure decides about counters that cannot be read",
                OnDamage::Continue => "counters that cannot be read count from zero",
            };
            tracing::error!(%error, "data on disk are damaged; {effect}");
            self.reported_damage = Some(text);
        }
    }

    fn salvage(&mut self, error: &DiskError) {
        let mut engine = self.shared.engine.write();
        let Some(old) = engine.take() else { return };
        let salvaged =
            salvage::copy(old, &self.dir, &self.shared.expiry, self.batch, self.shared.clock.now());
        match salvaged {
            Ok((new, copied)) => {
                tracing::error!(damage = %error, counters = copied, "went on with the counters that can be read");
                *engine = Some(new);
                self.reported_damage = None;
            }
            Err(error) => {
                drop(engine);
                self.fail(&error);
            }
        }
    }

    fn recover(&mut self) -> bool {
        self.next_attempt = Some(Instant::now() + RETRY_INTERVAL);
        if self.dir.check_there().is_err() || self.probe().is_err() {
            return false;
        }
        let mut engine = self.shared.engine.write();
        // closed first: it holds the lock
        drop(engine.take());
        let opened =
            self.dir.open_data(&self.shared.expiry, self.shared.settings.on_damage, self.shared.clock.now());
        match opened {
            Ok(data) => {
                *engine = Some(data.engine);
                drop(engine);
                self.progress = data.progress;
                self.batch = self.batch.max(data.last_batch);
                report_lost(&data.lost);
                tracing::warn!("the data on disk are open again");
                self.shared.metrics.available.set(1);
                self.next_attempt = None;
                true
            }
            Err(error) => {
                drop(engine);
                if error.is_damage() {
                    self.report_damage(&error);
                } else {
                    tracing::debug!(%error, "cannot open the data again");
                }
                false
            }
        }
    }

    /// Writes some bytes to find out whether there is room.
    fn probe(&self) -> Result<(), DiskError> {
        let path = self.dir.path().join(PROBE_FILE);
        let write = || {
            let mut file = fs::File::create(&path)?;
            file.write_all(&vec![1; PROBE])?;
            file.sync_all()
        };
        let written = write().map_err(DiskError::io("write to", &path));
        let _ = fs::remove_file(&path);
        written
    }

    fn close(mut self) {
        self.maintenance.stop();
        let engine = self.shared.engine.write().take();
        let Some(engine) = engine else { return };
        let synced = engine.flush().and_then(|()| engine.sync());
        match synced.and_then(|()| self.progress.record(self.batch, self.batch)) {
            Ok(()) => {}
            Err(error) => tracing::error!(%error, "the data on disk may lack the last changes"),
        }
    }
}

enum Encoded {
    /// It is not in memory any more, or counts nothing and has no record.
    Gone,
    Unread,
    /// A value, or none if it counts nothing any more; and the expiry of the record before and after.
    Change {
        value: Option<Vec<u8>>,
        before: u32,
        after: u32,
    },
}

pub(super) fn report_lost(lost: &[String]) {
    for what in lost {
        tracing::error!("{what}; went on without it, because WEIR_DISK_DAMAGE is continue");
    }
}

pub(super) fn start(writer: RecordWriter) -> Result<thread::JoinHandle<()>, DiskError> {
    thread::Builder::new()
        .name("weir-disk-write".into())
        .spawn(move || writer.run())
        .map_err(DiskError::thread)
}
