//! The places of the simulated store: what `places.lua` does in Redis.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use weir_limit::{PlaceName, PlaceSet, Timestamp};
use weir_store::place_command::{PlaceCommand, PlaceOp, PlaceReply};

/// The places of a store. The caller passes the time.
#[derive(Debug, Default)]
pub struct SimulatedPlaces {
    counters: HashMap<Arc<str>, StoredPlaces>,
}

#[derive(Debug, Default)]
struct StoredPlaces {
    places: PlaceSet,
    /// When each of these names has ended.
    marks: BTreeMap<PlaceName, Timestamp>,
}

// === impl SimulatedPlaces ===

impl SimulatedPlaces {
    /// Removes all places.
    pub fn clear(&mut self) {
        self.counters.clear();
    }

    /// Returns the places that are kept for `path`.
    #[must_use]
    pub fn of(&self, path: &str) -> PlaceSet {
        self.counters.get(path).map(|stored| stored.places.clone()).unwrap_or_default()
    }

    /// Carries out `command` at `now`.
    pub fn execute(&mut self, command: &PlaceCommand, now: Timestamp) -> PlaceReply {
        let PlaceCommand { path, give_up_after, op } = command;
        let StoredPlaces { places, marks } = self.counters.entry(Arc::clone(path)).or_default();
        let given_up = places.give_up(*give_up_after, now);
        let (mut taken, mut ended) = (0, 0);
        match op {
            PlaceOp::Take { valid_until, .. } if now > *valid_until => {}
            PlaceOp::Take { names, most, .. } => {
                taken = names.iter().take_while(|name| places.take(**name, *most, now)).count();
            }
            PlaceOp::End(names) => {
                ended = names.iter().filter(|name| places.end(**name)).count();
                marks.retain(|_, marked| marked.after(PlaceCommand::MARKED) > now);
                let without_store = names.iter().filter(|name| name.is_without_store());
                marks.extend(without_store.map(|name| (name.without_flags(), now)));
                while marks.len() > PlaceCommand::MAX_MARKS
                    && let Some((oldest, _)) = marks.iter().min_by_key(|(name, marked)| (**marked, **name))
                {
                    let oldest = *oldest;
                    marks.remove(&oldest);
                }
            }
            PlaceOp::Add(names) => {
                for name in names {
                    let marked = marks.get(&name.without_flags());
                    if marked.is_none_or(|marked| marked.after(PlaceCommand::MARKED) <= now) {
                        places.add(*name, *give_up_after, now);
                    }
                }
            }
        }
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        PlaceReply {
            now,
            taken: number(taken),
            places: number(places.len()),
            given_up: number(given_up),
            ended: number(ended),
        }
    }
}
