//! Certificates and private keys in PEM files.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use tokio_rustls::rustls::{
    Error,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use super::certificate::{BrokenChain, CertificateDates, check_chain};

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
        error: io::Error,
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
    /// A file holds a certificate that cannot be used.
    #[error("{variable}, {path}: {error}")]
    Certificate {
        /// The setting that names the file.
        variable: &'static str,
        /// The path.
        path: String,
        /// The error.
        error: Error,
    },
    /// A chain of certificates cannot be used.
    #[error("{variable}, {path}, holds a broken chain: {error}")]
    Chain {
        /// The setting that names the file.
        variable: &'static str,
        /// The path.
        path: String,
        /// The error.
        error: BrokenChain,
    },
    /// A private key does not belong to its certificate.
    #[error("the private key in {key} does not belong to the certificate in {certificate}")]
    Mismatch {
        /// The path of the key.
        key: String,
        /// The path of the certificate.
        certificate: String,
    },
    /// There is no certificate authority to trust.
    #[error(
        "there is no valid certificate authority to trust, neither the system's nor in the file of {variable}"
    )]
    NoRoots {
        /// The setting of a file with certificates to trust.
        variable: &'static str,
    },
    /// The contents of the files do not match each other.
    #[error("cannot set up TLS: {0}")]
    Setup(#[from] Error),
}

/// A file of certificates that a setting names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFile {
    /// The setting.
    pub setting: &'static str,
    /// The path.
    pub path: PathBuf,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct NamedFile<'a> {
    pub(super) variable: &'static str,
    pub(super) path: &'a Path,
}

/// Hides the content of a file, perhaps a private key, that was given instead of its path.
pub(super) fn shown(path: &Path) -> String {
    let text = path.display().to_string();
    let is_content = text.contains("-----BEGIN") || text.contains(char::is_control);
    if is_content { "which is no path".to_owned() } else { text }
}

// === impl CertificateFile ===

impl CertificateFile {
    /// Reads the dates of its certificates. Blocks on file access.
    ///
    /// # Errors
    ///
    /// [`TlsError::Read`] and [`TlsError::Content`].
    pub fn read(&self) -> Result<Vec<CertificateDates>, TlsError> {
        let file = NamedFile { variable: self.setting, path: &self.path };
        Ok(CertificateDates::of(self.setting, &file.certificates(&file.read()?)?))
    }
}

// === impl NamedFile ===

impl NamedFile<'_> {
    pub(super) fn read(self) -> Result<Vec<u8>, TlsError> {
        let Self { variable, path } = self;
        fs::read(path).map_err(|error| TlsError::Read { variable, path: shown(path), error })
    }

    pub(super) fn certificates(self, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        read.ok().filter(|read| !read.is_empty()).ok_or_else(|| self.lacks("certificate"))
    }

    /// A chain to present: its first certificate is the owner's. `pem` is the content of this file.
    pub(super) fn chain(self, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let chain = self.certificates(pem)?;
        let (variable, path) = (self.variable, shown(self.path));
        check_chain(&chain).map_err(|error| TlsError::Chain { variable, path, error })?;
        Ok(chain)
    }

    pub(super) fn private_key(self, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(pem).map_err(|_| self.lacks("private key"))
    }

    pub(super) fn unusable(self, error: Error) -> TlsError {
        TlsError::Certificate { variable: self.variable, path: shown(self.path), error }
    }

    fn lacks(self, expected: &'static str) -> TlsError {
        TlsError::Content { variable: self.variable, path: shown(self.path), expected }
    }
}
