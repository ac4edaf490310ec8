//! The metrics that all tables of counters share, so that one query finds the table that is full.

use weir_observe::Metric;

pub struct TableMetrics<'a> {
    /// The label: `memory` for counters that only this instance has, `coordinated` for copies of shared ones.
    pub table: &'static str,
    pub live: usize,
    pub max: usize,
    pub evicted: &'a [(HitsOfEvicted, u64)],
}

/// What became of the hits of evicted counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitsOfEvicted {
    /// The shared store has them: the next decision asks it.
    Kept,
    /// Nothing has them: the counter starts again at 0, or without what it had not reported.
    Lost,
}

// === impl TableMetrics ===

impl TableMetrics<'_> {
    pub fn metrics(&self) -> Vec<Metric> {
        let gauge = |name, help, value| Metric::gauge(name, help, value as u64).label("table", self.table);
        let mut metrics = vec![
            gauge("weir.counters.live", "Counters held in memory, by table.", self.live),
            gauge("weir.counters.max", "Counters that may be held in memory, by table.", self.max),
        ];
        metrics.extend(self.evicted.iter().map(|(hits, count)| {
            let help = "Counters evicted because their table was full, by what became of their hits.";
            Metric::counter("weir.counters.evicted", help, *count)
                .label("table", self.table)
                .label("hits", hits.name())
        }));
        metrics
    }
}

// === impl HitsOfEvicted ===

impl HitsOfEvicted {
    const fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Lost => "lost",
        }
    }
}
