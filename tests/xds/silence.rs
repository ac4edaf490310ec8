//! Control planes that accept a connection and say nothing, or little.

use std::{future::pending, net::SocketAddr};

use tokio::{
    net::{TcpListener, TcpStream},
    task::block_in_place,
};
use tokio_stream::{Pending, pending as no_responses, wrappers::TcpListenerStream};
use tonic::{Request, Response, Status, Streaming, transport::Server};
use weir_proto::envoy::service::discovery::v3::{
    DiscoveryRequest, DiscoveryResponse,
    aggregated_discovery_service_server::{AggregatedDiscoveryService, AggregatedDiscoveryServiceServer},
};

use crate::{
    control_plane::{ControlPlane, config, within},
    program_log::{Program, metric},
};

const TIMEOUT: (&str, &str) = ("WEIR_XDS_RESPONSE_TIMEOUT", "300ms");

/// A control plane that takes a stream and never sends response headers.
struct Mute;

#[tonic::async_trait]
impl AggregatedDiscoveryService for Mute {
    type StreamAggregatedResourcesStream = Pending<Result<DiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        _: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        pending::<()>().await;
        Ok(Response::new(no_responses()))
    }
}

async fn is_not_connected(http: SocketAddr) {
    assert_eq!(metric(http, "weir_xds_connected").await, 0);
    assert!(metric(http, "weir_xds_disconnected_total").await >= 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_only_accepts_is_not_connected() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let mut program = Program::start(listener.local_addr().expect("an address"), &[TIMEOUT]);
    let mut accepted: Vec<TcpStream> = Vec::new();
    // it gives up, and tries again
    while accepted.len() < 3 {
        accepted.push(within(listener.accept()).await.expect("a connection").0);
    }
    let line = block_in_place(|| program.until("cannot connect to the control plane"));
    assert!(line.contains("WARN") && line.contains("accepted the connection, but sent nothing"), "{line}");
    let http = block_in_place(|| program.http());
    is_not_connected(http).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn response_headers_have_a_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let server = Server::builder().add_service(AggregatedDiscoveryServiceServer::new(Mute));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let mut program = Program::start(address, &[TIMEOUT, ("CONFIG_GRPC_XDS_NODE_ID", "some-node")]);
    for _ in 0..2 {
        let line = block_in_place(|| program.until("control plane lost"));
        let missing =
            "it has sent no response headers within 300ms; it may have no rules for the node 'some-node'";
        assert!(line.contains("WARN") && line.contains(missing), "{line}");
    }
    let http = block_in_place(|| program.http());
    is_not_connected(http).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_control_plane_without_rules_is_waited_for_with_a_warning() {
    let mut control_plane = ControlPlane::start().await;
    let mut program = Program::start(control_plane.address, &[TIMEOUT]);
    let mut stream = control_plane.stream().await;
    stream.request().await;
    let line = block_in_place(|| program.until("has sent no rules for this node within 300ms"));
    assert!(line.contains("WARN") && line.contains("node=\"default\""), "{line}");
    let http = block_in_place(|| program.http());
    assert_eq!(metric(http, "weir_xds_connected").await, 0);
    // the stream is still the first one
    stream.accepted("1", "a", &[config("d", "k", 1)]).await;
    assert_eq!(metric(http, "weir_xds_connected").await, 1);
    assert_eq!(metric(http, "weir_xds_disconnected_total").await, 0);
    assert!(!control_plane.has_streams());
}
