//! The domains that callers ask for and no rule has: text of callers, of which little is kept.

use std::sync::atomic::{AtomicU8, Ordering};

use hashbrown::HashMap;
use parking_lot::RwLock;

use super::counter::Counter;

/// The most domains that are counted under their own names.
const MAX_DOMAINS: usize = 1_000;

/// The longest name in bytes. A longer domain is counted under its beginning.
const MAX_NAME: usize = 64;

/// The name under which all further domains are counted.
const OTHERS: &str = "_other";

/// How often a domain may be aged before it is forgotten, if nobody asks for it meanwhile.
const MAX_AGE: u8 = 12;

/// The unknown domains, with their descriptors.
#[derive(Debug, Default)]
pub(super) struct UnknownDomains {
    named: RwLock<HashMap<String, Domain, foldhash::fast::RandomState>>,
    others: Counter,
    #[cfg(feature = "server")]
    warned: super::throttle::Throttle,
}

#[derive(Debug, Default)]
struct Domain {
    descriptors: Counter,
    /// How often it was aged since somebody asked for it.
    age: AtomicU8,
}

// === impl UnknownDomains ===

impl UnknownDomains {
    /// Counts `descriptors` for `domain`. Returns whether they were counted under its name.
    pub(super) fn add(&self, domain: &str, descriptors: u64) -> bool {
        let name = &domain[..domain.floor_char_boundary(MAX_NAME)];
        {
            let named = self.named.read();
            if let Some(domain) = named.get(name) {
                domain.add(descriptors);
                return true;
            }
            // many names are the lasting state under hostile values: it must not cost the write lock
            if named.len() >= MAX_DOMAINS {
                self.others.add(descriptors);
                return false;
            }
        }
        let mut named = self.named.write();
        if named.len() >= MAX_DOMAINS && !named.contains_key(name) {
            self.others.add(descriptors);
            return false;
        }
        let is_new = !named.contains_key(name);
        named.entry_ref(name).or_default().add(descriptors);
        drop(named);
        if is_new {
            self.warn(name);
        }
        true
    }

    /// Tells of a domain that nobody has asked for lately: a typing error in it admits everything.
    #[cfg(feature = "server")]
    fn warn(&self, domain: &str) {
        if let Some(suppressed) = self.warned.admit(std::time::Instant::now()) {
            tracing::warn!(
                domain,
                suppressed,
                "a request for a domain without rules is admitted; compare the domain of Envoy's filter with the rules"
            );
        }
    }

    #[cfg(not(feature = "server"))]
    #[expect(clippy::unused_self, reason = "the server has a log")]
    const fn warn(&self, _domain: &str) {}

    /// Returns every name with its descriptors, in no order. Descriptors of domains without a name of their own are the
    /// last.
    pub(super) fn get(&self) -> Vec<(String, u64)> {
        let named = self.named.read();
        let mut all: Vec<(String, u64)> =
            named.iter().map(|(name, domain)| (name.clone(), domain.descriptors.get())).collect();
        let others = self.others.get();
        if others > 0 {
            all.push((OTHERS.to_owned(), others));
        }
        all
    }

    /// Ages every domain, and forgets those that were aged [`MAX_AGE`] times since somebody asked for them.
    pub(super) fn age(&self) {
        self.named.write().retain(|_, domain| domain.age.fetch_add(1, Ordering::Relaxed) < MAX_AGE);
    }
}

// === impl Domain ===

impl Domain {
    fn add(&self, descriptors: u64) {
        self.descriptors.add(descriptors);
        // a store that changes nothing would still take the cache line from other threads
        if self.age.load(Ordering::Relaxed) > 0 {
            self.age.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_domains_have_names_and_the_rest_shares_one() {
        let domains = UnknownDomains::default();
        for i in 0..10_000 {
            assert_eq!(domains.add(&format!("{i}-{}", "x".repeat(1_000)), 2), i < MAX_DOMAINS, "{i}");
        }
        let all = domains.get();
        let bytes: usize = all.iter().map(|(name, _)| name.len()).sum();
        assert!(all.len() == MAX_DOMAINS + 1 && bytes <= MAX_DOMAINS * MAX_NAME + OTHERS.len(), "{bytes}");
        assert_eq!(all.last(), Some(&(OTHERS.to_owned(), 18_000)));
        // those that have a name keep it
        assert!(domains.add(&format!("0-{}", "x".repeat(1_000)), 1));
        assert!(domains.get().contains(&(format!("0-{}", "x".repeat(MAX_NAME - 2)), 3)));
    }

    #[test]
    fn a_name_ends_between_two_characters() {
        let domains = UnknownDomains::default();
        domains.add(&"ü".repeat(100), 1);
        domains.add(&format!("a{}", "ü".repeat(100)), 1);
        let mut lengths: Vec<usize> = domains.get().iter().map(|(name, _)| name.len()).collect();
        lengths.sort_unstable();
        assert_eq!(lengths, [MAX_NAME - 1, MAX_NAME]);
    }

    #[test]
    fn a_domain_that_nobody_asks_for_is_forgotten_and_makes_room() {
        let domains = UnknownDomains::default();
        for i in 0..MAX_DOMAINS {
            domains.add(&i.to_string(), 1);
        }
        for _ in 0..MAX_AGE {
            domains.age();
            domains.add("7", 1);
        }
        assert_eq!(domains.get().len(), MAX_DOMAINS);
        assert!(!domains.add("new", 1));
        domains.age();
        assert!(domains.add("new", 1));
        let mut left = domains.get();
        left.sort_unstable();
        let expected = [("7", 1 + u64::from(MAX_AGE)), (OTHERS, 1), ("new", 1)];
        assert_eq!(left, expected.map(|(name, count)| (name.to_owned(), count)));
    }
}
