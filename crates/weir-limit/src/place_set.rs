//! The places of one counter: the names of its requests in flight. Time is a parameter.

use std::collections::BTreeMap;

use super::{
    place::PlaceName,
    units::{Period, Timestamp},
};

/// The names of a counter's requests in flight, each with its start by the clock of whoever keeps the set.
///
/// [Give up](PlaceSet::give_up) before each other operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaceSet(BTreeMap<PlaceName, Timestamp>);

// === impl PlaceSet ===

impl PlaceSet {
    /// Removes the places that are `give_up_after` old at `now`, and returns their number.
    pub fn give_up(&mut self, give_up_after: Period, now: Timestamp) -> usize {
        let before = self.0.len();
        self.0.retain(|_, start| start.after(give_up_after) > now);
        before - self.0.len()
    }

    /// Inserts `name` at `now` if fewer than `most` places are taken, and returns whether it has a place.
    pub fn take(&mut self, name: PlaceName, most: u32, now: Timestamp) -> bool {
        let name = name.without_flags();
        let fits = self.0.len() < most as usize;
        let has_place = self.0.contains_key(&name);
        if fits && !has_place {
            self.insert(name, now);
        }
        fits || has_place
    }

    /// Removes `name`, and returns whether it had a place.
    pub fn end(&mut self, name: PlaceName) -> bool {
        self.0.remove(&name.without_flags()).is_some()
    }

    /// Inserts `name`, whatever the limit, as of its start, and returns whether it is new. A start ahead of `now` is
    /// `now`; a place that is to be given up at once is none.
    pub fn add(&mut self, name: PlaceName, give_up_after: Period, now: Timestamp) -> bool {
        let (name, start) = (name.without_flags(), name.start().min(now));
        let is_new = start.after(give_up_after) > now && !self.0.contains_key(&name);
        if is_new {
            self.insert(name, start);
        }
        is_new
    }

    /// Returns the number of places.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no place is taken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the names and their starts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (PlaceName, Timestamp)> {
        self.0.iter().map(|(name, start)| (*name, *start))
    }

    /// As names have them, starts are whole milliseconds.
    fn insert(&mut self, name: PlaceName, start: Timestamp) {
        self.0.insert(name, Timestamp::from_millis(start.as_nanos() / 1_000_000));
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const GIVE_UP_AFTER: Period = Period::from_millis(50);

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Take(u64, u32),
        End(u64),
        Add(u64),
    }

    /// Each after some milliseconds; a clock may be set back.
    fn ops() -> impl Strategy<Value = Vec<(i64, i64, Op)>> {
        let op = prop_oneof![
            6 => (0..12_u64, 0..6_u32).prop_map(|(name, most)| Op::Take(name, most)),
            4 => (0..12_u64).prop_map(Op::End),
            2 => (0..12_u64).prop_map(Op::Add),
        ];
        let skew = prop_oneof![4 => Just(0_i64), 1 => -60..60_i64];
        vec((prop_oneof![9 => 0..15_i64, 1 => -80..80_i64], skew, op), 1..80)
    }

    proptest! {
        /// A plain list of names and starts, with the same rules.
        #[test]
        fn it_is_as_a_list_of_names(ops in ops()) {
            let (mut set, mut list) = (PlaceSet::default(), Vec::<(PlaceName, u64)>::new());
            let mut now = 1_000_u64;
            let mut names = [None; 12];
            for (later, skew, op) in ops {
                now = now.saturating_add_signed(later);
                let at = Timestamp::from_millis(now);
                // a name has its start from its first use on
                let mut name = |i: u64| {
                    let start = Timestamp::from_millis(now.saturating_add_signed(skew));
                    *names[usize::try_from(i).expect("few")].get_or_insert(PlaceName::new(start, i, false))
                };
                let before = list.len();
                list.retain(|(_, start)| start + 50 > now);
                prop_assert_eq!(set.give_up(GIVE_UP_AFTER, at), before - list.len());
                let position = |list: &Vec<(PlaceName, u64)>, name| list.iter().position(|(its, _)| *its == name);
                match op {
                    Op::Take(i, most) => {
                        let name = name(i);
                        let is_there = position(&list, name).is_some();
                        let fits = list.len() < most as usize;
                        if fits && !is_there {
                            list.push((name, now));
                        }
                        prop_assert_eq!(set.take(name, most, at), fits || is_there);
                    }
                    Op::End(i) => {
                        let name = name(i);
                        let found = position(&list, name);
                        if let Some(found) = found {
                            list.remove(found);
                        }
                        prop_assert_eq!(set.end(name), found.is_some());
                    }
                    Op::Add(i) => {
                        let name = name(i);
                        let start = (name.start().as_nanos() / 1_000_000).min(now);
                        let is_new = start + 50 > now && position(&list, name).is_none();
                        if is_new {
                            list.push((name, start));
                        }
                        prop_assert_eq!(set.add(name, GIVE_UP_AFTER, at), is_new);
                    }
                }
                list.sort_unstable();
                let kept: Vec<_> = set.iter().map(|(name, start)| (name, start.as_nanos() / 1_000_000)).collect();
                prop_assert_eq!(&kept, &list);
                prop_assert_eq!((set.len(), set.is_empty()), (list.len(), list.is_empty()));
            }
        }
    }

    #[test]
    fn a_name_with_flags_has_the_place_of_the_name_without() {
        let (mut set, now) = (PlaceSet::default(), Timestamp::from_secs(9));
        let name = PlaceName::new(now, 7, false);
        assert!(set.take(name, 1, now) && set.take(name.by_fallback(), 1, now));
        assert!(!set.add(name.by_fallback(), GIVE_UP_AFTER, now));
        assert!(set.end(name.by_fallback()) && !set.end(name));
    }
}
