//! The settings of the coordinated store.

use weir_limit::{Coordination, OnStoreFailure, Period};

/// How instances coordinate, unless a rule says otherwise.
#[derive(Clone, Debug)]
pub struct CoordinationSettings {
    /// `WEIR_COORDINATION`.
    pub coordination: Coordination,
    /// `WEIR_SYNC_INTERVAL`, longer than zero.
    pub sync_interval: Period,
    /// `WEIR_DECISION_BUDGET`: the longest that a decision waits for the store.
    pub budget: Period,
    /// `WEIR_ON_STORE_FAILURE`.
    pub on_store_failure: OnStoreFailure,
    /// `LOCAL_CACHE_SIZE_IN_BYTES` above 0: `strict` denies without a call what the store has denied for a time.
    pub local_cache: bool,
    /// `WEIR_MAX_COUNTERS`: the bound for local counters, and again for coordinated ones.
    pub max_counters: usize,
    /// `WEIR_MAX_COUNTER_BYTES`: the bound for the names of coordinated counters together, in bytes.
    pub max_counter_bytes: usize,
    /// The time between two heartbeats.
    pub heartbeat: Period,
    /// The time in which all counters are looked over once, to remove idle ones. Only `weir simulate` changes it.
    pub sweep: Period,
    /// The name of this instance, unique among those that share the store.
    pub instance: String,
}

// === impl CoordinationSettings ===

impl Default for CoordinationSettings {
    fn default() -> Self {
        Self {
            coordination: Coordination::Auto,
            sync_interval: Period::from_millis(100),
            budget: Period::from_millis(15),
            on_store_failure: OnStoreFailure::Local,
            local_cache: false,
            max_counters: 500_000,
            max_counter_bytes: 128 << 20,
            heartbeat: Period::from_secs(1),
            sweep: Period::from_secs(5),
            instance: String::new(),
        }
    }
}
