//! The numbers of the batches that were written and synced, in a small file of their own.
//!
//! The engine takes a damaged record in its journal for one that was not written completely, and drops it and all that
//! follows without a word. So batches have numbers, the last one is part of the data, and this file says which number
//! must be there. It has two slots that are written in turn, so that one is whole whenever the other is cut off. A slot
//! has 48 bytes: the last number that was handed to the system, the last one that was synced, 16 bytes that tell one
//! start of the system from another, the turn, and a checksum of all of it.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use xxhash_rust::xxh3::xxh3_64;

use super::error::DiskError;

pub(super) const FILE: &str = "progress";

const SLOT: usize = 48;

/// The distance of the slots: they are in different blocks of the file system.
const DISTANCE: u64 = 4096;

#[derive(Debug)]
pub(super) struct ProgressFile {
    file: File,
    path: PathBuf,
    progress: WriteProgress,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WriteProgress {
    /// The last batch that was handed to the system: it survives the end of the process.
    pub(super) written: u64,
    /// The last batch that was synced: it survives the end of the system.
    pub(super) synced: u64,
    /// The start of the system in which this was written.
    boot: [u8; 16],
    turn: u64,
}

impl WriteProgress {
    /// The last batch that must be there: all that the system was handed, unless it has been started anew since.
    pub(super) fn promised(&self) -> u64 {
        if self.boot == boot_id() && self.boot != [0; 16] {
            self.written.max(self.synced)
        } else {
            self.synced
        }
    }
}

impl ProgressFile {
    /// Also names a damaged slot: a system that stops during a write leaves one. Two are an error.
    pub(super) fn open(dir: &Path) -> Result<(Self, Option<&'static str>), DiskError> {
        let path = dir.join(FILE);
        let is_new = !path.exists();
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(DiskError::io("open", &path))?;
        if is_new {
            let mut created = Self { file, path, progress: WriteProgress::default() };
            created.record(0, 0)?;
            created.record(0, 0)?;
            created.file.sync_all().map_err(DiskError::io("sync", &created.path))?;
            return Ok((created, None));
        }
        let slots = [0, DISTANCE].map(|offset| read_slot(&file, offset));
        let (progress, damaged) = match slots {
            [Some(first), Some(second)] => (if first.turn > second.turn { first } else { second }, None),
            [Some(first), None] => (first, Some("the second slot")),
            [None, Some(second)] => (second, Some("the first slot")),
            [None, None] => {
                return Err(DiskError::damaged(path, "both slots have wrong checksums"));
            }
        };
        Ok((Self { file, path, progress }, damaged))
    }

    pub(super) fn get(&self) -> WriteProgress {
        self.progress
    }

    /// Not synced: an older number only promises less.
    pub(super) fn record(&mut self, written: u64, synced: u64) -> Result<(), DiskError> {
        let turn = self.progress.turn + 1;
        let progress = WriteProgress { written, synced, boot: boot_id(), turn };
        let mut slot = [0; SLOT];
        slot[..8].copy_from_slice(&written.to_le_bytes());
        slot[8..16].copy_from_slice(&synced.to_le_bytes());
        slot[16..32].copy_from_slice(&progress.boot);
        slot[32..40].copy_from_slice(&turn.to_le_bytes());
        let checksum = xxh3_64(&slot[..40]).to_le_bytes();
        slot[40..].copy_from_slice(&checksum);
        self.file.write_all_at(&slot, turn % 2 * DISTANCE).map_err(DiskError::io("write to", &self.path))?;
        self.progress = progress;
        Ok(())
    }
}

fn read_slot(file: &File, offset: u64) -> Option<WriteProgress> {
    let mut slot = [0; SLOT];
    file.read_exact_at(&mut slot, offset).ok()?;
    parse_slot(&slot)
}

pub(super) fn parse_slot(slot: &[u8; SLOT]) -> Option<WriteProgress> {
    let number = |at: usize| slot[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    if number(40)? != xxh3_64(&slot[..40]) {
        return None;
    }
    let boot = *slot[16..].first_chunk()?;
    Some(WriteProgress { written: number(0)?, synced: number(8)?, boot, turn: number(32)? })
}

/// 16 bytes that are different after each start of the system; zeros if the system does not tell.
fn boot_id() -> [u8; 16] {
    static BOOT: LazyLock<[u8; 16]> = LazyLock::new(|| {
        let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        u128::from_str_radix(&digits, 16).unwrap_or_default().to_le_bytes()
    });
    *BOOT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut file, _) = ProgressFile::open(dir.path()).expect("a new file");
        assert_eq!(file.get().promised(), 0);
        for number in 1..5 {
            file.record(number, number - 1).expect("a record");
            let (read, damaged) = ProgressFile::open(dir.path()).expect("the file");
            assert_eq!((read.get(), damaged), (file.get(), None));
            assert_eq!(read.get().promised(), number);
            let later = WriteProgress { boot: [7; 16], ..read.get() };
            assert_eq!(later.promised(), number - 1, "after a start of the system");
        }
    }

    #[test]
    fn a_damaged_slot_is_told_and_the_other_one_is_used() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut file, _) = ProgressFile::open(dir.path()).expect("a new file");
        (1..=6).for_each(|number| file.record(number, number).expect("a record"));
        let path = dir.path().join(FILE);
        let whole = fs::read(&path).expect("the file");
        let slots = [0..SLOT, 4096..4096 + SLOT];
        for at in slots.iter().cloned().flatten() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&path, &flipped).expect("the file");
            let (read, damaged) = ProgressFile::open(dir.path()).expect("the file");
            assert!(damaged.is_some(), "{at}");
            assert!((5..=6).contains(&read.get().synced), "{at}");
        }
        let mut flipped = whole;
        for slot in slots {
            flipped[slot.start] ^= 1;
        }
        fs::write(&path, &flipped).expect("the file");
        let error = ProgressFile::open(dir.path()).expect_err("both are damaged");
        assert!(error.is_damage() && error.to_string().contains("progress"), "{error}");
    }
}
