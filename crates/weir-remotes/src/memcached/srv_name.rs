//! The name of SRV records.

use std::fmt;

use weir_net::dns::DnsName;

/// A name with SRV records, such as `_memcache._tcp.example.org`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SrvName(pub(super) DnsName);

// === impl SrvName ===

impl SrvName {
    /// Parses a name of the form `_service._protocol.name`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let name = DnsName::parse(text)?;
        let is_marked =
            |label: Option<&str>| label.is_some_and(|label| label.len() > 1 && label.starts_with('_'));
        let mut labels = name.labels();
        let valid = is_marked(labels.next()) && is_marked(labels.next()) && labels.next().is_some();
        drop(labels);
        valid.then_some(Self(name))
    }
}

impl fmt::Display for SrvName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_service_and_a_protocol() {
        for name in ["_memcache._tcp.example.org", "_MEMCACHE._tcp.example.org.", "_a._tcp.svc"] {
            assert!(SrvName::parse(name).is_some(), "{name}");
        }
        let long = format!("_a._tcp.{}", "b".repeat(64));
        for name in ["", "example.org", "_a._tcp", "a._tcp.b", "_._tcp.b", "_a._tcp..b", "_a._tcp.b c", &long]
        {
            assert!(SrvName::parse(name).is_none(), "{name}");
        }
    }
}
