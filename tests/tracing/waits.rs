//! A weir that counts in a shared store and sends its traces: the spans of decisions, with the waits for the store as
//! children.

use std::fs;

use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind};
use tempfile::TempDir;
use tonic::transport::Channel;
use weir_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, rate_limit_service_client::RateLimitServiceClient,
};

use crate::{
    child::Serving,
    collector::{Collector, attribute},
    in_process::until,
    traced::{AT_ONCE, with_headers},
    wire::{descriptor, request},
};

const RULES: &str = "domain: shop
descriptors:
  - { key: strict, rate_limit: { requests: 1000, per: 365d, coordination: strict } }
  - { key: lease, rate_limit: { requests: 1000, per: 365d, coordination: lease } }
  - { key: interval, rate_limit: { requests: 1000, per: 365d, coordination: interval } }
  - { key: year, rate_limit: { unit: year, requests_per_unit: 1000, coordination: strict } }
  - { key: local, rate_limit: { requests: 1000, per: 365d, coordination: local } }
";

const DECISION: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A weir that counts in a store and sends traces.
pub(crate) struct Traced {
    collector: Collector,
    client: RateLimitServiceClient<Channel>,
    weir: Serving,
    _dir: TempDir,
}

/// A decision with its children.
pub(crate) struct Decided {
    pub(crate) span: Span,
    pub(crate) children: Vec<Span>,
}

// === impl Traced ===

impl Traced {
    pub(crate) async fn start(variables: &[(&str, &str)]) -> Self {
        let collector = Collector::grpc().await;
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("rules.yaml"), RULES).expect("a file");
        let endpoint = format!("http://{}", collector.address);
        let own = [
            ("WEIR_DECISION_BUDGET", "10s"),
            ("WEIR_STOP_DELAY", "0"),
            ("TRACING_ENABLED", "true"),
            ("TRACING_EXPORTER_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
            AT_ONCE,
        ];
        let weir = Serving::start(dir.path().to_str().expect("a plain path"), &[&own, variables].concat());
        let client = RateLimitServiceClient::connect(format!("http://{}", weir.address("grpc")));
        let client = client.await.expect("it listens");
        Self { collector, client, weir, _dir: dir }
    }

    /// Returns the address of its HTTP server.
    pub(crate) fn http(&self) -> std::net::SocketAddr {
        self.weir.address("http").parse().expect("an address")
    }

    /// Decides `message`, and returns its span with the children.
    pub(crate) async fn decide(&mut self, message: RateLimitRequest) -> Decided {
        self.decide_with(message, &[]).await
    }

    /// Does the same with further headers of the call.
    pub(crate) async fn decide_with(
        &mut self,
        message: RateLimitRequest,
        headers: &[(&'static str, &str)],
    ) -> Decided {
        let before = self.decisions().len();
        self.client.should_rate_limit(with_headers(message, headers)).await.expect("a response");
        until("the span", async || self.decisions().len() > before).await;
        let span = self.decisions().remove(before);
        // the spans of a request leave in one batch, or the decision before its children
        let waited = attribute(&span.attributes, "weir.store.waited").expect("it is known");
        let children = || -> Vec<Span> {
            self.collector.spans().into_iter().filter(|child| child.parent_span_id == span.span_id).collect()
        };
        until("the children", async || (waited == "true") != children().is_empty()).await;
        Decided { children: children(), span }
    }

    fn decisions(&self) -> Vec<Span> {
        let mut spans = self.collector.spans();
        spans.retain(|span| span.name == DECISION);
        spans
    }
}

// === impl Decided ===

impl Decided {
    pub(crate) fn attribute(&self, name: &str) -> Option<String> {
        attribute(&self.span.attributes, name)
    }

    /// Checks the children, which have this `name` and wait for the `store`. Returns their number of commands.
    ///
    /// Commands that are sent together have one child, unless the first reply arrives before the second command is
    /// sent.
    pub(crate) fn commands(&self, name: &str, store: &str) -> u64 {
        let span = &self.span;
        assert!(!self.children.is_empty());
        let commands = self.children.iter().map(|child| {
            assert_eq!((&*child.name, child.kind()), (name, SpanKind::Client));
            assert_eq!(child.trace_id, span.trace_id);
            assert!(child.start_time_unix_nano >= span.start_time_unix_nano);
            assert!(child.end_time_unix_nano > child.start_time_unix_nano);
            assert!(child.end_time_unix_nano <= span.end_time_unix_nano);
            let commands =
                attribute(&child.attributes, "db.operation.batch.size").expect("a number of commands");
            assert_eq!(attribute(&child.attributes, "db.system.name").as_deref(), Some(store));
            assert_eq!(child.attributes.len(), 2, "{:?}", child.attributes);
            commands.parse::<u64>().expect("a number")
        });
        commands.sum()
    }
}

/// Returns a request with a hit of `key`.
pub(crate) fn one(key: &str) -> RateLimitRequest {
    request("shop", [descriptor([(key, "x")])])
}
