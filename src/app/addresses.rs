//! The addresses of a service.

use std::{fmt, net::SocketAddr};

use crate::net::BoundAddress;

/// The bound addresses of a service, with actual ports where any free port was requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The gRPC server.
    pub grpc: BoundAddress,
    /// The HTTP server.
    pub http: SocketAddr,
    /// The debug pages.
    pub debug: SocketAddr,
    /// The port for Prometheus only.
    pub prometheus: Option<SocketAddr>,
}

/// Writes `grpc=… http=… debug=…`, for people and scripts.
impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "grpc={} http={} debug={}", self.grpc, self.http, self.debug)?;
        match self.prometheus {
            Some(address) => write!(f, " prometheus={address}"),
            None => Ok(()),
        }
    }
}
