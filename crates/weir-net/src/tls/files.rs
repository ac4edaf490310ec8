use std::{
    fs, io,
    path::{Path, PathBuf},
};

use tokio_rustls::rustls::{
    Error,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use super::certificate::{BrokenChain, CertificateDates, check_chain};

/// Why TLS cannot be set up. A file is named by its setting and its path.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {0}: {1}")]
    Read(String, io::Error),
    #[error("{0}, holds no {1} in PEM format")]
    Content(String, &'static str),
    #[error("{0}: {1}")]
    Certificate(String, Error),
    #[error("{0}, holds a broken chain: {1}")]
    Chain(String, BrokenChain),
    #[error("the private key in {key} does not belong to the certificate in {certificate}")]
    Mismatch { key: String, certificate: String },
    #[error("there is no valid certificate authority to trust, neither the system's nor in the file of {0}")]
    NoRoots(&'static str),
    #[error("cannot set up TLS: {0}")]
    Setup(#[from] Error),
}

/// A file of certificates that a setting names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFile {
    pub setting: &'static str,
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
    pub fn read(&self) -> Result<Vec<CertificateDates>, TlsError> {
        let file = NamedFile { variable: self.setting, path: &self.path };
        Ok(CertificateDates::of(self.setting, &file.certificates(&file.read()?)?))
    }
}

// === impl NamedFile ===

impl NamedFile<'_> {
    pub(super) fn read(self) -> Result<Vec<u8>, TlsError> {
        fs::read(self.path).map_err(|error| TlsError::Read(self.named(), error))
    }

    pub(super) fn certificates(self, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        read.ok().filter(|read| !read.is_empty()).ok_or_else(|| self.lacks("certificate"))
    }

    /// A chain to present: its first certificate is the owner's. `pem` is the content of this file.
    pub(super) fn chain(self, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let chain = self.certificates(pem)?;
        check_chain(&chain).map_err(|error| TlsError::Chain(self.named(), error))?;
        Ok(chain)
    }

    pub(super) fn private_key(self, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(pem).map_err(|_| self.lacks("private key"))
    }

    pub(super) fn unusable(self, error: Error) -> TlsError {
        TlsError::Certificate(self.named(), error)
    }

    fn lacks(self, expected: &'static str) -> TlsError {
        TlsError::Content(self.named(), expected)
    }

    fn named(self) -> String {
        format!("{}, {}", self.variable, shown(self.path))
    }
}
