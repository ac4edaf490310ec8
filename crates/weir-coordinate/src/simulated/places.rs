//! The places of the simulated store: what `places.lua` does in Redis.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use weir_limit::{PlaceName, PlaceSet, Timestamp};
use weir_store::place_command::{NamedHits, PlaceCommand, PlaceOp, PlaceReply};

/// The places of a store. The caller passes the time.
#[derive(Debug, Default)]
pub struct SimulatedPlaces {
    counters: HashMap<Arc<str>, StoredPlaces>,
}

#[derive(Debug, Default)]
struct StoredPlaces {
    places: PlaceSet,
    /// Names that have ended.
    marks: BTreeMap<PlaceName, Mark>,
}

#[derive(Debug)]
struct Mark {
    ended: Timestamp,
    /// Whether the name had a place, or what it had reserved was given up since.
    was_found: bool,
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
        let due = places.give_up(*give_up_after, now, PlaceCommand::MAX_ENDED);
        let mut given_up = due.len();
        let reserving = |names: Vec<NamedHits>| names.into_iter().filter(|(_, hits)| hits.0 > 0);
        let mut given_up_hits: Vec<NamedHits> = reserving(due).collect();
        let (mut taken, mut ended, mut ended_hits) = (0, 0, Vec::new());
        match op {
            PlaceOp::Take { valid_until, .. } if now > *valid_until => {}
            PlaceOp::Take { names, most, .. } => {
                taken = names.iter().take_while(|(name, hits)| places.take(*name, *hits, *most, now)).count();
            }
            PlaceOp::End(names) => {
                marks.retain(|_, mark| mark.counts(now));
                // marked ones first, as in the command
                let (marked, others): (Vec<PlaceName>, Vec<_>) =
                    names.iter().flatten().partition(|name| name.is_without_store());
                for name in marked.into_iter().chain(others) {
                    let found = places.end(name);
                    ended += usize::from(found.is_some());
                    ended_hits
                        .extend(found.filter(|hits| hits.0 > 0).map(|hits| (name.without_flags(), hits)));
                    if name.is_without_store() {
                        // the first end counts
                        marks
                            .entry(name.without_flags())
                            .or_insert(Mark { ended: now, was_found: found.is_some() });
                    }
                }
                let newest: Vec<NamedHits> =
                    names.iter().filter(|name| name.is_none()).map_while(|_| places.end_newest()).collect();
                ended += newest.len();
                for (name, _) in &newest {
                    marks.entry(*name).or_insert(Mark { ended: now, was_found: true });
                }
                ended_hits.extend(newest);
                while marks.len() > PlaceCommand::MAX_MARKS
                    && let Some((oldest, _)) =
                        marks.iter().min_by_key(|(name, mark)| (mark.ended, mark.was_found, **name))
                {
                    let oldest = *oldest;
                    marks.remove(&oldest);
                }
            }
            PlaceOp::Add { names, most } => {
                for (name, hits) in names {
                    let mark = marks.get_mut(&name.without_flags()).filter(|mark| mark.counts(now));
                    let Some(mark) = mark else {
                        places.add(*name, *hits, *give_up_after, now);
                        continue;
                    };
                    // once
                    if hits.0 > 0 && !std::mem::replace(&mut mark.was_found, true) {
                        given_up_hits.push((name.without_flags(), *hits));
                    }
                }
                let beyond = places.give_up_beyond(*most as usize, PlaceCommand::MAX_ENDED);
                given_up += beyond.len();
                given_up_hits.extend(reserving(beyond));
            }
        }
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        PlaceReply {
            now,
            taken: number(taken),
            places: number(places.len()),
            given_up: number(given_up),
            ended: number(ended),
            ended_hits,
            given_up_hits,
        }
    }
}

// === impl Mark ===

impl Mark {
    fn counts(&self, now: Timestamp) -> bool {
        self.ended.after(PlaceCommand::MARKED) > now
    }
}
