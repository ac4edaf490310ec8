//! Copies the counters that can still be read to new files.
//!
//! An error does not tell how much of a table cannot be read. So the counters before the first one that cannot be read
//! are copied, and, from the other end, those after the last one: what is lost is between them.

use std::{fs, sync::Arc};

use super::{
    data_dir::{DataDir, sync_dir},
    engine::{Engine, RecordChange},
    error::DiskError,
    expiry::DiskExpiry,
    record,
};
use weir_limit::Timestamp;

const NEW: &str = "engine.new";

const BATCH: usize = 16_384;

/// Closes `old`, sets its files aside, and opens the copy. Also returns the number of counters.
pub(super) fn copy(
    old: Engine,
    dir: &DataDir,
    expiry: &Arc<DiskExpiry>,
    last_batch: u64,
    now: Timestamp,
) -> Result<(Engine, u64), DiskError> {
    let path = dir.path().join(NEW);
    if path.exists() {
        fs::remove_dir_all(&path).map_err(DiskError::io("remove", &path))?;
    }
    let (new, _) = Engine::open(&path, expiry)?;
    let mut copy = SalvagedCopy { new: &new, last_batch, batch: Vec::new(), copied: 0, failed: None };
    let mut last = Vec::new();
    let read = old.visit(&[], None, |key, value| {
        last.clear();
        last.extend_from_slice(key);
        copy.add(key, value);
        copy.failed.is_none()
    });
    if read.is_err() {
        // what is after the damage; ends with an error where the damage begins
        let _ = old.visit_backwards(&last, |key, value| copy.add(key, value));
    }
    copy.write();
    let SalvagedCopy { copied, failed, .. } = copy;
    if let Some(error) = failed {
        return Err(error);
    }
    new.flush()?;
    new.sync()?;
    drop((old, new));
    dir.set_aside(&dir.engine_dir(), now)?;
    fs::rename(&path, dir.engine_dir()).map_err(DiskError::io("rename", &path))?;
    sync_dir(dir.path())?;
    let (opened, _) = Engine::open(&dir.engine_dir(), expiry)?;
    Ok((opened, copied))
}

struct SalvagedCopy<'a> {
    new: &'a Engine,
    last_batch: u64,
    batch: Vec<RecordChange>,
    copied: u64,
    failed: Option<DiskError>,
}

impl SalvagedCopy<'_> {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        if record::decode(value).is_ok() {
            self.batch.push((key.into(), Some(value.to_vec())));
        }
        if self.batch.len() >= BATCH {
            self.write();
        }
    }

    fn write(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        self.copied += batch.len() as u64;
        if self.failed.is_none() {
            self.failed = self.new.write(self.last_batch, &batch, false).err();
        }
    }
}
