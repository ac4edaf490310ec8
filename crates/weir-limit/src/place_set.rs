//! The places of one counter: the names of its requests in flight. Time is a parameter.

use std::collections::BTreeMap;

use super::{
    place::PlaceName,
    units::{Hits, Period, Timestamp},
};

/// The names of a counter's requests in flight, each with its start by the clock of whoever keeps the set, and the hits
/// that the request has reserved.
///
/// [Give up](PlaceSet::give_up) before each other operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaceSet(BTreeMap<PlaceName, (Timestamp, Hits)>);

// === impl PlaceSet ===

impl PlaceSet {
    /// Removes places that are `give_up_after` old at `now`, and returns them. If any place reserves hits, these are the
    /// oldest `most`, since each is told to somebody.
    pub fn give_up(&mut self, give_up_after: Period, now: Timestamp, most: usize) -> Vec<(PlaceName, Hits)> {
        let reserves = self.0.values().any(|(_, hits)| hits.0 > 0);
        let due = |(_, start): &(PlaceName, Timestamp)| start.after(give_up_after) <= now;
        let due = self.by_age().into_iter().filter(due).take(if reserves { most } else { usize::MAX });
        due.filter_map(|(name, _)| Some((name, self.end(name)?))).collect()
    }

    /// Removes the oldest places beyond `places`, up to `most`, and returns them.
    pub fn give_up_beyond(&mut self, places: usize, most: usize) -> Vec<(PlaceName, Hits)> {
        let beyond = self.by_age().into_iter().take(self.len().saturating_sub(places).min(most));
        beyond.filter_map(|(name, _)| Some((name, self.end(name)?))).collect()
    }

    /// Inserts `name` at `now` if fewer than `most` places are taken, and returns whether it has a place.
    pub fn take(&mut self, name: PlaceName, hits: Hits, most: u32, now: Timestamp) -> bool {
        let name = name.without_flags();
        let fits = self.0.len() < most as usize;
        let has_place = self.0.contains_key(&name);
        if fits && !has_place {
            self.insert(name, hits, now);
        }
        fits || has_place
    }

    /// Removes `name`, and returns what it had reserved, if it had a place.
    pub fn end(&mut self, name: PlaceName) -> Option<Hits> {
        self.0.remove(&name.without_flags()).map(|(_, hits)| hits)
    }

    /// Removes the newest place, and returns what it had reserved.
    pub fn end_newest(&mut self) -> Option<(PlaceName, Hits)> {
        let (name, _) = self.by_age().pop()?;
        Some((name, self.end(name)?))
    }

    /// Inserts `name`, whatever the limit, as of its start, and returns whether it is new. A start ahead of `now` is
    /// `now`; a place that is to be given up at once is none.
    pub fn add(&mut self, name: PlaceName, hits: Hits, give_up_after: Period, now: Timestamp) -> bool {
        let (name, start) = (name.without_flags(), name.start().min(now));
        let is_new = start.after(give_up_after) > now && !self.0.contains_key(&name);
        if is_new {
            self.insert(name, hits, start);
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
        self.0.iter().map(|(name, (start, _))| (*name, *start))
    }

    /// As names have them, starts are whole milliseconds.
    fn insert(&mut self, name: PlaceName, hits: Hits, start: Timestamp) {
        self.0.insert(name, (Timestamp::from_millis(start.as_nanos() / 1_000_000), hits));
    }

    fn by_age(&self) -> Vec<(PlaceName, Timestamp)> {
        let mut all: Vec<_> = self.iter().collect();
        all.sort_unstable_by_key(|(name, start)| (*start, *name));
        all
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
        EndNewest,
        Add(u64),
        GiveUpBeyond(usize),
    }

    /// Each after some milliseconds; a clock may be set back.
    fn ops() -> impl Strategy<Value = Vec<(i64, i64, Op)>> {
        let op = prop_oneof![
            6 => (0..12_u64, 0..6_u32).prop_map(|(name, most)| Op::Take(name, most)),
            4 => (0..12_u64).prop_map(Op::End),
            1 => Just(Op::EndNewest),
            2 => (0..12_u64).prop_map(Op::Add),
            1 => (0..6_usize).prop_map(Op::GiveUpBeyond),
        ];
        let skew = prop_oneof![4 => Just(0_i64), 1 => -60..60_i64];
        vec((prop_oneof![9 => 0..15_i64, 1 => -80..80_i64], skew, op), 1..80)
    }

    proptest! {
        /// A plain list of starts and names, with the same rules.
        #[test]
        fn it_is_as_a_list_of_names(ops in ops()) {
            let (mut set, mut list) = (PlaceSet::default(), Vec::<(u64, PlaceName)>::new());
            let mut now = 1_000_u64;
            let mut names = [None; 12];
            let hits = |name: PlaceName| Hits(name.serial() % 3);
            for (later, skew, op) in ops {
                now = now.saturating_add_signed(later);
                let at = Timestamp::from_millis(now);
                // a name has its start from its first use on
                let mut name = |i: u64| {
                    let start = Timestamp::from_millis(now.saturating_add_signed(skew));
                    *names[usize::try_from(i).expect("few")].get_or_insert(PlaceName::new(start, i, false))
                };
                let told = |given_up: Vec<(u64, PlaceName)>| -> Vec<_> {
                    given_up.into_iter().map(|(_, name)| (name, hits(name))).collect()
                };
                list.sort_unstable();
                let reserves = list.iter().any(|(_, name)| hits(*name).0 > 0);
                let due = list.partition_point(|(start, _)| start + 50 <= now);
                let due = list.drain(..if reserves { due.min(2) } else { due }).collect();
                prop_assert_eq!(set.give_up(GIVE_UP_AFTER, at, 2), told(due));
                let position = |list: &Vec<(u64, PlaceName)>, name| list.iter().position(|(_, its)| *its == name);
                match op {
                    Op::Take(i, most) => {
                        let name = name(i);
                        let is_there = position(&list, name).is_some();
                        let fits = list.len() < most as usize;
                        if fits && !is_there {
                            list.push((now, name));
                        }
                        prop_assert_eq!(set.take(name, hits(name), most, at), fits || is_there);
                    }
                    Op::End(i) => {
                        let name = name(i);
                        let found = position(&list, name).map(|found| list.remove(found));
                        prop_assert_eq!(set.end(name), found.map(|_| hits(name)));
                    }
                    Op::EndNewest => {
                        let newest = list.pop().map(|(_, name)| (name, hits(name)));
                        prop_assert_eq!(set.end_newest(), newest);
                    }
                    Op::Add(i) => {
                        let name = name(i);
                        let start = (name.start().as_nanos() / 1_000_000).min(now);
                        let is_new = start + 50 > now && position(&list, name).is_none();
                        if is_new {
                            list.push((start, name));
                        }
                        prop_assert_eq!(set.add(name, hits(name), GIVE_UP_AFTER, at), is_new);
                    }
                    Op::GiveUpBeyond(places) => {
                        let beyond = list.len().saturating_sub(places).min(2);
                        prop_assert_eq!(set.give_up_beyond(places, 2), told(list.drain(..beyond).collect()));
                    }
                }
                let mut kept: Vec<_> = set.iter().map(|(name, start)| (start.as_nanos() / 1_000_000, name)).collect();
                kept.sort_unstable();
                list.sort_unstable();
                prop_assert_eq!(&kept, &list);
                prop_assert_eq!((set.len(), set.is_empty()), (list.len(), list.is_empty()));
            }
        }
    }

    #[test]
    fn a_name_with_flags_has_the_place_of_the_name_without() {
        let (mut set, now, none) = (PlaceSet::default(), Timestamp::from_secs(9), Hits(0));
        let name = PlaceName::new(now, 7, false);
        assert!(set.take(name, none, 1, now) && set.take(name.by_fallback(), none, 1, now));
        assert!(!set.add(name.by_fallback(), none, GIVE_UP_AFTER, now));
        assert!(set.end(name.by_fallback()).is_some() && set.end(name).is_none());
    }
}
