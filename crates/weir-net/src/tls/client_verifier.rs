use std::sync::Arc;

use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use webpki::EndEntityCert;

use super::{
    certificate::{Validity, is_for, name_of},
    server_verifier::is_ca_used_as_end_entity,
};

/// A name that a client's certificate may have as a subject alternative name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientName {
    /// A DNS name or an IP address. The certificate may have a wildcard for a DNS name.
    Host(ServerName<'static>),
    /// A URI, such as a SPIFFE identity, compared byte by byte.
    Uri(String),
}

/// A client's certificate is valid, but for other names than the accepted ones.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it {}", if .presented.is_empty() { "has no name".to_owned() } else { format!("is for {}", .presented.join(", ")) })]
pub struct WrongClientName {
    /// The names in the certificate, as far as they can be shown.
    pub presented: Vec<String>,
}

/// The authority that has signed a client's certificate is not valid now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its authority is not valid: {subject}")]
pub struct EndedAuthority {
    pub subject: String,
}

/// Accepts valid certificates with an accepted name, if a valid authority has signed them or its file has them.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    anchors: Vec<Anchor>,
    /// Those of `anchors`, in their order.
    roots: RootCertStore,
    /// Sent to clients, so that they choose a certificate: all authorities, also those that are not valid now.
    hints: Vec<DistinguishedName>,
    names: Vec<ClientName>,
    provider: Arc<CryptoProvider>,
}

/// A certificate in the authority's file.
#[derive(Debug)]
struct Anchor {
    certificate: CertificateDer<'static>,
    validity: Validity,
    /// Whether it may be a client's own.
    is_client: bool,
}

/// The most names, and the most characters of each, in an error.
const MAX_SHOWN: (usize, usize) = (5, 200);

// === impl ClientName ===

impl ClientName {
    /// Parses a DNS name, an IP address, or a URI, which has a scheme and `://`.
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
    /// Trusts those of `certificates`, at least one, that are valid at a handshake. Empty `names` accept any name.
    pub(super) fn new(
        certificates: Vec<CertificateDer<'static>>,
        names: Vec<ClientName>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<Self>, Error> {
        let (mut anchors, mut roots) = (Vec::with_capacity(certificates.len()), RootCertStore::empty());
        for certificate in certificates {
            let validity = Validity::of(&certificate);
            let validity = validity.ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))?;
            let is_client = is_for(&certificate, |usages| usages.client_auth);
            // reports one that is unusable, also if it is not valid now
            roots.add(certificate.clone())?;
            anchors.push(Anchor { certificate, validity, is_client });
        }
        Ok(Arc::new(Self { hints: roots.subjects(), anchors, roots, names, provider }))
    }

    /// webpki's verifier, with the authorities that are valid now: webpki itself ignores their dates. None without any.
    fn webpki(&self, now: UnixTime) -> Result<Option<Arc<dyn ClientCertVerifier>>, Error> {
        let valid =
            self.anchors.iter().zip(&self.roots.roots).filter(|(anchor, _)| anchor.validity.contains(now));
        let roots: Vec<_> = valid.map(|(_, root)| root.clone()).collect();
        if roots.is_empty() {
            return Ok(None);
        }
        let (roots, provider) = (Arc::new(RootCertStore { roots }), Arc::clone(&self.provider));
        let built = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
        built.map(Some).map_err(|error| Error::General(error.to_string()))
    }

    /// Says that the authority has ended, if one in the file has the issuer's name.
    fn unknown_issuer(&self, presented: &[&CertificateDer<'_>], now: UnixTime) -> Error {
        let names_it = |root: &TrustAnchor<'_>| {
            let mut parsed =
                presented.iter().filter_map(|certificate| EndEntityCert::try_from(*certificate).ok());
            parsed.any(|certificate| certificate.issuer() == root.subject.as_ref())
        };
        let mut anchors = self.anchors.iter().zip(&self.roots.roots);
        let ended = anchors.find(|(anchor, root)| !anchor.validity.contains(now) && names_it(root));
        Error::InvalidCertificate(match ended {
            Some((anchor, _)) => {
                let subject = name_of(&anchor.certificate);
                CertificateError::Other(OtherError(Arc::new(EndedAuthority { subject })))
            }
            None => CertificateError::UnknownIssuer,
        })
    }

    fn is_pinned(&self, certificate: &CertificateDer<'_>) -> bool {
        self.anchors.iter().any(|anchor| anchor.is_client && anchor.certificate == *certificate)
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
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let presented =
            || -> Vec<&CertificateDer<'_>> { [end_entity].into_iter().chain(intermediates).collect() };
        let Some(webpki) = self.webpki(now)? else { return Err(self.unknown_issuer(&presented(), now)) };
        match webpki.verify_client_cert(end_entity, intermediates, now) {
            // webpki checks the dates before this, so they are valid, and the usage after it
            Err(error) if is_ca_used_as_end_entity(&error) && self.is_pinned(end_entity) => {}
            Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
                return Err(self.unknown_issuer(&presented(), now));
            }
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
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

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
