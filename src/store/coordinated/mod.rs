//! The coordinated store: this instance's memory in front of a store that all instances share.
//!
//! `docs/coordination.md` has the modes, each with its price and its bound, `docs/design/coordination.md` the parts and
//! the rules that keep counts right. The modes use the table of local counters (`table/`) and the store client
//! (`client/`); the table flushes through the client. The state of one counter is in `counter/`, which is pure.

mod buckets;
mod client;
mod counter;
mod delivery;
mod fallback;
mod link;
mod metrics;
mod modes;
mod own;
mod pools;
mod settings;
mod source;
mod table;
mod target;
mod turn;
mod units;
// the tests that use it need the simulated store
#[cfg(all(test, feature = "server"))]
mod test_tiers;

use std::sync::Arc;

use tokio::task::JoinSet;

pub use metrics::CoordinationMetrics;
pub use settings::CoordinationSettings;

use self::{
    client::{StoreClient, heartbeat},
    pools::SharedPools,
    table::{CounterTable, sender},
};
use super::{MemoryStore, remote::Remote};
use crate::{clock::Clock, limit::Timestamp};

/// Memory in front of a shared store.
pub struct Coordinated<R: Remote> {
    /// The counters of `local` and `split` rules.
    memory: MemoryStore,
    table: Arc<CounterTable<R>>,
    client: Arc<StoreClient<R>>,
    pools: Arc<SharedPools<R>>,
    /// Ends with the store.
    _tasks: JoinSet<()>,
}

// === impl Coordinated ===

impl<R: Remote> Coordinated<R> {
    /// Must be called within a tokio runtime with time and IO. `remote` need not be reachable yet.
    pub fn new(remote: R, clock: Arc<dyn Clock>, settings: CoordinationSettings) -> Self {
        let memory = MemoryStore::new(settings.max_counters);
        let client = Arc::new(StoreClient::new(remote, clock, settings));
        let table = Arc::new(CounterTable::new(Arc::clone(&client)));
        let mut tasks = JoinSet::new();
        tasks.spawn(heartbeat::run(Arc::clone(&client)));
        tasks.spawn(sender::run(Arc::clone(&table)));
        let pools = SharedPools::new(Arc::clone(&client));
        tasks.spawn(Arc::clone(&pools).sweep());
        Self { memory, table, client, pools, _tasks: tasks }
    }

    /// Returns the metrics of coordination.
    #[must_use]
    pub fn coordination_metrics(&self) -> &CoordinationMetrics {
        &self.client.metrics
    }

    /// Returns the counters of `local` and `split` rules.
    #[must_use]
    pub const fn memory(&self) -> &MemoryStore {
        &self.memory
    }

    /// Calls [`MemoryStore::sweep_step`] on these counters. `now` is on this instance's clock. Parts of limits follow the
    /// store's, which may be behind: windows that have not ended there stay.
    pub fn sweep_step(&self, step: usize, now: Timestamp) {
        self.memory.sweep_step(step, now.min(self.client.time_at(now).now));
    }

    /// Returns the shared store.
    #[must_use]
    pub fn remote(&self) -> &R {
        &self.client.remote
    }

    /// Returns the number of instances that share the store, this one included, as of the last heartbeat.
    #[must_use]
    pub fn instances(&self) -> usize {
        self.client.instances()
    }

    /// Returns whether the store, or a node of it, has stopped replying, so that no decision waits for it.
    #[must_use]
    pub fn is_store_unavailable(&self) -> bool {
        self.client.is_unavailable()
    }

    /// Returns the number of counters of coordinated rules that are held in memory.
    #[must_use]
    pub fn counters(&self) -> usize {
        self.table.shards.len()
    }

    /// Reports pending hits, returns unused leases, and deregisters. Must be called after the last decision.
    pub async fn close(&self) {
        self.pools.close().await;
        self.table.final_flush().await;
        self.client.leave().await;
    }
}
