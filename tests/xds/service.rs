//! A whole weir in the test's process, with rules from a control plane.

use std::net::SocketAddr;

use tokio::{sync::oneshot, task::JoinHandle, time::sleep};
use tonic::{Status, transport::Channel};
use weir::{
    app::{Addresses, App, AppError},
    settings::{Flags, Settings},
};
use weir_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_service_client::RateLimitServiceClient,
};
use weir_server::net::BoundAddress;

use crate::{
    control_plane::{ControlPlane, DEADLINE, within},
    local::{self, get},
};

pub(crate) struct Weir {
    pub(crate) addresses: Addresses,
    client: RateLimitServiceClient<Channel>,
    _stop: oneshot::Sender<()>,
}

/// A start that may wait for its first rules.
pub(crate) struct Starting(JoinHandle<Result<App, AppError>>);

// === impl Starting ===

impl Starting {
    /// Starts with the rules of `control_plane`.
    pub(crate) fn new(control_plane: &ControlPlane, variables: &[(&str, &str)]) -> Self {
        Self(tokio::spawn(App::bind(settings(control_plane.address, variables))))
    }

    /// Waits until it is ready, and serves.
    pub(crate) async fn ready(self) -> Weir {
        let app = within(self.0).await.expect("no panic").expect("it starts");
        let addresses = app.addresses().clone();
        let (stop, stopped) = oneshot::channel();
        tokio::spawn(app.run(async move {
            // the test drops the sender at its end
            let _ = stopped.await;
        }));
        let BoundAddress::Tcp(address) = &addresses.grpc else { panic!("a unix socket") };
        let client = RateLimitServiceClient::connect(format!("http://{address}")).await.expect("it listens");
        Weir { addresses, client, _stop: stop }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.0.is_finished()
    }
}

// === impl Weir ===

impl Weir {
    pub(crate) async fn decide(&mut self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        self.client.should_rate_limit(request).await.map(tonic::Response::into_inner)
    }

    /// Returns a page of the HTTP port, with its status.
    pub(crate) async fn page(&self, path: &str) -> String {
        get(self.addresses.http, path).await
    }

    /// Returns the rules in force.
    pub(crate) async fn rules(&self) -> String {
        get(self.addresses.debug, "/rlconfig").await
    }

    /// Waits until the HTTP port's page `path` contains `text`.
    pub(crate) async fn until_page(&self, path: &str, text: &str) {
        let waiting = async {
            while !self.page(path).await.contains(text) {
                sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        let arrived = tokio::time::timeout(DEADLINE, waiting).await;
        assert!(arrived.is_ok(), "{path} lacks {text}: {}", self.page(path).await);
    }
}

fn settings(control_plane: SocketAddr, variables: &[(&str, &str)]) -> Settings {
    let address = control_plane.to_string();
    let base = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", &address),
        ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "20ms"),
        ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "20ms"),
        ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "100ms"),
    ];
    local::settings(&Flags::default(), &[&base, variables].concat())
}
