//! A control plane that does what a test says.

use std::{future::Future, net::SocketAddr, time::Duration};

use prost::Message as _;
use prost_types::Any;
use tokio::{net::TcpListener, sync::mpsc, time::timeout};
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::{Request, Response, Status, Streaming, metadata::MetadataMap, transport::Server};
use weir_proto::{
    envoy::service::discovery::v3::{
        DiscoveryRequest, DiscoveryResponse,
        aggregated_discovery_service_server::{AggregatedDiscoveryService, AggregatedDiscoveryServiceServer},
    },
    ratelimit::config::ratelimit::v3::{
        RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
    },
};

/// How long a test waits for an event before it fails.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// A server on a free port, whose streams the test drives.
pub(crate) struct ControlPlane {
    pub(crate) address: SocketAddr,
    streams: mpsc::UnboundedReceiver<Stream>,
}

/// A stream that weir has opened.
pub(crate) struct Stream {
    pub(crate) headers: MetadataMap,
    requests: Streaming<DiscoveryRequest>,
    responses: mpsc::UnboundedSender<Result<DiscoveryResponse, Status>>,
}

struct Service(mpsc::UnboundedSender<Stream>);

// === impl ControlPlane ===

impl ControlPlane {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (opened, streams) = mpsc::unbounded_channel();
        let service = AggregatedDiscoveryServiceServer::new(Service(opened));
        let server = Server::builder().add_service(service);
        tokio::spawn(async move {
            server.serve_with_incoming(TcpListenerStream::new(listener)).await.expect("it serves");
        });
        Self { address, streams }
    }

    /// Waits for the next stream.
    pub(crate) async fn stream(&mut self) -> Stream {
        within(self.streams.recv()).await.expect("the server runs")
    }

    /// Returns whether a stream was opened that the test has not taken.
    pub(crate) fn has_streams(&self) -> bool {
        !self.streams.is_empty()
    }
}

// === impl Stream ===

impl Stream {
    pub(crate) async fn request(&mut self) -> DiscoveryRequest {
        within(self.requests.message()).await.expect("no error").expect("the stream is open")
    }

    /// Sends all rules as `version`.
    pub(crate) fn send(&self, version: &str, nonce: &str, configs: &[RateLimitConfig]) {
        self.send_resources(version, nonce, configs.iter().map(resource).collect());
    }

    pub(crate) fn send_resources(&self, version: &str, nonce: &str, resources: Vec<Any>) {
        let response = DiscoveryResponse {
            version_info: version.into(),
            nonce: nonce.into(),
            type_url: TYPE_URL.into(),
            resources,
        };
        self.responses.send(Ok(response)).expect("the stream is open");
    }

    /// Sends all rules, and waits for the ACK.
    pub(crate) async fn accepted(&mut self, version: &str, nonce: &str, configs: &[RateLimitConfig]) {
        self.send(version, nonce, configs);
        let request = self.request().await;
        assert_eq!(request.error_detail, None);
        assert_eq!((&*request.version_info, &*request.response_nonce), (version, nonce));
    }

    /// Waits for a NACK of `nonce` while `version` is in use. Returns its text.
    pub(crate) async fn rejected(&mut self, version: &str, nonce: &str) -> String {
        let request = self.request().await;
        assert_eq!((&*request.version_info, &*request.response_nonce), (version, nonce));
        request.error_detail.expect("an error").message
    }

    /// Ends the stream with an error.
    pub(crate) fn fail(&self) {
        self.responses.send(Err(Status::unavailable("restarting"))).expect("the stream is open");
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Service {
    type StreamAggregatedResourcesStream = UnboundedReceiverStream<Result<DiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (responses, receiver) = mpsc::unbounded_channel();
        let headers = request.metadata().clone();
        let stream = Stream { headers, requests: request.into_inner(), responses };
        self.0.send(stream).map_err(|_| Status::unavailable("the test has ended"))?;
        Ok(Response::new(UnboundedReceiverStream::new(receiver)))
    }
}

pub(crate) async fn within<T>(event: impl Future<Output = T>) -> T {
    timeout(DEADLINE, event).await.expect("in time")
}

pub(crate) fn resource(config: &RateLimitConfig) -> Any {
    Any { type_url: TYPE_URL.into(), value: config.encode_to_vec() }
}

/// Returns rules of `domain` that limit `key` to `limit` an hour.
pub(crate) fn config(domain: &str, key: &str, limit: u32) -> RateLimitConfig {
    RateLimitConfig {
        name: domain.into(),
        domain: domain.into(),
        descriptors: vec![RateLimitDescriptor {
            key: key.into(),
            rate_limit: Some(hourly(limit)),
            ..RateLimitDescriptor::default()
        }],
    }
}

pub(crate) fn hourly(limit: u32) -> RateLimitPolicy {
    RateLimitPolicy {
        unit: RateLimitUnit::Hour.into(),
        requests_per_unit: limit,
        ..RateLimitPolicy::default()
    }
}
