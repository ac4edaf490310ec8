//! The numbers of the coordinated store.

use super::{Metric, Source};
use crate::store::{coordinated::Coordinated, remote::Remote};

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
