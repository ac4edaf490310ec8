//! What the client and the source exchange.

use super::response::Resource;

/// All rules as of one response of the control plane.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    /// Counts up; no two snapshots of a process have the same.
    pub(super) id: u64,
    /// The reason if they cannot be used whatever they hold.
    pub(super) resources: Result<Vec<Resource>, String>,
}

#[derive(Clone, Debug)]
pub(super) struct SnapshotOutcome {
    pub(super) id: u64,
    pub(super) result: Result<(), String>,
}
