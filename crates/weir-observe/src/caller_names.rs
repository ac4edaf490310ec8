//! The names that callers ask for and no rule has: text of callers, of which little is kept.

use std::{
    sync::atomic::{AtomicU8, Ordering},
    time::Instant,
};

use hashbrown::{Equivalent, HashMap};
use parking_lot::RwLock;

use super::{counter::Counter, throttle::Throttle};

const MAX_NAMES: usize = 1_000;

/// The longest domain or key in bytes. A longer one is counted under its beginning.
const MAX_NAME: usize = 64;

/// The domain and key under which names beyond [`MAX_NAMES`] are counted.
const OTHERS: &str = "_other";

/// How often a name may be aged before it is forgotten, if nobody asks for it meanwhile.
const MAX_AGE: u8 = 12;

/// Names that no rule has (domains, or keys of a domain), with how many descriptors had them.
#[derive(Debug, Default)]
pub(super) struct CallerNames {
    named: RwLock<HashMap<Name, CountedName, foldhash::fast::RandomState>>,
    others: Counter,
    warned: Throttle,
    /// Whether nobody is warned of them.
    is_silent: bool,
}

/// A domain, and a key in it; empty if the domain itself is unknown.
type Name = (Box<str>, Box<str>);

#[derive(Clone, Copy, Debug, Hash)]
struct NameRef<'a>(&'a str, &'a str);

#[derive(Debug, Default)]
struct CountedName {
    descriptors: Counter,
    /// How often it was aged since somebody asked for it.
    age: AtomicU8,
}

// === impl CallerNames ===

impl CallerNames {
    pub(super) fn silent() -> Self {
        Self { is_silent: true, ..Self::default() }
    }

    /// An empty key counts an unknown domain. Returns whether the name is counted by itself.
    pub(super) fn add(&self, domain: &str, key: &str, descriptors: u64) -> bool {
        let shortened = |name: &'_ str| name.floor_char_boundary(MAX_NAME);
        let name = NameRef(&domain[..shortened(domain)], &key[..shortened(key)]);
        {
            let named = self.named.read();
            if let Some(counted) = named.get(&name) {
                counted.add(descriptors);
                return true;
            }
            // many names are the lasting state under hostile values: it must not cost the write lock
            if named.len() >= MAX_NAMES {
                self.others.add(descriptors);
                return false;
            }
        }
        let mut named = self.named.write();
        let is_new = !named.contains_key(&name);
        if is_new && named.len() >= MAX_NAMES {
            self.others.add(descriptors);
            return false;
        }
        named.entry((name.0.into(), name.1.into())).or_default().add(descriptors);
        drop(named);
        if is_new && !self.is_silent {
            self.warn(name);
        }
        true
    }

    /// A typing error in a name admits everything.
    fn warn(&self, NameRef(domain, key): NameRef<'_>) {
        let Some(suppressed) = self.warned.admit(Instant::now()) else { return };
        if key.is_empty() {
            tracing::warn!(
                domain,
                suppressed,
                "a request for a domain without rules is admitted; compare the domain of Envoy's filter with the rules"
            );
        } else {
            tracing::warn!(
                domain,
                key,
                suppressed,
                "a descriptor with a key that no rule has there is admitted; compare the keys of Envoy's actions with \
                 the rules, or ask `weir explain`"
            );
        }
    }

    /// In no order, but descriptors without a name of their own are the last.
    pub(super) fn get(&self) -> Vec<((String, String), u64)> {
        let named = self.named.read();
        let texts = |(domain, key): &Name| (domain.to_string(), key.to_string());
        let mut all: Vec<_> =
            named.iter().map(|(name, counted)| (texts(name), counted.descriptors.get())).collect();
        let others = self.others.get();
        if others > 0 {
            all.push(((OTHERS.to_owned(), OTHERS.to_owned()), others));
        }
        all
    }

    pub(super) fn age(&self) {
        self.named.write().retain(|_, counted| counted.age.fetch_add(1, Ordering::Relaxed) < MAX_AGE);
    }
}

impl Equivalent<Name> for NameRef<'_> {
    fn equivalent(&self, name: &Name) -> bool {
        *self.0 == *name.0 && *self.1 == *name.1
    }
}

// === impl CountedName ===

impl CountedName {
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
        let domains = CallerNames::default();
        for i in 0..10_000 {
            assert_eq!(domains.add(&format!("{i}-{}", "x".repeat(1_000)), "", 2), i < MAX_NAMES, "{i}");
        }
        let all = domains.get();
        let bytes: usize = all.iter().map(|((name, _), _)| name.len()).sum();
        assert!(all.len() == MAX_NAMES + 1 && bytes <= MAX_NAMES * MAX_NAME + OTHERS.len(), "{bytes}");
        assert_eq!(all.last(), Some(&((OTHERS.to_owned(), OTHERS.to_owned()), 18_000)));
        // those that have a name keep it
        assert!(domains.add(&format!("0-{}", "x".repeat(1_000)), "", 1));
        let first = (format!("0-{}", "x".repeat(MAX_NAME - 2)), String::new());
        assert!(domains.get().contains(&(first, 3)));
    }

    #[test]
    fn a_name_ends_between_two_characters() {
        let domains = CallerNames::default();
        domains.add(&"ü".repeat(100), "", 1);
        domains.add(&format!("a{}", "ü".repeat(100)), "", 1);
        let mut lengths: Vec<usize> = domains.get().iter().map(|((name, _), _)| name.len()).collect();
        lengths.sort_unstable();
        assert_eq!(lengths, [MAX_NAME - 1, MAX_NAME]);
    }

    #[test]
    fn a_domain_that_nobody_asks_for_is_forgotten_and_makes_room() {
        let domains = CallerNames::default();
        for i in 0..MAX_NAMES {
            domains.add(&i.to_string(), "", 1);
        }
        for _ in 0..MAX_AGE {
            domains.age();
            domains.add("7", "", 1);
        }
        assert_eq!(domains.get().len(), MAX_NAMES);
        assert!(!domains.add("new", "", 1));
        domains.age();
        assert!(domains.add("new", "", 1));
        let mut left: Vec<_> =
            domains.get().into_iter().map(|((domain, _), count)| (domain, count)).collect();
        left.sort_unstable();
        let expected = [("7", 1 + u64::from(MAX_AGE)), (OTHERS, 1), ("new", 1)];
        assert_eq!(left, expected.map(|(name, count)| (name.to_owned(), count)));
    }

    #[test]
    fn keys_are_counted_by_domain_and_bounded() {
        let keys = CallerNames::default();
        for (domain, key) in [("shop", "helo"), ("mesh", "helo"), ("shop", "helo")] {
            assert!(keys.add(domain, key, 1));
        }
        let named = |(domain, key): (&str, &str), count| ((domain.to_owned(), key.to_owned()), count);
        let mut all = keys.get();
        all.sort_unstable();
        assert_eq!(all, [named(("mesh", "helo"), 1), named(("shop", "helo"), 2)]);
        for i in 0..MAX_NAMES {
            assert_eq!(keys.add("shop", &i.to_string(), 1), i < MAX_NAMES - 2, "{i}");
        }
        assert_eq!(keys.get().last(), Some(&named((OTHERS, OTHERS), 2)));
        assert!(!keys.add("shop", &"x".repeat(1 << 20), 1));
    }
}
