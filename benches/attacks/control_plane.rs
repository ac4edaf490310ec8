//! A hostile control plane, from which weir takes its rules.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use futures_util::{Stream, StreamExt as _, stream};
use prost::Message as _;
use prost_types::Any;
use tokio::{net::TcpListener, runtime::Runtime, sync::watch};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming, transport::Server};
use weir_proto::{
    envoy::service::discovery::v3::{
        DiscoveryRequest, DiscoveryResponse,
        aggregated_discovery_service_server::{AggregatedDiscoveryService, AggregatedDiscoveryServiceServer},
    },
    ratelimit::config::ratelimit::v3::{RateLimitConfig, RateLimitDescriptor},
};

use super::{Held, target::PATIENCE};

const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// Returns the response of a number; none after the last one.
type Respond = fn(usize) -> Option<DiscoveryResponse>;

/// The attacks.
pub(crate) const ATTACKS: [(&str, Respond); 2] = [("xds-nonces", nonces), ("xds-descriptors", descriptors)];

/// A control plane that sends the responses of an attack and reads no request.
pub(crate) struct ControlPlane {
    address: SocketAddr,
    sent: Arc<AtomicUsize>,
    begin: watch::Sender<bool>,
    _runtime: Runtime,
}

struct Service {
    respond: Respond,
    sent: Arc<AtomicUsize>,
    begun: watch::Receiver<bool>,
}

/// 200 responses, each with a nonce of 3 MB, which a client has to repeat.
fn nonces(number: usize) -> Option<DiscoveryResponse> {
    (number < 200).then(|| DiscoveryResponse {
        version_info: number.to_string(),
        nonce: "n".repeat(3_000_000),
        type_url: TYPE_URL.to_owned(),
        resources: Vec::new(),
    })
}

/// One response of two million empty descriptors, in less than 4 MiB.
fn descriptors(number: usize) -> Option<DiscoveryResponse> {
    (number == 0).then(|| {
        let descriptors = vec![RateLimitDescriptor::default(); 2_000_000];
        let rules = RateLimitConfig { name: "d".into(), domain: "d".into(), descriptors };
        let resource = Any { type_url: TYPE_URL.to_owned(), value: rules.encode_to_vec() };
        DiscoveryResponse {
            version_info: "1".into(),
            nonce: "1".into(),
            type_url: TYPE_URL.to_owned(),
            resources: vec![resource],
        }
    })
}

impl ControlPlane {
    pub(crate) fn start(respond: Respond) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let sent = Arc::new(AtomicUsize::new(0));
        let (signal, begun) = watch::channel(false);
        let service = Service { respond, sent: Arc::clone(&sent), begun };
        let service = AggregatedDiscoveryServiceServer::new(service);
        let server = Server::builder().add_service(service);
        runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { address, sent, begin: signal, _runtime: runtime }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends what the attack sends, and waits until weir has taken it, or takes no more.
    pub(crate) fn attack(&self) -> Held {
        self.begin.send_replace(true);
        let (begun, mut last, mut progress) = (Instant::now(), 0, Instant::now());
        while begun.elapsed() < PATIENCE && progress.elapsed() < PATIENCE / 4 {
            thread::sleep(PATIENCE / 100);
            let sent = self.sent.load(Ordering::Relaxed);
            if sent != last {
                (last, progress) = (sent, Instant::now());
            }
        }
        Held { outcome: format!("{last} responses sent"), _open: Box::new(()) }
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Service {
    type StreamAggregatedResourcesStream =
        Pin<Box<dyn Stream<Item = Result<DiscoveryResponse, Status>> + Send>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (respond, sent) = (self.respond, Arc::clone(&self.sent));
        let next = move |number| {
            let response = respond(number)?;
            sent.fetch_add(1, Ordering::Relaxed);
            Some(Ok(response))
        };
        let mut begun = self.begun.clone();
        let begun = stream::once(async move {
            // an error means that the benchmark has ended
            let _ = begun.wait_for(|begun| *begun).await;
        });
        let responses = begun.flat_map(move |()| stream::iter((0..).map_while(next.clone())));
        // open for ever, with requests that nobody reads
        let held = stream::once(async move {
            std::future::pending::<()>().await;
            drop(request);
            Err(Status::cancelled("never"))
        });
        Ok(Response::new(Box::pin(responses.chain(held))))
    }
}
