//! Values by name, for names that are few in nearly all places.

use std::hash::BuildHasher as _;

use hashbrown::{Equivalent as _, HashTable};

use super::inline_str::InlineStr;

/// Values by name, in the order of insertion.
#[derive(Debug)]
pub(super) struct NameMap<T> {
    entries: Vec<(InlineStr, T)>,
    /// None for up to [`FEW`] names.
    index: Option<Box<Index>>,
}

#[derive(Debug, Default)]
struct Index {
    table: HashTable<u32>,
    hasher: foldhash::fast::RandomState,
}

/// The number of names up to which one is found faster by comparing all of them.
const FEW: usize = 4;

// === impl NameMap ===

impl<T> Default for NameMap<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), index: None }
    }
}

impl<T> NameMap<T> {
    pub(super) const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        self.entries.iter().map(|(name, value)| (name.as_str(), value))
    }

    #[inline]
    pub(super) fn get(&self, name: &str) -> Option<&T> {
        match &self.index {
            None => self.entries.iter().find(|(other, _)| name.equivalent(other)).map(|(_, value)| value),
            Some(index) => index.find(&self.entries, name).map(|at| &self.entries[at].1),
        }
    }

    pub(super) fn get_or_insert_with(&mut self, name: &str, new: impl FnOnce() -> T) -> &mut T {
        let found = match &self.index {
            None => self.entries.iter().position(|(other, _)| name.equivalent(other)),
            Some(index) => index.find(&self.entries, name),
        };
        let at = found.unwrap_or_else(|| {
            self.entries.push((name.into(), new()));
            let last = self.entries.len() - 1;
            if last >= FEW {
                let index = self.index.get_or_insert_default();
                for at in index.table.len()..=last {
                    index.add(&self.entries, at);
                }
            }
            last
        });
        &mut self.entries[at].1
    }
}

// === impl Index ===

impl Index {
    fn add<T>(&mut self, entries: &[(InlineStr, T)], at: usize) {
        let hash = |at: &u32| self.hasher.hash_one(entries[*at as usize].0.as_str());
        // the size limit of rule files keeps the number of names far below 2^32
        let at = u32::try_from(at).unwrap_or(u32::MAX);
        self.table.insert_unique(hash(&at), at, hash);
    }

    #[inline(never)]
    fn find<T>(&self, entries: &[(InlineStr, T)], name: &str) -> Option<usize> {
        let found = |at: &u32| name.equivalent(&entries[*at as usize].0);
        self.table.find(self.hasher.hash_one(name), found).map(|at| *at as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_names_are_found() {
        let mut map = NameMap::default();
        for i in 0..100 {
            let name = |i: usize| format!("name {i}");
            assert_eq!(map.get(&name(i)), None);
            assert_eq!(*map.get_or_insert_with(&name(i), || i), i);
            assert_eq!(*map.get_or_insert_with(&name(i), || 1_000), i, "the first one stays");
            assert!((0..=i).all(|i| map.get(&name(i)) == Some(&i)), "{i}");
        }
        assert!(map.iter().map(|(_, value)| *value).eq(0..100));
        assert!(!map.is_empty());
    }
}
