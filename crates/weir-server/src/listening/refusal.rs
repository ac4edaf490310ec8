//! Why a TLS handshake failed, in words for the log, and a counter and a log throttle for each reason.

use std::{fmt, io, time::Instant};

use tokio_rustls::rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

use super::socket::Peer;
use weir_net::tls::{EndedAuthority, WrongClientName};
use weir_observe::{Counter, Metric, throttle::Throttle};

named! {
    pub(crate) enum RefusalReason {
        /// The client closed the connection before it sent anything wrong, as TCP health checks do.
        Closed = "closed",
        /// It took too long, or too many others began meanwhile.
        TimedOut = "timed_out",
        NotTls = "not_tls",
        NoCertificate = "no_certificate",
        Expired = "expired",
        Untrusted = "untrusted",
        WrongName = "wrong_name",
        Rejected = "rejected",
        Incompatible = "incompatible",
        Other = "other",
    }
}

#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) reason: RefusalReason,
    detail: String,
}

#[derive(Debug, Default)]
pub(crate) struct Refusals([(Counter, Throttle); RefusalReason::ALL.len()]);

// === impl RefusalReason ===

impl RefusalReason {
    const fn text(self) -> &'static str {
        match self {
            Self::Closed => "the client closed the connection",
            Self::TimedOut => "the handshake was not complete in time",
            Self::NotTls => "the client does not speak TLS; is it configured for plain text?",
            Self::NoCertificate => {
                "the client presented no certificate, and GRPC_CLIENT_TLS_CACERT requires one"
            }
            Self::Expired => "the client's certificate, or its authority, has expired or is not valid yet",
            Self::Untrusted => "no authority in GRPC_CLIENT_TLS_CACERT has signed the client's certificate",
            Self::WrongName => "the client's certificate has no name of GRPC_CLIENT_TLS_SAN",
            Self::Rejected => "the client rejected weir's certificate",
            Self::Incompatible => "the client offers no common TLS version, cipher or protocol (ALPN h2)",
            Self::Other => "TLS failed",
        }
    }
}

// === impl Refusal ===

impl Refusal {
    pub(crate) fn timed_out() -> Self {
        Self { reason: RefusalReason::TimedOut, detail: String::new() }
    }

    pub(crate) fn of(error: &io::Error) -> Self {
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        let closed = matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset);
        match tls {
            None if closed => Self { reason: RefusalReason::Closed, detail: error.to_string() },
            None => Self { reason: RefusalReason::Other, detail: error.to_string() },
            Some(Error::InvalidCertificate(CertificateError::Other(other)))
                if other.0.is::<WrongClientName>() =>
            {
                Self { reason: RefusalReason::WrongName, detail: other.0.to_string() }
            }
            Some(Error::InvalidCertificate(CertificateError::Other(other)))
                if other.0.is::<EndedAuthority>() =>
            {
                Self { reason: RefusalReason::Expired, detail: other.0.to_string() }
            }
            Some(error) => Self { reason: reason(error), detail: error.to_string() },
        }
    }
}

fn reason(error: &Error) -> RefusalReason {
    use CertificateError as Certificate;
    match error {
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType
            | InvalidMessage::UnknownProtocolVersion
            | InvalidMessage::MessageTooLarge,
        ) => RefusalReason::NotTls,
        Error::NoCertificatesPresented => RefusalReason::NoCertificate,
        Error::InvalidCertificate(error) => match error {
            Certificate::Expired
            | Certificate::ExpiredContext { .. }
            | Certificate::NotValidYet
            | Certificate::NotValidYetContext { .. } => RefusalReason::Expired,
            Certificate::UnknownIssuer | Certificate::BadSignature => RefusalReason::Untrusted,
            _ => RefusalReason::Other,
        },
        Error::PeerIncompatible(_) | Error::NoApplicationProtocol => RefusalReason::Incompatible,
        Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::UnsupportedCertificate,
        ) => RefusalReason::Rejected,
        _ => RefusalReason::Other,
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason.text())?;
        if self.detail.is_empty() { Ok(()) } else { write!(f, ": {}", self.detail) }
    }
}

// === impl Refusals ===

impl Refusals {
    /// Logs each reason at most once a second.
    pub(crate) fn add(&self, peer: Peer, refusal: &Refusal) {
        let (counter, throttle) = &self.0[refusal.reason as usize];
        if refusal.reason == RefusalReason::Closed {
            tracing::debug!(%peer, "TLS handshake failed: {refusal}");
        } else if let Some(suppressed) = throttle.admit(Instant::now()) {
            tracing::warn!(%peer, suppressed, "TLS handshake failed: {refusal}");
        }
        // last, so that what the metric counts is in the log
        counter.add(1);
    }

    pub(crate) fn metrics(&self) -> impl Iterator<Item = Metric> {
        RefusalReason::ALL.iter().zip(&self.0).map(|(reason, (counter, _))| {
            let help = "TLS handshakes that failed, by reason.";
            Metric::counter("weir.tls.handshakes_failed", help, counter.get()).label("reason", reason.name())
        })
    }
}
