//! The data directory: its lock, its format, and the files in it.
//!
//! | file | contents |
//! | --- | --- |
//! | `lock` | locked by the process that uses the directory |
//! | `format` | `weir data 1`: the version of all of it |
//! | `engine/` | the files of the engine |
//! | `progress` | which batches must be there |
//! | `copy-…/` | a copy that a command reads while another process uses the directory |
//! | `damaged-…` | what was set aside because it is damaged |
//! | `damage` | what is damaged, if something is: it stays until somebody decides what to do |

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use super::{
    checksums,
    engine::{DroppedEnd, Engine, VERSION_FILE},
    error::DiskError,
    expiry::DiskExpiry,
    progress::{self, ProgressFile},
    settings::OnDamage,
};
use weir_limit::Timestamp;

const FORMAT: u32 = 1;

const FORMAT_FILE: &str = "format";
const LOCK_FILE: &str = "lock";
const DAMAGE_FILE: &str = "damage";
const ENGINE: &str = "engine";

const LOCK_ATTEMPTS: usize = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(25);

pub(super) const COPY: &str = "copy-";

#[derive(Debug)]
pub(super) struct DataDir {
    path: PathBuf,
    lock: File,
}

pub(super) struct OpenData {
    pub(super) engine: Engine,
    pub(super) progress: ProgressFile,
    pub(super) last_batch: u64,
    /// What was lost because it was damaged, in words; only with [`OnDamage::Continue`].
    pub(super) lost: Vec<String>,
}

impl DataDir {
    /// Creates the directory if it does not exist. Fails if it is in use, or has a newer format or other contents.
    pub(super) fn open_or_create(path: &Path) -> Result<Self, DiskError> {
        // names of counters may be names of people
        let created = DirBuilder::new().recursive(true).mode(0o700).create(path);
        created.map_err(DiskError::io("create", path))?;
        let dir = Self::lock(path)?;
        match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            Some(parent) => sync_dir(parent)?,
            None => sync_dir(Path::new("."))?,
        }
        Ok(dir)
    }

    pub(super) fn open(path: &Path) -> Result<Self, DiskError> {
        if !path.join(FORMAT_FILE).exists() {
            return Err(DiskError::NoData(path.to_owned()));
        }
        Self::lock(path)
    }

    fn lock(path: &Path) -> Result<Self, DiskError> {
        let lock_file = path.join(LOCK_FILE);
        let format_file = path.join(FORMAT_FILE);
        if !format_file.exists() {
            check_empty(path)?;
        }
        let lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&lock_file);
        let lock = lock.map_err(DiskError::io("write to", &lock_file))?;
        for attempt in 1.. {
            match lock.try_lock() {
                Ok(()) => break,
                // a process that has just ended, or one that it was about to start, may still hold it
                Err(TryLockError::WouldBlock) if attempt < LOCK_ATTEMPTS => thread::sleep(LOCK_PAUSE),
                Err(TryLockError::WouldBlock) => return Err(DiskError::InUse(path.to_owned())),
                Err(TryLockError::Error(error)) => return Err(DiskError::io("lock", &lock_file)(error)),
            }
        }
        let dir = Self { path: path.to_owned(), lock };
        match fs::read(&format_file) {
            Ok(text) => dir.check_format(&String::from_utf8_lossy(&text))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                write_synced(&format_file, format!("weir data {FORMAT}\n").as_bytes())?;
            }
            Err(error) => return Err(DiskError::io("read", &format_file)(error)),
        }
        dir.remove_copies();
        Ok(dir)
    }

    /// Commands that are killed leave their copies behind. Copies in use are locked.
    fn remove_copies(&self) {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(COPY)) {
            let lock = File::open(entry.path().join(LOCK_FILE));
            if lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    fn check_format(&self, text: &str) -> Result<(), DiskError> {
        let version = text.strip_prefix("weir data ").and_then(|rest| rest.trim_end().parse().ok());
        match version {
            Some(found) if found > FORMAT => {
                Err(DiskError::Newer { dir: self.path.clone(), found, supported: FORMAT })
            }
            Some(FORMAT) if text.ends_with('\n') => Ok(()),
            _ => {
                let what = format!("it must be \"weir data {FORMAT}\"");
                Err(DiskError::damaged(self.path.join(FORMAT_FILE), what))
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// [`DiskError::Gone`] if somebody has removed, moved or replaced the directory, or the engine in it.
    pub(super) fn check_there(&self) -> Result<(), DiskError> {
        let identity = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
        let held = self.lock.metadata().map_err(DiskError::io("read", self.path.join(LOCK_FILE)))?;
        let found = fs::metadata(self.path.join(LOCK_FILE));
        let engine = fs::metadata(self.engine_dir().join(VERSION_FILE));
        match found.and_then(|found| engine.map(|_| found)) {
            Ok(found) if identity(&found) == identity(&held) => Ok(()),
            Ok(_) => Err(DiskError::Gone(self.path.clone())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(DiskError::Gone(self.path.clone())),
            Err(error) => Err(DiskError::io("read", &self.path)(error)),
        }
    }

    pub(super) fn engine_dir(&self) -> PathBuf {
        self.path.join(ENGINE)
    }

    /// With [`OnDamage::Continue`], damaged files are set aside; `now` is part of their new name.
    pub(super) fn open_data(
        &self,
        expiry: &Arc<DiskExpiry>,
        on_damage: OnDamage,
        now: Timestamp,
    ) -> Result<OpenData, DiskError> {
        let mut lost = self.known_damage(on_damage)?;
        let has_engine = self.engine_dir().join(VERSION_FILE).exists();
        let mut progress = self.open_progress(has_engine, on_damage, &mut lost)?;
        let promised = progress.get().promised();
        if promised > 0 && !has_engine {
            let file = self.engine_dir().join(VERSION_FILE);
            self.damage(on_damage, &mut lost, DiskError::damaged(file, "it is missing"))?;
            self.set_aside(&self.engine_dir(), now)?;
        }
        let (engine, dropped) = self.open_engine(expiry, on_damage, now, &mut lost)?;
        // a power failure must not take the names of files whose contents are synced
        sync_dir(&self.path)?;
        let last_batch = match engine.last_batch() {
            Err(error) if error.is_damage() && on_damage == OnDamage::Continue => {
                lost.push(error.to_string());
                promised
            }
            read => read?,
        };
        for end in dropped.iter().filter(|end| !end.is_last || last_batch < promised) {
            self.damage(on_damage, &mut lost, damaged_end(end, promised.saturating_sub(last_batch)))?;
        }
        if last_batch < promised && lost.is_empty() {
            let what = format!("the last {} batches of changes are missing", promised - last_batch);
            self.damage(on_damage, &mut lost, DiskError::damaged(self.engine_dir(), what))?;
        }
        if let (Some(end), true) = (dropped.iter().find(|end| end.is_last), lost.is_empty()) {
            tracing::info!(
                file = %end.file.display(), bytes = end.bytes,
                "dropped changes that were not written completely when the process or the system stopped"
            );
        }
        let last_batch = last_batch.max(promised);
        if !lost.is_empty() {
            // from now on this is what must be there
            engine.write(last_batch, &[], true)?;
            progress.record(last_batch, last_batch)?;
        }
        Ok(OpenData { engine, progress, last_batch, lost })
    }

    /// With [`OnDamage::Continue`], sets aside damaged journals, newest first, so that the rest is a state that once
    /// was. If this does not help, sets aside all files.
    fn open_engine(
        &self,
        expiry: &Arc<DiskExpiry>,
        on_damage: OnDamage,
        now: Timestamp,
        lost: &mut Vec<String>,
    ) -> Result<(Engine, Vec<DroppedEnd>), DiskError> {
        let dir = self.engine_dir();
        loop {
            let error = match Engine::open(&dir, expiry) {
                Ok(opened) => return Ok(opened),
                Err(error) if error.is_damage() && on_damage == OnDamage::Continue => error,
                Err(error) => return Err(error),
            };
            let is_journal = error.to_string().contains(".jnl");
            if let Some(journal) = checksums::journals(&dir)?.pop().filter(|_| is_journal) {
                lost.push(error.to_string());
                self.set_aside(&journal.path, now)?;
            } else {
                lost.push(format!("{error}; no counter can be read, and all are lost"));
                self.set_aside(&dir, now)?;
            }
        }
    }

    fn open_progress(
        &self,
        has_engine: bool,
        on_damage: OnDamage,
        lost: &mut Vec<String>,
    ) -> Result<ProgressFile, DiskError> {
        let path = self.path.join(progress::FILE);
        if has_engine && !path.exists() {
            self.damage(on_damage, lost, DiskError::damaged(&path, "it is missing"))?;
        }
        let (progress, damaged) = match ProgressFile::open(&self.path) {
            Err(error) if error.is_damage() => {
                self.damage(on_damage, lost, error)?;
                fs::remove_file(&path).map_err(DiskError::io("remove", &path))?;
                ProgressFile::open(&self.path)?
            }
            opened => opened?,
        };
        if let Some(damaged) = damaged {
            tracing::warn!(file = %path.display(), "{damaged} is damaged, and the other one is used");
        }
        Ok(progress)
    }

    /// Damage that an earlier start found, which no longer shows in the files of the engine.
    fn known_damage(&self, on_damage: OnDamage) -> Result<Vec<String>, DiskError> {
        let path = self.path.join(DAMAGE_FILE);
        let Ok(text) = fs::read_to_string(&path) else { return Ok(Vec::new()) };
        let (file, what) = text.trim_end().split_once(" is damaged: ").unwrap_or((ENGINE, &text));
        if on_damage == OnDamage::Refuse {
            return Err(DiskError::damaged(file, what));
        }
        fs::remove_file(&path).map_err(DiskError::io("remove", &path))?;
        Ok(vec![text.trim_end().to_owned()])
    }

    /// On refusal, remembers `error` in a file, since opening the engine may have removed its traces.
    fn damage(&self, on_damage: OnDamage, lost: &mut Vec<String>, error: DiskError) -> Result<(), DiskError> {
        if on_damage == OnDamage::Continue {
            lost.push(error.to_string());
            return Ok(());
        }
        write_synced(&self.path.join(DAMAGE_FILE), format!("{error}\n").as_bytes())?;
        Err(error)
    }

    /// Renames a damaged file or directory, which is kept for whoever wants to look at it.
    pub(super) fn set_aside(&self, path: &Path, now: Timestamp) -> Result<(), DiskError> {
        if !path.exists() {
            return Ok(());
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let to = self.path.join(format!("damaged-{}-{name}", now.as_nanos() / 1_000_000));
        fs::rename(path, to).map_err(DiskError::io("rename", path))?;
        sync_dir(&self.path)
    }
}

/// Makes the names in a directory durable.
pub(super) fn sync_dir(dir: &Path) -> Result<(), DiskError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(DiskError::io("sync", dir))
}

fn damaged_end(end: &DroppedEnd, batches: u64) -> DiskError {
    let what = format!(
        "a record at byte {} is wrong, and the {} bytes from there on{} are lost",
        end.from,
        end.bytes,
        if batches > 0 { format!(", {batches} batches of changes,") } else { String::new() },
    );
    DiskError::damaged(&end.file, what)
}

/// Fails if there are files of something else. File systems and a start that was stopped leave some.
fn check_empty(dir: &Path) -> Result<(), DiskError> {
    for entry in fs::read_dir(dir).map_err(DiskError::io("read", dir))? {
        let name = entry.map_err(DiskError::io("read", dir))?.file_name();
        let name = name.to_string_lossy();
        if !matches!(&*name, LOCK_FILE | "lost+found") && !name.starts_with(FORMAT_FILE) {
            return Err(DiskError::Foreign { dir: dir.to_owned(), found: name.into_owned() });
        }
    }
    Ok(())
}

/// Afterwards the file has its contents or does not exist.
fn write_synced(path: &Path, contents: &[u8]) -> Result<(), DiskError> {
    let temporary = path.with_extension("new");
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(contents)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(DiskError::io("write to", path))?;
    path.parent().map_or(Ok(()), sync_dir)
}
