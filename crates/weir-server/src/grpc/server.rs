//! The gRPC server: its services, how it accepts connections, and how it stops.

use std::{future::Future, io, sync::Arc, time::Duration};

use tokio::sync::watch;
use tonic::service::Routes;
use tonic_health::{
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};

use super::{connection::Services, health, health_and_reflection::MAX_REQUEST, service::Service};
use crate::{
    connections::Connections,
    listening::{Certificates, ListeningPort, accept},
    net::{ConnectionAge, Listener},
};
use weir_observe::throttle::Throttle;
use weir_proto as proto;
use weir_store::Store;

/// A server that is ready to accept connections.
#[derive(Debug)]
pub struct Server<S> {
    pub(super) services: Arc<Services<S>>,
    threads: usize,
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
    /// Returns a server of `service`, its acquire service, health and reflection, on `threads` threads, at least one.
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
            acquire: service.acquire_service(),
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

    /// Serves `listener` until `stop`; then shuts open connections down gracefully, and closes the rest after `drain`.
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
        let connections = Arc::clone(&services.connections);
        let listening = ListeningPort { listener, threads, certificates, connections, protocol: services };
        let (follow, ended) = (health::follow(healthy, &reporter), health::end(reporter.clone()));
        accept(listening, stop, follow, ended, drain).await
    }
}
