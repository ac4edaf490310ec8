use super::{MemoryStore, Notes};
use crate::{
    pools::PoolSummary,
    table_metrics::{HitsOfEvicted, TableMetrics},
};
use weir_observe::{Metric, Source};

impl Source for MemoryStore {
    fn metrics(&self) -> Vec<Metric> {
        self.usage_metrics(self.usage().evicted, PoolSummary::default())
    }
}

impl<N: Notes> MemoryStore<N> {
    /// Counters `evicted` are those whose hits were lost, and `pools` are kept elsewhere.
    pub fn usage_metrics(&self, evicted: u64, mut pools: PoolSummary) -> Vec<Metric> {
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
        self.pools.summarize(&mut pools);
        metrics.extend(pools.metrics());
        metrics.extend(self.wait_room.metrics());
        metrics
    }
}
