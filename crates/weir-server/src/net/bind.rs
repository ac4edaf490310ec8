//! Binding a TCP port, and the address that a socket is bound to.

use std::{fmt, io, net::SocketAddr, path::PathBuf};

use tokio::net::TcpListener;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoundAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct BindError {
    pub address: String,
    pub source: io::Error,
}

/// Binds a TCP listener to `address`; port 0 means any free port.
pub async fn bind_tcp(address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address).await.map_err(|source| BindError { address: address.to_string(), source })
}

// === impl BoundAddress ===

/// Writes the address like `weir call --address` takes it: `127.0.0.1:8081`, or `unix:/run/weir.sock`.
impl fmt::Display for BoundAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
