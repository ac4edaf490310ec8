use std::path::PathBuf;

use weir_limit::{OnStoreFailure, Period};

#[derive(Clone, Debug)]
pub struct DiskSettings {
    /// `WEIR_DATA_DIR`: the directory of the data, which is created if it does not exist.
    pub dir: PathBuf,
    /// `WEIR_DISK_SYNC`: when changes are durable.
    pub sync: DiskSync,
    /// `WEIR_SYNC_INTERVAL`: the time between two writes, unless decisions wait for them. Longer than zero.
    pub interval: Period,
    /// `WEIR_DISK_DAMAGE`: what happens if data are damaged.
    pub on_damage: OnDamage,
    /// `WEIR_DISK_MAX_BYTES`: the bytes of the data above which nothing more is written; none for no limit.
    pub max_bytes: Option<u64>,
    /// `WEIR_DECISION_BUDGET`: the longest time that a decision waits for the disk; 0 waits for nothing.
    pub budget: Period,
    /// `WEIR_ON_STORE_FAILURE`: the decision past that time, unless the rule has its own.
    pub on_store_failure: OnStoreFailure,
    /// `WEIR_MAX_COUNTERS`: the counters that are kept in memory, at least 1.
    pub max_counters: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskSync {
    /// Before the answer: it waits until its change is synced.
    Always,
    /// At an interval: all changes since are written and synced together.
    Interval,
    /// When the system chooses: all changes since are written at an interval, and not synced.
    Os,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDamage {
    /// weir does not start. On damage found later `on_store_failure` decides, and the damaged files stay as they are.
    Refuse,
    /// weir goes on with what is left; what is lost counts from zero.
    Continue,
}
