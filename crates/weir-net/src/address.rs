use std::{fmt, path::PathBuf, sync::Arc};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    Tcp(Arc<str>, u16),
    Unix(PathBuf),
}

// === impl Address ===

impl Address {
    pub fn tcp(host: &str, port: u16) -> Self {
        Self::Tcp(host.into(), port)
    }

    /// Parses `host`, `host:port` or `[::1]:port`, with the port `default`.
    pub fn parse(text: &str, default: u16) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(bracketed) => {
                let (host, rest) = bracketed.split_once(']')?;
                (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port = port.map_or(Some(default), |port| port.parse().ok().filter(|port| *port > 0))?;
        let is_odd = |c: char| c.is_whitespace() || c.is_control() || "/@,?#[]".contains(c);
        (!host.is_empty() && !host.contains(is_odd)).then(|| Self::tcp(host, port))
    }

    /// Parses the name of a gRPC server: `host:port`, `[::1]:port`, `unix:path` or `unix:///path`, and
    /// `dns:///host:port` and `passthrough:///host:port`.
    pub fn parse_grpc(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return (!path.is_empty()).then(|| Self::Unix(path.into()));
        }
        let schemes = ["dns:///", "dns:", "passthrough:///", "passthrough:", "ipv4:", "ipv6:"];
        let text = schemes.into_iter().find_map(|scheme| text.strip_prefix(scheme)).unwrap_or(text);
        // there is no default port
        Self::parse(text, 0).filter(|address| !matches!(address, Self::Tcp(_, 0)))
    }

    /// The host and port of requests.
    pub fn authority(&self) -> String {
        match self {
            Self::Tcp(..) => self.to_string(),
            Self::Unix(_) => self.host().to_owned(),
        }
    }

    pub(crate) fn host(&self) -> &str {
        match self {
            Self::Tcp(host, _) => host,
            Self::Unix(_) => "localhost",
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_grpc_may_have_a_scheme() {
        let tcp = |host: &str, port| Some(Address::tcp(host, port));
        for (text, target) in [
            ("localhost:18000", tcp("localhost", 18000)),
            ("dns:///envoy-gateway:18001", tcp("envoy-gateway", 18001)),
            ("passthrough:///10.0.0.1:1", tcp("10.0.0.1", 1)),
            ("[::1]:80", tcp("::1", 80)),
            ("unix:/run/weir.sock", Some(Address::Unix("/run/weir.sock".into()))),
            ("unix:///run/weir.sock", Some(Address::Unix("/run/weir.sock".into()))),
            ("unix:weir.sock", Some(Address::Unix("weir.sock".into()))),
            ("localhost", None),
            ("::1:80", None),
            ("http://a:80", None),
            (":80", None),
            ("a:0", None),
            ("a b:80", None),
            ("unix:", None),
        ] {
            assert_eq!(Address::parse_grpc(text), target, "{text}");
        }
    }
}
