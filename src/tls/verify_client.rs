//! Verification of client certificates.

use std::{error::Error as StdError, fmt, sync::Arc};

use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use webpki::EndEntityCert;

use super::verify_server::is_ca_used_as_end_entity;

/// A name that a client's certificate may have as a subject alternative name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientName {
    /// A DNS name or an IP address. The certificate may have a wildcard for a DNS name.
    Host(ServerName<'static>),
    /// A URI, such as a SPIFFE identity, compared byte by byte.
    Uri(String),
}

/// A client's certificate is valid, but for other names than the accepted ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongClientName {
    /// The names in the certificate, as far as they can be shown.
    pub presented: Vec<String>,
}

/// Accepts a client's certificate if an authority has signed it, or if it is itself in the authority's file, and if it has one
/// of the accepted names.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    webpki: Arc<dyn ClientCertVerifier>,
    anchors: Vec<CertificateDer<'static>>,
    /// Accepts any name if empty.
    names: Vec<ClientName>,
}

/// The most names, and the most characters of each, in an error.
const MAX_SHOWN: (usize, usize) = (5, 200);

// === impl ClientName ===

impl ClientName {
    /// Parses a DNS name, an IP address, or a URI, which has a scheme and `://`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        match text.split_once("://") {
            Some((scheme, rest)) => {
                (!scheme.is_empty() && !rest.is_empty()).then(|| Self::Uri(text.to_owned()))
            }
            None => ServerName::try_from(text.to_owned()).ok().map(Self::Host),
        }
    }

    fn is_in(&self, certificate: &EndEntityCert<'_>) -> bool {
        match self {
            Self::Host(name) => certificate.verify_is_valid_for_subject_name(name).is_ok(),
            Self::Uri(uri) => certificate.valid_uri_names().any(|name| name == uri),
        }
    }
}

// === impl ClientVerifier ===

impl ClientVerifier {
    /// Returns a verifier that trusts `anchors`, at least one, for clients with any of `names`, or with any name if there are none.
    pub(super) fn new(
        anchors: Vec<CertificateDer<'static>>,
        names: Vec<ClientName>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<Self>, Error> {
        let mut authorities = RootCertStore::empty();
        for certificate in &anchors {
            authorities.add(certificate.clone())?;
        }
        let built = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider).build();
        let webpki = built.map_err(|error| Error::General(error.to_string()))?;
        Ok(Arc::new(Self { webpki, anchors, names }))
    }

    fn verify_name(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        if self.names.is_empty() {
            return Ok(());
        }
        let parsed =
            EndEntityCert::try_from(certificate).map_err(|error| Error::General(error.to_string()))?;
        if self.names.iter().any(|name| name.is_in(&parsed)) {
            return Ok(());
        }
        let names = parsed.valid_dns_names().chain(parsed.valid_uri_names());
        let (most, longest) = MAX_SHOWN;
        // the client chooses these texts
        let shown = |name: &str| name.chars().take(longest).flat_map(char::escape_default).collect();
        let wrong = WrongClientName { presented: names.take(most).map(shown).collect() };
        Err(Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(wrong)))))
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.webpki.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match self.webpki.verify_client_cert(end_entity, intermediates, now) {
            // webpki checks the dates before this, so they are valid
            Err(error) if is_ca_used_as_end_entity(&error) && self.anchors.contains(end_entity) => {}
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        self.verify_name(end_entity)?;
        Ok(ClientCertVerified::assertion())
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

// === impl WrongClientName ===

impl fmt::Display for WrongClientName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.presented.is_empty() {
            return f.write_str("it has no name");
        }
        write!(f, "it is for {}", self.presented.join(", "))
    }
}

impl StdError for WrongClientName {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_host_or_a_uri() {
        let uri = "spiffe://cluster.local/ns/envoy/sa/proxy";
        assert_eq!(ClientName::parse(uri), Some(ClientName::Uri(uri.into())));
        for host in ["envoy", " envoy.gateway ", "10.0.0.1", "::1"] {
            assert!(matches!(ClientName::parse(host), Some(ClientName::Host(_))), "{host}");
        }
        for text in ["", "a b", "://x", "spiffe://", "*.example"] {
            assert_eq!(ClientName::parse(text), None, "{text}");
        }
    }
}
