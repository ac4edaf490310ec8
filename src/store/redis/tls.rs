//! TLS to Redis: rustls with ring, and certificates from files and from the system.

use std::{fs, path::Path, sync::Arc};

use tokio_rustls::rustls::{
    ClientConfig, Error,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use super::settings::Tls;
use crate::tls::{NameCheck, ServerVerifier, TrustAnchors};

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {variable}, {path}: {error}")]
    Read {
        /// The setting that names the file.
        variable: &'static str,
        /// The path.
        path: String,
        /// The error.
        error: std::io::Error,
    },
    /// A file does not hold the expected content.
    #[error("{variable}, {path}, holds no {expected} in PEM format")]
    Content {
        /// The setting that names the file.
        variable: &'static str,
        /// The path.
        path: String,
        /// The expected content.
        expected: &'static str,
    },
    /// There is no certificate authority to trust.
    #[error("the system trusts no certificates; set REDIS_TLS_CACERT")]
    NoRoots,
    /// The contents of the files do not match each other.
    #[error("cannot set up TLS: {0}")]
    Setup(#[from] Error),
}

impl Tls {
    /// Loads the files and returns the client configuration of one connection.
    pub(super) fn load(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let name_check = if self.any_name { NameCheck::Skipped } else { NameCheck::Required };
        let verifier = ServerVerifier::new(self.anchors()?, name_check, Arc::clone(&provider))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let config = match &self.client {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = certificates("REDIS_TLS_CLIENT_CERT", chain)?;
                builder.with_client_auth_cert(chain, private_key("REDIS_TLS_CLIENT_KEY", key)?)?
            }
        };
        Ok(Arc::new(config))
    }

    fn anchors(&self) -> Result<TrustAnchors, TlsError> {
        let mut anchors = TrustAnchors::empty();
        if let Some(ca) = &self.ca {
            for certificate in certificates("REDIS_TLS_CACERT", ca)? {
                anchors.add(certificate)?;
            }
        }
        anchors.add_native();
        if anchors.is_empty() { Err(TlsError::NoRoots) } else { Ok(anchors) }
    }
}

fn read(variable: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error| TlsError::Read { variable, path: path.display().to_string(), error })
}

fn content(variable: &'static str, path: &Path, expected: &'static str) -> TlsError {
    TlsError::Content { variable, path: path.display().to_string(), expected }
}

fn certificates(variable: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read(variable, path)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    read.ok().filter(|read| !read.is_empty()).ok_or_else(|| content(variable, path, "certificate"))
}

fn private_key(variable: &'static str, path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let pem = read(variable, path)?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|_| content(variable, path, "private key"))
}
