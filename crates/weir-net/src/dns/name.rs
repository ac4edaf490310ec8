//! A name, and where it is searched.

use std::fmt;

/// The most bytes of a name (RFC 1035), without its final dot.
pub(super) const MAX_NAME: usize = 253;

/// A name that has records, such as `weir.shop.svc.cluster.local`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DnsName {
    /// In lower case, without the final dot.
    name: String,
    /// Whether it had a final dot, so that it is not searched below other domains.
    is_absolute: bool,
}

// === impl DnsName ===

impl DnsName {
    /// Parses a name of labels of letters, digits, hyphens and underscores.
    pub fn parse(text: &str) -> Option<Self> {
        let absolute = text.strip_suffix('.');
        let name = absolute.unwrap_or(text);
        let is_valid = |label: &str| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        let valid = name.split('.').all(is_valid) && name.len() <= MAX_NAME;
        valid.then(|| Self { name: name.to_ascii_lowercase(), is_absolute: absolute.is_some() })
    }

    /// Parses a name that has SRV records, of the form `_service._protocol.name`.
    pub fn parse_service(text: &str) -> Option<Self> {
        let name = Self::parse(text)?;
        let labels: Vec<&str> = name.labels().collect();
        let is_marked = |label: &&str| label.len() > 1 && label.starts_with('_');
        (labels.len() > 2 && labels[..2].iter().all(is_marked)).then_some(name)
    }

    /// The most specific one first.
    pub(super) fn labels(&self) -> impl Iterator<Item = &str> {
        self.name.split('.')
    }

    /// As resolv.conf(5) says: fewer than `ndots` dots put the search domains first.
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

impl fmt::Display for DnsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_labels_of_letters_digits_hyphens_and_underscores() {
        for name in ["weir.shop.svc.cluster.local", "WEIR", "_a._tcp.svc."] {
            assert!(DnsName::parse(name).is_some(), "{name}");
        }
        let long = format!("a.{}", "b".repeat(64));
        let longer = "a.".repeat(128);
        for name in ["", ".", "a..b", "a b", "a:80", "a/b", &long, &longer] {
            assert!(DnsName::parse(name).is_none(), "{name}");
        }
    }

    #[test]
    fn services_have_two_marked_labels() {
        assert!(DnsName::parse_service("_memcache._tcp.example.org").is_some());
        for name in ["memcached", "_memcache._tcp", "_memcache.tcp.org", "_._tcp.org"] {
            assert!(DnsName::parse_service(name).is_none(), "{name}");
        }
    }

    #[test]
    fn names_are_searched_as_resolv_conf_says() {
        let search = ["a.svc".to_owned(), "b c".to_owned(), "svc".to_owned()];
        let names = |name: &str, ndots| -> Vec<String> {
            let name = DnsName::parse(name).expect("it is valid");
            name.candidates(&search, ndots).iter().map(ToString::to_string).collect()
        };
        let (plain, below) = ("_m._tcp.x", ["_m._tcp.x.a.svc", "_m._tcp.x.svc"]);
        assert_eq!(names(plain, 2), [&[plain][..], &below].concat());
        assert_eq!(names(plain, 3), [&below[..], &[plain]].concat());
        assert_eq!(names("_m._tcp.x.", 5), [plain]);
    }
}
