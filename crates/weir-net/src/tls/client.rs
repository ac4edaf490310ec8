use std::{path::PathBuf, sync::Arc};

use tokio::task::spawn_blocking;
use tokio_rustls::rustls::{ClientConfig, pki_types::UnixTime};

use super::{
    files::{NamedFile, TlsError},
    provider,
    server_verifier::{ServerVerifier, TrustAnchors},
};

/// The files of a TLS client. Each [`ClientTls::load`] reads them again, so that renewed ones take effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// Certificate authorities to trust beside those that the system trusts.
    pub ca: Option<PathBuf>,
    pub client: Option<(PathBuf, PathBuf)>,
    /// Accepts a certificate for another name.
    pub any_name: bool,
}

/// The settings that name the files of a [`ClientTls`], for errors.
#[derive(Clone, Copy, Debug)]
pub struct ClientTlsNames {
    pub ca: &'static str,
    pub certificate: &'static str,
    pub key: &'static str,
}

// === impl ClientTls ===

impl ClientTls {
    /// Loads the configuration of one connection, which offers the protocols `alpn`. Blocks on file access.
    pub fn load(&self, names: &ClientTlsNames, alpn: &[&[u8]]) -> Result<Arc<ClientConfig>, TlsError> {
        let provider = provider();
        let verifier = ServerVerifier::new(self.anchors(names)?, self.any_name, Arc::clone(&provider))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match &self.client {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = NamedFile { variable: names.certificate, path: chain };
                let key = NamedFile { variable: names.key, path: key };
                let certificates = chain.chain(&chain.read()?)?;
                builder.with_client_auth_cert(certificates, key.private_key(&key.read()?)?)?
            }
        };
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(Arc::new(config))
    }

    /// Does [`ClientTls::load`] on a thread that may block: the system's files have some hundred certificates.
    pub async fn load_aside(
        self,
        names: ClientTlsNames,
        alpn: &'static [&'static [u8]],
    ) -> Result<Arc<ClientConfig>, TlsError> {
        match spawn_blocking(move || self.load(&names, alpn)).await {
            Ok(loaded) => loaded,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // the runtime ends, and this with it
                Err(_) => std::future::pending().await,
            },
        }
    }

    fn anchors(&self, names: &ClientTlsNames) -> Result<TrustAnchors, TlsError> {
        let mut anchors = TrustAnchors::empty(UnixTime::now());
        if let Some(ca) = &self.ca {
            let file = NamedFile { variable: names.ca, path: ca };
            for certificate in file.certificates(&file.read()?)? {
                anchors.add(certificate).map_err(|error| file.unusable(error))?;
            }
        }
        anchors.add_native();
        if anchors.is_empty() { Err(TlsError::NoRoots(names.ca)) } else { Ok(anchors) }
    }
}
