//! The thread that sends metrics to the collector.

use std::{io, sync::Arc, time::Instant};

use tokio::time::{self, MissedTickBehavior, sleep};

use super::{
    message::{Message, Messages},
    points::Points,
    repeat::Pauses,
    sender::{Accepted, Failure, Sender},
    settings::MetricSettings,
};
use crate::{
    clock::{Clock as _, SystemClock},
    observe::{
        Counter, Metric, Source, Stats,
        prometheus::{self, MetricNames, TimeUnit},
    },
    otlp::{
        failure::FailureLog,
        thread::{ExportThread, Stopping},
    },
};

/// What became of the exports.
#[derive(Debug, Default)]
struct Exports {
    succeeded: Counter,
    failures: Counter,
    rejected: Counter,
}

/// The work of the thread.
struct Worker {
    stats: Arc<Stats>,
    names: MetricNames,
    settings: MetricSettings,
    exports: Arc<Exports>,
    messages: Messages,
    sender: Sender,
    log: FailureLog,
}

/// Starts the thread, which sends `stats` under `names`. The collector need not be reachable.
///
/// # Errors
///
/// The system's, if it cannot start a thread.
pub fn start_metrics(
    settings: MetricSettings,
    stats: Arc<Stats>,
    names: MetricNames,
) -> io::Result<ExportThread> {
    let exports = Arc::new(Exports::default());
    stats.register(&exports);
    ExportThread::start("weir-metrics", async move |stopping| {
        let sender = match Sender::new(&settings.export) {
            Ok(sender) => sender,
            Err(error) => return tracing::error!(error, "cannot send metrics"),
        };
        // a name of envoyproxy/ratelimit, which keeps its name with another unit
        let in_milliseconds = match names {
            MetricNames::Reference(TimeUnit::Milliseconds) => Some("ratelimit_service_response_time_seconds"),
            _ => None,
        };
        let start = SystemClock.now().as_nanos();
        let messages = Messages::new(&settings.resource, settings.temporality, in_milliseconds, start);
        let log = FailureLog::new("metrics");
        let mut worker = Worker { stats, names, settings, exports, messages, sender, log };
        stopping.bound(async |stopping| worker.export_regularly(stopping).await).await;
    })
}

// === impl Worker ===

impl Worker {
    /// Exports in each interval until `stopping`, and then once more.
    async fn export_regularly(&mut self, mut stopping: Stopping) {
        let interval = self.settings.interval;
        let mut ticks = time::interval_at(time::Instant::now() + interval, interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_last = false;
        while !is_last {
            tokio::select! {
                biased;
                () = stopping.wait() => is_last = true,
                _ = ticks.tick() => {}
            }
            self.export(&mut stopping).await;
        }
    }

    /// Sends all metrics as they are now. After a message that the collector does not take, the others wait for the
    /// next export.
    async fn export(&mut self, stopping: &mut Stopping) {
        let begun = Instant::now();
        let page = prometheus::render(&self.stats, &self.names);
        let now = SystemClock.now().as_nanos();
        let mut points = Points::of(&page);
        let mut warning = None;
        while let Some(Message { request, readings }) = self.messages.next(&mut points, now) {
            let mut pauses = Pauses::default();
            let Accepted { rejected, message } = loop {
                let was_stopping = stopping.is_stopping();
                let Failure { error, repeat } = match self.sender.send(&request).await {
                    Ok(accepted) => break accepted,
                    Err(failure) => failure,
                };
                self.exports.failures.add(1);
                self.log.failed(&error);
                let pause = pauses.next(repeat, fastrand::f64());
                let in_time = pause.filter(|pause| begun.elapsed() + *pause < self.settings.timeout);
                let Some(pause) = in_time.filter(|_| !was_stopping) else { return };
                tokio::select! {
                    () = stopping.wait() => {}
                    () = sleep(pause) => {}
                }
            };
            self.messages.sent(readings, now);
            self.exports.rejected.add(rejected);
            if rejected > 0 {
                warning = Some(format!("the collector has rejected {rejected} points: {message}"));
            }
        }
        self.messages.end_page(now);
        self.exports.succeeded.add(1);
        match warning {
            Some(warning) => self.log.failed(&warning),
            None => self.log.succeeded(),
        }
    }
}

// === impl Exports ===

impl Source for Exports {
    fn metrics(&self) -> Vec<Metric> {
        vec![
            Metric::counter(
                "weir.metrics.exports",
                "Exports of all metrics that the collector has taken.",
                self.succeeded.get(),
            ),
            Metric::counter(
                "weir.metrics.export_failures",
                "Attempts to send metrics that failed, including those that were repeated.",
                self.failures.get(),
            ),
            Metric::counter(
                "weir.metrics.points_rejected",
                "Points that the collector has rejected.",
                self.rejected.get(),
            ),
        ]
    }
}
