//! A request, independent of the protocol that it arrived in.

use std::fmt;

use smallvec::SmallVec;

use super::{runtime_limit::RuntimeLimit, units::Hits};

/// Hits of descriptors to count if their limits admit them. It borrows from the decoded message, so nothing is copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request<'a> {
    /// Selects the tree of rules. Not empty in a valid request.
    pub domain: &'a str,
    /// At least one in a valid request. Each is matched and counted on its own.
    pub descriptors: SmallVec<[Descriptor<'a>; 2]>,
    /// Hits of every descriptor that sets none; 0 means 1, since Envoy sends 0 if nothing is set.
    pub hits: u32,
}

/// A path of entries, from the least to the most specific, that names what is limited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor<'a> {
    /// One entry for each level of the rule that it matches; an empty list matches nothing.
    pub entries: SmallVec<[Entry<'a>; 4]>,
    /// A limit that the caller sends, in place of a configured one. Boxed, since few descriptors have one.
    pub limit: Option<Box<RuntimeLimit>>,
    /// Hits of this descriptor, which override the request's; 0 checks without counting.
    pub hits: Option<u64>,
    /// Whether the hits are given back instead of taken.
    pub refund: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry<'a> {
    pub key: &'a str,
    /// The value of the attribute, such as `acme`; may be empty.
    pub value: &'a str,
}

// === impl Request ===

impl<'a> Request<'a> {
    /// Returns the request for one hit of the descriptor of these `entries`.
    #[inline]
    pub fn of(domain: &'a str, entries: &[Entry<'a>]) -> Self {
        let descriptor =
            Descriptor { entries: SmallVec::from_slice(entries), limit: None, hits: None, refund: false };
        Self {
            domain,
            descriptors: SmallVec::from_buf_and_len([descriptor, Descriptor::default()], 1),
            hits: 0,
        }
    }

    /// Returns the request for so many hits of the descriptor of these `entries`; 0 looks at what is left.
    pub fn of_hits(domain: &'a str, entries: &[Entry<'a>], hits: u64) -> Self {
        let mut request = Self::of(domain, entries);
        request.descriptors.iter_mut().for_each(|descriptor| descriptor.hits = Some(hits));
        request
    }

    /// Returns the hits of `descriptor`: its own, else the request's, else one.
    pub fn hits_of(&self, descriptor: &Descriptor<'_>) -> Hits {
        Hits(descriptor.hits.unwrap_or_else(|| u64::from(self.hits.max(1))))
    }
}

// === impl Entry ===

impl Entry<'_> {
    /// Returns `key_value`, or only the key if there is no value, as in paths.
    pub fn step(&self) -> String {
        if self.value.is_empty() { self.key.to_owned() } else { self.metric_step() }
    }

    /// Returns `key_value`, or `key_` if there is no value, as in stats of a rule with `detailed_metric`.
    pub fn metric_step(&self) -> String {
        format!("{}_{}", self.key, self.value)
    }
}

impl fmt::Display for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptors_hits_override_the_requests_and_default_to_one() {
        let own = |hits| Descriptor { hits, ..Descriptor::default() };
        let request = |hits| Request { hits, ..Request::default() };
        assert_eq!(request(0).hits_of(&own(None)), Hits(1));
        assert_eq!(request(7).hits_of(&own(None)), Hits(7));
        assert_eq!(request(7).hits_of(&own(Some(0))), Hits(0));
        assert_eq!(request(7).hits_of(&own(Some(3))), Hits(3));
    }
}
