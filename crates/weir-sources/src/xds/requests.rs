use std::time::Duration;

use prost_types::{Struct, value::Kind};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;

use super::{resource::TYPE_URL, settings::XdsSettings};
use weir_proto::envoy::{config::core::v3::Node, service::discovery::v3::DiscoveryRequest};

/// Sends requests. At most one waits: a control plane that does not read them is not read either.
pub(super) struct Requests {
    sender: mpsc::Sender<DiscoveryRequest>,
    node: Node,
    limit: Duration,
}

// === impl Requests ===

impl Requests {
    pub(super) fn new(settings: &XdsSettings) -> (Self, ReceiverStream<DiscoveryRequest>) {
        let (sender, receiver) = mpsc::channel(1);
        let requests = Self { sender, node: node(settings), limit: settings.response_timeout };
        (requests, ReceiverStream::new(receiver))
    }

    /// Adds the node and the type, and waits until the request before the last is sent. An error ends the stream.
    pub(super) async fn send(&self, request: DiscoveryRequest) -> Result<(), String> {
        let request =
            DiscoveryRequest { node: Some(self.node.clone()), type_url: TYPE_URL.into(), ..request };
        match timeout(self.limit, self.sender.send(request)).await {
            // a closed channel means that the stream has ended, which the next read reports
            Ok(_) => Ok(()),
            Err(_) => Err(format!("it has read no request for {:?}", self.limit)),
        }
    }
}

fn node(settings: &XdsSettings) -> Node {
    let text = |text: &String| prost_types::Value { kind: Some(Kind::StringValue(text.clone())) };
    let metadata = &settings.node_metadata;
    let fields = metadata.iter().map(|(name, value)| (name.clone(), text(value))).collect();
    Node {
        id: settings.node_id.clone(),
        metadata: (!metadata.is_empty()).then_some(Struct { fields }),
        user_agent_name: "weir".into(),
        user_agent_version: env!("CARGO_PKG_VERSION").into(),
        ..Node::default()
    }
}
