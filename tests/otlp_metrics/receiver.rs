//! A collector of metrics, over gRPC or HTTP, which does what a test says.

use std::{future::pending, io::Read as _, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
};
use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::{
    collector::metrics::v1::{
        ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
        metrics_service_server::{MetricsService, MetricsServiceServer},
    },
    metrics::v1::Metric,
};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, codec::CompressionEncoding, transport::Server};

use crate::in_process::until;

/// A collector on a free port.
#[derive(Clone)]
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    state: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    received: Mutex<Vec<Received>>,
    attempts: Mutex<u64>,
    answers: Mutex<Answers>,
}

/// An export that was taken.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    /// The path; empty over gRPC.
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) message: ExportMetricsServiceRequest,
}

/// What the collector answers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Answers {
    #[default]
    Accepts,
    /// Rejects so many points of each export.
    Rejects(i64),
    /// Fails, so that a client tries again.
    Unavailable,
    /// Fails, so that a client does not try again.
    Invalid,
    /// Answers nothing.
    Hangs,
}

// === impl Receiver ===

impl Receiver {
    pub(crate) async fn start(protocol: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::<Shared>::default();
        if protocol == "grpc" {
            let service = MetricsServiceServer::from_arc(Arc::clone(&state));
            let server = Server::builder().add_service(service.accept_compressed(CompressionEncoding::Gzip));
            let connections = TcpListenerStream::new(listener);
            tokio::spawn(async move { server.serve_with_incoming(connections).await.expect("it serves") });
        } else {
            let router = Router::new().fallback(receive).with_state(Arc::clone(&state));
            tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        }
        Self { address, state }
    }

    pub(crate) fn answer(&self, answers: Answers) {
        *self.state.answers.lock() = answers;
    }

    /// Returns the exports that were taken so far.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.state.received.lock().clone()
    }

    /// Returns how many exports have arrived, with those that failed.
    pub(crate) fn attempts(&self) -> u64 {
        *self.state.attempts.lock()
    }

    /// Waits for an export that has begun after this call, and returns it.
    pub(crate) async fn next(&self) -> Received {
        // one may be under way
        let enough = self.received().len() + 2;
        until("two exports", async || self.received().len() >= enough).await;
        self.received().swap_remove(enough - 1)
    }
}

// === impl Received ===

impl Received {
    pub(crate) fn metrics(&self) -> &[Metric] {
        let [resource] = &self.message.resource_metrics[..] else { panic!("one resource") };
        let [scope] = &resource.scope_metrics[..] else { panic!("one scope") };
        &scope.metrics
    }
}

// === impl Shared ===

impl Shared {
    async fn receive(
        &self,
        received: Received,
    ) -> Result<ExportMetricsServiceResponse, (StatusCode, Status)> {
        *self.attempts.lock() += 1;
        let answers = *self.answers.lock();
        let partial = match answers {
            Answers::Accepts => None,
            Answers::Rejects(rejected_data_points) => {
                Some(ExportMetricsPartialSuccess { rejected_data_points, error_message: "too old".into() })
            }
            Answers::Unavailable => {
                return Err((StatusCode::SERVICE_UNAVAILABLE, Status::unavailable("come again")));
            }
            Answers::Invalid => return Err((StatusCode::UNAUTHORIZED, Status::unauthenticated("who?"))),
            Answers::Hangs => pending().await,
        };
        self.received.lock().push(received);
        Ok(ExportMetricsServiceResponse { partial_success: partial })
    }
}

#[tonic::async_trait]
impl MetricsService for Shared {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let headers = request.metadata().clone().into_headers();
        let received = Received { path: String::new(), headers, message: request.into_inner() };
        self.receive(received).await.map(Response::new).map_err(|(_, status)| status)
    }
}

async fn receive(
    State(state): State<Arc<Shared>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Vec<u8>, (StatusCode, String)> {
    let mut plain = Vec::new();
    if headers.get("content-encoding").is_some_and(|encoding| encoding == "gzip") {
        GzDecoder::new(&*body).read_to_end(&mut plain).expect("gzip data");
    } else {
        plain.extend_from_slice(&body);
    }
    let message = ExportMetricsServiceRequest::decode(&*plain).expect("an export");
    let answer = state.receive(Received { path: uri.path().to_owned(), headers, message }).await;
    answer
        .map(|response| response.encode_to_vec())
        .map_err(|(status, error)| (status, error.message().to_owned()))
}
