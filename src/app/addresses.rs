use std::{fmt, net::SocketAddr};

use weir_server::net::BoundAddress;

/// The bound addresses of a service, with actual ports where any free port was requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    pub grpc: BoundAddress,
    pub http: SocketAddr,
    pub debug: SocketAddr,
    pub prometheus: Option<SocketAddr>,
    pub redis: Option<BoundAddress>,
}

impl Addresses {
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
