//! What an instance knows of the places of one counter, without I/O and clock, and how it decides without the store.
//!
//! Every instance counts the requests that the fallback admits, and their ends, wherever those arrive. So a count may be
//! below zero, and the sum of all counts is exact.

use std::{collections::BTreeMap, sync::Arc};

use weir_limit::{CounterKey, Hits, InFlight, OnStoreFailure, PlaceName, ReservedHits, Timestamp};
use weir_observe::PlaceStats;
use weir_store::{
    clock::STEP,
    place_command::{NamedHits, PlaceCommand, PlaceOp, PlaceReply},
    remote::Target,
};

/// The starts of hits that were given up that a counter keeps. Beyond that, neighbours have the start of the earlier one:
/// hits may stay counted, and none is given back to a window that has not counted it.
const MAX_GIVEN_UP: usize = 256;

/// A counter, as commands name it.
#[derive(Debug)]
pub(super) struct PlaceCounter {
    pub(super) key: CounterKey,
    pub(super) path: Arc<str>,
    /// Whose node keeps the places.
    pub(super) target: Arc<Target>,
    pub(super) limit: InFlight,
    /// Where it is counted what becomes of places.
    pub(super) stats: Arc<PlaceStats>,
}

#[derive(Debug)]
pub(super) struct LocalPlaces {
    /// With the limit of the last operation.
    pub(super) counter: Arc<PlaceCounter>,
    /// The last reply: its places, and its time.
    known: u32,
    heard: Timestamp,
    /// The requests that have ended here since the last reply, of those that the store has admitted.
    ended: u32,
    /// The requests that the fallback has admitted here, less those that have ended here.
    count: i64,
    counted: Timestamp,
    /// Admitted here without the store, and not added there yet.
    untold: BTreeMap<PlaceName, UntoldPlace>,
    /// Whether they will be added, or the store is asked what it has given up.
    pub(super) is_queued: bool,
    /// The hits that requests had reserved that were given up, by their starts.
    given_up: BTreeMap<Timestamp, Hits>,
}

/// A request without limit, or that the fallback has admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UntoldPlace {
    /// What it has reserved.
    pub(super) hits: Hits,
    /// The calls that may have told the store of it. Without any, it ends here.
    pub(super) calls: u32,
    /// Whether it has ended, and calls are on their way that have told the store of it, or failed.
    pub(super) has_ended: bool,
}

/// The answer to one that asks for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlaceOutcome {
    pub(super) has_place: bool,
    /// The places of others.
    pub(super) before: u32,
}

// === impl PlaceCounter ===

impl PlaceCounter {
    /// Returns whether its places only remember what requests have reserved.
    pub(super) const fn is_unlimited(&self) -> bool {
        !self.limit.is_limited()
    }

    /// Returns the command that tells the store of `names`.
    pub(super) fn add(&self, names: Vec<NamedHits>) -> PlaceCommand {
        let most = if self.is_unlimited() { PlaceCommand::MAX_RESERVING } else { InFlight::UNLIMITED };
        self.command(PlaceOp::Add { names, most })
    }

    pub(super) fn command(&self, op: PlaceOp) -> PlaceCommand {
        PlaceCommand { path: Arc::clone(&self.path), give_up_after: self.limit.give_up_after, op }
    }

    #[cfg(test)]
    pub(super) fn of(key: CounterKey, limit: InFlight) -> Arc<Self> {
        let tiers = [weir_limit::Tier::fixed_window(1, weir_limit::Period::from_secs(60))].into();
        let over_limit_policy = weir_limit::OverLimitPolicy::Ignore;
        let target = Arc::new(Target { path: "p".into(), tiers, over_limit_policy });
        let stats = Arc::clone(weir_observe::Stats::default().rule(&["d".into(), "k".into()]).places());
        Arc::new(Self { key, path: "p".into(), target, limit, stats })
    }
}

// === impl UntoldPlace ===

impl UntoldPlace {
    pub(super) const fn new(hits: Hits, calls: u32) -> Self {
        Self { hits, calls, has_ended: false }
    }
}

// === impl LocalPlaces ===

impl LocalPlaces {
    pub(super) fn new(counter: Arc<PlaceCounter>) -> Self {
        Self {
            counter,
            known: 0,
            heard: Timestamp::default(),
            ended: 0,
            count: 0,
            counted: Timestamp::default(),
            untold: BTreeMap::new(),
            is_queued: false,
            given_up: BTreeMap::new(),
        }
    }

    /// Returns the counter, with this limit and these stats from now on.
    pub(super) fn follow(&mut self, limit: InFlight, stats: &Arc<PlaceStats>) -> Arc<PlaceCounter> {
        if self.counter.limit != limit || !Arc::ptr_eq(&self.counter.stats, stats) {
            let PlaceCounter { key, path, target, .. } = &*self.counter;
            let (key, path, target) = (*key, Arc::clone(path), Arc::clone(target));
            self.counter = Arc::new(PlaceCounter { key, path, target, limit, stats: Arc::clone(stats) });
        }
        Arc::clone(&self.counter)
    }

    /// Replies may arrive in another order, and the store's clock may be set back.
    pub(super) fn hear(&mut self, reply: &PlaceReply) {
        self.counter.stats.give_up(reply.given_up.into());
        if reply.now >= self.heard || self.heard.since(reply.now) >= STEP {
            (self.known, self.heard, self.ended) = (reply.places, reply.now, 0);
        }
        self.give_up(&reply.given_up_hits);
    }

    /// Keeps hits until they are [returned](LocalPlaces::given_up).
    pub(super) fn give_up(&mut self, names: &[NamedHits]) {
        for (name, hits) in names.iter().filter(|(_, hits)| hits.0 > 0) {
            let kept = self.given_up.entry(name.start()).or_default();
            *kept = kept.plus(*hits);
        }
        while self.given_up.len() > MAX_GIVEN_UP {
            let all: Vec<_> = std::mem::take(&mut self.given_up).into_iter().collect();
            let sum =
                |pair: &[(Timestamp, Hits)]| pair.iter().fold(Hits(0), |sum, (_, hits)| sum.plus(*hits));
            self.given_up = all.chunks(2).map(|pair| (pair[0].0, sum(pair))).collect();
        }
    }

    /// Returns the hits that were given up since the last call, and, if this `asks` the store, whether it must be asked for
    /// more, since it is [silent](LocalPlaces::is_silent).
    pub(super) fn given_up(&mut self, asks: bool, now: Timestamp) -> (Vec<ReservedHits>, bool) {
        self.forget_untold(now);
        let asks = asks && self.is_silent(now) && !std::mem::replace(&mut self.is_queued, true);
        let given_up = std::mem::take(&mut self.given_up).into_iter();
        (given_up.map(|(start, hits)| ReservedHits { hits, start }).collect(), asks)
    }

    /// Returns whether the store may have given up all that it had at the last reply.
    pub(super) fn is_silent(&self, now: Timestamp) -> bool {
        self.heard.after(self.counter.limit.give_up_after) <= now
    }

    /// Begins a request that needs no admission. Without room, the oldest one is given up.
    pub(super) fn open(&mut self, (name, has_room): (PlaceName, bool), place: UntoldPlace) {
        self.untold.insert(name.without_flags(), place);
        if !has_room && let Some((name, place)) = self.untold.pop_first() {
            // most likely it has ended elsewhere, if the store may know of it
            self.give_up_untold(name, place);
        }
    }

    fn give_up_untold(&mut self, name: PlaceName, UntoldPlace { hits, calls, .. }: UntoldPlace) {
        if calls == 0 {
            self.give_up(&[(name, hits)]);
        }
    }

    /// Gives up the names that the store would give up at once.
    fn forget_untold(&mut self, now: Timestamp) {
        let age = self.counter.limit.give_up_after;
        while let Some((name, place)) = self.untold.first_key_value().map(|(name, place)| (*name, *place))
            && name.start().after(age) <= now
        {
            self.untold.remove(&name);
            self.give_up_untold(name, place);
        }
    }

    /// Decides without the store. Without a name nothing is taken; without room, the oldest one will not be added at the
    /// store.
    pub(super) fn decide(
        &mut self,
        (name, has_room): (Option<PlaceName>, bool),
        place: UntoldPlace,
        policy: OnStoreFailure,
        instances: usize,
        now: Timestamp,
    ) -> PlaceOutcome {
        let InFlight { most, give_up_after } = self.counter.limit;
        self.forget(now);
        let instances = i64::try_from(instances).unwrap_or(i64::MAX);
        let known = if self.heard.after(give_up_after) > now { self.known } else { 0 };
        // each has seen as many ends as others
        let known = i64::from(known).saturating_sub(instances.saturating_mul(self.ended.into())).max(0);
        let with = |count: i64| known.saturating_add(count.saturating_mul(instances));
        let has_place = match policy {
            OnStoreFailure::Local => with(self.count + 1) <= most.into(),
            OnStoreFailure::Allow => true,
            OnStoreFailure::Deny => false,
        };
        let before = u32::try_from(with(self.count).max(0)).unwrap_or(u32::MAX);
        if let Some(name) = name.filter(|_| has_place) {
            self.count += 1;
            self.counted = now;
            self.open((name, has_room), place);
        }
        PlaceOutcome { has_place, before }
    }

    /// Counts a request whose name has the flag of the fallback, although the store has admitted it here.
    pub(super) fn count_flagged(&mut self, now: Timestamp) {
        self.forget(now);
        self.count += 1;
        self.counted = now;
    }

    /// Counts the end of a request, unless it was counted before. Returns what it has reserved if the store cannot know of
    /// it.
    pub(super) fn end(&mut self, name: PlaceName, is_first: bool, now: Timestamp) -> Option<Hits> {
        let InFlight { most, give_up_after } = self.counter.limit;
        self.forget_untold(now);
        let ended = match self.untold.get_mut(&name.without_flags()) {
            Some(place) if place.calls > 0 => {
                place.has_ended = true;
                None
            }
            _ => self.untold.remove(&name.without_flags()),
        };
        if !name.is_without_store() {
            self.ended = self.ended.saturating_add(is_first.into());
        } else if is_first && name.start().after(give_up_after) > now {
            self.forget(now);
            self.count = (self.count - 1).max(-i64::from(most));
            self.counted = now;
        }
        ended.map(|place| place.hits)
    }

    /// Ends the newest request of those that the store cannot know: those that it does are older.
    pub(super) fn end_newest(&mut self, now: Timestamp) -> Option<NamedHits> {
        self.forget_untold(now);
        let (name, hits) = self
            .untold
            .iter()
            .rev()
            .find(|(_, place)| place.calls == 0)
            .map(|(name, place)| (*name, place.hits))?;
        self.untold.remove(&name);
        Some((name, hits))
    }

    /// The store has the place of `name`.
    pub(super) fn told(&mut self, name: PlaceName) {
        self.untold.remove(&name.without_flags());
    }

    /// A call with `name` has failed, and definitely told the store nothing unless it `is_unknown`.
    pub(super) fn not_told(&mut self, name: PlaceName, is_unknown: bool) {
        let name = name.without_flags();
        let Some(place) = self.untold.get_mut(&name) else { return };
        place.calls -= u32::from(!is_unknown && place.calls > 0);
        let place = *place;
        if place.has_ended && (is_unknown || place.calls == 0) {
            self.untold.remove(&name);
            self.give_up_untold(name, place);
        }
    }

    /// Returns up to `most` names to be added at the store, by a call that leaves now.
    pub(super) fn untold(&mut self, most: usize, now: Timestamp) -> Vec<NamedHits> {
        self.forget_untold(now);
        let tell = |(name, place): (&PlaceName, &mut UntoldPlace)| {
            place.calls = place.calls.saturating_add(1);
            (*name, place.hits)
        };
        self.untold.iter_mut().filter(|(_, place)| !place.has_ended).take(most).map(tell).collect()
    }

    /// Returns whether the counter must be queued, so that its names are told.
    pub(super) fn begin_telling(&mut self) -> bool {
        !self.untold.is_empty() && !std::mem::replace(&mut self.is_queued, true)
    }

    /// Returns the places that are known.
    pub(super) fn places(&self) -> u32 {
        u32::try_from(self.untold.len()).unwrap_or(u32::MAX).saturating_add(self.known)
    }

    pub(super) fn untold_names(&self) -> usize {
        self.untold.len()
    }

    /// Returns whether it is as a new one.
    pub(super) fn is_idle(&mut self, now: Timestamp) -> bool {
        self.forget(now);
        let is_known = self.known > 0 && self.heard.after(self.counter.limit.give_up_after) > now;
        !is_known && self.count == 0 && self.untold.is_empty() && !self.is_queued && self.given_up.is_empty()
    }

    /// Others may have heard of the ends of what was counted so long ago.
    fn forget(&mut self, now: Timestamp) {
        if self.counted.after(self.counter.limit.give_up_after) <= now {
            self.count = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_limit::Period;

    const LIMIT: InFlight = InFlight { most: 12, give_up_after: Period::from_secs(10) };

    const PLAIN: UntoldPlace = UntoldPlace::new(Hits(0), 0);

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(1_000_000 + millis)
    }

    fn name(millis: u64, serial: u64) -> PlaceName {
        PlaceName::new(at(millis), serial, true)
    }

    fn places() -> LocalPlaces {
        LocalPlaces::new(PlaceCounter::of(CounterKey::default(), LIMIT))
    }

    /// Asks until there is no place. Returns the admitted names.
    fn fill(places: &mut LocalPlaces, instances: usize, millis: u64) -> Vec<PlaceName> {
        let admitted = |i: &u64| {
            let asked = (Some(name(millis, millis * 100 + i)), true);
            places.decide(asked, PLAIN, OnStoreFailure::Local, instances, at(millis)).has_place
        };
        (0..999).take_while(admitted).map(|i| name(millis, millis * 100 + i)).collect()
    }

    #[test]
    fn instances_share_what_the_store_has_left() {
        let mut places = places();
        assert_eq!(fill(&mut places, 3, 0).len(), 4);
        let mut places = self::places();
        places.hear(&PlaceReply { now: at(0), places: 7, ..PlaceReply::default() });
        assert_eq!(fill(&mut places, 3, 1).len(), 1, "each of three, beside seven");
        // an older reply says nothing
        let before = Timestamp::from_nanos(at(0).as_nanos() - 1);
        places.hear(&PlaceReply { now: before, places: 0, ..PlaceReply::default() });
        assert_eq!(fill(&mut places, 3, 2).len(), 0);
        // one that the store has admitted ends here, and as many at the others
        places.end(PlaceName::new(at(0), 9, false), true, at(3));
        assert_eq!(fill(&mut places, 3, 3).len(), 1);
        // those that the store has admitted are forgotten
        assert_eq!(fill(&mut places, 3, 10_002).len(), 2);
        // the clock was set back
        let mut places = self::places();
        places.hear(&PlaceReply { now: at(2_000), places: 12, ..PlaceReply::default() });
        places.hear(&PlaceReply { now: at(0), places: 6, ..PlaceReply::default() });
        assert_eq!(fill(&mut places, 3, 1).len(), 2);
    }

    #[test]
    fn ends_count_where_they_arrive_also_below_zero() {
        let (mut one, mut other) = (places(), places());
        let admitted = fill(&mut one, 2, 0);
        assert_eq!(admitted.len(), 6);
        for name in &admitted {
            other.end(*name, true, at(1));
            other.end(*name, false, at(1));
        }
        assert_eq!((fill(&mut one, 2, 2).len(), fill(&mut other, 2, 2).len()), (0, 12));
        // no more than the limit
        let mut third = places();
        for i in 0..99 {
            third.end(name(0, i), true, at(1));
        }
        assert_eq!(fill(&mut third, 1, 2).len(), 24);
        // one that was given up counts nothing, nor does one that the store has admitted
        third.end(name(0, 200), true, at(10_000));
        third.end(PlaceName::new(at(9_000), 201, false), true, at(10_000));
        assert_eq!(fill(&mut third, 1, 10_001).len(), 0);
        // after the age all is forgotten
        assert_eq!(fill(&mut third, 1, 20_002).len(), 12);
    }

    #[test]
    fn what_has_not_ended_here_is_told_to_the_store() {
        let mut places = places();
        let admitted = fill(&mut places, 1, 0);
        places.end(admitted[0], true, at(1));
        places.told(admitted[1]);
        assert_eq!(places.untold(100, at(2)).len(), 10);
        assert_eq!(places.untold(100, at(2))[0].0, admitted[2].without_flags());
        assert_eq!(places.untold(100, at(10_000)).len(), 0, "they are given up");
        // without room, the newest ones
        for i in 0..99 {
            places.decide((Some(name(20_000, i)), i < 12), PLAIN, OnStoreFailure::Allow, 1, at(20_000));
        }
        assert_eq!(places.untold(100, at(20_000)).len(), 12);
        assert_eq!(places.untold(1, at(20_000)), [(name(20_000, 87).without_flags(), Hits(0))]);
    }

    #[test]
    fn other_policies_admit_all_or_none() {
        let mut places = places();
        let asks = |places: &mut LocalPlaces, policy| {
            (0..99)
                .filter(|i| places.decide((Some(name(0, *i)), true), PLAIN, policy, 2, at(0)).has_place)
                .count()
        };
        assert_eq!(asks(&mut places, OnStoreFailure::Deny), 0);
        assert_eq!(asks(&mut places, OnStoreFailure::Allow), 99);
        // a look takes nothing
        let looked = self::places().decide((None, true), PLAIN, OnStoreFailure::Local, 2, at(0));
        assert_eq!(looked, PlaceOutcome { has_place: true, before: 0 });
    }
}
