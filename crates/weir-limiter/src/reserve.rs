//! Hits that requests reserve when they begin, for costs that are known at their ends: ordinary hits, which a place
//! remembers. What a request has reserved is corrected once, by whoever takes its place out of the table.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::{LimitError, Limiter, LoadedRules};
use weir_limit::{
    Coordination, CostEstimate, CounterKey, Direction, Hits, Matched, Period, PlaceAsk, PlaceCheck, Reserve,
    ReserveAmount, ReservedHits, ReservedSpan, Timestamp, line::Unused,
};
use weir_observe::ReserveStats;
use weir_store::{EndedPlace, Store};

/// So that few requests wait for each other.
const SHARDS: usize = 64;

/// The most counters of a shard whose costs are known. Beyond, new ones have the estimate of their rule.
const MAX_COUNTERS: usize = 1_024;

/// A counter's costs are forgotten so long after the last one.
const FORGET_AFTER: Period = Period::from_secs(3_600);

/// What the requests of counters cost, as far as this instance has heard of it.
#[derive(Debug)]
pub(super) struct CostTable {
    shards: Box<[Mutex<CostShard>]>,
}

#[derive(Debug, Default)]
struct CostShard {
    counters: HashMap<CounterKey, KnownCost>,
    /// When a full shard was searched for what can be forgotten.
    searched: Timestamp,
}

#[derive(Debug)]
struct KnownCost {
    estimate: CostEstimate,
    at: Timestamp,
}

// === impl CostTable ===

impl Default for CostTable {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl CostTable {
    fn get(&self, key: CounterKey, now: Timestamp) -> Option<CostEstimate> {
        let shard = self.shard(key).lock();
        let known = shard.counters.get(&key).filter(|known| now.since(known.at) < FORGET_AFTER);
        known.map(|known| known.estimate)
    }

    fn change(&self, key: CounterKey, now: Timestamp, change: impl FnOnce(&mut CostEstimate)) {
        let mut shard = self.shard(key).lock();
        let CostShard { counters, searched } = &mut *shard;
        if counters.len() >= MAX_COUNTERS && !counters.contains_key(&key) {
            // a flood of counters searches once a minute
            if now.since(*searched) < Period::from_secs(60) {
                return;
            }
            *searched = now;
            counters.retain(|_, known| now.since(known.at) < FORGET_AFTER);
            if counters.len() >= MAX_COUNTERS {
                return;
            }
        }
        let known =
            counters.entry(key).or_insert_with(|| KnownCost { estimate: CostEstimate::default(), at: now });
        if now.since(known.at) >= FORGET_AFTER {
            known.estimate = CostEstimate::default();
        }
        known.at = now;
        change(&mut known.estimate);
    }

    #[expect(clippy::cast_possible_truncation, reason = "any of its bits are suitable")]
    fn shard(&self, key: CounterKey) -> &Mutex<CostShard> {
        &self.shards[key.shard() as usize % SHARDS]
    }
}

// === impl Limiter ===

impl<S: Store> Limiter<S> {
    /// Adds to each check of a request that begins what it reserves, and to each cost what it has beyond that.
    pub(super) async fn add_reserved(
        &self,
        loaded: &LoadedRules,
        matched: &mut Matched<'_>,
        now: Timestamp,
    ) -> Result<(), LimitError> {
        for place in 0..matched.places.len() {
            let (descriptor, check) = matched.places[place];
            if matches!(check.ask, PlaceAsk::Take | PlaceAsk::Close) {
                self.return_given_up(loaded, &check, now).await;
            }
            if let (PlaceAsk::Take, Some(reserve), Some(i)) =
                (check.ask, check.rule.reserve(), matched.matches[descriptor].check())
            {
                let own = matched.checks[i].hits;
                let reserved = self.reserved(loaded, &check, reserve, now).min(self.most(&check).minus(own));
                if reserved > Hits(0) {
                    matched.places[place].1.reserved = reserved;
                    matched.checks[i].direction = Direction::Take;
                    matched.checks[i].hits = own.plus(reserved);
                }
            }
        }
        let costs = matched.places.iter().filter(|(_, place)| place.ask == PlaceAsk::Close);
        let costs =
            costs.filter_map(|(descriptor, place)| Some((matched.matches[*descriptor].check()?, place)));
        let costs: Vec<(usize, &PlaceCheck<'_>)> = costs.collect();
        let closed = costs.iter().map(|(_, check)| {
            let stats = loaded.places(check);
            EndedPlace { check, stats, name: None, awaits: true, is_undone: false }
        });
        let closed: Vec<EndedPlace<'_>> = closed.collect();
        let returned = self.store.end_places(&closed, now).await?;
        let mut beyond: Vec<(usize, Hits)> = Vec::new();
        for ((i, place), returned) in costs.iter().zip(returned) {
            let cost = Some(matched.checks[*i].hits);
            beyond.push((*i, self.settle(loaded, place, cost, returned, now).await));
        }
        for (i, hits) in beyond {
            matched.checks[i].hits = hits;
        }
        let asks = |place: &PlaceCheck<'_>| place.is_limited() || place.reserved > Hits(0);
        matched.places.retain(|(_, place)| asks(place));
        Ok(())
    }

    /// Returns what a request of this counter reserves, if there is room for it.
    fn reserved(
        &self,
        loaded: &LoadedRules,
        place: &PlaceCheck<'_>,
        reserve: Reserve,
        now: Timestamp,
    ) -> Hits {
        let rule = CostEstimate::of_bits(reserve_stats(loaded, place).learned());
        if reserve.awaits_cost && !rule.has_costs() {
            return Hits(0);
        }
        match reserve.amount {
            ReserveAmount::Hits(hits) => hits,
            ReserveAmount::Auto => CostEstimate::hits(self.costs.get(place.key, now), rule, limit(place)),
        }
    }

    /// The smallest limit. Of a limit that instances split, each has a part.
    fn most(&self, place: &PlaceCheck<'_>) -> Hits {
        let shared = self.store.shared_counts();
        let is_split = shared.mode_now(&place.rule.rule) == Some(Coordination::Split);
        let instances = shared.instances.filter(|_| is_split).unwrap_or(1);
        Hits(limit(place).0 / instances.max(1) as u64)
    }

    /// Returns the hits of a `cost` beyond what its request has reserved, and gives back what that has not used. Without
    /// a cost, that is all.
    pub(super) async fn settle(
        &self,
        loaded: &LoadedRules,
        place: &PlaceCheck<'_>,
        cost: Option<Hits>,
        returned: Option<ReservedHits>,
        now: Timestamp,
    ) -> Hits {
        let used = cost.unwrap_or_default();
        if let Some(reserve) = place.rule.reserve() {
            let stats = reserve_stats(loaded, place);
            stats.settle(cost.map(|cost| cost.0), returned.map(|returned| returned.hits.0));
            if let Some(cost) = cost {
                let limit = limit(place);
                self.learn(stats, place, reserve, now, |estimate| {
                    estimate.add_cost(cost, limit);
                    if returned.is_some() {
                        estimate.add_end(false);
                    }
                });
            }
        }
        let Some(reserved) = returned else { return used };
        let unused = reserved.hits.minus(used);
        self.release_reserved(loaded, place, Some(ReservedHits { hits: unused, ..reserved }), now).await;
        used.minus(reserved.hits)
    }

    /// Gives back what requests of this counter have reserved that were given up.
    pub(super) async fn return_given_up(&self, loaded: &LoadedRules, place: &PlaceCheck<'_>, now: Timestamp) {
        let Some(reserve) = place.rule.reserve() else { return };
        for reserved in self.store.given_up(place, loaded.places(place), now) {
            let stats = reserve_stats(loaded, place);
            stats.give_up();
            self.learn(stats, place, reserve, now, |estimate| estimate.add_end(true));
            self.release_reserved(loaded, place, Some(reserved), now).await;
        }
    }

    /// Gives hits back to the windows in which they were counted, as far as these are open.
    pub(super) async fn release_reserved(
        &self,
        loaded: &LoadedRules,
        place: &PlaceCheck<'_>,
        reserved: Option<ReservedHits>,
        now: Timestamp,
    ) {
        if let Some(ReservedHits { hits, start }) = reserved
            && hits > Hits(0)
            && !place.rule.rule.tiers().is_empty()
        {
            reserve_stats(loaded, place).give_back(hits.0);
            let span = ReservedSpan { from: start, until: start, is_reported: true };
            self.give_back_unused(&place.as_cost(Hits(0)), Unused { hits, span }, now).await;
        }
    }

    fn learn(
        &self,
        stats: &ReserveStats,
        place: &PlaceCheck<'_>,
        reserve: Reserve,
        now: Timestamp,
        add: impl Fn(&mut CostEstimate),
    ) {
        let learned = stats.learn(|bits| {
            let mut estimate = CostEstimate::of_bits(bits);
            add(&mut estimate);
            estimate.bits()
        });
        if reserve.amount == ReserveAmount::Auto {
            self.costs.change(place.key, now, add);
            stats.show(CostEstimate::hits(None, CostEstimate::of_bits(learned), limit(place)).0);
        }
    }
}

fn reserve_stats<'l>(loaded: &'l LoadedRules, place: &PlaceCheck<'_>) -> &'l ReserveStats {
    loaded.places(place).reserve()
}

fn limit(place: &PlaceCheck<'_>) -> Hits {
    Hits(place.rule.rule.limit.capacity())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_limit::{Entry, KeyHasher};

    #[test]
    fn the_costs_of_many_counters_are_bounded_and_forgotten() {
        let (table, hasher) = (CostTable::default(), KeyHasher::with_secret([1, 2]));
        let key = |i: usize| hasher.key("d", &[Entry { key: "k", value: &i.to_string() }], |_| None);
        let len = || table.shards.iter().map(|shard| shard.lock().counters.len()).sum::<usize>();
        let add = |i: usize, at| table.change(key(i), at, |cost| cost.add_cost(Hits(7), Hits(1_000)));
        let begun = Timestamp::from_secs(1_000);
        (0..200_000).for_each(|i| add(i, begun));
        assert_eq!((len(), table.get(key(0), begun).is_some()), (SHARDS * MAX_COUNTERS, true));
        assert_eq!(table.get(key(199_999), begun), None, "its rule's applies");
        let later = begun.after(FORGET_AFTER);
        assert_eq!(table.get(key(0), later), None);
        add(199_999, later);
        assert!(table.get(key(199_999), later).is_some() && len() < SHARDS * MAX_COUNTERS);
    }
}
