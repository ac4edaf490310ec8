//! The gRPC server: its services, how it accepts connections, and how it stops.

use std::{
    future::Future,
    io,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::{mpsc, watch},
    time::{sleep, timeout},
};
use tonic::service::Routes;
use tonic_health::{
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};

use super::{
    certificates::Certificates, connection::Services, handshake::Handshakes, health,
    health_and_reflection::MAX_REQUEST, service::Service, socket::Incoming, worker::Workers,
};
use crate::{
    net::{ConnectionAge, Listener},
    observe::throttle::Throttle,
    proto,
    server::connections::Connections,
    store::Store,
};

/// How long to wait after a failed accept. The usual cause, too many open files, outlasts an immediate retry.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A server that is ready to accept connections.
#[derive(Debug)]
pub struct Server<S> {
    pub(super) services: Arc<Services<S>>,
    threads: usize,
    /// None to serve without TLS.
    certificates: Option<Arc<Certificates>>,
    healthy: watch::Receiver<bool>,
    reporter: HealthReporter,
}

/// Why the server cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The descriptors of the services contradict each other: a fault of the build.
    #[error("the gRPC reflection service cannot be built")]
    Reflection(#[from] tonic_reflection::server::Error),
}

impl<S: Store> Server<S> {
    /// Returns a server of `service`, of gRPC health, which reports `healthy`, and of reflection, on `threads` threads, at least
    /// one. Its connections are among `connections`.
    ///
    /// # Errors
    ///
    /// [`ServerError`], if the reflection service cannot be built.
    pub async fn new(
        service: Service<S>,
        healthy: watch::Receiver<bool>,
        age: ConnectionAge,
        threads: usize,
        connections: Arc<Connections>,
    ) -> Result<Self, ServerError> {
        let reporter = HealthReporter::new();
        // before the first connection: an unreported service is an error to its client
        let now = *healthy.borrow();
        health::report(&reporter, now).await;
        let health_service = HealthService::from_health_reporter(reporter.clone());
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let health_and_reflection =
            Routes::new(HealthServer::new(health_service).max_decoding_message_size(MAX_REQUEST))
                .add_service(reflection().build_v1()?.max_decoding_message_size(MAX_REQUEST))
                .add_service(reflection().build_v1alpha()?.max_decoding_message_size(MAX_REQUEST))
                .prepare();
        let services = Arc::new(Services {
            service,
            health_and_reflection,
            age,
            connections,
            tls_rejected: Throttle::default(),
            failed: Throttle::default(),
        });
        Ok(Self { services, threads, certificates: None, healthy, reporter })
    }

    /// Accepts TLS connections only, with `certificates`; without any, plain text only.
    #[must_use]
    pub fn with_tls(self, certificates: Option<Arc<Certificates>>) -> Self {
        Self { certificates, ..self }
    }

    /// Serves the connections of `listener` until `stop`, then accepts no more and shuts the open ones down gracefully. Closes
    /// those that are still open after `drain`.
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
        let Self { services, threads, certificates, healthy, reporter } = self;
        let mut workers = Workers::start(threads, &services)?;
        let (done, mut secured) = mpsc::unbounded_channel();
        let start = |certificates| Handshakes::start(threads, certificates, &done);
        let mut handshakes = certificates.as_ref().map(start).transpose()?;
        let failed = Throttle::default();
        let mut stop = pin!(stop);
        let mut follow = pin!(health::follow(healthy, &reporter));
        loop {
            tokio::select! {
                () = &mut stop => break,
                never = &mut follow => match never {},
                Some((stream, opened)) = secured.recv() => workers.serve((Incoming::Secured(stream), opened)),
                accepted = listener.accept() => match accepted {
                    // a connection too many is closed here
                    Ok(accepted) => if let Some(opened) = services.connections.open() {
                        match &mut handshakes {
                            None => workers.serve((Incoming::Plain(accepted), opened)),
                            Some(handshakes) => handshakes.begin(accepted, opened).await,
                        }
                    },
                    Err(error) => {
                        if let Some(suppressed) = failed.admit(Instant::now()) {
                            tracing::warn!(%error, suppressed, "cannot accept a connection");
                        }
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        drop(handshakes);
        while let Ok((stream, opened)) = secured.try_recv() {
            workers.serve((Incoming::Secured(stream), opened));
        }
        health::end(reporter.clone()).await;
        if timeout(drain, workers.stop()).await.is_err() {
            tracing::warn!(connections = workers.open(), "shutdown timed out; closing the open connections");
        }
        Ok(())
    }
}
