//! A TLS server that requires client certificates.

use std::sync::Arc;

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig, SupportedProtocolVersion,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
        server::WebPkiClientVerifier,
    },
};

use crate::authority::{Authority, Pair};

/// Returns a server of TLS `versions` with the certificate `pair` that requires a certificate of `clients`.
pub fn acceptor(
    pair: &Pair,
    clients: &Authority,
    versions: &[&'static SupportedProtocolVersion],
    alpn: &str,
) -> TlsAcceptor {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    let pem = clients.pem();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate")).expect("an authority");
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).collect();
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("a key");
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("versions")
        .with_client_cert_verifier(verifier.build().expect("a verifier"))
        .with_single_cert(chain.expect("certificates"), key)
        .expect("a pair");
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    TlsAcceptor::from(Arc::new(config))
}
