//! TLS to Redis: rustls with ring, the certificates of files and of the system.

use std::{fs, path::Path, sync::Arc};

use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};

use super::settings::Tls;

/// Why there is no TLS to be had.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {variable}, {path}: {error}")]
    Read {
        /// The setting that names it.
        variable: &'static str,
        /// The file.
        path: String,
        /// What is wrong.
        error: std::io::Error,
    },
    /// A file holds something else.
    #[error("{variable}, {path}, holds no {expected} in PEM format")]
    Content {
        /// The setting that names it.
        variable: &'static str,
        /// The file.
        path: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// Nobody would be trusted.
    #[error("the system trusts no certificates; name those to trust with REDIS_TLS_CACERT")]
    NoRoots,
    /// What the files hold does not fit together.
    #[error("cannot set TLS up: {0}")]
    Setup(#[from] Error),
}

/// A verifier that does not mind whose certificate it is, as long as it is signed by someone who is trusted.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl Tls {
    /// What a connection needs.
    pub(super) fn load(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let roots = Arc::new(self.roots()?);
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = if self.any_name {
            let verifier = verifier(roots, provider)?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyName(verifier)))
        } else {
            builder.with_root_certificates(roots)
        };
        let config = match &self.client {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = certificates("REDIS_TLS_CLIENT_CERT", chain)?;
                builder.with_client_auth_cert(chain, private_key("REDIS_TLS_CLIENT_KEY", key)?)?
            }
        };
        Ok(Arc::new(config))
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        if let Some(ca) = &self.ca {
            for certificate in certificates("REDIS_TLS_CACERT", ca)? {
                roots.add(certificate)?;
            }
        }
        // a few that cannot be read are no reason not to trust the others
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() { Err(TlsError::NoRoots) } else { Ok(roots) }
    }
}

fn verifier(
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    let built = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
    built.map_err(|error| Error::General(error.to_string()).into())
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

// === impl AnyName ===

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // the name is looked at last: whoever fails there was signed by someone who is trusted
        match self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
