//! What the system says about this process and its files.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path, time::Duration};

/// The clock ticks of a second in `/proc`.
const TICKS: f64 = 100.0;

/// The CPU time of threads, in ticks.
pub(crate) struct Cpu {
    disk: u64,
    all: u64,
}

/// Shares of a core.
pub(crate) struct Shares {
    pub(crate) disk: f64,
    pub(crate) all: f64,
}

impl Cpu {
    pub(crate) fn now() -> Self {
        let mut cpu = Self { disk: 0, all: 0 };
        for task in fs::read_dir("/proc/self/task").expect("the threads").flatten() {
            // a thread may have ended meanwhile
            let Ok(stat) = fs::read_to_string(task.path().join("stat")) else { continue };
            let (head, fields) = stat.rsplit_once(')').expect("a name");
            let ticks: u64 = fields
                .split_whitespace()
                .skip(11)
                .take(2)
                .map(|ticks| ticks.parse::<u64>().expect("ticks"))
                .sum();
            let is_disk = head.contains("(weir-disk") || head.contains("(fjall");
            cpu.disk += if is_disk { ticks } else { 0 };
            cpu.all += ticks;
        }
        cpu
    }

    pub(crate) fn since(&self, earlier: &Self, time: Duration) -> Shares {
        #[expect(clippy::cast_precision_loss, reason = "it is printed")]
        let share = |now: u64, then: u64| now.saturating_sub(then) as f64 / TICKS / time.as_secs_f64();
        Shares { disk: share(self.disk, earlier.disk), all: share(self.all, earlier.all) }
    }
}

/// Returns the resident bytes of this process.
pub(crate) fn resident() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").expect("its memory");
    let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("a number") * 4096
}

/// Returns the allocated bytes of the files below `dir`.
pub(crate) fn allocated(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => allocated(&entry.path()),
            Ok(metadata) => metadata.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}
