//! Verifies the files of the engine, which trusts some of them: its list of tables has a checksum beside it that it
//! does not compare, and an error about a table does not say which one it is.

use std::{
    fs::{self, File},
    io::{self, Read, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::Xxh3Default;

use super::error::DiskError;

/// The directory of the engine's keyspaces: the engine's own is `0`, that of the counters `1`.
pub(super) const KEYSPACES: &str = "keyspaces";

/// The file that names the current list of tables.
const CURRENT: &str = "current";

const CHUNK: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct JournalEnd {
    pub(super) path: PathBuf,
    /// The bytes up to the last one that is not zero. Journals are created full of zeros.
    pub(super) used: u64,
}

struct TableEntry {
    path: PathBuf,
    checksum: u128,
}

/// Verifies the lists of tables of all keyspaces, that the tables exist, and the engine's own tables. Must come before
/// the engine reads them: it deletes files that its lists do not name.
pub(super) fn lists(engine: &Path) -> Result<(), DiskError> {
    for keyspace in directories(&engine.join(KEYSPACES))? {
        if !keyspace.join(CURRENT).exists() {
            // it was not created completely, or its list is lost
            let tables = fs::read_dir(keyspace.join("tables"));
            if tables.is_ok_and(|mut tables| tables.next().is_some()) {
                return Err(DiskError::damaged(
                    keyspace.join(CURRENT),
                    "it is missing, and there are tables",
                ));
            }
            continue;
        }
        let tables = list(&keyspace)?;
        if let Some(table) = tables.iter().find(|table| !table.path.exists()) {
            return Err(DiskError::damaged(table.path.clone(), "it is missing"));
        }
        let is_own = keyspace.file_name().is_some_and(|name| name == "0");
        for table in tables.iter().filter(|_| is_own) {
            verify_table(table)?;
        }
    }
    Ok(())
}

/// Calls `pause` after each chunk. A missing table is no damage: it may have been replaced meanwhile.
pub(super) fn tables(engine: &Path, mut pause: impl FnMut()) -> Result<(), DiskError> {
    for keyspace in directories(&engine.join(KEYSPACES))? {
        if !keyspace.join(CURRENT).exists() {
            continue;
        }
        let Ok(tables) = list(&keyspace) else {
            // it was replaced while it was read; if not, the engine could not have been opened
            continue;
        };
        for table in tables {
            match verify_table(&table) {
                Err(DiskError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                verified => verified?,
            }
            pause();
        }
    }
    Ok(())
}

/// Oldest first.
pub(super) fn journals(engine: &Path) -> Result<Vec<JournalEnd>, DiskError> {
    let mut journals = Vec::new();
    for entry in fs::read_dir(engine).map_err(DiskError::io("read", engine))? {
        let path = entry.map_err(DiskError::io("read", engine))?.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok());
        let (true, Some(number)) = (path.extension().is_some_and(|end| end == "jnl"), number) else {
            continue;
        };
        let used = used(&path).map_err(DiskError::io("read", &path))?;
        journals.push((number, JournalEnd { path, used }));
    }
    journals.sort_unstable_by_key(|(number, _)| *number);
    Ok(journals.into_iter().map(|(_, journal)| journal).collect())
}

/// The bytes up to the last one that is not zero.
fn used(path: &Path) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let mut end = file.metadata()?.len();
    let mut chunk = vec![0; CHUNK];
    while end > 0 {
        let start = end.saturating_sub(CHUNK as u64);
        let part = &mut chunk[..usize::try_from(end - start).unwrap_or(CHUNK)];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(part)?;
        // most of a new journal is zeros, which this passes over many times as fast as a search would
        let is_zero = part.iter().fold(0, |all, byte| all | byte) == 0;
        let last = if is_zero { None } else { part.iter().rposition(|byte| *byte != 0) };
        if let Some(last) = last {
            return Ok(start + last as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

fn list(keyspace: &Path) -> Result<Vec<TableEntry>, DiskError> {
    let current = keyspace.join(CURRENT);
    let content = fs::read(&current).map_err(DiskError::io("read", &current))?;
    // the number of the list, its checksum, and the kind of the checksum
    let fields = content.first_chunk::<25>().filter(|_| content.len() == 25 && content[24] == 0);
    let Some(fields) = fields else {
        return Err(DiskError::damaged(current, "it does not have the contents that it must have"));
    };
    let number = u64::from_le_bytes(*fields.first_chunk().unwrap_or(&[0; 8]));
    let checksum = u128::from_le_bytes(*fields[8..].first_chunk().unwrap_or(&[0; 16]));
    let list = keyspace.join(format!("v{number}"));
    let found = match checksum_of(&list) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(DiskError::damaged(
                current,
                format!("it names the file v{number}, which does not exist"),
            ));
        }
        found => found.map_err(DiskError::io("read", &list))?,
    };
    if found != checksum {
        return Err(DiskError::damaged(list, "its checksum is not the one in the file `current`"));
    }
    entries(keyspace, &list)
        .map_err(|error| DiskError::damaged(list, format!("it cannot be parsed: {error}")))
}

fn entries(keyspace: &Path, list: &Path) -> io::Result<Vec<TableEntry>> {
    let other = |error: sfa::Error| io::Error::other(format!("{error:?}"));
    let archive = sfa::Reader::new(list).map_err(other)?;
    let section = archive.toc().section(b"tables");
    let mut section = section.ok_or_else(|| io::Error::other("no section of tables"))?.buf_reader(list)?;
    let mut tables = Vec::new();
    for _level in 0..byte(&mut section)? {
        for _run in 0..byte(&mut section)? {
            for _table in 0..u32::from_le_bytes(bytes(&mut section)?) {
                let id = u64::from_le_bytes(bytes(&mut section)?);
                let _kind_of_checksum = byte(&mut section)?;
                let checksum = u128::from_le_bytes(bytes(&mut section)?);
                let _sequence: [u8; 8] = bytes(&mut section)?;
                tables.push(TableEntry { path: keyspace.join("tables").join(id.to_string()), checksum });
            }
        }
    }
    Ok(tables)
}

fn bytes<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn byte(from: &mut impl Read) -> io::Result<u8> {
    bytes::<1>(from).map(|[byte]| byte)
}

fn verify_table(table: &TableEntry) -> Result<(), DiskError> {
    let found = checksum_of(&table.path).map_err(DiskError::io("read", &table.path))?;
    if found == table.checksum {
        Ok(())
    } else {
        Err(DiskError::damaged(table.path.clone(), "its checksum is wrong"))
    }
}

fn checksum_of(path: &Path) -> io::Result<u128> {
    let mut file = File::open(path)?;
    let (mut hasher, mut chunk) = (Xxh3Default::new(), vec![0; CHUNK.min(1 << 18)]);
    loop {
        let read = file.read(&mut chunk)?;
        if read == 0 {
            return Ok(hasher.digest128());
        }
        hasher.update(&chunk[..read]);
    }
}

fn directories(dir: &Path) -> Result<Vec<PathBuf>, DiskError> {
    match fs::read_dir(dir) {
        Ok(entries) => entries
            .filter(|entry| entry.as_ref().map_or(true, |entry| entry.path().is_dir()))
            .map(|entry| entry.map(|entry| entry.path()).map_err(DiskError::io("read", dir)))
            .collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(DiskError::io("read", dir)(error)),
    }
}
