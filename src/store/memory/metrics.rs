//! The metrics of the memory store.

use super::{MemoryStore, Notes};
use crate::{
    observe::{Metric, Source},
    store::table_metrics::{HitsOfEvicted, TableMetrics},
};

impl Source for MemoryStore {
    fn metrics(&self) -> Vec<Metric> {
        self.usage_metrics(self.usage().evicted)
    }
}

impl<N: Notes> MemoryStore<N> {
    /// Returns the metrics of the counters in memory. `evicted` are those whose hits were lost.
    pub(in crate::store) fn usage_metrics(&self, evicted: u64) -> Vec<Metric> {
        let usage = self.usage();
        let table = TableMetrics {
            table: "memory",
            live: usage.live,
            max: usage.max,
            evicted: &[(HitsOfEvicted::Lost, evicted)],
        };
        let mut metrics = table.metrics();
        metrics.push(Metric::counter(
            "weir.counters.expired",
            "Counters removed after they had expired.",
            usage.expired,
        ));
        metrics.extend(self.pools.metrics());
        metrics
    }
}
