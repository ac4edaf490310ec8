//! The connection to the control plane.
//!
//! One stream at a time. Each response is handed to the source, and acknowledged with its verdict before the next one
//! is read. A stream that ends for whatever reason is followed by a new connection, after a wait, with empty nonce and
//! version: a control plane that has restarted may give the same versions to other rules.
//!
//! A control plane may be silent in three ways. One that sends nothing at all is not there. One that sends no response
//! headers may have no rules yet, since servers in Go send the headers with the first response; but the stream may also
//! have been lost behind a proxy, so that another one is opened after a time. One that sends headers is there, and has
//! time; a warning says that its rules are missing.

use std::{
    hash::{BuildHasher as _, RandomState},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures_util::Stream;
use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};
use tonic::{
    Request, Streaming,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    metadata::{AsciiMetadataKey, AsciiMetadataValue},
    transport::Channel,
};

use super::{
    metrics::XdsMetrics,
    parts::{ExceededPart, PartBounds},
    requests::Requests,
    resource::TYPE_URL,
    response::{BoundedCodec, Resource, Response},
    settings::{XdsSettings, XdsTls},
};
use weir_net::{
    grpc_client::{StreamTls, connect},
    tls::{ALPN_H2, ClientTlsNames},
};
use weir_observe::text::{shortened, with_causes};
use weir_proto::{envoy::service::discovery::v3::DiscoveryRequest, google::rpc::Status};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// The wait before the second NACK in a row; it doubles. Common control planes send a rejected snapshot again at once.
const NACK_WAIT: Duration = Duration::from_secs(1);

const METHOD: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

const MAX_TEXT: usize = 1_000;

const INVALID_ARGUMENT: i32 = 3;

const NAMES: ClientTlsNames = ClientTlsNames {
    ca: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
    certificate: "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
    key: "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
};

/// All rules as of one response of the control plane.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// The reason if they cannot be used whatever they hold.
    pub(super) resources: Result<Vec<Resource>, String>,
    /// Takes the reason why they are rejected, if they are.
    pub(super) outcome: oneshot::Sender<Result<(), String>>,
}

pub(super) struct XdsClient {
    settings: XdsSettings,
    snapshots: mpsc::Sender<Snapshot>,
    metrics: Arc<XdsMetrics>,
    /// The version of the rules in use; empty before the first.
    version: String,
    rejections: u32,
    /// The hash of the last rejected resources, and why they were rejected.
    rejected: Option<(u64, String)>,
    hasher: RandomState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamProgress {
    NotConnected,
    Connected,
    /// There were no response headers in time.
    Unanswered,
    Answered,
}

// === impl XdsClient ===

impl XdsClient {
    pub(super) fn new(
        settings: XdsSettings,
        snapshots: mpsc::Sender<Snapshot>,
        metrics: Arc<XdsMetrics>,
    ) -> Self {
        Self {
            settings,
            snapshots,
            metrics,
            version: String::new(),
            rejections: 0,
            rejected: None,
            hasher: RandomState::new(),
        }
    }

    /// Never returns.
    pub(super) async fn run(mut self) {
        let (mut failures, mut last) = (0_u32, StreamProgress::NotConnected);
        loop {
            let mut progress = StreamProgress::NotConnected;
            let reason = match self.follow(&mut progress).await {
                Ok(()) => "the stream has ended".to_owned(),
                // may have the names of a certificate, which are many
                Err(reason) => shortened(&reason, MAX_TEXT).into_owned(),
            };
            self.metrics.connected.set(0);
            self.metrics.disconnected.add(1);
            // a stream without an answer has waited already, and may be one of a control plane that has no rules yet
            let begins =
                matches!(progress, StreamProgress::Answered | StreamProgress::Unanswered) || progress != last;
            failures = if begins { 1 } else { failures + 1 };
            last = progress;
            let XdsSettings { backoff, connect_retry, .. } = &self.settings;
            let connected = progress != StreamProgress::NotConnected;
            let first = match progress {
                StreamProgress::NotConnected | StreamProgress::Unanswered => *connect_retry,
                StreamProgress::Connected | StreamProgress::Answered => backoff.initial,
            };
            let wait = backoff.wait(first, failures);
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

    async fn follow(&mut self, progress: &mut StreamProgress) -> Result<(), String> {
        let channel = self.connect().await?;
        *progress = StreamProgress::Connected;
        tracing::info!("connected to the control plane");
        let (requests, receiver) = Requests::new(&self.settings);
        requests.send(DiscoveryRequest::default()).await?;
        let mut request = Request::new(receiver);
        for (name, value) in &self.settings.headers {
            if let (Ok(name), Ok(value)) =
                (name.parse::<AsciiMetadataKey>(), value.parse::<AsciiMetadataValue>())
            {
                request.metadata_mut().append(name, value);
            }
        }
        let limit = self.settings.response_timeout;
        let Ok(opened) = timeout(limit, self.open(channel, request)).await else {
            *progress = StreamProgress::Unanswered;
            let node = &self.settings.node_id;
            return Err(format!(
                "it has sent no response headers within {limit:?}; it may have no rules for the node '{node}' \
                 (CONFIG_GRPC_XDS_NODE_ID)"
            ));
        };
        let mut responses = opened?;
        let mut next = self.first(&mut responses).await;
        while let Some(response) = next.map_err(|status| error(&status))? {
            *progress = StreamProgress::Answered;
            self.metrics.connected.set(1);
            next = self.handle(response, &requests, &mut responses).await?;
        }
        Ok(())
    }

    /// Returns once the response headers have arrived.
    async fn open(
        &self,
        channel: Channel,
        request: Request<impl Stream<Item = DiscoveryRequest> + Send + 'static>,
    ) -> Result<Streaming<Response>, String> {
        let max = self.settings.max_message;
        let mut client = Grpc::new(channel).max_decoding_message_size(max);
        client.ready().await.map_err(|error| with_causes(&error))?;
        let codec = BoundedCodec { bounds: PartBounds::of(max) };
        let opened = client.streaming(request, PathAndQuery::from_static(METHOD), codec).await;
        opened.map(tonic::Response::into_inner).map_err(|status| error(&status))
    }

    async fn first(&self, responses: &mut Streaming<Response>) -> Result<Option<Response>, tonic::Status> {
        let limit = self.settings.response_timeout;
        // the read goes on after a warning
        let mut first = pin!(responses.message());
        if let Ok(first) = timeout(limit, &mut first).await {
            return first;
        }
        tracing::warn!(
            node = self.settings.node_id,
            "the control plane has accepted the stream, but has sent no rules for this node within {limit:?}; waiting for them"
        );
        first.await
    }

    async fn connect(&self) -> Result<Channel, String> {
        let tls = match self.settings.tls.clone() {
            None => None,
            Some(XdsTls { files, server_name }) => {
                let loaded = files.load_aside(NAMES, &[ALPN_H2]).await;
                Some(StreamTls { config: loaded.map_err(|error| error.to_string())?, server_name })
            }
        };
        let limit = CONNECT_TIMEOUT.min(self.settings.response_timeout);
        let channel = connect(&self.settings.server, tls.as_ref(), limit).await;
        channel.map_err(|error| with_causes(&error))
    }

    /// Has `response` applied and acknowledges it. Returns the next one. An outer error ends the stream, too.
    async fn handle(
        &mut self,
        response: Response,
        requests: &Requests,
        responses: &mut Streaming<Response>,
    ) -> Result<Result<Option<Response>, tonic::Status>, String> {
        let Response { version_info, resources, type_url, nonce } = response;
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
                    return Ok(next);
                }
            }
        }
        requests.send(acknowledgement).await?;
        Ok(responses.message().await)
    }

    fn nack_wait(&self) -> Duration {
        match self.rejections.checked_sub(2) {
            None => Duration::ZERO,
            Some(repeated) => {
                NACK_WAIT.saturating_mul(1 << repeated.min(20)).min(self.settings.backoff.initial)
            }
        }
    }

    /// Has `resources` applied. Returns the text of the errors for which they are rejected.
    async fn judge(
        &mut self,
        type_url: &str,
        resources: Result<Vec<Resource>, ExceededPart>,
    ) -> Result<(), String> {
        let resources = if type_url == TYPE_URL {
            resources.map_err(|exceeded| exceeded.to_string())
        } else {
            let type_url = shortened(type_url, MAX_TEXT);
            Err(format!("the response has the type '{type_url}' instead of '{TYPE_URL}'"))
        };
        let hash = self.hash(&resources);
        if let Some((rejected, reason)) = &self.rejected
            && *rejected == hash
        {
            tracing::debug!("the control plane repeats a rejected update");
            return Err(reason.clone());
        }
        let ended = || "the service is stopping".to_owned();
        let (outcome, judged) = oneshot::channel();
        self.snapshots.send(Snapshot { resources, outcome }).await.map_err(|_| ended())?;
        let result = judged.await.map_err(|_| ended())?;
        self.rejected = result.as_ref().err().map(|reason| (hash, reason.clone()));
        result
    }

    fn hash(&self, resources: &Result<Vec<Resource>, String>) -> u64 {
        let resources = match resources {
            Ok(resources) => resources,
            Err(reason) => return self.hasher.hash_one(reason),
        };
        let hash = |one: &Resource| self.hasher.hash_one((&one.type_url, &one.value));
        let mut hashes: Vec<u64> = resources.iter().map(hash).collect();
        // the order is random in common control planes
        hashes.sort_unstable();
        self.hasher.hash_one(hashes)
    }
}

fn error(status: &tonic::Status) -> String {
    format!("{:?}: {}", status.code(), shortened(status.message(), MAX_TEXT))
}
