//! The connection to the control plane.
//!
//! One stream at a time. Each response is handed to the source, and acknowledged with its verdict before the next one is read. A
//! stream that ends for whatever reason is followed by a new connection, after a wait, with empty nonce and version: a control
//! plane that has restarted may give the same versions to other rules.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::Duration,
};

use prost_types::{Any, Struct, value::Kind};
use tokio::{
    sync::mpsc,
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{
    Request, Streaming,
    metadata::{AsciiMetadataKey, AsciiMetadataValue},
    transport::Channel,
};

use super::{
    metrics::XdsMetrics,
    resource::TYPE_URL,
    settings::{XdsSettings, XdsTls},
    snapshot::{Outcome, Snapshot},
};
use crate::{
    grpc_client::{TargetTls, connect},
    proto::{
        envoy::{
            config::core::v3::Node,
            service::discovery::v3::{
                DiscoveryRequest, DiscoveryResponse,
                aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
            },
        },
        google::rpc::Status,
    },
    tls::{ALPN_H2, ClientTlsNames, TlsError},
};

/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// The wait before the second NACK in a row. It doubles, up to `XDS_CLIENT_BACKOFF_INITIAL_INTERVAL`. Common control planes send a
/// rejected snapshot again as soon as it is rejected.
const NACK_WAIT: Duration = Duration::from_secs(1);

/// `INVALID_ARGUMENT`.
const INVALID_ARGUMENT: i32 = 3;

const NAMES: ClientTlsNames = ClientTlsNames {
    ca: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
    certificate: "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
    key: "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
};

/// The client of a control plane.
pub(super) struct Client {
    settings: XdsSettings,
    snapshots: mpsc::Sender<Snapshot>,
    outcomes: mpsc::UnboundedReceiver<Outcome>,
    metrics: Arc<XdsMetrics>,
    next_id: u64,
    /// The version of the rules in use; empty before the first.
    version: String,
    /// The rejections since the last accepted response.
    rejections: u32,
    /// The hash of the last rejected resources, and why they were rejected.
    rejected: Option<(u64, String)>,
    hasher: RandomState,
}

/// The end of a stream, or of an attempt to open one.
struct Ended {
    reason: String,
    progress: Progress,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    NotConnected,
    Connected,
    /// The control plane has answered.
    Answered,
}

/// The requests of one stream.
struct Requests {
    sender: mpsc::UnboundedSender<DiscoveryRequest>,
    node: Node,
}

// === impl Client ===

impl Client {
    pub(super) fn new(
        settings: XdsSettings,
        snapshots: mpsc::Sender<Snapshot>,
        outcomes: mpsc::UnboundedReceiver<Outcome>,
        metrics: Arc<XdsMetrics>,
    ) -> Self {
        Self {
            settings,
            snapshots,
            outcomes,
            metrics,
            next_id: 0,
            version: String::new(),
            rejections: 0,
            rejected: None,
            hasher: RandomState::new(),
        }
    }

    /// Keeps a stream open. Never returns.
    pub(super) async fn run(mut self) {
        let (mut failures, mut last) = (0_u32, Progress::NotConnected);
        loop {
            let Ended { reason, progress } = self.stream().await;
            self.metrics.connected.set(0);
            self.metrics.disconnected.add(1);
            failures = if progress == Progress::Answered || progress != last { 1 } else { failures + 1 };
            last = progress;
            let XdsSettings { backoff, connect_retry, .. } = &self.settings;
            let connected = progress != Progress::NotConnected;
            let wait = backoff.wait(if connected { backoff.initial } else { *connect_retry }, failures);
            if connected {
                tracing::warn!(
                    reason,
                    "control plane lost, keeping the rules; connecting again in {wait:.1?}"
                );
            } else {
                tracing::warn!(reason, "cannot connect to the control plane; trying again in {wait:.1?}");
            }
            sleep(wait).await;
        }
    }

    /// Opens a stream, and follows it to its end.
    async fn stream(&mut self) -> Ended {
        let mut progress = Progress::NotConnected;
        let reason = match self.follow(&mut progress).await {
            Ok(()) => "the stream has ended".to_owned(),
            Err(reason) => reason,
        };
        Ended { reason, progress }
    }

    async fn follow(&mut self, progress: &mut Progress) -> Result<(), String> {
        let channel = self.connect().await?;
        *progress = Progress::Connected;
        let (sender, receiver) = mpsc::unbounded_channel();
        let requests = Requests { sender, node: self.node() };
        requests.send(DiscoveryRequest::default());
        let mut client = AggregatedDiscoveryServiceClient::new(channel)
            .max_decoding_message_size(self.settings.max_message);
        let mut request = Request::new(UnboundedReceiverStream::new(receiver));
        for (name, value) in &self.settings.headers {
            if let (Ok(name), Ok(value)) =
                (name.parse::<AsciiMetadataKey>(), value.parse::<AsciiMetadataValue>())
            {
                request.metadata_mut().append(name, value);
            }
        }
        self.metrics.connected.set(1);
        tracing::info!("connected to the control plane");
        let opened = client.stream_aggregated_resources(request).await.map_err(|status| error(&status))?;
        let mut responses = opened.into_inner();
        let mut next = responses.message().await;
        while let Some(response) = next.map_err(|status| error(&status))? {
            *progress = Progress::Answered;
            next = self.handle(response, &requests, &mut responses).await;
        }
        Ok(())
    }

    /// Connects with the certificates that the files have now.
    async fn connect(&self) -> Result<Channel, String> {
        let tls = match self.settings.tls.clone() {
            None => None,
            Some(XdsTls { files, server_name }) => {
                let loading = spawn_blocking(move || files.load(&NAMES, &[ALPN_H2])).await;
                let loaded: Result<_, TlsError> = loading.map_err(|error| error.to_string())?;
                Some(TargetTls { config: loaded.map_err(|error| error.to_string())?, server_name })
            }
        };
        let channel = connect(&self.settings.server, tls.as_ref(), CONNECT_TIMEOUT).await;
        channel.map_err(|error| chain(&error))
    }

    /// Has `response` applied and acknowledges it. Returns the next one.
    async fn handle(
        &mut self,
        response: DiscoveryResponse,
        requests: &Requests,
        responses: &mut Streaming<DiscoveryResponse>,
    ) -> Result<Option<DiscoveryResponse>, tonic::Status> {
        let DiscoveryResponse { version_info, resources, type_url, nonce } = response;
        let mut acknowledgement = DiscoveryRequest { response_nonce: nonce, ..DiscoveryRequest::default() };
        match self.judge(&type_url, resources).await {
            Ok(()) => {
                self.metrics.accepted.add(1);
                (self.rejections, self.rejected) = (0, None);
                self.version.clone_from(&version_info);
                acknowledgement.version_info = version_info;
            }
            Err(message) => {
                self.metrics.rejected.add(1);
                self.rejections = self.rejections.saturating_add(1);
                acknowledgement.version_info.clone_from(&self.version);
                acknowledgement.error_detail = Some(Status { code: INVALID_ARGUMENT, message });
                // a newer response makes this one's acknowledgement pointless
                if let Ok(next) = timeout(self.nack_wait(), responses.message()).await {
                    return next;
                }
            }
        }
        requests.send(acknowledgement);
        responses.message().await
    }

    /// Returns how long to wait before a NACK: not at all before the first in a row.
    fn nack_wait(&self) -> Duration {
        match self.rejections.checked_sub(2) {
            None => Duration::ZERO,
            Some(repeated) => {
                NACK_WAIT.saturating_mul(1 << repeated.min(20)).min(self.settings.backoff.initial)
            }
        }
    }

    /// Has `resources` applied. Returns the text of the errors for which they are rejected.
    async fn judge(&mut self, type_url: &str, resources: Vec<Any>) -> Result<(), String> {
        if type_url != TYPE_URL {
            return Err(format!("the response has the type '{type_url}' instead of '{TYPE_URL}'"));
        }
        let hash = self.hash(&resources);
        if let Some((rejected, reason)) = &self.rejected
            && *rejected == hash
        {
            tracing::debug!("the control plane repeats a rejected update");
            return Err(reason.clone());
        }
        self.next_id += 1;
        let id = self.next_id;
        let ended = || "the service is stopping".to_owned();
        self.snapshots.send(Snapshot { id, resources }).await.map_err(|_| ended())?;
        loop {
            let outcome = self.outcomes.recv().await.ok_or_else(ended)?;
            if outcome.id == id {
                self.rejected = outcome.result.as_ref().err().map(|reason| (hash, reason.clone()));
                return outcome.result;
            }
        }
    }

    fn hash(&self, resources: &[Any]) -> u64 {
        let hash = |one: &Any| self.hasher.hash_one((&one.type_url, &one.value));
        let mut hashes: Vec<u64> = resources.iter().map(hash).collect();
        // the order is random in common control planes
        hashes.sort_unstable();
        self.hasher.hash_one(hashes)
    }

    fn node(&self) -> Node {
        let text = |text: &String| prost_types::Value { kind: Some(Kind::StringValue(text.clone())) };
        let metadata = &self.settings.node_metadata;
        let fields = metadata.iter().map(|(name, value)| (name.clone(), text(value))).collect();
        Node {
            id: self.settings.node_id.clone(),
            metadata: (!metadata.is_empty()).then_some(Struct { fields }),
            user_agent_name: "weir".into(),
            user_agent_version: env!("CARGO_PKG_VERSION").into(),
            ..Node::default()
        }
    }
}

// === impl Requests ===

impl Requests {
    /// Sends `request`, with the node and type of all requests.
    fn send(&self, request: DiscoveryRequest) {
        let request =
            DiscoveryRequest { node: Some(self.node.clone()), type_url: TYPE_URL.into(), ..request };
        // an error means that the stream has ended, which the next read reports
        let _ = self.sender.send(request);
    }
}

fn error(status: &tonic::Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

/// Returns the texts of `error` and its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
