//! The addresses of a service.

use std::{fmt, net::SocketAddr};

use weir_server::net::BoundAddress;

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
    /// The server of Redis' protocol.
    pub redis: Option<BoundAddress>,
}

impl Addresses {
    /// Returns each server's name and address.
    pub fn named(&self) -> Vec<(&'static str, String)> {
        let mut named = vec![
            ("grpc", self.grpc.to_string()),
            ("http", self.http.to_string()),
            ("debug", self.debug.to_string()),
        ];
        named.extend(self.prometheus.map(|address| ("prometheus", address.to_string())));
        named.extend(self.redis.as_ref().map(|address| ("redis", address.to_string())));
        named
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.named();
        let parts: Vec<String> = named.iter().map(|(name, address)| format!("{name}={address}")).collect();
        f.write_str(&parts.join(" "))
    }
}
