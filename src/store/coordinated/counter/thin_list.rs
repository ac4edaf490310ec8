//! A list that is nearly always empty, in the space of a pointer.

use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

/// A list that takes eight bytes while it is empty, and one allocation with its first element.
#[derive(Debug)]
pub(super) struct ThinList<T>(Option<Box<SmallVec<[T; 1]>>>);

// === impl ThinList ===

impl<T> ThinList<T> {
    pub(super) fn push(&mut self, element: T) {
        self.0.get_or_insert_default().push(element);
    }

    pub(super) fn insert(&mut self, index: usize, element: T) {
        self.0.get_or_insert_default().insert(index, element);
    }

    /// Removes each element for which `merge` returns true, after it has been merged into the one before it, which is the first
    /// argument.
    pub(super) fn merge(&mut self, mut merge: impl FnMut(&mut T, &T) -> bool) {
        if let Some(list) = &mut self.0 {
            list.dedup_by(|later, earlier| merge(earlier, later));
        }
    }

    /// Keeps the elements for which `keep` returns true.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        if let Some(list) = &mut self.0 {
            list.retain(|element| keep(element));
            if list.is_empty() {
                self.0 = None;
            }
        }
    }
}

impl<T> Default for ThinList<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Deref for ThinList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0.as_deref().map_or(&[], SmallVec::as_slice)
    }
}

impl<T> DerefMut for ThinList<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.0.as_deref_mut().map_or(&mut [], SmallVec::as_mut_slice)
    }
}

impl<T> IntoIterator for ThinList<T> {
    type Item = T;
    type IntoIter = smallvec::IntoIter<[T; 1]>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.map_or_else(SmallVec::new, |list| *list).into_iter()
    }
}

impl<'a, T> IntoIterator for &'a ThinList<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_list_is_a_pointer() {
        assert_eq!(size_of::<ThinList<[u64; 9]>>(), 8);
        let mut list = ThinList::default();
        list.push(2);
        list.insert(0, 1);
        list.push(3);
        list.retain(|number| *number != 2);
        assert_eq!((&list[..], list.0.is_some()), (&[1, 3][..], true));
        list.retain(|_| false);
        assert!(list.is_empty() && list.0.is_none());
    }
}
