//! The image as Envoy Gateway's rate limit deployment starts it: its command, variables, volumes, user and probes. Its
//! control plane is away; `tests/xds` has one.

use std::{fs, os::unix::fs::PermissionsExt as _};

use crate::{
    authority::{Authority, Leaf},
    container::Container,
    docker::{docker, until},
    gateway_mapper::envoy_gateway_mapper,
};

/// The variables of the deployment, with metrics and traces as they are by default.
const VARIABLES: [&str; 24] = [
    "RUNTIME_ROOT=/data",
    "RUNTIME_SUBDIRECTORY=ratelimit",
    "RUNTIME_IGNOREDOTFILES=true",
    "RUNTIME_WATCH_ROOT=false",
    "LOG_LEVEL=info",
    "USE_STATSD=false",
    "CONFIG_TYPE=GRPC_XDS_SOTW",
    "CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001",
    "CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit",
    "GRPC_SERVER_USE_TLS=true",
    "GRPC_SERVER_TLS_CERT=/certs/tls.crt",
    "GRPC_SERVER_TLS_KEY=/certs/tls.key",
    "GRPC_SERVER_TLS_CA_CERT=/certs/ca.crt",
    "CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
    "CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/certs/tls.crt",
    "CONFIG_GRPC_XDS_CLIENT_TLS_KEY=/certs/tls.key",
    "CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/certs/ca.crt",
    "FORCE_START_WITHOUT_INITIAL_CONFIG=true",
    "REDIS_SOCKET_TYPE=tcp",
    // there is none: weir starts without it
    "REDIS_URL=redis:6379",
    "USE_PROMETHEUS=true",
    "PROMETHEUS_ADDR=:19001",
    "PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml",
    "WEIR_COORDINATION=lease",
];

#[test]
fn the_image_takes_the_place_of_envoy_gateways() {
    let Some(docker) = docker() else { return };
    let files = tempfile::tempdir().expect("a folder");
    // the user of the container is another one
    fs::set_permissions(files.path(), fs::Permissions::from_mode(0o755)).expect("they can be set");
    let authority = Authority::new("envoy-gateway");
    let leaf = Leaf { rsa: true, ..Leaf::new(&["*.envoy-gateway-system", "localhost"]) };
    let pair = authority.sign_leaf(leaf).with_old_key(true);
    for (name, text) in [("tls.crt", pair.certificate), ("tls.key", pair.key), ("ca.crt", authority.pem())] {
        fs::write(files.path().join(name), text).expect("a file");
    }
    fs::write(files.path().join("conf.yaml"), envoy_gateway_mapper()).expect("a file");
    let mount = |path: &str| format!("{}:{path}:ro", files.path().display());
    let (certificates, mapper) = (mount("/certs"), mount("/etc/statsd-exporter"));

    let variables: Vec<&str> = VARIABLES.iter().flat_map(|variable| ["--env", variable]).collect();
    let options = [
        "--entrypoint",
        "/bin/ratelimit",
        "--user",
        "65534:65534",
        "--volume",
        &certificates,
        "--volume",
        &mapper,
        "--add-host",
        "envoy-gateway:127.0.0.1",
    ];
    let weir = Container::start(docker, &[&options[..], &variables].concat(), &[]);
    // the startup, readiness and liveness probes are this one
    weir.await_ready();
    until("metrics are on their port", || {
        let (status, page) = weir.get(19001, "/metrics")?;
        let names = ["ratelimit_service_config_load_success", "ratelimit_service_total_requests"];
        (status == 200 && names.iter().all(|name| page.contains(name))).then_some(())
    });
    let call = [
        "weir",
        "call",
        "--address",
        "https://localhost:8081",
        "--tls-ca",
        "/certs/ca.crt",
        "--domain",
        "d",
        "k=v",
    ];
    let reply = docker.try_run(&[&["exec", weir.name()], &call[..]].concat());
    let error = String::from_utf8_lossy(&reply.stderr).into_owned();
    assert!(error.contains("no rate limit configuration loaded"), "{error}{}", weir.logs());
    assert_eq!(weir.stop(), "0", "{}", weir.logs());
}
