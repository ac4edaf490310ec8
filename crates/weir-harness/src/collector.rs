//! A collector of traces, over gRPC or HTTP, which does what a test says.

use std::{
    future::pending,
    io::Read as _,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, HeaderName, StatusCode, Uri, header::RETRY_AFTER},
};
use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{AnyValue, KeyValue, any_value::Value},
    trace::v1::{Span, status::StatusCode as SpanStatus},
};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::{net::TcpListener, time::sleep};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Request, Response, Status, codec::CompressionEncoding, transport::Server};
use tonic_types::{ErrorDetails, StatusExt as _};

/// How long a test waits for spans before it fails.
const DEADLINE: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct Collector {
    pub address: SocketAddr,
    state: Arc<State_>,
}

#[derive(Default)]
struct State_ {
    received: Mutex<Vec<Received>>,
    /// When each export arrived, also those that failed.
    attempts: Mutex<Vec<Instant>>,
    answers: Mutex<Answers>,
}

#[derive(Clone, Debug)]
pub struct Received {
    /// The path; empty over gRPC.
    pub path: String,
    pub headers: HeaderMap,
    pub message: ExportTraceServiceRequest,
}

/// What the collector answers, from the next export on.
#[derive(Clone, Copy, Debug, Default)]
pub enum Answers {
    #[default]
    Accepts,
    /// Rejects so many spans of each export.
    Rejects(i64),
    /// Fails, so that a client tries again.
    Unavailable,
    /// Fails, so that a client does not try again.
    Invalid,
    /// Fails, and says after which time a client may try again.
    Throttles(Duration),
    /// Fails with this status of gRPC, over HTTP with 500.
    Status(Code),
    Hangs,
}

// === impl Collector ===

impl Collector {
    pub async fn start(protocol: &str) -> Self {
        match protocol {
            "grpc" => Self::grpc().await,
            _ => Self::http().await,
        }
    }

    pub async fn grpc() -> Self {
        let (collector, listener) = Self::bind().await;
        let service = TraceServiceServer::from_arc(Arc::clone(&collector.state))
            .accept_compressed(CompressionEncoding::Gzip)
            .max_decoding_message_size(64 << 20);
        let server = Server::builder().add_service(service);
        tokio::spawn(async move {
            server.serve_with_incoming(TcpListenerStream::new(listener)).await.expect("it serves");
        });
        collector
    }

    pub async fn http() -> Self {
        let (collector, listener) = Self::bind().await;
        let router = Router::new().fallback(receive).with_state(Arc::clone(&collector.state));
        tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        collector
    }

    async fn bind() -> (Self, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        (Self { address, state: Arc::default() }, listener)
    }

    pub fn answer(&self, answers: Answers) {
        *self.state.answers.lock() = answers;
    }

    pub fn received(&self) -> Vec<Received> {
        self.state.received.lock().clone()
    }

    pub fn attempts(&self) -> Vec<Instant> {
        self.state.attempts.lock().clone()
    }

    pub fn spans(&self) -> Vec<Span> {
        let messages = self.received().into_iter().map(|received| received.message);
        let resources = messages.flat_map(|message| message.resource_spans);
        resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
    }

    pub async fn await_spans(&self, count: usize) -> Vec<Span> {
        let begun = Instant::now();
        loop {
            let spans = self.spans();
            if spans.len() >= count {
                return spans;
            }
            assert!(begun.elapsed() < DEADLINE, "{} of {count} spans: {spans:#?}", spans.len());
            sleep(Duration::from_millis(5)).await;
        }
    }
}

// === impl State_ ===

impl State_ {
    async fn receive(&self, received: Received) -> Result<ExportTraceServiceResponse, (StatusCode, Status)> {
        let answers = *self.answers.lock();
        self.attempts.lock().push(Instant::now());
        match answers {
            Answers::Accepts | Answers::Rejects(_) => self.received.lock().push(received),
            Answers::Unavailable => {
                return Err((StatusCode::SERVICE_UNAVAILABLE, Status::unavailable("come again")));
            }
            Answers::Invalid => {
                return Err((StatusCode::UNAUTHORIZED, Status::unauthenticated("who are you?")));
            }
            Answers::Throttles(pause) => {
                let details = ErrorDetails::with_retry_info(Some(pause));
                let status = Status::with_error_details(Code::Unavailable, "later", details);
                return Err((StatusCode::SERVICE_UNAVAILABLE, status));
            }
            Answers::Status(code) => {
                return Err((StatusCode::INTERNAL_SERVER_ERROR, Status::new(code, "no")));
            }
            Answers::Hangs => pending().await,
        }
        let rejected = match answers {
            Answers::Rejects(rejected_spans) => {
                Some(ExportTracePartialSuccess { rejected_spans, error_message: "too old".into() })
            }
            _ => None,
        };
        Ok(ExportTraceServiceResponse { partial_success: rejected })
    }
}

#[tonic::async_trait]
impl TraceService for State_ {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let headers = request.metadata().clone().into_headers();
        let received = Received { path: String::new(), headers, message: request.into_inner() };
        self.receive(received).await.map(Response::new).map_err(|(_, status)| status)
    }
}

async fn receive(
    State(state): State<Arc<State_>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Vec<u8>, (StatusCode, [(HeaderName, String); 1], String)> {
    let mut plain = Vec::new();
    if headers.get("content-encoding").is_some_and(|encoding| encoding == "gzip") {
        GzDecoder::new(&*body).read_to_end(&mut plain).expect("gzip data");
    } else {
        plain.extend_from_slice(&body);
    }
    let message = ExportTraceServiceRequest::decode(&*plain).expect("an export");
    let answer = state.receive(Received { path: uri.path().to_owned(), headers, message }).await;
    answer.map(|response| response.encode_to_vec()).map_err(|(status, error)| {
        let pause = error.get_details_retry_info().and_then(|info| info.retry_delay);
        let pause = pause.map_or(0, |pause| pause.as_secs());
        (status, [(RETRY_AFTER, pause.to_string())], error.message().to_owned())
    })
}

/// Returns the text of an attribute: a list is written with commas.
pub fn attribute(attributes: &[KeyValue], key: &str) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.key == key)?;
    Some(text_of(attribute.value.as_ref().expect("a value")))
}

fn text_of(value: &AnyValue) -> String {
    match value.value.as_ref().expect("a value") {
        Value::StringValue(text) => text.clone(),
        Value::BoolValue(value) => value.to_string(),
        Value::IntValue(value) => value.to_string(),
        Value::ArrayValue(list) => list.values.iter().map(text_of).collect::<Vec<_>>().join(","),
        value => panic!("weir sends no {value:?}"),
    }
}

pub fn error(span: &Span) -> Option<&str> {
    let status = span.status.as_ref().filter(|status| status.code() == SpanStatus::Error)?;
    Some(&status.message)
}

pub fn hex(id: &[u8]) -> String {
    id.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}
