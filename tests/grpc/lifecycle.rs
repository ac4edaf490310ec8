//! Health, reflection, sockets, connection age, and shutdown.

use std::{fs, io, os::unix::net::UnixListener as StdUnixListener, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, timeout},
};
use tokio_stream::StreamExt as _;
use tonic::{Code, transport::Endpoint};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};
use weir::app::AppError;
use weir_server::net::BoundAddress;

use crate::{
    in_process::{DEADLINE, Weir, uri},
    wire::{descriptor, request},
};

const RULES: &str = "
domain: d
descriptors:
  - key: k
    rate_limit: { unit: hour, requests_per_unit: 1000000 }
";

async fn channel(weir: &Weir) -> tonic::transport::Channel {
    let endpoint = Endpoint::from_shared(uri(&weir.addresses)).expect("an address");
    endpoint.connect().await.expect("it listens")
}

fn service(name: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: name.to_owned() }
}

#[tokio::test]
async fn health_fails_before_anything_else_stops() {
    // long enough that the test ends before the delay does
    let weir = Weir::start_with(RULES, &[("WEIR_STOP_DELAY", "1h")]).await;
    let mut health = HealthClient::new(channel(&weir).await);
    for name in ["ratelimit", ""] {
        let status = health.check(service(name)).await.expect("it is known").into_inner().status();
        assert_eq!(status, ServingStatus::Serving, "{name:?}");
    }
    assert_eq!(health.check(service("other")).await.expect_err("it is not").code(), Code::NotFound);

    let mut watched = health.watch(service("ratelimit")).await.expect("a stream").into_inner();
    let mut next =
        async || timeout(DEADLINE, watched.next()).await.expect("in time").expect("more").expect("it");
    assert_eq!(next().await.status(), ServingStatus::Serving);
    let mut client = weir.client.clone();
    weir.stop();
    assert_eq!(next().await.status(), ServingStatus::NotServing);
    let decided = client.should_rate_limit(request("d", [descriptor([("k", "v")])])).await;
    assert!(decided.is_ok(), "clients that have not noticed yet are still served");
}

#[tokio::test]
async fn a_stopped_service_accepts_no_connections() {
    let weir = Weir::start(RULES).await;
    let BoundAddress::Tcp(address) = weir.addresses.grpc else { panic!("it listens on a port") };
    let http = weir.addresses.http;
    timeout(DEADLINE, weir.stop()).await.expect("in time").expect("no panic").expect("no error");
    for address in [address, http] {
        assert!(TcpStream::connect(address).await.is_err());
    }
}

#[tokio::test]
async fn reflection_lists_every_service() {
    let weir = Weir::start(RULES).await;
    let mut client = ServerReflectionClient::new(channel(&weir).await);
    let query = |message| ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    let queries = [
        query(MessageRequest::ListServices(String::new())),
        query(MessageRequest::FileContainingSymbol("envoy.service.ratelimit.v3.RateLimitService".into())),
    ];
    let responses =
        client.server_reflection_info(tokio_stream::iter(queries)).await.expect("a stream").into_inner();
    let responses: Vec<_> =
        responses.map(|response| response.expect("a response").message_response).collect().await;
    let Some(MessageResponse::ListServicesResponse(list)) = &responses[0] else { panic!("{responses:?}") };
    let names: Vec<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
    for name in ["envoy.service.ratelimit.v3.RateLimitService", "weir.v1.Limiter", "grpc.health.v1.Health"] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(matches!(&responses[1], Some(MessageResponse::FileDescriptorResponse(file))
        if !file.file_descriptor_proto.is_empty()));
}

#[tokio::test]
async fn a_unix_socket_serves_and_is_removed_with_the_service() {
    let mut weir = Weir::start_with(RULES, &[("GRPC_UDS", "{dir}/weir.sock")]).await;
    weir.decide(request("d", [descriptor([("k", "v")])])).await;
    let BoundAddress::Unix(path) = weir.addresses.grpc.clone() else { panic!("it listens on a socket") };
    assert!(path.exists());
    let second = Weir::try_start(RULES, &[("GRPC_UDS", path.to_str().expect("a plain path"))]).await;
    let Err(AppError::Bind { source: error, .. }) = second else { panic!("two services on one socket") };
    assert_eq!(error.source.kind(), io::ErrorKind::AddrInUse);
    weir.decide(request("d", [descriptor([("k", "v")])])).await;

    timeout(DEADLINE, weir.stop()).await.expect("in time").expect("no panic").expect("no error");
    assert!(!path.exists());
}

#[tokio::test]
async fn a_stale_socket_is_replaced_but_a_file_is_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("weir.sock");
    // on drop, the listener leaves its file behind
    drop(StdUnixListener::bind(&path).expect("a socket"));
    assert!(path.exists());
    let variables = [("GRPC_UDS", path.to_str().expect("a plain path"))];
    let mut weir = Weir::start_with(RULES, &variables).await;
    weir.decide(request("d", [descriptor([("k", "v")])])).await;
    timeout(DEADLINE, weir.stop()).await.expect("in time").expect("no panic").expect("no error");

    fs::write(&path, "precious").expect("a file");
    assert!(matches!(Weir::try_start(RULES, &variables).await, Err(AppError::Bind { .. })));
    assert_eq!(fs::read_to_string(&path).expect("it is still there"), "precious");
}

/// The type of HTTP/2's GOAWAY frame.
const GOAWAY: u8 = 7;

#[tokio::test]
async fn a_client_that_ignores_the_connection_age_is_disconnected() {
    let ages = [("GRPC_MAX_CONNECTION_AGE", "200ms"), ("GRPC_MAX_CONNECTION_AGE_GRACE", "300ms")];
    let weir = Weir::start_with(RULES, &ages).await;
    let BoundAddress::Tcp(address) = weir.addresses.grpc else { panic!("it listens on a port") };
    let begun = Instant::now();
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    // the preface and empty settings; after that, this client sends nothing more, not even acknowledgements
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("it takes it");
    let (mut goaway, mut header) = (None, [0; 9]);
    while timeout(DEADLINE, stream.read_exact(&mut header)).await.expect("in time").is_ok() {
        if header[3] == GOAWAY {
            goaway.get_or_insert_with(|| begun.elapsed());
        }
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).await.expect("a whole frame");
    }
    let goaway = goaway.expect("a GOAWAY before the connection is closed");
    assert!(goaway >= Duration::from_millis(180), "{goaway:?}");
    assert!(begun.elapsed() >= goaway + Duration::from_millis(200), "the grace period passed");
}

#[tokio::test]
async fn a_client_continues_when_its_connection_reaches_its_age() {
    let mut weir = Weir::start_with(RULES, &[("GRPC_MAX_CONNECTION_AGE", "50ms")]).await;
    let begun = Instant::now();
    let mut last = 1_000_000;
    while begun.elapsed() < Duration::from_secs(1) {
        match weir.try_decide(request("d", [descriptor([("k", "v")])])).await {
            Ok(response) => {
                last -= 1;
                assert_eq!(
                    response.statuses[0].limit_remaining, last,
                    "nothing is lost and nothing counted twice"
                );
            }
            // unlike Envoy, this client does not retry requests that it could not send
            Err(status) => assert_eq!(status.code(), Code::Cancelled, "{status:?}"),
        }
    }
    assert!(last < 1_000_000 - 50, "{last}");
}

#[tokio::test]
async fn shutdown_does_not_wait_for_health_watches() {
    let weir = Weir::start_with(RULES, &[("WEIR_STOP_TIMEOUT", "1h")]).await;
    let mut health = HealthClient::new(channel(&weir).await);
    let mut watched = health.watch(service("")).await.expect("a stream").into_inner();
    assert!(watched.next().await.is_some());
    timeout(DEADLINE, weir.stop()).await.expect("in time").expect("no panic").expect("no error");
}

#[tokio::test]
async fn shutdown_is_bounded_whatever_a_client_does() {
    let weir = Weir::start_with(RULES, &[("WEIR_STOP_TIMEOUT", "300ms")]).await;
    let mut client = ServerReflectionClient::new(channel(&weir).await);
    // a stream of requests that never ends
    let endless = tokio_stream::pending::<ServerReflectionRequest>();
    let mut responses = client.server_reflection_info(endless).await.expect("a stream").into_inner();
    let begun = Instant::now();
    timeout(DEADLINE, weir.stop()).await.expect("in time").expect("no panic").expect("no error");
    assert!(begun.elapsed() >= Duration::from_millis(300), "the timeout passed");
    assert!(
        timeout(DEADLINE, responses.next()).await.expect("in time").is_none_or(|response| response.is_err())
    );
}
