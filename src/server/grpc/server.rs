//! The gRPC server: which services there are, how it accepts, and how it stops.

use std::{future::Future, io, pin::pin, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tonic::service::Routes;
use tonic_health::server::{HealthReporter, HealthService};

use super::{
    connection::{ConnectionAge, Services},
    health,
    listener::Listener,
    service::Service,
    worker::Workers,
};
use crate::{proto, store::Store};

/// How long to wait when the system has no more connections to give, which asking again at once would not change.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The services, ready to be served.
#[derive(Debug)]
pub struct Server<S> {
    services: Arc<Services<S>>,
    threads: usize,
    healthy: watch::Receiver<bool>,
    reporter: HealthReporter,
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The descriptors of the services do not make sense together: a fault of the build.
    #[error("the gRPC reflection service cannot be built")]
    Reflection(#[from] tonic_reflection::server::Error),
}

impl<S: Store> Server<S> {
    /// A server of `service`, of gRPC health as `healthy` tells it, and of reflection, on so many `threads`, at least one.
    pub async fn new(
        service: Service<S>,
        healthy: watch::Receiver<bool>,
        life: ConnectionAge,
        threads: usize,
    ) -> Result<Self, ServerError> {
        let reporter = HealthReporter::new();
        // before the first connection, which must not find a service that is not known yet
        let now = *healthy.borrow();
        health::report(&reporter, now).await;
        let health_service = HealthService::from_health_reporter(reporter.clone());
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let health_and_reflection =
            Routes::new(tonic_health::pb::health_server::HealthServer::new(health_service))
                .add_service(reflection().build_v1()?)
                .add_service(reflection().build_v1alpha()?)
                .prepare();
        let services = Arc::new(Services { service, health_and_reflection, life });
        Ok(Self { services, threads, healthy, reporter })
    }

    /// Serves what comes to `listener` until `stop`; then takes no more connections, and ends when those that are open
    /// have ended, or are cut after `drain`.
    ///
    /// # Errors
    ///
    /// The system's, if it gives no threads.
    pub async fn serve(
        self,
        listener: Listener,
        stop: impl Future<Output = ()>,
        drain: Duration,
    ) -> io::Result<()> {
        let Self { services, threads, healthy, reporter } = self;
        let mut workers = Workers::start(threads, &services)?;
        let mut stop = pin!(stop);
        let mut follow = pin!(health::follow(healthy, &reporter));
        loop {
            tokio::select! {
                () = &mut stop => break,
                never = &mut follow => match never {},
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => workers.serve(accepted),
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        health::end(reporter.clone()).await;
        if timeout(drain, workers.stop()).await.is_err() {
            tracing::warn!(connections = workers.open(), "connections were cut, for they did not end");
        }
        Ok(())
    }
}
