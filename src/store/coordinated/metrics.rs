//! What the coordination tells of itself.

use super::Coordinated;
use crate::{
    observe::{Metric, Source, stats::Counter},
    store::remote::Remote,
};

/// Everything that is counted.
#[derive(Debug, Default)]
pub struct CoordinationMetrics {
    /// Decisions that were made by this instance's own count: `local` and `interval`.
    pub local: Counter,
    /// Decisions that were made from a lease, without asking.
    pub leased: Counter,
    /// Decisions that were answered from what the store had told before: denied until some instant.
    pub denied: Counter,
    /// Decisions that waited for the store.
    pub waited: Counter,
    /// Decisions that were made without the store, since it did not answer.
    pub fallback: Counter,
    /// Calls of the store, each a batch.
    pub calls: Counter,
    /// Commands in all those batches.
    pub commands: Counter,
    /// Calls that failed, or did not come back in time.
    pub failures: Counter,
    /// Hits that the store was never told of, since their window had ended by then.
    pub uncounted: Counter,
    /// Hits of which nobody knows whether the store counted them, or granted them: the connection broke, or there was no
    /// answer in time.
    pub unknown: Counter,
    /// Granted hits that nobody used before they ended.
    pub stranded: Counter,
    /// Hits above limits of windows that this instance admitted, as was seen when it told them.
    pub overshoot: Counter,
    /// CounterTable that were forgotten with what they owed, since there were too many.
    pub forgotten: Counter,
}

// === metrics ===

impl<R: Remote + Source> Source for Coordinated<R> {
    fn metrics(&self) -> Vec<Metric> {
        let figures = self.coordination_metrics();
        let decisions = [
            ("local", &figures.local),
            ("leased", &figures.leased),
            ("denied", &figures.denied),
            ("waited", &figures.waited),
            ("fallback", &figures.fallback),
        ];
        let mut metrics: Vec<Metric> = decisions
            .into_iter()
            .map(|(how, counter)| {
                Metric::counter("weir.decisions", "Decisions, by how they were made.", counter.get())
                    .label("how", how)
            })
            .collect();
        let counters = [
            ("weir.store.calls", "Batches that were sent to the shared store.", &figures.calls),
            ("weir.store.commands", "Commands in all batches.", &figures.commands),
            ("weir.store.failures", "Batches and decisions that had no answer in time.", &figures.failures),
            (
                "weir.hits.uncounted",
                "Hits that the store was never told of: their window had ended.",
                &figures.uncounted,
            ),
            (
                "weir.hits.unknown",
                "Hits that nobody knows to be counted: the connection broke.",
                &figures.unknown,
            ),
            ("weir.hits.stranded", "Leased hits that nobody used before they ended.", &figures.stranded),
            (
                "weir.hits.overshoot",
                "Hits above limits of windows that were admitted here, seen when the store was told.",
                &figures.overshoot,
            ),
            (
                "weir.cells.forgotten",
                "Cells dropped with what they owed: memory was full.",
                &figures.forgotten,
            ),
        ];
        metrics.extend(counters.map(|(name, help, counter)| Metric::counter(name, help, counter.get())));
        metrics.extend([
            Metric::gauge(
                "weir.cells.live",
                "Counters of coordinated rules held here.",
                self.counters() as u64,
            ),
            Metric::gauge(
                "weir.instances",
                "Instances that share the store, this one included.",
                self.instances() as u64,
            ),
            Metric::gauge(
                "weir.store.cut_off",
                "1 while decisions are made without the store.",
                self.is_cut_off().into(),
            ),
            Metric::gauge(
                "weir.store.clock_offset_nanoseconds",
                "How far the store's clock and this instance's are apart.",
                self.clock_offset().unsigned_abs(),
            ),
        ]);
        metrics.extend(self.memory().metrics());
        metrics.extend(self.remote().metrics());
        metrics
    }
}
