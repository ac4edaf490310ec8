//! The configuration of a TLS server.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use tokio_rustls::rustls::{
    Error, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, UnixTime},
    server::NoServerSessionStorage,
};
use webpki::{EndEntityCert, KeyUsage};

use super::{
    ALPN_H2,
    files::{NamedFile, TlsError, shown},
    verify_client::{ClientName, ClientVerifier},
};

/// `GRPC_SERVER_TLS_CERT`.
const CERTIFICATE: &str = "GRPC_SERVER_TLS_CERT";
/// `GRPC_SERVER_TLS_KEY`.
const KEY: &str = "GRPC_SERVER_TLS_KEY";
/// `GRPC_CLIENT_TLS_CACERT`.
const CLIENT_CA: &str = "GRPC_CLIENT_TLS_CACERT";

/// The TLS of the gRPC server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// `GRPC_SERVER_TLS_CERT`: the certificate chain.
    pub certificate: PathBuf,
    /// `GRPC_SERVER_TLS_KEY`: the private key.
    pub key: PathBuf,
    /// `GRPC_CLIENT_TLS_CACERT`: the authorities that sign clients' certificates; none accepts clients without a certificate.
    pub client_ca: Option<PathBuf>,
    /// `GRPC_CLIENT_TLS_SAN`: the names of which a client's certificate must have one; any name if empty.
    pub client_names: Vec<ClientName>,
}

/// The contents of the files of a [`ServerTls`].
#[derive(Clone, PartialEq, Eq)]
pub struct ServerTlsFiles {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// The end of a certificate's validity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateTime {
    /// Seconds since the epoch; 0 if unknown.
    pub not_after: u64,
    /// Whether that was in the past, by the system's clock, when the certificate was loaded.
    pub has_expired: bool,
}

// === impl ServerTls ===

impl ServerTls {
    /// Returns the paths of all files.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        [Some(&self.certificate), Some(&self.key), self.client_ca.as_ref()]
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// Reads the files. Blocks on file access.
    ///
    /// # Errors
    ///
    /// [`TlsError::Read`].
    pub fn read(&self) -> Result<ServerTlsFiles, TlsError> {
        let client_ca = self.client_ca_file().map(NamedFile::read).transpose()?;
        Ok(ServerTlsFiles { certificate: self.chain_file().read()?, key: self.key_file().read()?, client_ca })
    }

    /// Returns the configuration that `files` make, and the validity of the certificate.
    ///
    /// # Errors
    ///
    /// [`TlsError`], if a file has no or unusable content, or the key does not belong to the certificate.
    pub fn configure(
        &self,
        files: &ServerTlsFiles,
    ) -> Result<(Arc<ServerConfig>, CertificateTime), TlsError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = match (self.client_ca_file(), &files.client_ca) {
            (Some(file), Some(pem)) => {
                let names = self.client_names.clone();
                let verifier = ClientVerifier::new(file.certificates(pem)?, names, provider);
                builder.with_client_cert_verifier(verifier.map_err(|error| file.unusable(error))?)
            }
            _ => builder.with_no_client_auth(),
        };
        let chain = self.chain_file();
        let certificates = chain.certificates(&files.certificate)?;
        let time = CertificateTime::of(&certificates);
        let key = self.key_file().private_key(&files.key)?;
        let mut config = builder.with_single_cert(certificates, key).map_err(|error| match error {
            Error::InconsistentKeys(_) => {
                TlsError::Mismatch { key: shown(&self.key), certificate: shown(&self.certificate) }
            }
            error => chain.unusable(error),
        })?;
        config.alpn_protocols = vec![ALPN_H2.to_vec()];
        if self.client_ca.is_some() {
            // a resumed session would accept a client without verifying its certificate again
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok((Arc::new(config), time))
    }

    fn chain_file(&self) -> NamedFile<'_> {
        NamedFile { variable: CERTIFICATE, path: &self.certificate }
    }

    fn key_file(&self) -> NamedFile<'_> {
        NamedFile { variable: KEY, path: &self.key }
    }

    fn client_ca_file(&self) -> Option<NamedFile<'_>> {
        self.client_ca.as_deref().map(|path| NamedFile { variable: CLIENT_CA, path })
    }
}

// === impl ServerTlsFiles ===

/// Without the private key.
impl fmt::Debug for ServerTlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTlsFiles").finish_non_exhaustive()
    }
}

// === impl CertificateTime ===

impl CertificateTime {
    fn of(chain: &[CertificateDer<'_>]) -> Self {
        let unknown = Self { not_after: 0, has_expired: false };
        let Some(certificate) = chain.first().and_then(|first| EndEntityCert::try_from(first).ok()) else {
            return unknown;
        };
        // the only interface to the dates: webpki checks them before it looks for an authority, and its error has them
        let expired_at = |time: UnixTime| {
            let usage = KeyUsage::server_auth();
            let algorithms = ring::default_provider().signature_verification_algorithms.all;
            match certificate.verify_for_usage(algorithms, &[], &[], time, usage, None, None) {
                Err(webpki::Error::CertExpired { not_after, .. }) => Some(not_after.as_secs()),
                _ => None,
            }
        };
        let end_of_time = UnixTime::since_unix_epoch(Duration::from_secs(u64::from(u32::MAX) << 8));
        Self {
            not_after: expired_at(end_of_time).unwrap_or_default(),
            has_expired: expired_at(UnixTime::now()).is_some(),
        }
    }
}
