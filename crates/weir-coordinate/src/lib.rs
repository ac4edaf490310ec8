//! The coordinated store: this instance's memory in front of a store that all instances share.
//!
//! `docs/coordination.md` has the modes, each with its price and its bound, `docs/design/coordination.md` the parts and
//! the rules that keep counts right. The modes use the table of local counters (`table/`) and the store client
//! (`client/`); the table flushes through the client. The state of one counter is in `counter/`, which is pure.

mod buckets;
mod client;
mod counter;
mod metrics;
mod modes;
mod own;
mod places;
mod pools;
mod resets;
pub mod simulated;
mod table;
mod units;
// the tests that use it need the simulated store
#[cfg(test)]
mod test_tiers;

use std::sync::Arc;

use tokio::task::JoinSet;

pub use metrics::CoordinationMetrics;
pub use places::{EndedHits, PlaceAsked};

use self::{
    client::{StoreClient, beat_until_left},
    own::OwnCounters,
    places::SharedPlaces,
    pools::SharedPools,
    table::{CounterTable, sender},
};
use weir_limit::{Coordination, OnStoreFailure, Period, Timestamp};
use weir_observe::{Metric, Source};
use weir_store::{
    MemoryStore,
    clock::Clock,
    pools::PoolSummary,
    remote::Remote,
    table_metrics::{HitsOfEvicted, TableMetrics},
};

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
    pub heartbeat: Period,
    /// The time in which all counters are looked over once, to remove idle ones. Only `weir simulate` changes it.
    pub sweep: Period,
    /// The name of this instance, unique among those that share the store.
    pub instance: String,
}

/// Memory in front of a shared store.
pub struct Coordinated<R: Remote> {
    own: OwnCounters<R>,
    table: Arc<CounterTable<R>>,
    client: Arc<StoreClient<R>>,
    pools: Arc<SharedPools<R>>,
    places: Arc<SharedPlaces<R>>,
    /// Ends with the store.
    _tasks: JoinSet<()>,
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

// === impl Coordinated ===

impl<R: Remote> Coordinated<R> {
    /// Must be called within a tokio runtime with time and IO. `remote` need not be reachable yet.
    pub fn new(remote: R, clock: Arc<dyn Clock>, settings: CoordinationSettings) -> Self {
        let client = Arc::new(StoreClient::new(remote, clock, settings));
        let table = Arc::new(CounterTable::new(Arc::clone(&client)));
        let mut tasks = JoinSet::new();
        tasks.spawn(beat_until_left(Arc::clone(&client)));
        tasks.spawn(sender::run(Arc::clone(&table)));
        let pools = SharedPools::new(Arc::clone(&client));
        tasks.spawn(Arc::clone(&pools).sweep());
        let places = SharedPlaces::new(Arc::clone(&client));
        tasks.spawn(Arc::clone(&places).sweep());
        Self { own: OwnCounters::new(Arc::clone(&client)), table, client, pools, places, _tasks: tasks }
    }

    pub fn coordination_metrics(&self) -> &CoordinationMetrics {
        &self.client.metrics
    }

    /// Returns the counters of `local` and `split` rules.
    pub const fn memory(&self) -> &MemoryStore {
        &self.own.memory
    }

    /// Calls [`MemoryStore::sweep_step`] on these counters. `now` is on this instance's clock. Parts of limits follow the
    /// store's, which may be behind: windows that have not ended there stay.
    pub fn sweep_step(&self, step: usize, now: Timestamp) {
        self.own.memory.sweep_step(step, now.min(self.client.time_at(now).now));
    }

    pub fn remote(&self) -> &R {
        &self.client.remote
    }

    /// Returns the number of instances that share the store, this one included, as of the last heartbeat.
    pub fn instances(&self) -> usize {
        self.client.instances()
    }

    /// Returns whether the store, or a node of it, has stopped replying, so that no decision waits for it.
    pub fn is_store_unavailable(&self) -> bool {
        self.client.is_unavailable()
    }

    pub fn counters(&self) -> usize {
        self.table.shards.len()
    }

    /// Reports pending hits and ends, returns unused leases, and deregisters. Must be called after the last decision.
    pub async fn close(&self) {
        self.places.close().await;
        self.pools.close().await;
        self.table.final_flush().await;
        self.client.leave().await;
    }
}

impl<R: Remote + Source> Source for Coordinated<R> {
    fn metrics(&self) -> Vec<Metric> {
        let coordination = self.coordination_metrics();
        let mut metrics = coordination.metrics();
        let evicted = [
            (HitsOfEvicted::Kept, coordination.evictions.evicted_reported.get()),
            (HitsOfEvicted::Lost, coordination.evictions.evicted.get()),
        ];
        let (live, max) = (self.counters(), self.table.shards.max());
        metrics.extend(TableMetrics { table: "coordinated", live, max, evicted: &evicted }.metrics());
        let (name_bytes, offset) =
            (self.table.shards.name_bytes(), self.client.store_clock.offset().unsigned_abs());
        let gauges = [
            ("weir.coordinated_counters.name_bytes", "Bytes of the names of counters.", name_bytes as u64),
            ("weir.instances", "Instances that share the store, with this one.", self.instances() as u64),
            ("weir.store.unavailable", "1 while a node does not reply.", self.is_store_unavailable().into()),
            ("weir.store.clock_offset_nanoseconds", "Between the store's clock and this one's.", offset),
        ];
        metrics.extend(gauges.map(|(name, help, value)| Metric::gauge(name, help, value)));
        let mut pools = PoolSummary::default();
        self.pools.summarize(&mut pools);
        let memory = self.memory();
        metrics.extend(memory.usage_metrics(memory.usage().evicted, pools));
        metrics.extend(self.remote().metrics());
        metrics
    }
}
