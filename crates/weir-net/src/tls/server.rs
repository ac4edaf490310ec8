use std::{fmt, path::PathBuf, sync::Arc};

use tokio_rustls::rustls::{Error, ServerConfig, server::NoServerSessionStorage};

use super::{
    ALPN_H2,
    certificate::CertificateDates,
    client_verifier::{ClientName, ClientVerifier},
    files::{NamedFile, TlsError, shown},
    provider,
};

const CERTIFICATE: &str = "GRPC_SERVER_TLS_CERT";
const KEY: &str = "GRPC_SERVER_TLS_KEY";
const CLIENT_CA: &str = "GRPC_CLIENT_TLS_CACERT";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// `GRPC_SERVER_TLS_CERT`: the certificate chain.
    pub certificate: PathBuf,
    /// `GRPC_SERVER_TLS_KEY`: the private key.
    pub key: PathBuf,
    /// `GRPC_CLIENT_TLS_CACERT`: the authorities of clients; without them, clients need no certificate.
    pub client_ca: Option<PathBuf>,
    /// `GRPC_CLIENT_TLS_SAN`: the names of which a client's certificate must have one; any name if empty.
    pub client_names: Vec<ClientName>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct ServerTlsFiles {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

// === impl ServerTls ===

impl ServerTls {
    pub fn paths(&self) -> Vec<PathBuf> {
        [Some(&self.certificate), Some(&self.key), self.client_ca.as_ref()]
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    pub fn read(&self) -> Result<ServerTlsFiles, TlsError> {
        let client_ca = self.client_ca_file().map(NamedFile::read).transpose()?;
        Ok(ServerTlsFiles { certificate: self.chain_file().read()?, key: self.key_file().read()?, client_ca })
    }

    /// Returns the configuration and the dates of all certificates: the server's own, its chain, clients' authorities.
    pub fn configure(
        &self,
        files: &ServerTlsFiles,
    ) -> Result<(Arc<ServerConfig>, Vec<CertificateDates>), TlsError> {
        let provider = provider();
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let chain = self.chain_file();
        let certificates = chain.chain(&files.certificate)?;
        let mut dates = CertificateDates::of(CERTIFICATE, &certificates);
        let builder = match (self.client_ca_file(), &files.client_ca) {
            (Some(file), Some(pem)) => {
                let (authorities, names) = (file.certificates(pem)?, self.client_names.clone());
                dates.extend(CertificateDates::of(CLIENT_CA, &authorities));
                let verifier = ClientVerifier::new(authorities, names, provider);
                builder.with_client_cert_verifier(verifier.map_err(|error| file.unusable(error))?)
            }
            _ => builder.with_no_client_auth(),
        };
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
        Ok((Arc::new(config), dates))
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
