//! TLS to Redis.

use std::sync::Arc;

use tokio_rustls::rustls::ClientConfig;

use super::settings::Tls;
use weir_net::tls::{ClientTls, ClientTlsNames, TlsError};

const NAMES: ClientTlsNames = ClientTlsNames {
    ca: "REDIS_TLS_CACERT",
    certificate: "REDIS_TLS_CLIENT_CERT",
    key: "REDIS_TLS_CLIENT_KEY",
};

impl Tls {
    /// Blocks on file access.
    pub(super) fn load(&self) -> Result<Arc<ClientConfig>, TlsError> {
        self.files().load(&NAMES, &[])
    }

    pub(super) async fn load_aside(&self) -> Result<Arc<ClientConfig>, TlsError> {
        self.files().load_aside(NAMES, &[]).await
    }

    fn files(&self) -> ClientTls {
        let Self { ca, client, any_name } = self.clone();
        ClientTls { ca, client, any_name }
    }
}
