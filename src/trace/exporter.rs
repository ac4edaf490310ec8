//! The thread that sends spans to the collector.
//!
//! A batch is sent when it is full, or when its delay is over. A failed attempt is repeated with a growing pause for as
//! long as the batch's timeout allows; meanwhile further spans wait in the bounded queue, or are dropped.

use std::{io, sync::Arc, time::Duration};

use tokio::time::{self, sleep_until};

use super::{queue::SpanQueue, sender::Sender, settings::TraceSettings, tracer::Tracer};
use crate::{
    observe::Stats,
    otlp::{ExportThread, Stopping},
};

/// The work of the thread.
struct Worker {
    queue: Arc<SpanQueue>,
    sender: Sender,
    delay: Duration,
}

/// Starts the thread. Returns the tracer whose spans it sends. The collector need not be reachable.
///
/// # Errors
///
/// The system's, if it cannot start a thread.
pub fn start(settings: TraceSettings, stats: &Stats) -> io::Result<(Arc<Tracer>, ExportThread)> {
    let queue = Arc::new(SpanQueue::new(settings.batch.queue, settings.batch.export));
    stats.register(&queue);
    let tracer = Arc::new(Tracer::new(&settings, Arc::clone(&queue)));
    let thread = ExportThread::start("weir-traces", async move |stopping| {
        let mut sender = match Sender::new(&settings, Arc::clone(&queue)) {
            Ok(sender) => sender,
            Err(error) => return tracing::error!(error, "cannot send traces"),
        };
        sender.check_files(&settings.export).await;
        let mut worker = Worker { queue: Arc::clone(&queue), sender, delay: settings.batch.delay };
        stopping.bound(async |stopping| worker.export_all(stopping).await).await;
        let dropped = queue.abandon();
        if dropped > 0 {
            tracing::warn!(spans = dropped, "stopped before the collector has taken all spans");
        }
    })?;
    Ok((tracer, thread))
}

// === impl Worker ===

impl Worker {
    /// Exports spans until `stopping`, and then those that are left.
    async fn export_all(&mut self, mut stopping: Stopping) {
        let queue = Arc::clone(&self.queue);
        let mut is_stopping = false;
        let mut due = time::Instant::now() + self.delay;
        while !is_stopping {
            tokio::select! {
                biased;
                () = stopping.wait() => is_stopping = true,
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
                is_stopping |= stopping.is_stopping();
                if !is_stopping && !queue.has_full_batch() {
                    break;
                }
            }
        }
    }
}
