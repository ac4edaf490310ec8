//! Decisions about members of a pool, which also count in tiers of their own.

use super::{MemoryStore, Notes, pools::LockedPool};
use crate::{
    limit::{
        Decision, Direction, Hits, LimitCheck, OverLimitPolicy, Reservation, ReservationRequest,
        ReservedSpan, Timestamp,
    },
    store::{
        Decisions,
        pools::{combined, decision_of},
    },
};

impl<N: Notes> MemoryStore<N> {
    /// Decides `check`, whose first tier is a pool: in the pool and in the other tiers, or nowhere. Returns none if it has no pool. With
    /// `may_take` false it takes nothing, and its hits are demand.
    pub(super) fn decide_shared(
        &self,
        check: &LimitCheck<'_>,
        may_take: bool,
        now: Timestamp,
    ) -> Option<Decision> {
        self.pools.with(check, now, |pool| {
            if check.direction == Direction::GiveBack {
                pool.give_back(check.hits);
            }
            if check.direction == Direction::GiveBack || check.hits == Hits(0) {
                let hits = if check.direction == Direction::GiveBack { check.hits } else { Hits(0) };
                let beside = self.decide_beside(check, hits, check.direction, now);
                return combined(decision_of(pool.look(), check.hits), beside);
            }
            // the pool's lock is held meanwhile, so that what fits beside it still fits afterwards, but for other pools' requests
            let beside = self.look_beside(check, check.hits, now);
            let fits = beside.is_none_or(|beside| !beside.over) && may_take;
            let decided = pool.decide(check.hits, fits);
            if !decided.is_admitted && fits {
                return decision_of(decided, check.hits);
            }
            if !fits {
                let own = Decision { over: false, ..decision_of(pool.look(), Hits(0)) };
                return beside.map_or(own, |beside| combined(own, Some(beside)));
            }
            let taken = self.decide_beside(check, check.hits, Direction::Take, now);
            if taken.is_some_and(|taken| taken.over) {
                // another request was faster
                pool.give_back(check.hits);
            }
            combined(decision_of(decided, check.hits), taken)
        })
    }

    /// Decides all `checks` or none, where some have pools. Each takes its hits in turn, and gives them back if another one is rejected; until
    /// then they may reject other requests.
    pub(super) fn decide_together_with_pools(&self, checks: &[LimitCheck<'_>], now: Timestamp) -> Decisions {
        let (mut decisions, mut over) = (Decisions::new(), false);
        for check in checks {
            let decision = self.decide_shared(check, !over, now).unwrap_or_else(|| {
                self.on_shard(check.key, |shard| {
                    if over {
                        return shard.look(check, Hits(0), check.hits, now);
                    }
                    shard.take(check, OverLimitPolicy::Ignore, now)
                })
            });
            over |= decision.over;
            decisions.push(decision);
        }
        let rejecting = decisions.iter().position(|decision| decision.over).unwrap_or_default();
        for (check, decision) in checks[..rejecting].iter().zip(&mut decisions) {
            if check.pool.is_some() {
                self.give_back_shared(check, now);
                *decision = self.look_shared(check, Hits(0), now).unwrap_or(*decision);
            } else {
                *decision = self.on_shard(check.key, |shard| {
                    shard.give_back(check, now);
                    shard.look(check, Hits(0), Hits(0), now)
                });
            }
        }
        decisions
    }

    /// Gives back what [`MemoryStore::decide_shared`] took for `check`.
    pub(super) fn give_back_shared(&self, check: &LimitCheck<'_>, now: Timestamp) {
        self.pools.with(check, now, |pool| {
            pool.give_back(check.hits);
            self.decide_beside(check, check.hits, Direction::GiveBack, now);
        });
    }

    /// Returns the decision about `hits` of `check`, without counting.
    pub(super) fn look_shared(&self, check: &LimitCheck<'_>, hits: Hits, now: Timestamp) -> Option<Decision> {
        self.pools.with(check, now, |pool| {
            let own = pool.look();
            let over = hits.0 > u64::from(own.remaining);
            let own = Decision { over: over && hits > Hits(0), ..decision_of(own, hits) };
            combined(own, self.look_beside(check, hits, now))
        })
    }

    /// Reserves hits of the pool of `check` and of its other tiers. Returns none if it has no pool.
    pub(super) fn reserve_shared(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Option<Reservation> {
        self.pools.with(check, now, |pool| {
            let own = pool.look();
            let beside = self.look_beside(check, Hits(0), now);
            let room = beside.map_or(own.remaining, |beside| own.remaining.min(beside.remaining));
            let fitting = request.fit(Hits(room.into()));
            let until = now.after(request.hold.min(own.reset));
            let asked = if fitting == Hits(0) { request.least.max(Hits(1)) } else { fitting };
            let decided = pool.decide(asked, fitting > Hits(0));
            let hits = if decided.is_admitted { fitting } else { Hits(0) };
            if hits > Hits(0) {
                self.decide_beside(check, hits, Direction::Take, now);
            }
            Reservation {
                hits,
                until,
                decision: combined(decision_of(decided, asked), beside),
                counted: ReservedSpan { from: now, until, is_reported: true },
            }
        })
    }

    /// Gives back `hits` of a reservation of the instant `from`.
    pub(super) fn release_shared(
        &self,
        check: &LimitCheck<'_>,
        from: Timestamp,
        hits: Hits,
        now: Timestamp,
    ) -> bool {
        let period = check.tiers()[0].period;
        let released = self.pools.with(check, now, |pool: &mut LockedPool<'_>| {
            // what was granted in a cycle that has ended is nobody's any more
            if from.window_end(period) == now.window_end(period) {
                pool.give_back(hits);
            }
            self.decide_beside(check, hits, Direction::GiveBack, now);
        });
        released.is_some()
    }

    /// Decides about `hits` in the tiers beside the pool, and counts them. None if there are none.
    fn decide_beside(
        &self,
        check: &LimitCheck<'_>,
        hits: Hits,
        direction: Direction,
        now: Timestamp,
    ) -> Option<Decision> {
        let tiers = Some(check.own_tiers()).filter(|tiers| !tiers.is_empty())?;
        let mut shard = self.shards[self.index(check.key)].lock();
        Some(self.counting(&mut shard, |shard| {
            shard.take_in(check, tiers, OverLimitPolicy::Ignore, direction, hits, now)
        }))
    }

    fn look_beside(&self, check: &LimitCheck<'_>, hits: Hits, now: Timestamp) -> Option<Decision> {
        let tiers = Some(check.own_tiers()).filter(|tiers| !tiers.is_empty())?;
        Some(self.shards[self.index(check.key)].lock().look_in(check, tiers, Hits(0), hits, now))
    }
}
