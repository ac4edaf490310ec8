//! The certificates of the servers, which are replaced while it serves when their files change.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use futures_util::{Stream, StreamExt as _};
use parking_lot::Mutex;
use tokio::{task::spawn_blocking, time::sleep};
use tokio_rustls::rustls::ServerConfig;

use super::refusal::Refusals;
use weir_net::tls::{CertificateDates, ServerTls, ServerTlsFiles, TlsError};
use weir_observe::{Counter, Metric, Source};

/// How long to wait for the next file of a pair: many tools replace a certificate and its key one after the other.
const PAIR_DELAY: Duration = Duration::from_secs(1);

/// The certificates in use. New connections use the latest valid ones; open connections are not affected by a change.
#[derive(Debug)]
pub struct Certificates {
    tls: ServerTls,
    config: ArcSwap<ServerConfig>,
    files: Mutex<ServerTlsFiles>,
    /// The server's own first.
    dates: ArcSwap<Vec<CertificateDates>>,
    reloads: Counter,
    reloads_failed: Counter,
    pub(crate) handshakes: Counter,
    pub(crate) refusals: Refusals,
}

impl Certificates {
    pub async fn load(tls: ServerTls) -> Result<Arc<Self>, TlsError> {
        let (files, config, dates) = blocking(tls.clone(), |tls| {
            let files = tls.read()?;
            let (config, dates) = tls.configure(&files)?;
            Ok((files, config, dates))
        })
        .await?;
        Ok(Arc::new(Self {
            tls,
            config: ArcSwap::new(config),
            files: Mutex::new(files),
            dates: ArcSwap::from_pointee(dates),
            reloads: Counter::default(),
            reloads_failed: Counter::default(),
            handshakes: Counter::default(),
            refusals: Refusals::default(),
        }))
    }

    /// The dates of all certificates in use: the server's own, its chain, and clients' authorities.
    pub fn dates(&self) -> Arc<Vec<CertificateDates>> {
        self.dates.load_full()
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }

    /// Loads the files again after each of `changes`, until these end. Invalid files leave the previous ones in use.
    pub async fn follow(self: Arc<Self>, mut changes: impl Stream<Item = ()> + Unpin + Send) {
        while changes.next().await.is_some() {
            while let Err(error) = self.reload().await {
                tokio::select! {
                    Some(()) = changes.next() => {}
                    () = sleep(PAIR_DELAY) => {
                        self.reloads_failed.add(1);
                        tracing::error!("certificates not reloaded, keeping the previous ones: {error}");
                        break;
                    }
                }
            }
        }
    }

    async fn reload(&self) -> Result<(), TlsError> {
        let used = self.files.lock().clone();
        let read = blocking(self.tls.clone(), move |tls| {
            let files = tls.read()?;
            if files == used {
                return Ok(None);
            }
            let (config, dates) = tls.configure(&files)?;
            Ok(Some((files, config, dates)))
        });
        if let Some((files, config, dates)) = read.await? {
            self.config.store(config);
            *self.files.lock() = files;
            self.reloads.add(1);
            self.dates.store(Arc::new(dates));
            tracing::info!("certificates reloaded");
        }
        Ok(())
    }
}

async fn blocking<T: Send + 'static>(
    tls: ServerTls,
    work: impl FnOnce(&ServerTls) -> Result<T, TlsError> + Send + 'static,
) -> Result<T, TlsError> {
    match spawn_blocking(move || work(&tls)).await {
        Ok(worked) => worked,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

impl Source for Certificates {
    fn metrics(&self) -> Vec<Metric> {
        let mut metrics = vec![
            Metric::gauge(
                "weir.tls.certificate_expiry_timestamp_seconds",
                "When the certificate of the gRPC server expires, in seconds since the epoch.",
                self.dates.load().first().map_or(0, |own| own.validity.not_after),
            ),
            Metric::counter("weir.tls.reloads", "Changed certificates that were loaded.", self.reloads.get()),
            Metric::counter(
                "weir.tls.reloads_failed",
                "Changed certificates that were invalid; the previous ones stayed.",
                self.reloads_failed.get(),
            ),
            Metric::counter("weir.tls.handshakes", "Completed TLS handshakes.", self.handshakes.get()),
        ];
        metrics.extend(self.refusals.metrics());
        metrics
    }
}
