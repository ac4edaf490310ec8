//! The metrics of coordination.

use crate::observe::{BusyCounter, Counter, Metric, Source};

/// The counters of the coordinated store since the start.
#[derive(Debug, Default)]
pub struct CoordinationMetrics {
    /// Decisions made from this instance's own count: `local` and `interval`.
    pub local: BusyCounter,
    /// Decisions made by this instance's part of a limit that instances split.
    pub split: BusyCounter,
    /// Decisions made from a lease, without a call.
    pub leased: BusyCounter,
    /// Rejections made from an earlier reply of the store: denied until some instant.
    pub denied: BusyCounter,
    /// Decisions that waited for the store.
    pub waited: Counter,
    /// Decisions made by `on_store_failure`, because the store did not reply.
    pub fallback: Counter,
    /// Calls of the store, each a batch.
    pub calls: Counter,
    /// Commands in all those batches.
    pub commands: Counter,
    /// Calls that failed, and decisions that had no reply in time.
    pub failures: Counter,
    /// Hits that were never reported to the store, because their window had ended or their counter was evicted.
    pub unreported: Counter,
    /// Hits that the store may or may not have counted or granted: the connection broke, or there was no reply in time.
    pub delivery_unknown: Counter,
    /// Leased hits that were not used before their lease ended.
    pub stranded: Counter,
    /// Hits above the limit of a window that this instance admitted, seen when it reported them.
    pub overshoot: Counter,
    /// Hits that were asked for of a pool, and that came too late to be demand.
    pub lost_demand: Counter,
    /// Counters that changed from `interval` to `lease` under `auto`.
    pub to_lease: Counter,
    /// Bursts for which `auto` changed a counter from `interval` to `lease`.
    pub bursts: Counter,
    /// Counters that changed from `lease` to `interval` under `auto`.
    pub to_interval: Counter,
    /// Counters that were evicted with pending hits, because memory was full.
    pub evicted: Counter,
    /// Counters that were evicted, because memory was full, with all of their hits in the store.
    pub evicted_reported: Counter,
}

// === impl CoordinationMetrics ===

impl Source for CoordinationMetrics {
    fn metrics(&self) -> Vec<Metric> {
        let decisions = [
            ("local", self.local.get()),
            ("split", self.split.get()),
            ("leased", self.leased.get()),
            ("denied", self.denied.get()),
            ("waited", self.waited.get()),
            ("fallback", self.fallback.get()),
        ];
        let decisions = decisions.into_iter().map(|(how, made)| {
            Metric::counter("weir.decisions", "Decisions, by how they were made.", made).label("how", how)
        });
        let switches = [("lease", &self.to_lease), ("interval", &self.to_interval)].map(|(to, counter)| {
            let help = "Counters whose coordination mode `auto` has changed.";
            Metric::counter("weir.coordination.switches", help, counter.get()).label("to", to)
        });
        let counters = [
            (
                "weir.coordination.bursts",
                "Bursts for which `auto` has coordinated a counter by leases.",
                &self.bursts,
            ),
            ("weir.store.calls", "Batches sent to the shared store.", &self.calls),
            ("weir.store.commands", "Commands in all batches.", &self.commands),
            ("weir.store.failures", "Batches and decisions without a reply in time.", &self.failures),
            (
                "weir.hits.unreported",
                "Hits never reported to the store, because their window had ended or their counter was evicted.",
                &self.unreported,
            ),
            (
                "weir.hits.delivery_unknown",
                "Hits that the store may or may not have counted, because the connection broke.",
                &self.delivery_unknown,
            ),
            (
                "weir.hits.stranded",
                "Leased hits not used before their lease ended, and hits given back that were not reported.",
                &self.stranded,
            ),
            (
                "weir.hits.overshoot",
                "Hits above the limit of a window that were admitted here, seen when they were reported.",
                &self.overshoot,
            ),
            (
                "weir.pools.lost_demand",
                "Hits asked for of a pool whose report came too late to be demand.",
                &self.lost_demand,
            ),
        ];
        decisions
            .chain(switches)
            .chain(counters.map(|(name, help, counter)| Metric::counter(name, help, counter.get())))
            .collect()
    }
}
