//! The metrics of the memory store.

use super::{MemoryStore, Notes};
use crate::observe::{Metric, Source};

impl Source for MemoryStore {
    fn metrics(&self) -> Vec<Metric> {
        self.usage_metrics(self.usage().evicted)
    }
}

impl<N: Notes> MemoryStore<N> {
    /// Returns the metrics of the counters in memory. `evicted` are those whose hits were lost.
    pub(in crate::store) fn usage_metrics(&self, evicted: u64) -> Vec<Metric> {
        let usage = self.usage();
        let mut metrics = vec![
            Metric::gauge("weir.counters.live", "Counters held in memory.", usage.live as u64),
            Metric::gauge("weir.counters.max", "Counters that may be held in memory.", usage.max as u64),
            Metric::counter(
                "weir.counters.evicted",
                "Counters evicted before they expired, because memory was full.",
                evicted,
            ),
            Metric::counter(
                "weir.counters.expired",
                "Counters removed after they had expired.",
                usage.expired,
            ),
        ];
        metrics.extend(self.pools.metrics());
        metrics.extend(self.wait_metrics());
        metrics
    }
}
