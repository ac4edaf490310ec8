//! The name of SRV records, and where it is searched.

use std::fmt;

/// The most bytes of a name (RFC 1035), without its final dot.
pub(super) const MAX_NAME: usize = 253;

/// A name with SRV records, such as `_memcache._tcp.example.org`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SrvName {
    /// In lower case, without the final dot.
    pub(super) name: String,
    /// Whether it had a final dot, so that it is not searched below other domains.
    is_absolute: bool,
}

// === impl SrvName ===

impl SrvName {
    /// Parses a name of the form `_service._protocol.name`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let absolute = text.strip_suffix('.');
        let name = absolute.unwrap_or(text);
        let labels: Vec<&str> = name.split('.').collect();
        let [service, protocol, _, ..] = labels[..] else { return None };
        let is_marked = |label: &str| label.len() > 1 && label.starts_with('_');
        let is_valid = |label: &&str| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        let valid = is_marked(service)
            && is_marked(protocol)
            && labels.iter().all(is_valid)
            && name.len() <= MAX_NAME;
        valid.then(|| Self { name: name.to_ascii_lowercase(), is_absolute: absolute.is_some() })
    }

    /// Returns the names to look up, in their order, as resolv.conf(5) says: a name with fewer than `ndots` dots is searched below
    /// the domains first, one with more afterwards, and an absolute one not at all.
    pub(super) fn candidates(&self, search: &[String], ndots: usize) -> Vec<Self> {
        if self.is_absolute {
            return vec![self.clone()];
        }
        let mut names: Vec<Self> =
            search.iter().filter_map(|domain| Self::parse(&format!("{self}.{domain}"))).collect();
        let first = self.name.matches('.').count() >= ndots;
        names.insert(if first { 0 } else { names.len() }, self.clone());
        names
    }
}

impl fmt::Display for SrvName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
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

    #[test]
    fn names_are_searched_as_resolv_conf_says() {
        let search = ["a.svc".to_owned(), "b c".to_owned(), "svc".to_owned()];
        let names = |name: &str, ndots| -> Vec<String> {
            let name = SrvName::parse(name).expect("it is valid");
            name.candidates(&search, ndots).iter().map(ToString::to_string).collect()
        };
        let (plain, below) = ("_m._tcp.x", ["_m._tcp.x.a.svc", "_m._tcp.x.svc"]);
        assert_eq!(names(plain, 2), [&[plain][..], &below].concat());
        assert_eq!(names(plain, 3), [&below[..], &[plain]].concat());
        assert_eq!(names("_m._tcp.x.", 5), [plain]);
    }
}
