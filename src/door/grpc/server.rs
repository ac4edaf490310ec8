//! The gRPC server: which services there are, how it accepts, and how it stops.

use std::{future::Future, pin::pin, time::Duration};

use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tonic::{codec::CompressionEncoding, service::Routes};
use tonic_health::server::{HealthReporter, HealthService};

use super::{
    connection::{self, Life},
    health,
    listener::{Accepted, Listener},
    service::Service,
};
use crate::{
    proto::{self, envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer},
    store::Store,
};

/// Bytes of the largest request, as it was sent and as it is when uncompressed: Go's default, which the reference has.
const MAX_REQUEST: usize = 4 * 1024 * 1024;

/// How long to wait when the system has no more connections to give, which asking again at once would not change.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The services, ready to be served.
#[derive(Debug)]
pub struct Server {
    routes: Routes,
    healthy: watch::Receiver<bool>,
    reporter: HealthReporter,
    life: Life,
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The descriptors of the services do not make sense together: a fault of the build.
    #[error("the gRPC reflection service cannot be built")]
    Reflection(#[from] tonic_reflection::server::Error),
}

impl Server {
    /// A server of `service`, of gRPC health as `healthy` tells it, and of reflection.
    pub async fn new<S: Store>(
        service: Service<S>,
        healthy: watch::Receiver<bool>,
        life: Life,
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
        let rate_limit = RateLimitServiceServer::new(service)
            .accept_compressed(CompressionEncoding::Gzip)
            .max_decoding_message_size(MAX_REQUEST);
        let routes = Routes::new(rate_limit)
            .add_service(tonic_health::pb::health_server::HealthServer::new(health_service))
            .add_service(reflection().build_v1()?)
            .add_service(reflection().build_v1alpha()?)
            .prepare();
        Ok(Self { routes, healthy, reporter, life })
    }

    /// Serves what comes to `listener` until `stop`; then takes no more connections, and ends when those that are open
    /// have ended, or are cut after `drain`.
    pub async fn serve(self, listener: Listener, stop: impl Future<Output = ()>, drain: Duration) {
        let Self { routes, healthy, reporter, life } = self;
        let (stopping, stopped) = watch::channel(false);
        let protocol = connection::protocol();
        let mut connections = JoinSet::new();
        let mut stop = pin!(stop);
        let mut follow = pin!(health::follow(healthy, &reporter));
        loop {
            tokio::select! {
                () = &mut stop => break,
                never = &mut follow => match never {},
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok(Accepted::Tcp(stream)) => {
                        let (protocol, routes) = (protocol.clone(), routes.clone());
                        connections.spawn(connection::serve(stream, protocol, routes, life, stopped.clone()));
                    }
                    Ok(Accepted::Unix(stream)) => {
                        let (protocol, routes) = (protocol.clone(), routes.clone());
                        connections.spawn(connection::serve(stream, protocol, routes, life, stopped.clone()));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        stopping.send_replace(true);
        health::end(reporter.clone()).await;
        let drained = timeout(drain, async { while connections.join_next().await.is_some() {} }).await;
        if drained.is_err() {
            tracing::warn!(connections = connections.len(), "connections were cut, for they did not end");
            connections.shutdown().await;
        }
    }
}
