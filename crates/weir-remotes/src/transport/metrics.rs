//! The metrics of the connections to a store.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::state::ServerState;
use weir_observe::{Metric, counter::Counter, histogram::Histogram, text::shortened, throttle::Throttle};
use weir_store::remote::RemoteError;

#[derive(Debug)]
pub(crate) struct TransportMetricNames {
    servers: (&'static str, &'static str),
    connected: (&'static str, &'static str),
    calls: (&'static str, &'static str),
    commands: (&'static str, &'static str),
    pipelines: (&'static str, &'static str),
    batched: (&'static str, &'static str),
    retries: (&'static str, &'static str),
    disconnected: (&'static str, &'static str),
    errors: (&'static str, &'static str),
    round_trip: (&'static str, &'static str),
}

macro_rules! metric_names {
    ($name:literal, $store:literal) => {
        TransportMetricNames {
            servers: (concat!("weir.", $name, ".servers"), concat!("Known ", $store, " servers.")),
            connected: (
                concat!("weir.", $name, ".connected"),
                concat!($store, " servers with a connection."),
            ),
            calls: (concat!("weir.", $name, ".calls"), concat!("Calls to ", $store, ".")),
            commands: (concat!("weir.", $name, ".commands"), "Commands in these calls."),
            pipelines: (concat!("weir.", $name, ".pipelines"), concat!("Pipelines sent to ", $store, ".")),
            batched: (concat!("weir.", $name, ".batched"), "Calls in these pipelines."),
            retries: (
                concat!("weir.", $name, ".retries"),
                "Commands sent again, because they had certainly not been carried out.",
            ),
            disconnected: (
                concat!("weir.", $name, ".disconnected"),
                "Broken connections and failed attempts to connect.",
            ),
            errors: (concat!("weir.", $name, ".errors"), "Commands that failed."),
            round_trip: (concat!("weir.", $name, ".round_trip"), "Round-trip times of pipelines."),
        }
    };
}

pub(crate) static REDIS: TransportMetricNames = metric_names!("redis", "Redis");

pub(crate) static MEMCACHED: TransportMetricNames = metric_names!("memcached", "Memcached");

#[derive(Debug, Default)]
pub(crate) struct TransportMetrics {
    pub(crate) calls: Counter,
    pub(crate) commands: Counter,
    pub(crate) pipelines: Counter,
    /// Calls in all pipelines.
    pub(crate) batched: Counter,
    /// Commands that were sent again, because they had certainly not been carried out.
    pub(crate) retries: Counter,
    /// Connections that broke, and failed attempts to connect.
    pub(crate) disconnected: Counter,
    pub(crate) not_sent: Counter,
    pub(crate) unreachable: Counter,
    pub(crate) timed_out: Counter,
    pub(crate) rejected: Counter,
    pub(crate) round_trips: Histogram,
    logged: Throttle,
}

/// Error replies are logged once in this time: there may be one for each command.
const LOGGED: Duration = Duration::from_secs(10);

const MAX_TEXT: usize = 300;

impl TransportMetrics {
    pub(crate) fn error(&self, error: &RemoteError) {
        if let RemoteError::Rejected(reply) | RemoteError::Half(reply) = error {
            self.log(reply);
        }
        let counter = match error {
            RemoteError::NotSent(_) => &self.not_sent,
            RemoteError::Unreachable(_) | RemoteError::Half(_) => &self.unreachable,
            RemoteError::TimedOut(_) => &self.timed_out,
            RemoteError::Rejected(_) => &self.rejected,
        };
        counter.add(1);
    }

    fn log(&self, reply: &str) {
        if let Some(suppressed) = self.logged.admit_one_in(LOGGED, Instant::now()) {
            let reply = shortened(reply, MAX_TEXT);
            tracing::warn!(%reply, suppressed, "the store rejects commands");
        }
    }

    pub(crate) fn pipeline(&self, calls: usize, round_trip: Duration) {
        self.pipelines.add(1);
        self.batched.add(calls as u64);
        self.round_trips.record(round_trip);
    }

    pub(crate) fn metrics(
        self: &Arc<Self>,
        names: &TransportMetricNames,
        servers: &[ServerState],
    ) -> Vec<Metric> {
        let connected = servers.iter().filter(|server| server.connected).count() as u64;
        let mut metrics = Vec::new();
        for ((name, help), value) in [(names.servers, servers.len() as u64), (names.connected, connected)] {
            metrics.push(Metric::gauge(name, help, value));
        }
        for ((name, help), counter) in [
            (names.calls, &self.calls),
            (names.commands, &self.commands),
            (names.pipelines, &self.pipelines),
            (names.batched, &self.batched),
            (names.retries, &self.retries),
            (names.disconnected, &self.disconnected),
        ] {
            metrics.push(Metric::counter(name, help, counter.get()));
        }
        for (kind, counter) in [
            ("not_sent", &self.not_sent),
            ("unreachable", &self.unreachable),
            ("timed_out", &self.timed_out),
            ("rejected", &self.rejected),
        ] {
            let errors = Metric::counter(names.errors.0, names.errors.1, counter.get());
            metrics.push(errors.label("kind", kind));
        }
        metrics.push(Metric::timing(names.round_trip.0, names.round_trip.1, self.round_trips.get()));
        metrics
    }
}
