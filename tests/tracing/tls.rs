//! Exports over TLS, with client certificates.

use std::{fs, net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_rustls::{TlsAcceptor, rustls::ALL_VERSIONS};

use crate::{
    authority::Authority,
    collector::Collector,
    mutual_tls::acceptor,
    traced::{tenant, until_metric, weir_by},
};

/// Passes connections on to a server.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    cut: watch::Sender<()>,
    /// Decrypts the next connections.
    tls: Arc<Mutex<Option<TlsAcceptor>>>,
}

// === impl Relay ===

impl Relay {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        Self::start_with(server, None).await
    }

    /// Decrypts connections with `tls`, if given.
    async fn start_with(server: SocketAddr, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (cut, is_cut) = watch::channel(());
        let tls = Arc::new(Mutex::new(tls));
        let current = Arc::clone(&tls);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (tls, mut is_cut) = (current.lock().clone(), is_cut.clone());
                is_cut.mark_unchanged();
                tokio::spawn(async move {
                    let mut upstream = TcpStream::connect(server).await.expect("a connection");
                    let relay = async {
                        match tls {
                            None => drop(copy_bidirectional(&mut stream, &mut upstream).await),
                            Some(tls) => {
                                let Ok(mut stream) = tls.accept(stream).await else { return };
                                drop(copy_bidirectional(&mut stream, &mut upstream).await);
                            }
                        }
                    };
                    tokio::select! {
                        () = relay => {}
                        _ = is_cut.changed() => {}
                    }
                });
            }
        });
        Self { address, cut, tls }
    }

    /// Closes all connections.
    pub(crate) fn cut(&self) {
        self.cut.send_replace(());
    }
}

struct Files(TempDir);

impl Files {
    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, text).expect("a file");
        path.to_str().expect("a plain path").to_owned()
    }
}

#[tokio::test]
async fn exports_are_encrypted_and_present_a_client_certificate() {
    for (protocol, alpn) in [("grpc", "h2"), ("http", "http/1.1")] {
        let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
        let collector = Collector::start(protocol).await;
        let tls = acceptor(&theirs.sign(&["localhost"]), &ours, ALL_VERSIONS, alpn);
        let relay = Relay::start_with(collector.address, Some(tls)).await;
        let files = Files(tempfile::tempdir().expect("a directory"));
        let pair = ours.sign(&["weir"]);
        // the authority is missing at first
        let wrong = files.write("ca.crt", &ours.pem());
        let (certificate, key) =
            (files.write("tls.crt", &pair.certificate), files.write("tls.key", &pair.key));
        let endpoint = format!("https://localhost:{}", relay.address.port());
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", &wrong),
            ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", &certificate),
            ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", &key),
            // gives an export up after its first attempt
            ("OTEL_BSP_EXPORT_TIMEOUT", "1"),
        ];
        let mut weir = weir_by(protocol, &collector, &variables).await;
        weir.decide(tenant("acme")).await;
        until_metric(&weir, "weir_trace_spans_failed_total", 1).await;
        assert!(collector.received().is_empty(), "{protocol}: an unknown authority");
        // files are read for each connection
        files.write("ca.crt", &theirs.pem());
        weir.decide(tenant("acme")).await;
        until_metric(&weir, "weir_trace_spans_exported_total", 1).await;
        assert_eq!(collector.spans().len(), 1, "{protocol}");
    }
}

#[tokio::test]
async fn renewed_certificates_are_used_for_the_next_connection() {
    for (protocol, alpn) in [("grpc", "h2"), ("http", "http/1.1")] {
        let collector = Collector::start(protocol).await;
        let files = Files(tempfile::tempdir().expect("a directory"));
        // the collector trusts only the authority of the same generation, and the other way round
        let renew = |name: &str| {
            let (ours, theirs) =
                (Authority::new(&format!("ours {name}")), Authority::new(&format!("theirs {name}")));
            let pair = ours.sign(&["weir"]);
            files.write("ca.crt", &theirs.pem());
            files.write("tls.crt", &pair.certificate);
            files.write("tls.key", &pair.key);
            acceptor(&theirs.sign(&["localhost"]), &ours, ALL_VERSIONS, alpn)
        };
        let relay = Relay::start_with(collector.address, Some(renew("old"))).await;
        let endpoint = format!("https://localhost:{}", relay.address.port());
        let path = |name: &str| files.0.path().join(name).to_str().expect("a plain path").to_owned();
        let (ca, certificate, key) = (path("ca.crt"), path("tls.crt"), path("tls.key"));
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", &ca),
            ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", &certificate),
            ("OTEL_EXPORTER_OTLP_CLIENT_KEY", &key),
        ];
        let mut weir = weir_by(protocol, &collector, &variables).await;
        weir.decide(tenant("acme")).await;
        until_metric(&weir, "weir_trace_spans_exported_total", 1).await;
        *relay.tls.lock() = Some(renew("new"));
        relay.cut();
        weir.decide(tenant("acme")).await;
        until_metric(&weir, "weir_trace_spans_exported_total", 2).await;
        assert_eq!(collector.spans().len(), 2, "{protocol}");
    }
}
