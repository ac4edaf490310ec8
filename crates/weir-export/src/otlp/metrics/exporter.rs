use std::{collections::VecDeque, io, sync::Arc};

use tokio::time::{self, MissedTickBehavior, timeout};

use super::{
    message::{Message, Messages},
    sender::{AcceptedPoints, Sender},
    settings::MetricSettings,
};
use crate::{
    otlp::{
        failure::FailureLog,
        thread::{ExportThread, Stopping},
    },
    prometheus::{MetricNames, families},
};
use weir_observe::{Counter, Metric, Source, Stats};
use weir_store::clock::{Clock as _, SystemClock};

#[derive(Debug, Default)]
struct Exports {
    succeeded: Counter,
    failures: Counter,
    rejected: Counter,
}

struct ExportWorker {
    stats: Arc<Stats>,
    names: MetricNames,
    settings: MetricSettings,
    exports: Arc<Exports>,
    messages: Messages,
    sender: Sender,
    log: FailureLog,
}

/// Starts the thread, which sends `stats` under `names`. The collector need not be reachable.
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
        let start = SystemClock.now().as_nanos();
        let messages = Messages::new(&settings.resource, settings.temporality, start);
        let log = FailureLog::new("metrics");
        let mut worker = ExportWorker { stats, names, settings, exports, messages, sender, log };
        stopping.bound(async |stopping| worker.export_regularly(stopping).await).await;
    })
}

// === impl ExportWorker ===

impl ExportWorker {
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
            self.export().await;
        }
    }

    async fn export(&mut self) {
        let limit = self.settings.timeout;
        let late = || Err(format!("the export has not ended within {limit:?}"));
        match timeout(limit, self.send()).await.unwrap_or_else(|_| late()) {
            Ok(AcceptedPoints { rejected, message }) => {
                self.exports.succeeded.add(1);
                self.exports.rejected.add(rejected);
                if rejected > 0 {
                    self.log.failed(&format!("the collector has rejected {rejected} points: {message}"));
                } else {
                    self.log.succeeded();
                }
            }
            Err(error) => {
                self.exports.failures.add(1);
                self.log.failed(&error);
            }
        }
    }

    /// A failed message ends the export: the next export has newer values, also for what this one should have sent.
    async fn send(&mut self) -> Result<AcceptedPoints, String> {
        let mut families = VecDeque::from(families(&self.stats, &self.names));
        let now = SystemClock.now().as_nanos();
        let mut all = AcceptedPoints::default();
        while let Some(Message { request, readings }) = self.messages.next(&mut families, now) {
            let AcceptedPoints { rejected, message } = self.sender.send(request).await?;
            self.messages.sent(readings, now);
            if rejected > 0 {
                all = AcceptedPoints { rejected: all.rejected + rejected, message };
            }
        }
        self.messages.end_export(now);
        Ok(all)
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
            Metric::counter("weir.metrics.export_failures", "Exports that failed.", self.failures.get()),
            Metric::counter(
                "weir.metrics.points_rejected",
                "Points that the collector has rejected.",
                self.rejected.get(),
            ),
        ]
    }
}
