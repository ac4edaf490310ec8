//! The thread that sends spans to the collector.
//!
//! A batch is sent when it is full, or when its delay is over. A failed attempt is repeated with a growing pause for as long as the
//! batch's timeout allows; meanwhile further spans wait in the bounded queue, or are dropped.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    sync::{oneshot, watch},
    time::{self, sleep, sleep_until},
};

use super::{queue::SpanQueue, sender::Sender, settings::TraceSettings, tracer::Tracer};
use crate::{observe::Stats, runtime};

/// How long the flush at the end may take, as in envoyproxy/ratelimit.
const FLUSH: Duration = Duration::from_secs(5);

/// The handle of the exporting thread.
#[derive(Debug)]
pub struct Exporter {
    stop: watch::Sender<bool>,
    ended: oneshot::Receiver<()>,
}

/// The work of the thread.
struct Worker {
    queue: Arc<SpanQueue>,
    sender: Sender,
    delay: Duration,
}

// === impl Exporter ===

impl Exporter {
    /// Starts the thread. Returns the tracer whose spans it sends. The collector need not be reachable.
    ///
    /// # Errors
    ///
    /// The system's, if it cannot start a thread.
    pub fn start(settings: TraceSettings, stats: &Stats) -> io::Result<(Arc<Tracer>, Self)> {
        let queue = Arc::new(SpanQueue::new(settings.batch.queue, settings.batch.export));
        stats.register(&queue);
        let tracer = Arc::new(Tracer::new(&settings, Arc::clone(&queue)));
        let (stop, stopping) = watch::channel(false);
        let (end, ended) = oneshot::channel();
        runtime::spawn("weir-traces".into(), async move || {
            match Sender::new(&settings, Arc::clone(&queue)) {
                Ok(mut sender) => {
                    sender.check_files(&settings.export).await;
                    Worker { queue, sender, delay: settings.batch.delay }.run(stopping).await;
                }
                Err(error) => tracing::error!(error, "cannot send traces"),
            }
            // an error means that nothing waits for the end
            let _ = end.send(());
        })?;
        Ok((tracer, Self { stop, ended }))
    }

    /// Sends all spans that have ended, and returns when the collector has taken them, or after 5 seconds. Must be called after
    /// the last request.
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
            () = self.export_all(stopping) => {}
            () = flushed => {}
        }
        let dropped = self.queue.abandon();
        if dropped > 0 {
            tracing::warn!(spans = dropped, "stopped before the collector has taken all spans");
        }
    }

    /// Exports spans until `stopping`, and then those that are left.
    async fn export_all(&mut self, mut stopping: watch::Receiver<bool>) {
        let queue = Arc::clone(&self.queue);
        let mut is_stopping = false;
        let mut due = time::Instant::now() + self.delay;
        while !is_stopping {
            tokio::select! {
                biased;
                () = wait(&mut stopping) => is_stopping = true,
                // it may have been sent since
                () = queue.full_batch() => if !queue.has_full_batch() { continue },
                () = sleep_until(due) => {}
            }
            due = time::Instant::now() + self.delay;
            loop {
                let spans = queue.next();
                if spans.is_empty() {
                    break;
                }
                let rejected = self.sender.send(spans, &mut stopping).await;
                queue.finish(rejected);
                is_stopping |= *stopping.borrow();
                if !is_stopping && !queue.has_full_batch() {
                    break;
                }
            }
        }
    }
}

/// Waits until `stopping` becomes true, or its sender is dropped.
async fn wait(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
}
