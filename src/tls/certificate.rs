//! What certificates in files say, beyond what webpki tells: dates, names, usages, and whether a chain holds together.

use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::{
    certificate::X509Certificate,
    error::X509Error,
    prelude::{ExtendedKeyUsage, FromDer as _},
};

/// The most characters of a name.
const MAX_NAME: usize = 200;

/// The time in which a certificate is valid, in seconds since the epoch; both ends belong to it (RFC 5280, section
/// 4.1.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Validity {
    /// The first second.
    pub not_before: u64,
    /// The last second.
    pub not_after: u64,
}

/// A certificate in a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CertificateDates {
    /// The setting that names the file.
    pub setting: &'static str,
    /// Its place in the file, from 1.
    pub position: usize,
    /// The name of its owner, shortened, without control characters.
    pub subject: String,
    /// When it is valid.
    pub validity: Validity,
}

/// Who a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Usage {
    /// A client.
    #[cfg(feature = "server")]
    Client,
    /// A server.
    Server,
}

/// Why a chain of certificates cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokenChain {
    /// A certificate is none.
    #[error("certificate {0} is not in X.509 format")]
    Unreadable(usize),
    /// A certificate's signature is not that of its issuer.
    #[error("certificate {certificate} names certificate {issuer} as its issuer, which has not signed it")]
    WrongSignature {
        /// Its place in the file, from 1.
        certificate: usize,
        /// The place of its issuer.
        issuer: usize,
    },
}

// === impl Validity ===

impl Validity {
    /// Reads the dates of `certificate`, also of one in X.509 version 1. Returns none if it is unreadable.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        read(certificate).map(|certificate| Self::read(&certificate))
    }

    fn read(certificate: &X509Certificate<'_>) -> Self {
        let validity = certificate.validity();
        // before the epoch there were no certificates
        let seconds = |timestamp: i64| u64::try_from(timestamp).unwrap_or_default();
        Self {
            not_before: seconds(validity.not_before.timestamp()),
            not_after: seconds(validity.not_after.timestamp()),
        }
    }

    /// Returns whether `now` is in this time.
    pub(super) fn contains(self, now: UnixTime) -> bool {
        (self.not_before..=self.not_after).contains(&now.as_secs())
    }

    /// Returns the length of this time, in seconds.
    #[must_use]
    pub const fn lifetime(self) -> u64 {
        self.not_after.saturating_sub(self.not_before)
    }
}

// === impl CertificateDates ===

impl CertificateDates {
    /// Reads the certificates of a file, except for unreadable ones.
    pub(super) fn of(setting: &'static str, certificates: &[CertificateDer<'_>]) -> Vec<Self> {
        let dates = |(at, certificate)| {
            let certificate = read(certificate)?;
            let (subject, validity) =
                (shown(&certificate.subject().to_string()), Validity::read(&certificate));
            Some(Self { setting, position: at + 1, subject, validity })
        };
        certificates.iter().enumerate().filter_map(dates).collect()
    }
}

/// Returns the name of a certificate's owner, shortened, without control characters; nothing if it is unreadable.
#[cfg(feature = "server")]
pub(super) fn name_of(certificate: &CertificateDer<'_>) -> String {
    read(certificate).map(|certificate| shown(&certificate.subject().to_string())).unwrap_or_default()
}

fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect()
}

fn read<'a>(certificate: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    let (rest, certificate) = X509Certificate::from_der(certificate).ok()?;
    rest.is_empty().then_some(certificate)
}

/// Returns whether `certificate` may be used as `usage` says: it has no extended key usage, or names this one (RFC
/// 5280, section 4.2.1.12). As in webpki, `anyExtendedKeyUsage` does not name it.
pub(super) fn is_for(certificate: &CertificateDer<'_>, usage: Usage) -> bool {
    let Some(certificate) = read(certificate) else { return false };
    let named = |usages: &ExtendedKeyUsage<'_>| match usage {
        #[cfg(feature = "server")]
        Usage::Client => usages.client_auth,
        Usage::Server => usages.server_auth,
    };
    certificate.extended_key_usage().is_ok_and(|usages| usages.is_none_or(|usages| named(usages.value)))
}

/// Checks that every certificate of `chain` is readable, and signed by a certificate that it names as its issuer if
/// that is in the chain. Accepts any order and certificates without a use, which TLS 1.3 allows (RFC 8446, section
/// 4.4.2), and signatures with algorithms that ring does not know.
pub(super) fn check_chain(chain: &[CertificateDer<'_>]) -> Result<(), BrokenChain> {
    let mut certificates = Vec::with_capacity(chain.len());
    for (at, certificate) in chain.iter().enumerate() {
        certificates.push(read(certificate).ok_or(BrokenChain::Unreadable(at + 1))?);
    }
    for (at, certificate) in certificates.iter().enumerate() {
        let mut wrong = None;
        for (issuer_at, issuer) in certificates.iter().enumerate() {
            if issuer_at == at || issuer.subject().as_raw() != certificate.issuer().as_raw() {
                continue;
            }
            if certificate.verify_signature(Some(issuer.public_key()))
                == Err(X509Error::SignatureVerificationError)
            {
                wrong.get_or_insert(issuer_at);
            } else {
                wrong = None;
                break;
            }
        }
        if let Some(issuer) = wrong {
            return Err(BrokenChain::WrongSignature { certificate: at + 1, issuer: issuer + 1 });
        }
    }
    Ok(())
}
