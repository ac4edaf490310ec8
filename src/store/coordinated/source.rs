//! The coordinated store as a source of metrics.

use super::Coordinated;
use crate::{
    observe::{Metric, Source},
    store::{
        pools::PoolSummary,
        remote::Remote,
        table_metrics::{HitsOfEvicted, TableMetrics},
    },
};

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
