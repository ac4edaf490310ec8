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

use super::certificate::{Validity, is_for};

/// The certificates that a client trusts: those that are valid now. webpki itself ignores the dates of authorities.
#[derive(Debug)]
pub(super) struct TrustAnchors {
    now: UnixTime,
    authorities: RootCertStore,
    certificates: Vec<CertificateDer<'static>>,
}

/// Accepts a certificate that a trust anchor has signed, or that is a trust anchor. webpki rejects the second kind, if
/// it is an authority's (`CA:TRUE`). `openssl req -x509` makes such ones by default, and OpenSSL and Go accept them.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    webpki: Arc<WebPkiServerVerifier>,
    anchors: Vec<CertificateDer<'static>>,
    any_name: bool,
}

// === impl TrustAnchors ===

impl TrustAnchors {
    pub(super) fn empty(now: UnixTime) -> Self {
        Self { now, authorities: RootCertStore::empty(), certificates: Vec::new() }
    }

    /// Ignores a certificate that has ended or is not valid yet.
    pub(super) fn add(&mut self, certificate: CertificateDer<'static>) -> Result<(), Error> {
        let validity = Validity::of(&certificate);
        if validity.ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))?.contains(self.now) {
            self.authorities.add(certificate.clone())?;
            self.certificates.push(certificate);
        }
        Ok(())
    }

    pub(super) fn add_native(&mut self) {
        for certificate in rustls_native_certs::load_native_certs().certs {
            // one unreadable certificate is no reason not to trust the others
            let _ = self.add(certificate);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.certificates.is_empty()
    }
}

// === impl ServerVerifier ===

impl ServerVerifier {
    pub(super) fn new(
        anchors: TrustAnchors,
        any_name: bool,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<Self>, Error> {
        let TrustAnchors { authorities, certificates, .. } = anchors;
        let built = WebPkiServerVerifier::builder_with_provider(Arc::new(authorities), provider).build();
        let webpki = built.map_err(|error| Error::General(error.to_string()))?;
        Ok(Arc::new(Self { webpki, anchors: certificates, any_name }))
    }

    /// `certificate` must be valid otherwise.
    fn verify_name(
        &self,
        certificate: &CertificateDer<'_>,
        name: &ServerName<'_>,
    ) -> Result<ServerCertVerified, Error> {
        if !self.any_name {
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
            // webpki checks the dates before this, so they are valid, and the usage after it
            Err(error)
                if is_ca_used_as_end_entity(&error)
                    && self.anchors.contains(end_entity)
                    && is_for(end_entity, |usages| usages.server_auth) =>
            {
                self.verify_name(end_entity, server_name)
            }
            // webpki checks the name last, so a trust anchor has signed the certificate
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.any_name => Ok(ServerCertVerified::assertion()),
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

pub(super) fn is_ca_used_as_end_entity(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(other)) = error else { return false };
    matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}
