//! Verification of server certificates, for every TLS client of weir.

use std::sync::Arc;

use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};

/// The certificates that a client trusts.
#[derive(Debug)]
pub(crate) struct TrustAnchors {
    authorities: RootCertStore,
    certificates: Vec<CertificateDer<'static>>,
}

/// Accepts a server's certificate if a trust anchor has signed it, or if it is a trust anchor itself.
///
/// webpki alone does the first only: it rejects a certificate of an authority (`CA:TRUE`) as a server's. `openssl req -x509`
/// makes such certificates by default, and OpenSSL and Go accept them where they are trusted.
#[derive(Debug)]
pub(crate) struct ServerVerifier {
    webpki: Arc<WebPkiServerVerifier>,
    anchors: Vec<CertificateDer<'static>>,
    names: Names,
}

/// Whether a certificate must be for the name of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// It must.
    Verified,
    /// Any name will do.
    Any,
}

// === impl TrustAnchors ===

impl TrustAnchors {
    /// Nothing is trusted yet.
    pub(crate) fn empty() -> Self {
        Self { authorities: RootCertStore::empty(), certificates: Vec::new() }
    }

    /// Trusts `certificate`.
    pub(crate) fn add(&mut self, certificate: CertificateDer<'static>) -> Result<(), Error> {
        self.authorities.add(certificate.clone())?;
        self.certificates.push(certificate);
        Ok(())
    }

    /// Trusts the certificates that the system trusts. Those that cannot be read are left out.
    pub(crate) fn add_native(&mut self) {
        for certificate in rustls_native_certs::load_native_certs().certs {
            // one unreadable certificate is no reason not to trust the others
            let _ = self.add(certificate);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.certificates.is_empty()
    }
}

// === impl ServerVerifier ===

impl ServerVerifier {
    /// A verifier that trusts `anchors`. Fails if there are none.
    pub(crate) fn new(
        anchors: TrustAnchors,
        names: Names,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<Self>, Error> {
        let TrustAnchors { authorities, certificates } = anchors;
        let built = WebPkiServerVerifier::builder_with_provider(Arc::new(authorities), provider).build();
        let webpki = built.map_err(|error| Error::General(error.to_string()))?;
        Ok(Arc::new(Self { webpki, anchors: certificates, names }))
    }

    /// Verifies the name in a certificate whose other properties are in order.
    fn verify_name(
        &self,
        certificate: &CertificateDer<'_>,
        name: &ServerName<'_>,
    ) -> Result<ServerCertVerified, Error> {
        if self.names == Names::Verified {
            verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        }
        Ok(ServerCertVerified::assertion())
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.webpki.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // webpki looks at the dates before it looks at this
            Err(error) if is_ca_used_as_end_entity(&error) && self.anchors.contains(end_entity) => {
                self.verify_name(end_entity, server_name)
            }
            // webpki looks at the name last: the certificate is signed by a trust anchor
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.names == Names::Any => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

/// Whether the only fault that webpki found is that the certificate is an authority's.
fn is_ca_used_as_end_entity(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(other)) = error else { return false };
    matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}
