//! The thread that sends metrics to the collector.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::{oneshot, watch},
    time::{self, MissedTickBehavior, sleep},
};

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
    otlp::failure::FailureLog,
    runtime,
};

/// How long the last export, at the end of the process, may take.
const FLUSH: Duration = Duration::from_secs(5);

/// The handle of the exporting thread.
#[derive(Debug)]
pub struct MetricExporter {
    stop: watch::Sender<bool>,
    ended: oneshot::Receiver<()>,
}

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

// === impl MetricExporter ===

impl MetricExporter {
    /// Starts the thread, which sends `stats` under `names`. The collector need not be reachable.
    ///
    /// # Errors
    ///
    /// The system's, if it cannot start a thread.
    pub fn start(settings: MetricSettings, stats: Arc<Stats>, names: MetricNames) -> io::Result<Self> {
        let exports = Arc::new(Exports::default());
        stats.register(&exports);
        let (stop, stopping) = watch::channel(false);
        let (end, ended) = oneshot::channel();
        runtime::spawn("weir-metrics".into(), async move || {
            match Sender::new(&settings.export) {
                Ok(sender) => {
                    // a name of envoyproxy/ratelimit, which keeps its name with another unit
                    let in_milliseconds = match names {
                        MetricNames::Reference(TimeUnit::Milliseconds) => {
                            Some("ratelimit_service_response_time_seconds")
                        }
                        _ => None,
                    };
                    let start = SystemClock.now().as_nanos();
                    let messages =
                        Messages::new(&settings.resource, settings.temporality, in_milliseconds, start);
                    let log = FailureLog::once("metrics");
                    let worker = Worker { stats, names, settings, exports, messages, sender, log };
                    worker.run(stopping).await;
                }
                Err(error) => tracing::error!(error, "cannot send metrics"),
            }
            // an error means that nothing waits for the end
            let _ = end.send(());
        })?;
        Ok(Self { stop, ended })
    }

    /// Sends the metrics a last time, and returns when the collector has taken them, or after 5 seconds.
    pub async fn close(self) {
        self.stop.send_replace(true);
        let _ = self.ended.await;
    }
}

// === impl Worker ===

impl Worker {
    async fn run(mut self, stopping: watch::Receiver<bool>) {
        let mut deadline = stopping.clone();
        let flushed = async move {
            wait(&mut deadline).await;
            sleep(FLUSH).await;
        };
        tokio::select! {
            () = self.export_regularly(stopping) => {}
            () = flushed => {}
        }
    }

    /// Exports in each interval until `stopping`, and then once more.
    async fn export_regularly(&mut self, mut stopping: watch::Receiver<bool>) {
        let interval = self.settings.interval;
        let mut ticks = time::interval_at(time::Instant::now() + interval, interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_last = false;
        while !is_last {
            tokio::select! {
                biased;
                () = wait(&mut stopping) => is_last = true,
                _ = ticks.tick() => {}
            }
            self.export(&mut stopping).await;
        }
    }

    /// Sends all metrics as they are now. After a message that the collector does not take, the others wait for the next export.
    async fn export(&mut self, stopping: &mut watch::Receiver<bool>) {
        let begun = Instant::now();
        let page = prometheus::render(&self.stats, &self.names);
        let now = SystemClock.now().as_nanos();
        let mut points = Points::of(&page);
        let mut warning = None;
        while let Some(Message { request, readings }) = self.messages.next(&mut points, now) {
            let mut pauses = Pauses::default();
            let Accepted { rejected, message } = loop {
                let was_stopping = *stopping.borrow();
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
                    () = wait(stopping) => {}
                    () = sleep(pause) => {}
                }
            };
            self.messages.sent(readings, now);
            self.exports.rejected.add(rejected);
            if rejected > 0 {
                warning = Some(format!("the collector has rejected {rejected} points: {message}"));
            }
        }
        self.messages.end_page();
        self.exports.succeeded.add(1);
        match warning {
            Some(warning) => self.log.failed(&warning),
            None => self.log.succeeded(),
        }
    }
}

/// Waits until `stopping` becomes true, or its sender is dropped.
async fn wait(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
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
