//! What is counted about Redis.

use std::{sync::Arc, time::Duration};

use super::link::LinkState;
use crate::{
    observe::{Metric, counter::Counter, histogram::Histogram},
    store::remote::RemoteError,
};

/// What is counted about one Redis.
#[derive(Debug, Default)]
pub(super) struct RedisMetrics {
    /// Calls of callers.
    pub(super) calls: Counter,
    /// Commands in them.
    pub(super) commands: Counter,
    /// Pipelines that were sent.
    pub(super) pipelines: Counter,
    /// Calls that were in them.
    pub(super) batched: Counter,
    /// Commands that were sent once more, for they had certainly not been carried out.
    pub(super) repeated: Counter,
    /// Connections that broke or were not to be had.
    pub(super) disconnected: Counter,
    pub(super) not_sent: Counter,
    pub(super) unreachable: Counter,
    pub(super) timed_out: Counter,
    pub(super) refused: Counter,
    /// How long pipelines took.
    pub(super) round_trips: Histogram,
}

impl RedisMetrics {
    /// Counts a command that was not carried out, or may not have been.
    pub(super) fn error(&self, error: &RemoteError) {
        let counter = match error {
            RemoteError::NotSent(_) => &self.not_sent,
            RemoteError::Unreachable(_) => &self.unreachable,
            RemoteError::TimedOut(_) => &self.timed_out,
            RemoteError::Rejected(_) => &self.refused,
        };
        counter.add(1);
    }

    /// Counts a pipeline that carried `jobs` calls and took `took`.
    pub(super) fn pipeline(&self, jobs: usize, took: Duration) {
        self.pipelines.add(1);
        self.batched.add(jobs as u64);
        self.round_trips.record(took);
    }

    /// All of them, for the Redis of that name whose links are `links`.
    pub(super) fn metrics(self: &Arc<Self>, redis: &str, links: &[LinkState]) -> Vec<Metric> {
        let connected = links.iter().filter(|link| link.connected).count() as u64;
        let mut metrics = vec![
            Metric::gauge("weir.redis.servers", "Redis servers that are known.", links.len() as u64),
            Metric::gauge("weir.redis.connected", "Redis servers that there is a connection to.", connected),
            Metric::counter("weir.redis.calls", "Calls to Redis.", self.calls.get()),
            Metric::counter("weir.redis.commands", "Commands in these calls.", self.commands.get()),
            Metric::counter("weir.redis.pipelines", "Round trips to Redis.", self.pipelines.get()),
            Metric::counter("weir.redis.batched", "Calls that these carried.", self.batched.get()),
            Metric::counter(
                "weir.redis.repeated",
                "Commands sent once more, for they had certainly not been carried out.",
                self.repeated.get(),
            ),
            Metric::counter(
                "weir.redis.disconnected",
                "Connections that broke or were not to be had.",
                self.disconnected.get(),
            ),
        ];
        for (kind, counter) in [
            ("not_sent", &self.not_sent),
            ("unreachable", &self.unreachable),
            ("timed_out", &self.timed_out),
            ("refused", &self.refused),
        ] {
            let errors = Metric::counter("weir.redis.errors", "Commands that failed.", counter.get());
            metrics.push(errors.label("kind", kind));
        }
        let took = self.round_trips.get();
        metrics.push(Metric::timing("weir.redis.round_trip", "How long round trips took.", took));
        metrics.into_iter().map(|metric| metric.label("redis", redis)).collect()
    }
}
