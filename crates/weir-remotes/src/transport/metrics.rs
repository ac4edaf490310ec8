use std::time::{Duration, Instant};

use weir_observe::{counter::Counter, histogram::Histogram, text::shortened, throttle::Throttle};
use weir_store::remote::RemoteError;

#[derive(Debug, Default)]
pub(crate) struct TransportMetrics {
    pub(crate) calls: Counter,
    pub(crate) commands: Counter,
    pub(crate) pipelines: Counter,
    pub(crate) batched: Counter,
    pub(crate) retries: Counter,
    pub(crate) disconnected: Counter,
    pub(crate) not_sent: Counter,
    pub(crate) unreachable: Counter,
    pub(crate) timed_out: Counter,
    pub(crate) rejected: Counter,
    pub(crate) round_trips: Histogram,
    logged: Throttle,
}

/// `$name` is the store's part of their names, `$store` its name in their help.
macro_rules! metrics_of {
    ($metrics:expr, $servers:expr, $name:literal, $store:literal) => {{
        use weir_observe::{Metric, counter::Counter};
        let (metrics, servers): (&$crate::transport::TransportMetrics, &[$crate::transport::ServerState]) =
            ($metrics, $servers);
        let connected = servers.iter().filter(|server| server.connected).count() as u64;
        let counter = |name, help, counter: &Counter| Metric::counter(name, help, counter.get());
        let errors = |kind, errors: &Counter| {
            let name = concat!("weir.", $name, ".errors");
            Metric::counter(name, "Commands that failed.", errors.get()).label("kind", kind)
        };
        vec![
            Metric::gauge(
                concat!("weir.", $name, ".servers"),
                concat!("Known ", $store, " servers."),
                servers.len() as u64,
            ),
            Metric::gauge(
                concat!("weir.", $name, ".connected"),
                concat!($store, " servers with a connection."),
                connected,
            ),
            counter(concat!("weir.", $name, ".calls"), concat!("Calls to ", $store, "."), &metrics.calls),
            counter(concat!("weir.", $name, ".commands"), "Commands in these calls.", &metrics.commands),
            counter(
                concat!("weir.", $name, ".pipelines"),
                concat!("Pipelines sent to ", $store, "."),
                &metrics.pipelines,
            ),
            counter(concat!("weir.", $name, ".batched"), "Calls in these pipelines.", &metrics.batched),
            counter(
                concat!("weir.", $name, ".retries"),
                "Commands sent again, because they had certainly not been carried out.",
                &metrics.retries,
            ),
            counter(
                concat!("weir.", $name, ".disconnected"),
                "Broken connections and failed attempts to connect.",
                &metrics.disconnected,
            ),
            errors("not_sent", &metrics.not_sent),
            errors("unreachable", &metrics.unreachable),
            errors("timed_out", &metrics.timed_out),
            errors("rejected", &metrics.rejected),
            Metric::timing(
                concat!("weir.", $name, ".round_trip"),
                "Round-trip times of pipelines.",
                metrics.round_trips.get(),
            ),
        ]
    }};
}

pub(crate) use metrics_of;

/// Error replies are logged once in this time: there may be one for each command.
const LOGGED: Duration = Duration::from_secs(10);

const MAX_TEXT: usize = 300;

impl TransportMetrics {
    pub(crate) fn error(&self, error: &RemoteError) {
        if let RemoteError::Rejected(reply) | RemoteError::Half(reply) = error
            && let Some(suppressed) = self.logged.admit_one_in(LOGGED, Instant::now())
        {
            let reply = shortened(reply, MAX_TEXT);
            tracing::warn!(%reply, suppressed, "the store rejects commands");
        }
        let counter = match error {
            RemoteError::NotSent(_) => &self.not_sent,
            RemoteError::Unreachable(_) | RemoteError::Half(_) => &self.unreachable,
            RemoteError::TimedOut(_) => &self.timed_out,
            RemoteError::Rejected(_) => &self.rejected,
        };
        counter.add(1);
    }

    pub(crate) fn pipeline(&self, calls: usize, round_trip: Duration) {
        self.pipelines.add(1);
        self.batched.add(calls as u64);
        self.round_trips.record(round_trip);
    }
}
