//! The data of a weir that does not run, or a copy of those of one that does, for commands.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
    sync::Arc,
};

use super::{
    checksums,
    data_dir::{COPY, DataDir, OpenData},
    engine::{Engine, RecordChange},
    error::DiskError,
    expiry::DiskExpiry,
    progress::ProgressFile,
    record,
    settings::OnDamage,
};
use weir_limit::{Timestamp, algorithm::CounterState};

const BATCH: usize = 16_384;

const MAX_ATTEMPTS: usize = 20;

/// Open data, or an open copy of data that are in use.
pub struct Data {
    // closed first
    engine: Engine,
    progress: ProgressFile,
    last_batch: u64,
    expiry: Arc<DiskExpiry>,
    dir: DataDir,
    copy: Option<OfflineCopy>,
}

struct OfflineCopy(PathBuf);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCounter {
    /// What it counts, such as `shop|tenant=acme`: its domain, keys and values, as in the keys of a shared store.
    pub path: String,
    /// Its algorithm and period, such as `s1m`: `f` is a fixed window, `s` a sliding window, `b` a token bucket; `c` in
    /// front means that rejected hits count.
    pub tier: String,
    pub state: Result<CounterState, record::RecordError>,
}

impl Drop for OfflineCopy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Data {
    pub fn open(path: &Path, now: Timestamp) -> Result<Self, DiskError> {
        Self::open_dir(DataDir::open(path)?, now)
    }

    pub fn open_or_create(path: &Path, now: Timestamp) -> Result<Self, DiskError> {
        Self::open_dir(DataDir::open_or_create(path)?, now)
    }

    /// Opens data to read them. If they are in use, opens a copy of what was written up to now: tables, which never
    /// change, are linked, and journals are copied, so it takes little room and time.
    pub fn open_to_read(path: &Path, now: Timestamp) -> Result<Self, DiskError> {
        match Self::open(path, now) {
            Err(DiskError::InUse(_)) => {
                let copy = OfflineCopy(path.join(format!("{COPY}{}", process::id())));
                copy_consistently(path, &copy.0)?;
                let mut data = Self::open(&copy.0, now)?;
                data.copy = Some(copy);
                Ok(data)
            }
            opened => opened,
        }
    }

    fn open_dir(dir: DataDir, now: Timestamp) -> Result<Self, DiskError> {
        let expiry = Arc::<DiskExpiry>::default();
        let seconds = now.as_nanos() / 1_000_000_000;
        expiry.set_now(u32::try_from(seconds).unwrap_or(u32::MAX));
        let data = dir.open_data(&expiry, OnDamage::Refuse, now)?;
        let OpenData { engine, progress, last_batch, .. } = data;
        Ok(Self { engine, progress, last_batch, expiry, dir, copy: None })
    }

    pub fn is_copy(&self) -> bool {
        self.copy.is_some()
    }

    pub fn verify(&self) -> Result<(), DiskError> {
        checksums::tables(&self.dir.engine_dir(), || {})
    }

    /// Visits the counters whose path begins with `prefix`, in the order of their paths, until `visit` returns false.
    pub fn visit(&self, prefix: &str, mut visit: impl FnMut(StoredCounter) -> bool) -> Result<(), DiskError> {
        self.engine.visit(prefix.as_bytes(), None, |key, value| {
            let key = String::from_utf8_lossy(key);
            let (path, tier) = key.rsplit_once('}').unwrap_or((&key, ""));
            visit(StoredCounter { path: path.into(), tier: tier.into(), state: record::decode(value) })
        })
    }

    /// Writes `counters`, in the place of those with the same names. Returns their number. After an error, some may
    /// have been written.
    pub fn import<E: From<DiskError>>(
        &mut self,
        counters: impl Iterator<Item = Result<(String, String, CounterState), E>>,
    ) -> Result<u64, E> {
        let (mut batch, mut imported) = (Vec::new(), 0);
        for counter in counters {
            let (path, tier, state) = counter?;
            batch.push((format!("{path}}}{tier}").into_bytes().into(), Some(record::encode(&state))));
            imported += 1;
            if batch.len() == BATCH {
                self.write(&std::mem::take(&mut batch))?;
            }
        }
        self.write(&batch)?;
        Ok(imported)
    }

    fn write(&mut self, changes: &[RecordChange]) -> Result<(), DiskError> {
        self.last_batch += 1;
        self.engine.write(self.last_batch, changes, true)?;
        self.progress.record(self.last_batch, self.last_batch)
    }

    /// Removes what has expired, and returns how many counters these were.
    pub fn compact(&self) -> Result<u64, DiskError> {
        self.engine.compact()?;
        Ok(self.expiry.removed())
    }

    /// Closes the data, so that the next start has nothing to read from the journal.
    pub fn close(self) -> Result<(), DiskError> {
        self.engine.flush()
    }
}

/// Copies data in use to `to`. Tables never change and journals only grow, so the copy is a state that once was if no
/// list of tables has changed, and no journal has come or gone, while it was made.
fn copy_consistently(from: &Path, to: &Path) -> Result<(), DiskError> {
    for _ in 0..MAX_ATTEMPTS {
        if to.exists() {
            fs::remove_dir_all(to).map_err(DiskError::io("remove", to))?;
        }
        match try_copy(from, to) {
            Ok(true) => return Ok(()),
            // a file has gone meanwhile
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Ok(false) => {}
            Err(error) => return Err(DiskError::io("copy the data to", to)(error)),
        }
    }
    Err(DiskError::engine(from, "they change too fast to be copied"))
}

fn try_copy(from: &Path, to: &Path) -> io::Result<bool> {
    let (engine, copied) = (from.join("engine"), to.join("engine"));
    let before = signs_of_change(&engine)?;
    fs::create_dir_all(&copied)?;
    fs::copy(from.join("format"), to.join("format"))?;
    // before the journals: they have at least the batches that it names
    fs::copy(from.join("progress"), to.join("progress"))?;
    for entry in fs::read_dir(engine.join(checksums::KEYSPACES))? {
        let entry = entry?;
        link_keyspace(&entry.path(), &copied.join(checksums::KEYSPACES).join(entry.file_name()))?;
    }
    for entry in fs::read_dir(&engine)? {
        let entry = entry?;
        if entry.metadata()?.is_file() {
            fs::copy(entry.path(), copied.join(entry.file_name()))?;
        }
    }
    Ok(signs_of_change(&engine)? == before)
}

fn link_keyspace(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.metadata()?.is_dir() {
            fs::create_dir_all(&to)?;
            for table in fs::read_dir(entry.path())? {
                let table = table?;
                fs::hard_link(table.path(), to.join(table.file_name()))?;
            }
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

fn signs_of_change(engine: &Path) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut signs = Vec::new();
    for entry in fs::read_dir(engine.join(checksums::KEYSPACES))? {
        let current = entry?.path().join("current");
        signs.push((current.clone(), fs::read(&current)?));
    }
    for entry in fs::read_dir(engine)? {
        signs.push((entry?.path(), Vec::new()));
    }
    signs.sort();
    Ok(signs)
}
