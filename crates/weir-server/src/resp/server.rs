//! The server: how it accepts connections, and how it stops.

use std::{
    future::{self, Future},
    io,
    sync::Arc,
    time::Duration,
};

use tokio::sync::watch;

use super::{connection, service::Service};
use crate::{
    connections::Connection,
    listening::{Certificates, ListeningPort, ServedProtocol, ServedStream, accept},
    net::Listener,
};
use weir_store::Store;

#[derive(Debug)]
pub struct Server<S> {
    service: Arc<Service<S>>,
    threads: usize,
    certificates: Option<Arc<Certificates>>,
}

impl<S: Store> Server<S> {
    /// On `threads` threads, at least one. With `certificates`, accepts only TLS connections, and else only plain text.
    pub fn new(service: Service<S>, threads: usize, certificates: Option<Arc<Certificates>>) -> Self {
        Self { service: Arc::new(service), threads, certificates }
    }

    /// Serves until `stop`, then closes connections after the commands that have arrived, or after `drain`.
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

    async fn serve(&self, stream: ServedStream, opened: &Connection, stopping: watch::Receiver<bool>) {
        connection::serve(stream, opened, self, stopping).await;
    }

    fn has_to_authenticate(&self) -> bool {
        self.settings.auth.is_some()
    }
}
