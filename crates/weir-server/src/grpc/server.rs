//! The gRPC server: its services, how it accepts connections, and how it stops.

use std::{future::Future, io, sync::Arc, time::Duration};

use h2::{RecvStream, server::SendResponse};
use http::Request;
use tokio::sync::watch;
use tokio_util::either::Either;
use tonic::service::Routes;
use tonic_health::{
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};

use super::{
    acquire::{AcquireService, Method},
    call_headers,
    connection::{CallKind, serve, speaks_tls},
    health,
    health_and_reflection::{self, MAX_REQUEST},
    resets::NamedAnswers,
    response::send,
    service::{BegunRequest, RpcAnswer, Service},
};
use crate::{
    connections::{CALL, Connection, ConnectionAccount, Connections, UnreadBytes},
    listening::{Certificates, ListeningPort, ServedProtocol, ServedStream, accept},
    net::{ConnectionAge, Listener},
};
use weir_limit::Timestamp;
use weir_observe::throttle::Throttle;
use weir_proto as proto;
use weir_store::Store;

#[derive(Debug)]
pub struct Server<S> {
    pub(super) services: Arc<Services<S>>,
    threads: usize,
    certificates: Option<Arc<Certificates>>,
    healthy: watch::Receiver<bool>,
    reporter: HealthReporter,
}

#[derive(Debug)]
pub(super) struct Services<S> {
    pub(super) service: Service<S>,
    pub(super) acquire: AcquireService<S>,
    pub(super) health_and_reflection: Routes,
    pub(super) age: ConnectionAge,
    pub(super) connections: Arc<Connections>,
    pub(super) tls_rejected: Throttle,
}

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The descriptors of the services contradict each other: a fault of the build.
    #[error("the gRPC reflection service cannot be built")]
    Reflection(#[from] tonic_reflection::server::Error),
}

impl<S: Store> Server<S> {
    /// Returns a server of `service`, its acquire service, health and reflection, on `threads` threads, at least one.
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
        });
        Ok(Self { services, threads, certificates: None, healthy, reporter })
    }

    /// Accepts TLS connections only, with `certificates`; without any, plain text only.
    pub fn with_tls(self, certificates: Option<Arc<Certificates>>) -> Self {
        Self { certificates, ..self }
    }

    /// Serves `listener` until `stop`; then shuts open connections down gracefully, and closes the rest after `drain`.
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

// === impl Services ===

impl<S: Store> ServedProtocol for Services<S> {
    const THREADS: &'static str = "weir-grpc";

    async fn serve(&self, stream: ServedStream, opened: &Connection, stopping: watch::Receiver<bool>) {
        if let Either::Left(socket) = &stream
            && let Some(tcp) = socket.tcp()
            && speaks_tls(tcp, opened.account(), self).await
        {
            return;
        }
        serve(stream, opened, self, stopping).await;
    }
}

impl<S: Store> Services<S> {
    pub(super) fn handle(
        &self,
        call: Request<RecvStream>,
        respond: SendResponse<UnreadBytes>,
        now: Timestamp,
        account: &Arc<ConnectionAccount>,
        answers: Option<&NamedAnswers>,
    ) -> (CallKind, impl Future<Output = ()>) {
        let kind = if call.uri().path() == Service::<S>::PATH { CallKind::Decision } else { CallKind::Other };
        let mut call = call;
        let handled = async move {
            if let Err(status) = call_headers::check(&call, account) {
                // an error means that the call was aborted
                let _ = send(respond, Err(status), account);
                return;
            }
            match kind {
                CallKind::Decision => {
                    let arrival = self.connections.bounds().arrival;
                    let response = self.service.handle(&mut call, now, account, arrival).await;
                    let (response, begun) = match response {
                        Ok(RpcAnswer { message, begun }) => (Ok(message), begun),
                        Err(status) => (Err(status), None),
                    };
                    let stream = respond.stream_id().as_u32();
                    let sent = send(respond, response, account);
                    if let Err(error) = &sent {
                        tracing::debug!(%error, "call aborted");
                    }
                    if let Some(begun) = begun {
                        Box::pin(self.answered(stream, begun, sent.is_ok(), (answers, account))).await;
                    }
                }
                // boxed, since all calls share a slot that is as large as the largest future
                CallKind::Other => Box::pin(self.handle_other(call, respond, account, answers)).await,
            }
        };
        (kind, handled)
    }

    /// Remembers the request that an answer names, or ends it if its caller has left.
    #[cold]
    async fn answered(
        &self,
        stream: u32,
        begun: Box<BegunRequest>,
        is_sent: bool,
        (answers, account): (Option<&NamedAnswers>, &Arc<ConnectionAccount>),
    ) {
        let left = match answers.filter(|_| is_sent) {
            Some(answers) => answers.add(stream, begun, account),
            None => Some(begun).filter(|_| !is_sent),
        };
        if let Some(begun) = left {
            self.service.undo(&begun).await;
        }
    }

    async fn handle_other(
        &self,
        call: Request<RecvStream>,
        respond: SendResponse<UnreadBytes>,
        account: &Arc<ConnectionAccount>,
        answers: Option<&NamedAnswers>,
    ) {
        if let Some(method) = Method::at(call.uri().path()) {
            let (stream, bounds) = (respond.stream_id().as_u32(), self.connections.bounds());
            let begun = self.acquire.handle(method, call, respond, account, bounds).await;
            if let Some((begun, is_sent)) = begun {
                self.answered(stream, begun, is_sent, (answers, account)).await;
            }
            return;
        }
        // until it ends, since its message is read elsewhere
        let weight = CALL + health_and_reflection::MAX_REQUEST + call_headers::weight(&call);
        let _hold = match account.hold(weight) {
            Ok(hold) => hold,
            Err(error) => {
                // an error means that the call was aborted
                let _ = send(respond, Err(error.into()), account);
                return;
            }
        };
        let sending = self.connections.bounds().sending;
        health_and_reflection::handle(self.health_and_reflection.clone(), call, respond, account, sending)
            .await;
    }
}
