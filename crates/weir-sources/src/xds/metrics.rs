use weir_observe::{Counter, Gauge, Metric, Source};

#[derive(Debug, Default)]
pub(super) struct XdsMetrics {
    pub(super) connected: Gauge,
    pub(super) disconnected: Counter,
    pub(super) accepted: Counter,
    pub(super) rejected: Counter,
}

impl Source for XdsMetrics {
    fn metrics(&self) -> Vec<Metric> {
        let help = "Updates of the rules from the control plane, by outcome.";
        vec![
            Metric::gauge(
                "weir.xds.connected",
                "1 while connected to the control plane, from its first response on.",
                self.connected.get(),
            ),
            Metric::counter(
                "weir.xds.disconnected",
                "Streams from the control plane that ended, and failed attempts to open one.",
                self.disconnected.get(),
            ),
            Metric::counter("weir.xds.updates", help, self.accepted.get()).label("outcome", "accepted"),
            Metric::counter("weir.xds.updates", help, self.rejected.get()).label("outcome", "rejected"),
        ]
    }
}
