//! Certificates for one test.

use std::{fs, path::PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

/// A certificate authority, and certificates that it has signed, in files.
pub(crate) struct Certificates {
    dir: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    /// Creates a new authority, and writes its certificate to `ca.pem`.
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("an empty list of names is valid");
        // a name of its own: otherwise OpenSSL would treat the certificates that it signs as self-signed
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let authority = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        let certificates = Self { dir: tempfile::tempdir().expect("a directory"), authority };
        fs::write(certificates.path("ca.pem"), certificates.authority.pem()).expect("a file");
        certificates
    }

    /// Writes a certificate for `host` to `{name}.pem` and its key to `{name}.key`. Returns their paths.
    pub(crate) fn sign(&self, name: &str, host: &str) -> (PathBuf, PathBuf) {
        let params = CertificateParams::new(vec![host.to_owned()]).expect("a name");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.authority).expect("a signature");
        let paths = (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        fs::write(&paths.0, certificate.pem()).expect("a file");
        fs::write(&paths.1, key.serialize_pem()).expect("a file");
        paths
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}
