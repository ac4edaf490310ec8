//! The members of a pool, by name, and in a row that is copied fast.

use std::sync::Arc;

use hashbrown::HashMap;

use super::member::MemberState;

/// The members of a pool. A member keeps its place in the row until one is [removed](PoolMembers::retain).
#[derive(Clone, Debug, Default)]
pub(super) struct PoolMembers {
    places: HashMap<Arc<str>, usize, foldhash::fast::RandomState>,
    row: Vec<(Arc<str>, MemberState)>,
}

// === impl PoolMembers ===

impl PoolMembers {
    pub(super) const fn len(&self) -> usize {
        self.row.len()
    }

    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    pub(super) fn get(&self, name: &str) -> Option<&MemberState> {
        self.place(name).map(|place| &self.row[place].1)
    }

    pub(super) fn at_mut(&mut self, place: usize) -> &mut MemberState {
        &mut self.row[place].1
    }

    pub(super) fn insert(&mut self, name: &str, member: MemberState) -> usize {
        if let Some(place) = self.place(name) {
            self.row[place].1 = member;
            return place;
        }
        let (name, place) = (Arc::<str>::from(name), self.row.len());
        self.row.push((Arc::clone(&name), member));
        self.places.insert(name, place);
        place
    }

    /// In the order of their places.
    pub(super) fn row(&self) -> &[(Arc<str>, MemberState)] {
        &self.row
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &MemberState)> {
        self.row.iter().map(|(name, member)| (&**name, member))
    }

    pub(super) fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = (&str, &mut MemberState)> {
        self.row.iter_mut().map(|(name, member)| (&**name, member))
    }

    pub(super) fn retain(&mut self, mut keeps: impl FnMut(&mut MemberState) -> bool) {
        let before = self.row.len();
        self.row.retain_mut(|(_, member)| keeps(member));
        if self.row.len() < before {
            self.places.clear();
            let places = self.row.iter().enumerate().map(|(place, (name, _))| (Arc::clone(name), place));
            self.places.extend(places);
        }
    }
}
