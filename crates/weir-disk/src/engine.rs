//! The engine: a log-structured tree, behind the few operations that the store needs.
//!
//! Nothing else names the crate, except for the filter in `expiry.rs`.

use std::{
    fs, io,
    ops::Bound,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant},
};

use fjall::{
    CompressionType, Database, Error, Keyspace, KeyspaceCreateOptions, LsmError, PersistMode,
    config::{BlockSizePolicy, CompressionPolicy, PartitioningPolicy, PinningPolicy},
};

use super::{
    checksums,
    error::DiskError,
    expiry::{DiskExpiry, ExpiryFilters},
};

const COUNTERS: &str = "counters";

/// The key of the number of the last batch. It is in the same keyspace, since a second one would keep journals alive.
const BATCH: &[u8] = b"\0batch";

pub(super) const VERSION_FILE: &str = "version";

/// In bytes, before compression. Names with the same beginning are stored once in a block.
const BLOCK: u32 = 16 * 1024;

/// In bytes. A start after a kill reads what was in memory from the journals: this and [`MAX_JOURNALS`] bound its time.
const MEMTABLE: u64 = 16 << 20;

/// In bytes; the least that the engine accepts.
const MAX_JOURNALS: u64 = 64 << 20;

/// In bytes. Recent counters are in the store's memory, not here.
const CACHE: u64 = 32 << 20;

const WORKERS: usize = 2;

/// Above this, a batch waits for tables to be written.
const MAX_UNWRITTEN: usize = 3;

const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

/// A key and its new value, or none to remove the record.
pub(super) type RecordChange = (Box<[u8]>, Option<Vec<u8>>);

pub(super) struct Engine {
    // dropped before the database
    counters: Keyspace,
    database: Database,
    dir: PathBuf,
    /// The first damaged table, or none if all are whole. Looked for once, since that reads all of them.
    damaged_table: OnceLock<Option<DiskError>>,
}

/// The end of a journal that was dropped when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DroppedEnd {
    pub(super) file: PathBuf,
    pub(super) from: u64,
    pub(super) bytes: u64,
    /// The journal that was written last may end with an incomplete record; others are complete.
    pub(super) is_last: bool,
}

impl Engine {
    pub(super) fn open(dir: &Path, expiry: &Arc<DiskExpiry>) -> Result<(Self, Vec<DroppedEnd>), DiskError> {
        let exists = dir.join(VERSION_FILE).exists();
        let journals = if exists {
            checksums::lists(dir)?;
            checksums::journals(dir)?
        } else {
            Vec::new()
        };
        // the engine panics about some damage
        let opened = catch_unwind(AssertUnwindSafe(|| Self::open_unverified(dir, expiry)));
        let engine = opened.unwrap_or_else(|_| Err(DiskError::damaged(dir, "the engine cannot open it")))?;
        let mut dropped = Vec::new();
        for (i, journal) in journals.iter().enumerate() {
            let left = fs::metadata(&journal.path).map_or(journal.used, |metadata| metadata.len());
            if left < journal.used {
                dropped.push(DroppedEnd {
                    file: journal.path.clone(),
                    from: left,
                    bytes: journal.used - left,
                    is_last: i + 1 == journals.len(),
                });
            }
        }
        Ok((engine, dropped))
    }

    fn open_unverified(dir: &Path, expiry: &Arc<DiskExpiry>) -> Result<Self, DiskError> {
        let filters = Arc::new(ExpiryFilters(Arc::clone(expiry)));
        // a filter has megabytes, and a read would copy and check all of it whenever blocks of data have displaced it
        // from the cache
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(MEMTABLE)
                .data_block_size_policy(BlockSizePolicy::all(BLOCK))
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
                .filter_block_pinning_policy(PinningPolicy::all(true))
                .filter_block_partitioning_policy(PartitioningPolicy::all(false))
                .index_block_pinning_policy(PinningPolicy::all(true))
                .index_block_partitioning_policy(PartitioningPolicy::all(false))
        };
        let open = || {
            let database = Database::builder(dir)
                .cache_size(CACHE)
                .worker_threads(WORKERS)
                .max_journaling_size(MAX_JOURNALS)
                .with_compaction_filter_factories(Arc::new(move |_| Some(Arc::clone(&filters) as _)))
                .open()?;
            let counters = database.keyspace(COUNTERS, options)?;
            Ok((database, counters))
        };
        let (database, counters) = open().map_err(|error| {
            let is_journal = matches!(error, Error::JournalRecovery(_));
            let error = convert(dir, error);
            // a table that is cut off is read from before its start
            let is_invalid = |error: &DiskError| {
                matches!(error, DiskError::Io { source, .. } if source.kind() == io::ErrorKind::InvalidInput)
            };
            let may_be_a_table = !is_journal && (error.is_damage() || is_invalid(&error));
            if may_be_a_table { damaged_table(dir).unwrap_or(error) } else { error }
        })?;
        // the engine syncs the directories in which it makes files, and not those in which it makes directories
        sync_directories(dir).map_err(DiskError::io("sync", dir))?;
        Ok(Self { counters, database, dir: dir.to_owned(), damaged_table: OnceLock::new() })
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<impl AsRef<[u8]> + use<>>, DiskError> {
        self.counters.get(key).map_err(|error| self.convert(error))
    }

    pub(super) fn last_batch(&self) -> Result<u64, DiskError> {
        let value = self.get(BATCH)?;
        let number = value.as_ref().and_then(|value| value.as_ref().first_chunk().copied());
        Ok(number.map_or(0, u64::from_le_bytes))
    }

    /// Writes all or nothing. With `sync` it survives the end of the system, else only that of the process.
    pub(super) fn write(&self, number: u64, changes: &[RecordChange], sync: bool) -> Result<(), DiskError> {
        self.wait_for_tables(MAX_UNWRITTEN, None)?;
        let mode = if sync { PersistMode::SyncData } else { PersistMode::Buffer };
        let mut batch = self.database.batch().durability(Some(mode));
        for (key, value) in changes {
            match value {
                Some(value) => batch.insert(&self.counters, &**key, &**value),
                None => batch.remove(&self.counters, &**key),
            }
        }
        batch.insert(&self.counters, BATCH, number.to_le_bytes());
        batch.commit().map_err(|error| self.convert(error))
    }

    pub(super) fn sync(&self) -> Result<(), DiskError> {
        self.database.persist(PersistMode::SyncData).map_err(|error| self.convert(error))
    }

    /// Visits keys that begin with `prefix` and come after `after`, in their order, until `visit` returns false.
    pub(super) fn visit(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), DiskError> {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        for item in self.counters.range::<&[u8], _>((start, Bound::Unbounded)) {
            let (key, value) = item.into_inner().map_err(|error| self.convert(error))?;
            if !key.starts_with(prefix) {
                break;
            }
            if key.first() != Some(&0) && !visit(&key, &value) {
                break;
            }
        }
        Ok(())
    }

    /// Visits the keys that come after `after`, last one first.
    pub(super) fn visit_backwards(
        &self,
        after: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), DiskError> {
        for item in self.counters.range::<&[u8], _>((Bound::Excluded(after), Bound::Unbounded)).rev() {
            let (key, value) = item.into_inner().map_err(|error| self.convert(error))?;
            if key.first() != Some(&0) {
                visit(&key, &value);
            }
        }
        Ok(())
    }

    /// Makes one sorted run of all tables and of what is in memory, without what has expired.
    pub(super) fn compact(&self) -> Result<(), DiskError> {
        self.flush()?;
        self.counters.major_compact().map_err(|error| self.convert(error))
    }

    /// Makes a table of what is in memory, so that the next start does not have to read it from the journal.
    pub(super) fn flush(&self) -> Result<(), DiskError> {
        self.counters.rotate_memtable().map_err(|error| self.convert(error))?;
        self.wait_for_tables(0, Some(Instant::now() + CLOSE_TIMEOUT))
    }

    fn wait_for_tables(&self, most: usize, until: Option<Instant>) -> Result<(), DiskError> {
        while self.counters.sealed_memtable_count() > most {
            // if a worker has failed, this number never falls
            self.database.persist(PersistMode::Buffer).map_err(|error| self.convert(error))?;
            if until.is_some_and(|until| Instant::now() > until) {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn convert(&self, error: Error) -> DiskError {
        let error = convert(&self.dir, error);
        if !error.is_damage() {
            return error;
        }
        // the engine does not tell the file
        self.damaged_table.get_or_init(|| damaged_table(&self.dir)).clone().unwrap_or(error)
    }
}

fn sync_directories(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_directories(&entry.path())?;
        }
    }
    fs::File::open(dir)?.sync_all()
}

/// In bytes; fewer than the lengths of files where these are not written yet.
pub(super) fn allocated(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;

    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => allocated(&entry.path()),
            Ok(metadata) => metadata.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

/// Reads all tables: the engine does not tell which one is damaged.
fn damaged_table(dir: &Path) -> Option<DiskError> {
    checksums::tables(dir, || {}).err().filter(DiskError::is_damage)
}

fn convert(dir: &Path, error: Error) -> DiskError {
    let io = |source: io::Error| match source.kind() {
        io::ErrorKind::UnexpectedEof => DiskError::damaged(dir, "a file is cut off"),
        _ => DiskError::io("use", dir)(source),
    };
    match error {
        Error::Io(source) | Error::Storage(LsmError::Io(source)) => io(source),
        Error::Locked => DiskError::InUse(dir.to_owned()),
        Error::Poisoned => DiskError::engine(dir, "an earlier write has failed"),
        Error::InvalidVersion(_) => {
            DiskError::damaged(dir.join(VERSION_FILE), "it names another version of the engine")
        }
        Error::JournalRecovery(error) => {
            let journals = checksums::journals(dir).unwrap_or_default();
            let file = match &journals[..] {
                [journal] => journal.path.clone(),
                _ => dir.join("*.jnl"),
            };
            DiskError::damaged(file, format!("a record of the journal is wrong ({error:?})"))
        }
        Error::Storage(error) => DiskError::damaged(dir, format!("a table cannot be read ({error:?})")),
        error => DiskError::damaged(dir, format!("{error:?}")),
    }
}
