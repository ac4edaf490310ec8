//! The server: how it accepts connections, and how it stops.

use std::{
    future::{self, Future},
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    net::{TcpStream, UnixStream},
    sync::watch,
};

use super::{connection, service::Service};
use crate::{
    connections::Connection,
    listening::{Certificates, Incoming, ListeningPort, ServedProtocol, accept},
    net::{Accepted, Listener},
};
use weir_store::Store;

/// A server that is ready to accept connections.
#[derive(Debug)]
pub struct Server<S> {
    service: Arc<Service<S>>,
    threads: usize,
    certificates: Option<Arc<Certificates>>,
}

impl<S: Store> Server<S> {
    /// On `threads` threads, at least one. With `certificates`, accepts only TLS connections, and else only plain text.
    #[must_use]
    pub fn new(service: Service<S>, threads: usize, certificates: Option<Arc<Certificates>>) -> Self {
        Self { service: Arc::new(service), threads, certificates }
    }

    /// Serves until `stop`, then closes connections after the commands that have arrived, or after `drain`.
    ///
    /// # Errors
    ///
    /// The system's, if it cannot start a thread.
    pub async fn serve(
        self,
        listener: Listener,
        stop: impl Future<Output = ()>,
        drain: Duration,
    ) -> io::Result<()> {
        let Self { service: protocol, threads, certificates } = self;
        let connections = Arc::clone(&protocol.connections);
        let listening = ListeningPort { listener, threads, certificates, connections, protocol };
        accept(listening, stop, future::pending(), future::ready(()), drain).await
    }
}

impl<S: Store> ServedProtocol for Service<S> {
    const THREADS: &'static str = "weir-redis";

    async fn serve(
        &self,
        connection: Incoming,
        opened: &Connection,
        stopping: watch::Receiver<bool>,
    ) -> io::Result<()> {
        match connection {
            Incoming::Plain(Accepted::Tcp(stream)) => {
                connection::serve(TcpStream::from_std(stream)?, opened, self, stopping).await;
            }
            Incoming::Plain(Accepted::Unix(stream)) => {
                connection::serve(UnixStream::from_std(stream)?, opened, self, stopping).await;
            }
            Incoming::Secured(mut stream) => {
                stream.get_mut().0.attach()?;
                connection::serve(stream, opened, self, stopping).await;
            }
        }
        Ok(())
    }

    fn has_to_authenticate(&self) -> bool {
        self.settings.auth.is_some()
    }

    fn log_failed(&self, error: &io::Error) {
        if let Some(suppressed) = self.failed.admit(Instant::now()) {
            tracing::warn!(%error, suppressed, "cannot serve a connection");
        }
    }
}
