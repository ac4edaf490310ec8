//! Certificates for one test, in files.

use std::{fs, path::PathBuf};

use tempfile::TempDir;

use crate::authority::{Authority, Pair};

/// A certificate authority, and certificates that it has signed, in files.
pub struct Certificates {
    dir: TempDir,
    authority: Authority,
}

impl Certificates {
    /// Creates a new authority, and writes its certificate to `ca.pem`.
    pub fn new() -> Self {
        // a name of its own: otherwise OpenSSL would treat the certificates that it signs as self-signed
        let authority = Authority::new("authority of a test");
        let certificates = Self { dir: tempfile::tempdir().expect("a directory"), authority };
        fs::write(certificates.path("ca.pem"), certificates.authority.pem()).expect("a file");
        certificates
    }

    /// Writes a certificate for `host` to `{name}.pem` and its key to `{name}.key`. Returns their paths.
    pub fn sign(&self, name: &str, host: &str) -> (PathBuf, PathBuf) {
        let Pair { certificate, key } = self.authority.sign(&[host]);
        let paths = (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        fs::write(&paths.0, certificate).expect("a file");
        fs::write(&paths.1, key).expect("a file");
        paths
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}
