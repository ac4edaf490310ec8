use std::sync::Arc;

use super::counter::{DroppedHits, How};
use weir_observe::{BusyCounter, Counter, Metric, Source};

#[derive(Debug, Default)]
pub struct CoordinationMetrics {
    pub decisions: DecisionCounts,
    pub store: CallCounts,
    pub hits: Arc<HitCounts>,
    pub switches: SwitchCounts,
    pub evictions: EvictionCounts,
    /// Places that the store keeps.
    pub places: PlaceCounts,
}

#[derive(Debug, Default)]
pub struct DecisionCounts {
    /// From this instance's own count: `local` and `interval`.
    pub local: BusyCounter,
    /// By this instance's part of a limit that instances split.
    pub split: BusyCounter,
    /// From a lease, without a call.
    pub leased: BusyCounter,
    /// Rejected by what the store's earlier replies have told, without a call: `lease` and the cache of `strict`.
    pub denied: BusyCounter,
    /// They waited for the store.
    pub waited: Counter,
    /// By `on_store_failure`, because the store did not reply.
    pub fallback: Counter,
}

#[derive(Debug, Default)]
pub struct CallCounts {
    /// Calls, each a batch.
    pub calls: Counter,
    pub commands: Counter,
    pub failures: Counter,
    /// Steps of the store's clock, forth and back.
    pub clock_steps: Counter,
}

/// Hits that went another way than they should.
#[derive(Debug, Default)]
pub struct HitCounts {
    /// Never reported to the store, because their window had ended or their counter was evicted.
    pub unreported: Counter,
    /// The store may or may not have counted or granted them: the connection broke, or there was no reply in time.
    pub delivery_unknown: Counter,
    /// Leased, and not used before their lease ended.
    pub stranded: Counter,
    /// Above the limit of a window, and admitted here, as their report has shown.
    pub overshoot: Counter,
    /// Asked for of a pool, too late to be demand.
    pub lost_demand: Counter,
}

/// Places of requests in flight that the store keeps.
#[derive(Debug, Default)]
pub struct PlaceCounts {
    /// Ends that were not sent, because too many waited.
    pub ends_dropped: Counter,
}

/// Changes of modes under `auto`.
#[derive(Debug, Default)]
pub struct SwitchCounts {
    pub to_lease: Counter,
    /// Bursts for which a counter changed from `interval` to `lease`.
    pub bursts: Counter,
    pub to_interval: Counter,
}

/// Counters that were removed because memory was full.
#[derive(Debug, Default)]
pub struct EvictionCounts {
    /// With pending hits.
    pub evicted: Counter,
    /// With all of their hits in the store.
    pub evicted_reported: Counter,
}

// === impl HitCounts ===

impl HitCounts {
    pub(super) fn record(&self, dropped: DroppedHits) {
        self.unreported.add(dropped.unreported);
        self.stranded.add(dropped.stranded);
    }
}

// === impl CoordinationMetrics ===

impl CoordinationMetrics {
    pub(super) const fn of(&self, how: How) -> &BusyCounter {
        match how {
            How::Counted => &self.decisions.local,
            How::Spent => &self.decisions.leased,
            How::Denied => &self.decisions.denied,
        }
    }
}

impl Source for CoordinationMetrics {
    fn metrics(&self) -> Vec<Metric> {
        let Self { decisions, store, hits, switches, places, .. } = self;
        let decisions = [
            ("local", decisions.local.get()),
            ("split", decisions.split.get()),
            ("leased", decisions.leased.get()),
            ("denied", decisions.denied.get()),
            ("waited", decisions.waited.get()),
            ("fallback", decisions.fallback.get()),
        ];
        let decisions = decisions.into_iter().map(|(how, made)| {
            Metric::counter("weir.decisions", "Decisions, by how they were made.", made).label("how", how)
        });
        let modes =
            [("lease", &switches.to_lease), ("interval", &switches.to_interval)].map(|(to, counter)| {
                let help = "Counters whose coordination mode `auto` has changed.";
                Metric::counter("weir.coordination.switches", help, counter.get()).label("to", to)
            });
        let counters = [
            ("weir.coordination.bursts", "Bursts for which `auto` has chosen leases.", &switches.bursts),
            ("weir.store.calls", "Batches sent to the shared store.", &store.calls),
            ("weir.store.commands", "Commands in all batches.", &store.commands),
            ("weir.store.clock_steps", "Steps of the store's clock by a second or more.", &store.clock_steps),
            ("weir.store.failures", "Batches that failed.", &store.failures),
            ("weir.hits.unreported", "Hits never reported: window or counter was gone.", &hits.unreported),
            ("weir.hits.delivery_unknown", "Hits that may have been counted or not.", &hits.delivery_unknown),
            ("weir.hits.stranded", "Hits leased, or given back, in vain.", &hits.stranded),
            ("weir.hits.overshoot", "Hits admitted here above a window's limit.", &hits.overshoot),
            ("weir.in_flight.ends_dropped", "Ends not sent: too many waited.", &places.ends_dropped),
            ("weir.pools.lost_demand", "Hits asked for too late to be demand.", &hits.lost_demand),
        ];
        decisions
            .chain(modes)
            .chain(counters.map(|(name, help, counter)| Metric::counter(name, help, counter.get())))
            .collect()
    }
}
