use smallvec::SmallVec;

use super::{
    descriptor::{Descriptor, Entry, Request},
    units::Hits,
};

/// A domain and entries that outlive their request, by which their rule is found again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    domain: Box<str>,
    entries: Box<[(Box<str>, Box<str>)]>,
}

// === impl Named ===

impl Named {
    pub fn new(domain: &str, entries: &[Entry<'_>]) -> Self {
        let entries = entries.iter().map(|entry| (entry.key.into(), entry.value.into()));
        Self { domain: domain.into(), entries: entries.collect() }
    }

    pub fn domain(&self) -> &str {
        &self.domain
    }

    pub fn entries(&self) -> SmallVec<[Entry<'_>; 4]> {
        self.entries.iter().map(|(key, value)| Entry { key, value }).collect()
    }

    pub fn request(&self, hits: Hits) -> Request<'_> {
        let descriptor = Descriptor { entries: self.entries(), hits: Some(hits.0), ..Descriptor::default() };
        Request { domain: &self.domain, descriptors: std::iter::once(descriptor).collect(), hits: 0 }
    }
}
