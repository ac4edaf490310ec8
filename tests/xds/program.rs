//! The program, with the environment of Envoy Gateway's rate limit deployment.

use std::process::Stdio;

use crate::{
    authority::Authority,
    child::{Serving, weir},
    control_plane::{ControlPlane, config},
    tls::{Files, envoy_gateway, terminator},
    wire::{descriptor, request},
};
use tokio_rustls::rustls::ALL_VERSIONS;
use weir_net::grpc_client::{Address, StreamTls, connect};
use weir_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_starts_with_the_environment_of_envoy_gateway() {
    let mut control_plane = ControlPlane::start().await;
    let authority = Authority::new("envoy-gateway");
    let server = envoy_gateway(&authority, &["localhost"]);
    let address = terminator(control_plane.address, &server, &authority).await;
    let own = envoy_gateway(&authority, &["*.envoy-gateway-system", "localhost"]);
    let files = Files::new(&own, &authority.pem());
    let url = format!("localhost:{}", address.port());
    let (ca, certificate, key) = (files.path("ca.crt"), files.path("tls.crt"), files.path("tls.key"));
    let variables: Vec<(&str, String)> = [
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("LOG_LEVEL", "info"),
        ("USE_STATSD", "false"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", &url),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &certificate),
        ("GRPC_SERVER_TLS_KEY", &key),
        ("GRPC_SERVER_TLS_CA_CERT", &ca),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &certificate),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &key),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &ca),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("BACKEND_TYPE", "memory"),
        // not on the fixed port
        ("GRPC_HOST", "127.0.0.1"),
        ("GRPC_PORT", "0"),
        ("WEIR_STOP_DELAY", "0"),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .into();
    let started = tokio::task::spawn_blocking(move || {
        let variables: Vec<(&str, &str)> =
            variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        Serving::start_by_environment(&variables)
    });
    let mut stream = control_plane.stream().await;
    assert_eq!(stream.request().await.node.expect("a node").id, "envoy-ratelimit");
    stream.accepted("1", "a", &[config("default/eg/http", "k*", 1)]).await;
    let serving = started.await.expect("it starts");

    let port = serving.address("grpc").rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    // Envoy presents a certificate, which is not required
    let tls = StreamTls { config: authority.client(Some(&own), ALL_VERSIONS, &["h2"]), server_name: None };
    let target = Address::tcp("localhost", port);
    let channel = connect(&target, Some(&tls), crate::control_plane::DEADLINE).await.expect("a connection");
    let mut client = RateLimitServiceClient::new(channel);
    for remaining in [0, 0] {
        let decided = client.should_rate_limit(request("default/eg/http", [descriptor([("k*", "v")])])).await;
        assert_eq!(decided.expect("a decision").into_inner().statuses[0].limit_remaining, remaining);
    }
    serving.signal("TERM");
    let (status, log) = tokio::task::spawn_blocking(|| serving.ended()).await.expect("it ends");
    assert!(status.success(), "{log}");
    assert!(log.contains("connected to the control plane") && log.contains("rules loaded"), "{log}");
    let warnings = log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR"));
    // the second request is rejected
    assert_eq!(warnings.filter(|line| !line.contains(": rejected ")).collect::<Vec<_>>(), [""; 0], "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_ends_a_start_that_waits_for_rules() {
    let mut control_plane = ControlPlane::start().await;
    let url = control_plane.address.to_string();
    let variables = [("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("CONFIG_GRPC_XDS_SERVER_URL", url.as_str())];
    let mut child = weir(&[], &variables).stderr(Stdio::null()).spawn().expect("it can be started");
    let mut stream = control_plane.stream().await;
    stream.request().await;
    let pid = child.id().to_string();
    std::process::Command::new("kill").args(["-s", "TERM", &pid]).status().expect("kill can be started");
    let status =
        tokio::task::spawn_blocking(move || child.wait()).await.expect("no panic").expect("its status");
    assert!(status.success(), "{status}");
}
