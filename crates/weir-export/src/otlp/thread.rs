//! A thread that exports until the process stops, and then has a moment for what is left.

use std::{io, time::Duration};

use tokio::{
    sync::{oneshot, watch},
    time::sleep,
};

use weir_store::runtime;

/// How long the last export, at the end of the process, may take, as in envoyproxy/ratelimit.
pub(crate) const FLUSH: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct ExportThread {
    stop: watch::Sender<bool>,
    ended: oneshot::Receiver<()>,
}

#[derive(Clone, Debug)]
pub(crate) struct Stopping(watch::Receiver<bool>);

// === impl ExportThread ===

impl ExportThread {
    pub(crate) fn start<W>(name: &str, work: W) -> io::Result<Self>
    where
        W: AsyncFnOnce(Stopping) + Send + 'static,
    {
        let (stop, stopping) = watch::channel(false);
        let (end, ended) = oneshot::channel();
        runtime::spawn(name.into(), async move || {
            work(Stopping(stopping)).await;
            // an error means that nothing waits for the end
            let _ = end.send(());
        })?;
        Ok(Self { stop, ended })
    }

    /// Exports what is left, for up to 5 seconds. To be called after the last request.
    pub async fn close(self) {
        self.stop.send_replace(true);
        let _ = self.ended.await;
    }
}

// === impl Stopping ===

impl Stopping {
    /// Waits until the process stops, or nothing is left that could say so.
    pub(crate) async fn wait(&mut self) {
        let _ = self.0.wait_for(|stopping| *stopping).await;
    }

    /// Does `work`, until 5 seconds after the process has begun to stop.
    pub(crate) async fn bound(mut self, work: impl AsyncFnOnce(Self)) {
        let stopping = self.clone();
        let flushed = async move {
            self.wait().await;
            sleep(FLUSH).await;
        };
        tokio::select! {
            () = work(stopping) => {}
            () = flushed => {}
        }
    }
}
