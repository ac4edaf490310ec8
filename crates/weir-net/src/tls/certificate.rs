//! What certificates in files say, beyond what webpki tells: dates, names, usages, and whether a chain holds together.

use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::{
    certificate::X509Certificate,
    error::X509Error,
    prelude::{ExtendedKeyUsage, FromDer as _},
};

const MAX_NAME: usize = 200;

/// When a certificate is valid, in seconds since the epoch, both ends included (RFC 5280, section 4.1.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Validity {
    pub not_before: u64,
    pub not_after: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CertificateDates {
    pub setting: &'static str,
    /// Its place in the file, from 1.
    pub position: usize,
    /// The name of its owner, shortened, without control characters.
    pub subject: String,
    pub validity: Validity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokenChain {
    #[error("certificate {0} is not in X.509 format")]
    Unreadable(usize),
    #[error("certificate {certificate} names certificate {issuer} as its issuer, which has not signed it")]
    WrongSignature {
        /// Its place in the file, from 1.
        certificate: usize,
        issuer: usize,
    },
}

// === impl Validity ===

impl Validity {
    /// Also reads X.509 version 1. None if the certificate is unreadable.
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

    pub(super) fn contains(self, now: UnixTime) -> bool {
        (self.not_before..=self.not_after).contains(&now.as_secs())
    }

    /// Returns the length of this time, in seconds.
    pub const fn lifetime(self) -> u64 {
        self.not_after.saturating_sub(self.not_before)
    }
}

// === impl CertificateDates ===

impl CertificateDates {
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

/// Without extended key usages, it is for any (RFC 5280, 4.2.1.12). As in webpki, `anyExtendedKeyUsage` does not count.
pub(super) fn is_for(
    certificate: &CertificateDer<'_>,
    is_named: impl Fn(&ExtendedKeyUsage<'_>) -> bool,
) -> bool {
    let Some(certificate) = read(certificate) else { return false };
    let usages = certificate.extended_key_usage();
    usages.is_ok_and(|usages| usages.is_none_or(|usages| is_named(usages.value)))
}

/// Checks that every certificate is readable, and signed by the one in `chain` that it names as its issuer, if any.
/// Accepts any order and unused certificates (RFC 8446, section 4.4.2), and algorithms that are not known here.
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
