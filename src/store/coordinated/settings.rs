//! How instances keep their counts together.

use crate::limit::{Coordination, OnStoreFailure, Period};

/// How instances keep their counts together, where a rule does not say.
#[derive(Clone, Debug)]
pub struct CoordinationSettings {
    /// `WEIR_COORDINATION`.
    pub coordination: Coordination,
    /// `WEIR_SYNC_INTERVAL`: longer than zero.
    pub sync_interval: Period,
    /// Counters that are about to be used up are told early. Only `weir simulate` does without, to show what it gains.
    pub early_sync: bool,
    /// `WEIR_DECISION_BUDGET`: no decision waits for longer.
    pub budget: Period,
    /// `WEIR_ON_STORE_FAILURE`.
    pub on_store_failure: OnStoreFailure,
    /// `LOCAL_CACHE_SIZE_IN_BYTES` above 0: under `strict`, what is denied until some instant is denied here.
    pub local_cache: bool,
    /// `WEIR_MAX_COUNTERS`, for those that are local and for those that are not.
    pub max_counters: usize,
    /// The time between two heartbeats.
    pub heartbeat: Period,
    /// What this instance is called among the others.
    pub instance: String,
}

// === impl CoordinationSettings ===

/// The defaults of the documentation.
impl Default for CoordinationSettings {
    fn default() -> Self {
        Self {
            coordination: Coordination::Interval,
            sync_interval: Period::from_millis(100),
            early_sync: true,
            budget: Period::from_millis(15),
            on_store_failure: OnStoreFailure::Local,
            local_cache: false,
            max_counters: 1_000_000,
            heartbeat: Period::from_secs(1),
            instance: String::new(),
        }
    }
}
