//! Verification of client certificates.

use std::{error::Error as StdError, fmt, ops::Range, sync::Arc};

use arc_swap::ArcSwap;
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use webpki::EndEntityCert;

use super::{
    certificate::{KeyUsage, Validity, is_for, name_of},
    verify_server::is_ca_used_as_end_entity,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongClientName {
    /// The names in the certificate, as far as they can be shown.
    pub presented: Vec<String>,
}

/// The authority that has signed a client's certificate is not valid now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedAuthority {
    /// Its name.
    pub subject: String,
}

/// Accepts valid certificates with an accepted name, if a valid authority has signed them or its file has them.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    anchors: Vec<Anchor>,
    /// Sent to clients, so that they choose a certificate. All authorities: those of the moment would need a lock.
    hints: Vec<DistinguishedName>,
    trusted: ArcSwap<Trusted>,
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

/// webpki's verifier, with the authorities that are valid for some time: webpki itself ignores their dates.
#[derive(Debug)]
struct Trusted {
    /// In seconds since the epoch: no authority begins or ends to be valid in this time.
    time: Range<u64>,
    webpki: Option<Arc<dyn ClientCertVerifier>>,
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
    /// Trusts those of `certificates`, at least one, that are valid at a handshake. Empty `names` accept any name.
    pub(super) fn new(
        certificates: Vec<CertificateDer<'static>>,
        names: Vec<ClientName>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<Self>, Error> {
        let mut anchors = Vec::with_capacity(certificates.len());
        for certificate in certificates {
            let validity = Validity::of(&certificate);
            let validity = validity.ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))?;
            let is_client = is_for(&certificate, KeyUsage::Client);
            anchors.push(Anchor { certificate, validity, is_client });
        }
        // reports those that are unusable, also if they are not valid now
        let hints = roots(&anchors)?.subjects();
        let trusted = ArcSwap::from_pointee(Trusted::at(UnixTime::now(), &anchors, &provider)?);
        Ok(Arc::new(Self { anchors, hints, trusted, names, provider }))
    }

    fn trusted(&self, now: UnixTime) -> Result<Arc<Trusted>, Error> {
        let trusted = self.trusted.load_full();
        if trusted.time.contains(&now.as_secs()) {
            return Ok(trusted);
        }
        let trusted = Arc::new(Trusted::at(now, &self.anchors, &self.provider)?);
        self.trusted.store(Arc::clone(&trusted));
        Ok(trusted)
    }

    /// Says that the authority has ended, if one in the file has the issuer's name.
    fn unknown_issuer(&self, presented: &[&CertificateDer<'_>], now: UnixTime) -> Error {
        let names_it = |anchor: &Anchor| {
            let Ok(parsed) = webpki::anchor_from_trusted_cert(&anchor.certificate) else { return false };
            let issuers =
                presented.iter().filter_map(|certificate| EndEntityCert::try_from(*certificate).ok());
            issuers.into_iter().any(|certificate| certificate.issuer() == parsed.subject.as_ref())
        };
        let ended = self.anchors.iter().find(|anchor| !anchor.validity.contains(now) && names_it(anchor));
        Error::InvalidCertificate(match ended {
            Some(anchor) => {
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
        let trusted = self.trusted(now)?;
        let Some(webpki) = &trusted.webpki else { return Err(self.unknown_issuer(&presented(), now)) };
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

// === impl Trusted ===

impl Trusted {
    fn at(now: UnixTime, anchors: &[Anchor], provider: &Arc<CryptoProvider>) -> Result<Self, Error> {
        let seconds = now.as_secs();
        // the seconds from which an authority is valid, or is not any more
        let changes = || {
            let of =
                |anchor: &Anchor| [anchor.validity.not_before, anchor.validity.not_after.saturating_add(1)];
            anchors.iter().flat_map(of)
        };
        let begun = changes().filter(|change| *change <= seconds).max().unwrap_or_default();
        let next = changes().filter(|change| *change > seconds).min().unwrap_or(u64::MAX);
        let authorities = roots(anchors.iter().filter(|anchor| anchor.validity.contains(now)))?;
        let webpki = if authorities.is_empty() {
            None
        } else {
            let provider = Arc::clone(provider);
            let built = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider).build();
            Some(built.map_err(|error| Error::General(error.to_string()))?)
        };
        Ok(Self { time: begun..next, webpki })
    }
}

fn roots<'a>(anchors: impl IntoIterator<Item = &'a Anchor>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    anchors.into_iter().try_for_each(|anchor| roots.add(anchor.certificate.clone()))?;
    Ok(roots)
}

// === impl EndedAuthority ===

impl fmt::Display for EndedAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its authority is not valid: {}", self.subject)
    }
}

impl StdError for EndedAuthority {}

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
