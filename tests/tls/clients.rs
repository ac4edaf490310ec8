//! Accepted and rejected clients.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream as StdTcpStream,
    sync::Arc,
    time::Duration,
};

use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};
use tokio_rustls::{
    TlsConnector,
    rustls::{ALL_VERSIONS, ClientConfig, ProtocolVersion, pki_types::ServerName, version},
};
use weir_net::grpc_client::{Address, StreamTls, connect};
use weir_server::net::BoundAddress;

use crate::{
    authority::{Authority, Leaf, Pair},
    child::Serving,
    local,
    mounted::Mounted,
    service::{DEADLINE, RULES, Weir, client},
};

const SPIFFE: &str = "spiffe://cluster.local/ns/gateway/sa/envoy";

#[tokio::test]
async fn every_key_format_and_version_of_tls_is_served_with_alpn() {
    let authority = Authority::new("authority");
    let elliptic = authority.sign(&["localhost"]);
    let rsa = authority.sign_leaf(Leaf { rsa: true, ..Leaf::new(&["localhost"]) });
    for pair in [&elliptic, &elliptic.with_old_key(false), &rsa, &rsa.with_old_key(true)] {
        let weir = Weir::start(&Mounted::new(pair, None), &[]).await;
        for (version, expected) in
            [(&version::TLS12, ProtocolVersion::TLSv1_2), (&version::TLS13, ProtocolVersion::TLSv1_3)]
        {
            let config = authority.client(None, &[version], &["http/1.1", "h2"]);
            let stream = TcpStream::connect(weir.address()).await.expect("a connection");
            let name = ServerName::try_from("localhost").expect("a name");
            let stream =
                TlsConnector::from(Arc::clone(&config)).connect(name, stream).await.expect("a handshake");
            let (_, session) = stream.get_ref();
            assert_eq!(session.protocol_version(), Some(expected));
            assert_eq!(session.alpn_protocol(), Some(&b"h2"[..]));
            let config = authority.client(None, &[version], &["h2"]);
            weir.connect(config).await.expect("a connection").decide().await.expect("a decision");
        }
        // clients that know nothing of ALPN
        let config = authority.client(None, ALL_VERSIONS, &[]);
        weir.connect(config).await.expect("a connection").decide().await.expect("a decision");
        weir.stop().await;
    }
}

#[tokio::test]
async fn a_unix_socket_is_encrypted_too() {
    let authority = Authority::new("authority");
    let mounted = Mounted::new(&authority.sign(&["localhost"]), None);
    let path = mounted.text("weir.sock");
    let weir = Weir::start(&mounted, &[("GRPC_UDS", &path)]).await;
    let tls = StreamTls { config: client(&authority, None), server_name: None };
    let channel = connect(&Address::Unix(path.into()), Some(&tls), DEADLINE).await.expect("a connection");
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
    health.check(tonic_health::pb::HealthCheckRequest::default()).await.expect("a reply");
    weir.stop().await;
}

#[tokio::test]
async fn a_client_needs_a_certificate_with_one_of_the_names() {
    let authority = Authority::new("authority of clients");
    let server = Authority::new("authority of servers");
    let mounted = Mounted::new(&server.sign(&["localhost"]), Some(&authority.pem()));
    let names = format!("envoy.example.org, {SPIFFE}");
    for (variables, accepted, rejected) in [
        // any name, if none is required
        (vec![], vec![&["a"][..], &[]], vec![]),
        (
            vec![("GRPC_CLIENT_TLS_SAN", names.as_str())],
            vec![
                &["envoy.example.org"][..],
                &["other", "ENVOY.Example.org"],
                &["*.example.org"],
                &[SPIFFE],
                // as Envoy Gateway writes them: a wildcard with one label is no name, and no reason to reject the
                // others
                &["*.gateway", SPIFFE],
            ],
            vec![
                &["other"][..],
                &[],
                &["a.envoy.example.org"],
                &["spiffe://cluster.local/ns/gateway/sa/envoy2"],
                &["spiffe://cluster.local/ns/gateway/sa"],
            ],
        ),
    ] {
        let weir = Weir::start(&mounted, &variables).await;
        for names in accepted {
            let pair = authority.sign(names);
            let mut connection = weir.connect(client(&server, Some(&pair))).await.expect("a connection");
            let decided = connection.decide().await;
            assert!(decided.is_ok(), "{names:?}: {decided:?}");
        }
        for names in rejected {
            let pair = authority.sign(names);
            assert!(!is_served(&weir, client(&server, Some(&pair))).await, "{names:?}");
        }
        weir.stop().await;
    }
}

/// Returns whether a call with `config` succeeds. In TLS 1.3 a client learns only after its handshake that it was
/// rejected.
async fn is_served(weir: &Weir, config: Arc<ClientConfig>) -> bool {
    match weir.connect(config).await {
        Ok(mut client) => client.decide().await.is_ok(),
        Err(_) => false,
    }
}

#[tokio::test]
async fn a_rejected_client_is_counted_by_its_reason() {
    let (authority, server) =
        (Authority::new("authority of clients"), Authority::new("authority of servers"));
    let mounted = Mounted::new(&server.sign(&["localhost"]), Some(&authority.pem()));
    let weir = Weir::start(&mounted, &[("GRPC_CLIENT_TLS_SAN", "envoy")]).await;
    let leaf = Leaf::new(&["envoy"]);
    let usages = |usages| authority.sign_leaf(Leaf { usages, ..leaf });
    for pair in [usages(&[]), usages(&[ClientAuth]), usages(&[ServerAuth, ClientAuth])] {
        assert!(is_served(&weir, client(&server, Some(&pair))).await);
    }
    let stranger = Authority::new("authority of clients");
    for (pair, reason) in [
        (None, "no_certificate"),
        (Some(stranger.sign(&["envoy"])), "untrusted"),
        (Some(authority.sign_leaf(Leaf { years: [2020, 2021], ..leaf })), "expired"),
        (Some(authority.sign_leaf(Leaf { years: [3000, 4000], ..leaf })), "expired"),
        (Some(authority.sign(&["other"])), "wrong_name"),
        (Some(usages(&[ServerAuth])), "other"),
    ] {
        let metric = format!("weir_tls_handshakes_failed_total{{reason=\"{reason}\"}}");
        let before = weir.metric(&metric).await;
        assert!(!is_served(&weir, client(&server, pair.as_ref())).await, "{reason}");
        weir.until_metric(&metric, before + 1.0).await;
    }
    let valid = authority.sign(&["envoy"]);
    for (config, reason) in [
        (server.client(Some(&valid), ALL_VERSIONS, &["http/1.1"]), "incompatible"),
        (client(&stranger, Some(&valid)), "rejected"),
    ] {
        assert!(!is_served(&weir, config).await, "{reason}");
        weir.until_metric(&format!("weir_tls_handshakes_failed_total{{reason=\"{reason}\"}}"), 1.0).await;
    }
    weir.stop().await;
}

#[tokio::test]
async fn a_self_signed_client_certificate_is_accepted_if_it_is_in_the_file() {
    let server = Authority::new("authority of servers");
    let own = Authority::self_signed(&["envoy"]);
    let mounted = Mounted::new(&server.sign(&["localhost"]), Some(&own.certificate));
    let weir = Weir::start(&mounted, &[("GRPC_CLIENT_TLS_SAN", "envoy")]).await;
    assert!(is_served(&weir, client(&server, Some(&own))).await);
    assert!(!is_served(&weir, client(&server, Some(&Authority::self_signed(&["envoy"])))).await);
    weir.stop().await;
}

#[tokio::test]
async fn a_pinned_certificate_of_a_server_is_no_client() {
    let server = Authority::new("authority of servers");
    for (usages, expected) in [(&[ServerAuth][..], false), (&[ServerAuth, ClientAuth], true)] {
        let own = Authority::self_signed_for(&["envoy"], usages);
        let mounted = Mounted::new(&server.sign(&["localhost"]), Some(&own.certificate));
        let weir = Weir::start(&mounted, &[]).await;
        assert_eq!(is_served(&weir, client(&server, Some(&own))).await, expected, "{usages:?}");
        weir.stop().await;
    }
}

#[tokio::test]
async fn an_authority_that_has_ended_authenticates_nobody() {
    let server = Authority::new("authority of servers");
    let ended = Authority::lasting("ended authority", [1_000_000_000, 1_600_000_000]);
    let lasting = Authority::new("authority of clients");
    let both = format!("{}{}", ended.pem(), lasting.pem());
    let weir = Weir::start(&Mounted::new(&server.sign(&["localhost"]), Some(&both)), &[]).await;
    assert!(!is_served(&weir, client(&server, Some(&ended.sign(&["envoy"])))).await);
    weir.until_metric("weir_tls_handshakes_failed_total{reason=\"expired\"}", 1.0).await;
    assert!(is_served(&weir, client(&server, Some(&lasting.sign(&["envoy"])))).await);
    weir.stop().await;
}

/// Serves as a process with `variables`, has `clients` do something, and returns the log.
fn log(variables: &[(String, String)], clients: impl FnOnce(&Serving)) -> String {
    let rules = tempfile::tempdir().expect("a directory");
    std::fs::write(rules.path().join("rules.yaml"), RULES).expect("a file");
    let mut variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    variables.push(("WEIR_STOP_DELAY", "0"));
    let serving = Serving::start(rules.path().to_str().expect("a path in UTF-8"), &variables);
    clients(&serving);
    serving.signal("TERM");
    serving.ended().1
}

/// Sends `bytes`, and waits until the server closes the connection.
fn send(serving: &Serving, bytes: &[u8]) {
    let mut stream = StdTcpStream::connect(serving.address("grpc")).expect("a connection");
    stream.set_read_timeout(Some(DEADLINE)).expect("a socket");
    stream.write_all(bytes).expect("they are sent");
    let mut reply = Vec::new();
    // a reset ends it as well
    let ended = stream.read_to_end(&mut reply).map_err(|error| error.kind());
    assert!(!matches!(ended, Err(std::io::ErrorKind::WouldBlock)), "still open");
}

/// Waits until a handshake has failed: the client may know before that is logged, since handshakes have the lowest
/// priority.
fn until_rejected(serving: &Serving) {
    let address = serving.address("http").parse().expect("an address");
    let is_rejected = |page: &str| {
        let mut counts = page.lines().filter(|line| line.starts_with("weir_tls_handshakes_failed_total{"));
        counts.any(|line| line.rsplit(' ').next().is_some_and(|count| count != "0"))
    };
    let waiting = async {
        while !is_rejected(&local::get(address, "/metrics").await) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let waited = runtime.block_on(async { tokio::time::timeout(DEADLINE, waiting).await });
    waited.expect("the server rejects the client");
}

#[test]
fn the_log_says_why_a_client_was_rejected() {
    let (authority, server) =
        (Authority::new("authority of clients"), Authority::new("authority of servers"));
    let mounted = Mounted::new(&server.sign(&["localhost"]), Some(&authority.pem()));
    let mut variables: Vec<(String, String)> =
        mounted.variables().map(|(name, value)| (name.to_owned(), value)).collect();
    variables.push(("GRPC_CLIENT_TLS_SAN".into(), "envoy".into()));
    let ended = Authority::lasting("ended authority", [1_000_000_000, 1_600_000_000]);
    mounted.update(&server.sign(&["localhost"]), Some(&(authority.pem() + &ended.pem())));
    let cases: [(Option<Pair>, &str); 6] = [
        (None, "the client presented no certificate, and GRPC_CLIENT_TLS_CACERT requires one"),
        (
            Some(Authority::new("stranger").sign(&["envoy"])),
            "no authority in GRPC_CLIENT_TLS_CACERT has signed the client's certificate",
        ),
        (
            Some(authority.sign_leaf(Leaf { years: [2020, 2021], ..Leaf::new(&["envoy"]) })),
            "the client's certificate, or its authority, has expired or is not valid yet",
        ),
        (Some(ended.sign(&["envoy"])), "its authority is not valid: CN=ended authority"),
        (
            Some(authority.sign(&["other", SPIFFE])),
            "it is for other, spiffe://cluster.local/ns/gateway/sa/envoy",
        ),
        (Some(authority.sign(&[])), "it has no name"),
    ];
    for (pair, expected) in cases {
        let log = log(&variables, |serving| {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            runtime.block_on(async {
                let port = serving.address("grpc").rsplit(':').next().and_then(|port| port.parse().ok());
                let target = Address::tcp("localhost", port.expect("a port"));
                let tls = StreamTls { config: client(&server, pair.as_ref()), server_name: None };
                let Ok(channel) = connect(&target, Some(&tls), DEADLINE).await else { return };
                let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
                let checked = health.check(tonic_health::pb::HealthCheckRequest::default()).await;
                assert!(checked.is_err(), "{expected}");
            });
            until_rejected(serving);
        });
        assert!(log.contains("TLS handshake failed: ") && log.contains(expected), "{expected}: {log}");
        assert!(log.contains("peer=127.0.0.1:"), "{log}");
    }
    // plain text
    let log = log(&variables, |serving| {
        send(serving, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        until_rejected(serving);
    });
    assert!(log.contains("the client does not speak TLS; is it configured for plain text?"), "{log}");
}

#[test]
fn a_tls_client_of_a_port_without_tls_is_rejected() {
    // the start of a ClientHello
    let log = log(&[], |serving| send(serving, &[0x16, 3, 1, 2, 0, 1, 0, 1]));
    assert!(log.contains("the client speaks TLS, and GRPC_SERVER_USE_TLS is not set"), "{log}");
}

/// What TLS has taken from weir, and the client does not read, is owed to the client.
#[tokio::test]
async fn a_client_of_redis_protocol_that_reads_nothing_is_closed() {
    let authority = Authority::new("authority");
    let mounted = Mounted::new(&authority.sign(&["localhost"]), None);
    let variables = [
        ("WEIR_REDIS_TLS", "true"),
        ("WEIR_REDIS_PORT", "0"),
        ("WEIR_REDIS_HOST", "127.0.0.1"),
        ("WEIR_SEND_TIMEOUT", "200ms"),
    ];
    let weir = Weir::start(&mounted, &variables).await;
    let Some(BoundAddress::Tcp(address)) = &weir.addresses.redis else { panic!("no port") };
    let stream = TcpStream::connect(address).await.expect("it listens");
    let name = ServerName::try_from("localhost").expect("a name");
    let connector = TlsConnector::from(authority.client(None, ALL_VERSIONS, &[]));
    let mut stream = connector.connect(name, stream).await.expect("a handshake");
    // each reply is short enough for the buffers of TLS
    let echo = format!("*2\r\n$4\r\nECHO\r\n$8000\r\n{}\r\n", "x".repeat(8_000));
    let write = async { while stream.write_all(echo.as_bytes()).await.is_ok() {} };
    tokio::time::timeout(DEADLINE, write).await.expect("it is closed");
    weir.until_metric("weir_bounds_exceeded_total{bound=\"send_timeout\"}", 1.0).await;
    weir.stop().await;
}
