//! Health, reflection, sockets, the age of connections, and the stop.

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
use weir::{app::AppError, net::BoundAddress};

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
    let asked = client.should_rate_limit(request("d", [descriptor([("k", "v")])])).await;
    assert!(asked.is_ok(), "whoever has not heard of it yet is still served");
}

#[tokio::test]
async fn a_service_that_has_stopped_takes_no_connections() {
    let weir = Weir::start(RULES).await;
    let BoundAddress::Tcp(address) = weir.addresses.grpc else { panic!("it listens on a port") };
    let http = weir.addresses.http;
    timeout(DEADLINE, weir.stop()).await.expect("in time").expect("no panic").expect("no error");
    for address in [address, http] {
        assert!(TcpStream::connect(address).await.is_err());
    }
}

#[tokio::test]
async fn reflection_tells_of_every_service() {
    let weir = Weir::start(RULES).await;
    let mut client = ServerReflectionClient::new(channel(&weir).await);
    let ask = |message| ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    let asked = [
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol("envoy.service.ratelimit.v3.RateLimitService".into())),
    ];
    let answers =
        client.server_reflection_info(tokio_stream::iter(asked)).await.expect("a stream").into_inner();
    let answers: Vec<_> = answers.map(|answer| answer.expect("an answer").message_response).collect().await;
    let Some(MessageResponse::ListServicesResponse(list)) = &answers[0] else { panic!("{answers:?}") };
    let names: Vec<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
    for name in ["envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(matches!(&answers[1], Some(MessageResponse::FileDescriptorResponse(file))
        if !file.file_descriptor_proto.is_empty()));
}

#[tokio::test]
async fn a_unix_socket_serves_and_goes_with_the_service() {
    let mut weir = Weir::start_with(RULES, &[("GRPC_UDS", "{dir}/weir.sock")]).await;
    weir.answer(request("d", [descriptor([("k", "v")])])).await;
    let BoundAddress::Unix(path) = weir.addresses.grpc.clone() else { panic!("it listens on a socket") };
    assert!(path.exists());
    let second = Weir::try_start(RULES, &[("GRPC_UDS", path.to_str().expect("a plain path"))]).await;
    let Err(AppError::Bind(error)) = second else { panic!("two services on one socket") };
    assert_eq!(error.source.kind(), io::ErrorKind::AddrInUse);
    weir.answer(request("d", [descriptor([("k", "v")])])).await;

    timeout(DEADLINE, weir.stop()).await.expect("in time").expect("no panic").expect("no error");
    assert!(!path.exists());
}

#[tokio::test]
async fn a_socket_that_somebody_left_behind_is_no_obstacle_but_a_file_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("weir.sock");
    // dropped, it leaves its file there
    drop(StdUnixListener::bind(&path).expect("a socket"));
    assert!(path.exists());
    let variables = [("GRPC_UDS", path.to_str().expect("a plain path"))];
    let mut weir = Weir::start_with(RULES, &variables).await;
    weir.answer(request("d", [descriptor([("k", "v")])])).await;
    timeout(DEADLINE, weir.stop()).await.expect("in time").expect("no panic").expect("no error");

    fs::write(&path, "precious").expect("a file");
    assert!(matches!(Weir::try_start(RULES, &variables).await, Err(AppError::Bind(_))));
    assert_eq!(fs::read_to_string(&path).expect("it is still there"), "precious");
}

/// What HTTP/2 frames are called by.
const GOAWAY: u8 = 7;

#[tokio::test]
async fn a_client_that_ignores_its_connections_age_is_cut() {
    let ages = [("GRPC_MAX_CONNECTION_AGE", "200ms"), ("GRPC_MAX_CONNECTION_AGE_GRACE", "300ms")];
    let weir = Weir::start_with(RULES, &ages).await;
    let BoundAddress::Tcp(address) = weir.addresses.grpc else { panic!("it listens on a port") };
    let begun = Instant::now();
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    // the preface and empty settings; after that, this client says nothing more, not even that it has heard
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("it takes it");
    let (mut told, mut header) = (None, [0; 9]);
    while timeout(DEADLINE, stream.read_exact(&mut header)).await.expect("in time").is_ok() {
        if header[3] == GOAWAY {
            told.get_or_insert_with(|| begun.elapsed());
        }
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).await.expect("a whole frame");
    }
    let told = told.expect("it was told before it was cut");
    assert!(told >= Duration::from_millis(180), "{told:?}");
    assert!(begun.elapsed() >= told + Duration::from_millis(200), "it had its grace");
}

#[tokio::test]
async fn a_client_carries_on_when_its_connection_has_grown_old() {
    let mut weir = Weir::start_with(RULES, &[("GRPC_MAX_CONNECTION_AGE", "50ms")]).await;
    let begun = Instant::now();
    let mut last = 1_000_000;
    while begun.elapsed() < Duration::from_secs(1) {
        match weir.ask(request("d", [descriptor([("k", "v")])])).await {
            Ok(answer) => {
                last -= 1;
                assert_eq!(
                    answer.statuses[0].limit_remaining, last,
                    "nothing is lost and nothing counted twice"
                );
            }
            // this client, other than Envoy, does not itself send again what it had not sent when the connection went
            Err(status) => assert_eq!(status.code(), Code::Cancelled, "{status:?}"),
        }
    }
    assert!(last < 1_000_000 - 50, "{last}");
}

#[tokio::test]
async fn the_stop_waits_for_nobody_who_only_watches() {
    let weir = Weir::start_with(RULES, &[("WEIR_STOP_TIMEOUT", "1h")]).await;
    let mut health = HealthClient::new(channel(&weir).await);
    let mut watched = health.watch(service("")).await.expect("a stream").into_inner();
    assert!(watched.next().await.is_some());
    timeout(DEADLINE, weir.stop()).await.expect("in time").expect("no panic").expect("no error");
}

#[tokio::test]
async fn the_stop_is_bounded_whatever_a_client_does() {
    let weir = Weir::start_with(RULES, &[("WEIR_STOP_TIMEOUT", "300ms")]).await;
    let mut client = ServerReflectionClient::new(channel(&weir).await);
    // asks, and never comes to an end
    let endless = tokio_stream::pending::<ServerReflectionRequest>();
    let mut answers = client.server_reflection_info(endless).await.expect("a stream").into_inner();
    let begun = Instant::now();
    timeout(DEADLINE, weir.stop()).await.expect("in time").expect("no panic").expect("no error");
    assert!(begun.elapsed() >= Duration::from_millis(300), "it had its time");
    assert!(timeout(DEADLINE, answers.next()).await.expect("in time").is_none_or(|answer| answer.is_err()));
}
