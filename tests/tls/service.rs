//! A whole weir in the test's process, with TLS on its gRPC port.

use std::{fs, net::SocketAddr, sync::Arc, time::Duration};

use tempfile::TempDir;
use tokio::{sync::oneshot, task::JoinHandle};
use tokio_rustls::rustls::{ALL_VERSIONS, ClientConfig};
use tonic::{Status, transport::Channel};
use weir::{
    app::{Addresses, App, AppError},
    settings::Flags,
};
use weir_net::grpc_client::{Address, ConnectError, StreamTls, connect};
use weir_proto::envoy::service::ratelimit::v3::{
    RateLimitResponse, rate_limit_service_client::RateLimitServiceClient,
};
use weir_server::net::BoundAddress;

use crate::{
    authority::{Authority, Pair},
    local,
    mounted::Mounted,
    wire::{descriptor, request},
};

/// How long a test waits for an event before it fails.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

pub(crate) const RULES: &str = "
domain: d
descriptors:
  - key: k
    rate_limit: { unit: hour, requests_per_unit: 1000000 }
";

pub(crate) struct Weir {
    pub(crate) addresses: Addresses,
    _rules: TempDir,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), AppError>>,
}

// === impl Weir ===

impl Weir {
    /// Serves with the certificates that are mounted in `mounted`.
    pub(crate) async fn start(mounted: &Mounted, variables: &[(&str, &str)]) -> Self {
        let rules = tempfile::tempdir().expect("a directory");
        fs::write(rules.path().join("rules.yaml"), RULES).expect("a file");
        let flags = Flags { config: rules.path().to_str().map(str::to_owned), ..Flags::default() };
        let mounted: Vec<(&str, String)> = mounted.variables().collect();
        let mounted = mounted.iter().map(|(name, value)| (*name, value.as_str()));
        let variables: Vec<(&str, &str)> = variables.iter().copied().chain(mounted).collect();
        let settings = local::settings(&flags, &variables);
        let app = Box::pin(App::bind(settings)).await.expect("it starts");
        let addresses = app.addresses().clone();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(app.run(async move {
            let _ = stopped.await;
        }));
        Self { addresses, _rules: rules, stop, task }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        match self.addresses.grpc {
            BoundAddress::Tcp(address) => address,
            BoundAddress::Unix(_) => panic!("a unix socket"),
        }
    }

    /// Opens a connection with TLS.
    pub(crate) async fn connect(&self, config: Arc<ClientConfig>) -> Result<Client, ConnectError> {
        let target = Address::tcp("localhost", self.address().port());
        let tls = StreamTls { config, server_name: None };
        connect(&target, Some(&tls), DEADLINE)
            .await
            .map(|channel| Client(RateLimitServiceClient::new(channel)))
    }

    /// Returns the value of a metric with its labels, or 0.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let page = local::get(self.addresses.http, "/metrics").await;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or_default()
    }

    /// Waits until the metric `name` is at least `value`.
    pub(crate) async fn until_metric(&self, name: &str, value: f64) {
        let waiting = async {
            while self.metric(name).await < value {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let arrived = tokio::time::timeout(DEADLINE, waiting).await;
        assert!(arrived.is_ok(), "{name} is {}, not {value}", self.metric(name).await);
    }

    pub(crate) async fn stop(self) {
        self.stop.send(()).expect("it runs");
        self.task.await.expect("no panic").expect("a graceful stop");
    }
}

/// A connection.
#[derive(Clone)]
pub(crate) struct Client(RateLimitServiceClient<Channel>);

impl Client {
    pub(crate) async fn decide(&mut self) -> Result<RateLimitResponse, Status> {
        let request = request("d", [descriptor([("k", "v")])]);
        self.0.should_rate_limit(request).await.map(tonic::Response::into_inner)
    }
}

/// Returns a client that trusts `authority`, presents `pair` if any, and speaks gRPC over TLS 1.2 or 1.3.
pub(crate) fn client(authority: &Authority, pair: Option<&Pair>) -> Arc<ClientConfig> {
    authority.client(pair, ALL_VERSIONS, &["h2"])
}
