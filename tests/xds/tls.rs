//! TLS 1.3 with client certificates, as Envoy Gateway's control plane requires it.

use std::{fs, net::SocketAddr};

use tempfile::TempDir;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tokio_rustls::rustls::version::TLS13;

use crate::{
    authority::{Authority, Leaf, Pair},
    control_plane::{ControlPlane, config},
    mutual_tls::acceptor,
    service::Starting,
};

/// Returns a certificate as Envoy Gateway makes them: an RSA key in PKCS #1, no extended key usage.
pub(crate) fn envoy_gateway(authority: &Authority, names: &[&str]) -> Pair {
    authority.sign_leaf(Leaf { rsa: true, ..Leaf::new(names) }).with_old_key(true)
}

/// Terminates TLS 1.3 in front of `control_plane`: presents `pair`, and requires a certificate of `clients`.
pub(crate) async fn terminator(control_plane: SocketAddr, pair: &Pair, clients: &Authority) -> SocketAddr {
    let acceptor = acceptor(pair, clients, &[&TLS13], "h2");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                // gRPC servers reject connections without it
                if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                    let mut upstream = TcpStream::connect(control_plane).await.expect("a connection");
                    let _ = copy_bidirectional(&mut stream, &mut upstream).await;
                }
            });
        }
    });
    address
}

/// Files of certificates.
pub(crate) struct Files(TempDir);

impl Files {
    pub(crate) fn new(pair: &Pair, ca: &str) -> Self {
        let files = Self(tempfile::tempdir().expect("a directory"));
        files.write(pair);
        fs::write(files.0.path().join("ca.crt"), ca).expect("a file");
        files
    }

    pub(crate) fn write(&self, pair: &Pair) {
        fs::write(self.0.path().join("tls.crt"), &pair.certificate).expect("a file");
        fs::write(self.0.path().join("tls.key"), &pair.key).expect("a file");
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("a path in UTF-8").to_owned()
    }
}

#[tokio::test]
async fn client_certificates_are_read_for_each_connection() {
    let mut control_plane = ControlPlane::start().await;
    let authority = Authority::new("envoy-gateway");
    let names = ["envoy-gateway", "envoy-gateway.ns", "envoy-gateway.ns.svc"];
    let server = envoy_gateway(&authority, &names);
    let address = terminator(control_plane.address, &server, &authority).await;
    // the client's certificate is not signed by the authority yet
    let stranger = Authority::new("envoy-gateway");
    let files = Files::new(&envoy_gateway(&stranger, &["*.ns"]), &authority.pem());
    let url = format!("localhost:{}", address.port());
    let (ca, certificate, key) = (files.path("ca.crt"), files.path("tls.crt"), files.path("tls.key"));
    let variables = [
        ("CONFIG_GRPC_XDS_SERVER_URL", url.as_str()),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &ca),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &certificate),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &key),
        ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
    ];
    let weir = Starting::new(&control_plane, &variables).ready().await;
    let disconnected = |page: &str| {
        let line = page.lines().find_map(|line| line.strip_prefix("weir_xds_disconnected_total "));
        line.and_then(|count| count.parse::<u32>().ok()).unwrap_or_default()
    };
    assert!(disconnected(&weir.page("/metrics").await) > 0, "it cannot connect");
    files.write(&envoy_gateway(&authority, &["*.ns"]));
    let mut stream = control_plane.stream().await;
    stream.request().await;
    stream.accepted("1", "a", &[config("d", "k", 10)]).await;
    assert!(weir.rules().await.contains("requests_per_unit=10"));
}

#[tokio::test]
async fn a_control_plane_with_another_name_or_authority_is_not_trusted() {
    let control_plane = ControlPlane::start().await;
    let (authority, other) = (Authority::new("a"), Authority::new("b"));
    let server = envoy_gateway(&authority, &["envoy-gateway"]);
    let address = terminator(control_plane.address, &server, &authority).await;
    let pair = envoy_gateway(&authority, &["*.ns"]);
    for (ca, name) in [(authority.pem(), "elsewhere"), (other.pem(), "envoy-gateway")] {
        let files = Files::new(&pair, &ca);
        let url = format!("localhost:{}", address.port());
        let variables = [
            ("CONFIG_GRPC_XDS_SERVER_URL", url),
            ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true".into()),
            ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", files.path("ca.crt")),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", files.path("tls.crt")),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", files.path("tls.key")),
            ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", name.into()),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true".into()),
        ];
        let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
        let weir = Starting::new(&control_plane, &variables).ready().await;
        weir.until_page("/metrics", "weir_xds_disconnected_total 3").await;
        assert!(weir.page("/metrics").await.contains("weir_xds_connected 0"));
    }
    assert!(!control_plane.has_streams(), "no stream was opened");
}
