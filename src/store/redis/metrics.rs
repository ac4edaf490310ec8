//! The metrics of one Redis.

use std::{sync::Arc, time::Duration};

use super::server_state::ServerState;
use crate::{
    observe::{Metric, counter::Counter, histogram::Histogram},
    store::remote::RemoteError,
};

/// The counters of one Redis.
#[derive(Debug, Default)]
pub(super) struct RedisMetrics {
    /// Calls to this Redis.
    pub(super) calls: Counter,
    /// Commands in these calls.
    pub(super) commands: Counter,
    /// Pipelines that were sent.
    pub(super) pipelines: Counter,
    /// Calls in these pipelines.
    pub(super) batched: Counter,
    /// Commands that were sent again, because they had certainly not been carried out.
    pub(super) retries: Counter,
    /// Connections that broke, and failed attempts to connect.
    pub(super) disconnected: Counter,
    pub(super) not_sent: Counter,
    pub(super) unreachable: Counter,
    pub(super) timed_out: Counter,
    pub(super) rejected: Counter,
    /// Round-trip times of pipelines.
    pub(super) round_trips: Histogram,
}

impl RedisMetrics {
    /// Counts a command that was not carried out, or may not have been carried out.
    pub(super) fn error(&self, error: &RemoteError) {
        let counter = match error {
            RemoteError::NotSent(_) => &self.not_sent,
            RemoteError::Unreachable(_) => &self.unreachable,
            RemoteError::TimedOut(_) => &self.timed_out,
            RemoteError::Rejected(_) => &self.rejected,
        };
        counter.add(1);
    }

    /// Counts a pipeline of `calls` calls with a round trip of `round_trip`.
    pub(super) fn pipeline(&self, calls: usize, round_trip: Duration) {
        self.pipelines.add(1);
        self.batched.add(calls as u64);
        self.round_trips.record(round_trip);
    }

    /// Returns all metrics, labelled with the name `redis`. `servers` are the states of its connections.
    pub(super) fn metrics(self: &Arc<Self>, redis: &str, servers: &[ServerState]) -> Vec<Metric> {
        let connected = servers.iter().filter(|server| server.connected).count() as u64;
        let mut metrics = vec![
            Metric::gauge("weir.redis.servers", "Known Redis servers.", servers.len() as u64),
            Metric::gauge("weir.redis.connected", "Redis servers with a connection.", connected),
            Metric::counter("weir.redis.calls", "Calls to Redis.", self.calls.get()),
            Metric::counter("weir.redis.commands", "Commands in these calls.", self.commands.get()),
            Metric::counter("weir.redis.pipelines", "Pipelines sent to Redis.", self.pipelines.get()),
            Metric::counter("weir.redis.batched", "Calls in these pipelines.", self.batched.get()),
            Metric::counter(
                "weir.redis.retries",
                "Commands sent again, because they had certainly not been carried out.",
                self.retries.get(),
            ),
            Metric::counter(
                "weir.redis.disconnected",
                "Broken connections and failed attempts to connect.",
                self.disconnected.get(),
            ),
        ];
        for (kind, counter) in [
            ("not_sent", &self.not_sent),
            ("unreachable", &self.unreachable),
            ("timed_out", &self.timed_out),
            ("rejected", &self.rejected),
        ] {
            let errors = Metric::counter("weir.redis.errors", "Commands that failed.", counter.get());
            metrics.push(errors.label("kind", kind));
        }
        let round_trips = self.round_trips.get();
        metrics.push(Metric::timing("weir.redis.round_trip", "Round-trip times of pipelines.", round_trips));
        metrics.into_iter().map(|metric| metric.label("redis", redis)).collect()
    }
}
