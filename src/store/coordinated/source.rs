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
        metrics.extend([
            Metric::gauge(
                "weir.coordinated_counters.name_bytes",
                "Bytes of the names of coordinated counters.",
                self.counter_name_bytes() as u64,
            ),
            Metric::gauge(
                "weir.instances",
                "Instances that share the store, this one included.",
                self.instances() as u64,
            ),
            Metric::gauge(
                "weir.store.unavailable",
                "1 while decisions do not wait for the store, or for a node of it.",
                self.is_store_unavailable().into(),
            ),
            Metric::gauge(
                "weir.store.clock_offset_nanoseconds",
                "Difference between the store's clock and this instance's.",
                self.clock_offset().unsigned_abs(),
            ),
        ]);
        let mut pools = PoolSummary::default();
        self.pools.summarize(&mut pools);
        let memory = self.memory();
        metrics.extend(memory.usage_metrics(memory.usage().evicted, pools));
        metrics.extend(self.remote().metrics());
        metrics
    }
}
