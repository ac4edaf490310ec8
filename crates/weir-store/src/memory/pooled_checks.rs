//! Decisions about members of a pool, which also count in tiers of their own.
//!
//! The lock of the tiers' shard is taken before that of the pool, and each request holds one pool's at a time.

use super::{
    MemoryStore, Notes,
    pools::LockedPool,
    shard::{Shard, TakeRequest},
};
use crate::pools::{combined, decision_of};
use weir_limit::{
    Decision, Direction, Hits, LimitCheck, OverLimitPolicy, Reservation, ReservationRequest, ReservedSpan,
    Timestamp,
};

pub(super) struct BesidePool<'a, N: Notes> {
    check: &'a LimitCheck<'a>,
    /// None if there are no such tiers.
    shard: Option<&'a mut Shard<N>>,
    now: Timestamp,
}

// === impl BesidePool ===

impl<'a, N: Notes> BesidePool<'a, N> {
    pub(super) fn new(check: &'a LimitCheck<'a>, shard: Option<&'a mut Shard<N>>, now: Timestamp) -> Self {
        Self { check, shard: shard.filter(|_| !check.own_tiers().is_empty()), now }
    }

    fn take(&mut self, hits: Hits, direction: Direction) -> Option<Decision> {
        let request = TakeRequest::of(self.check, OverLimitPolicy::Ignore);
        let request = TakeRequest { direction, hits, ..request };
        Some(self.shard.as_mut()?.take(&request, Some(self.check), self.now))
    }

    fn look(&self, hits: Hits) -> Option<Decision> {
        Some(self.shard.as_ref()?.look(self.check, hits, self.now))
    }
}

// === impl LockedPool ===

impl LockedPool<'_> {
    /// Takes hits here and `beside`, or nowhere. Without `may_take` they are only demand. Returns the grant's change.
    pub(super) fn decide<N: Notes>(
        &mut self,
        check: &LimitCheck<'_>,
        beside: &mut BesidePool<'_, N>,
        may_take: bool,
    ) -> (Decision, i64) {
        if check.direction == Direction::GiveBack {
            let given = self.give_back(check.hits);
            let beside = beside.take(check.hits, check.direction);
            return (combined(decision_of(self.look(), Hits(0)), beside), -given);
        }
        if check.hits == Hits(0) {
            return (self.look_at(Hits(0), beside), 0);
        }
        let looked = beside.look(check.hits).filter(|looked| looked.over);
        let decided = self.take(check.hits, may_take && looked.is_none());
        let own = decision_of(decided, check.hits);
        let decision = match looked {
            _ if decided.is_admitted => {
                let taken = beside.take(check.hits, check.direction);
                return (combined(own, taken), i64::try_from(check.hits.0).unwrap_or(i64::MAX));
            }
            Some(_) => combined(Decision { over: false, ..decision_of(self.look(), Hits(0)) }, looked),
            None if may_take => own,
            None => self.look_at(check.hits, beside),
        };
        (decision, 0)
    }

    pub(super) fn look_at<N: Notes>(&mut self, hits: Hits, beside: &BesidePool<'_, N>) -> Decision {
        let own = self.look();
        let over = hits.0 > u64::from(own.remaining);
        let own = Decision { over: over && hits > Hits(0), ..decision_of(own, hits) };
        combined(own, beside.look(hits))
    }
}

// === impl MemoryStore ===

impl<N: Notes> MemoryStore<N> {
    /// None if `check` has no pool as its first tier.
    pub(super) fn with_pool<T>(
        &self,
        check: &LimitCheck<'_>,
        now: Timestamp,
        act: impl FnOnce(&mut LockedPool<'_>, &mut BesidePool<'_, N>) -> T,
    ) -> Option<T> {
        check.pool.as_ref()?;
        if check.own_tiers().is_empty() {
            return self.pools.with(check, now, |pool| act(pool, &mut BesidePool::new(check, None, now)));
        }
        self.on_shard(check.key, |shard| {
            self.pools.with(check, now, |pool| act(pool, &mut BesidePool::new(check, Some(shard), now)))
        })
    }

    pub(super) fn reserve_shared(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Option<Reservation> {
        self.with_pool(check, now, |pool, tiers| {
            let own = pool.look();
            let beside = tiers.look(Hits(0));
            let room = beside.map_or(own.remaining, |beside| own.remaining.min(beside.remaining));
            let fitting = request.fit(Hits(room.into()));
            let until = now.after(request.hold.min(own.reset));
            let asked = if fitting == Hits(0) { request.least.max(Hits(1)) } else { fitting };
            let decided = pool.take(asked, fitting > Hits(0));
            let hits = if decided.is_admitted { fitting } else { Hits(0) };
            if hits > Hits(0) {
                tiers.take(hits, Direction::Take);
            }
            Reservation {
                hits,
                until,
                decision: combined(decision_of(decided, asked), beside),
                counted: ReservedSpan { from: now, until, is_reported: true },
            }
        })
    }

    /// `from` is the instant of the reservation. Returns false if `check` has no pool.
    pub(super) fn release_shared(
        &self,
        check: &LimitCheck<'_>,
        from: Timestamp,
        hits: Hits,
        now: Timestamp,
    ) -> bool {
        let period = check.tiers()[0].period;
        let released = self.with_pool(check, now, |pool, beside| {
            // what was granted in a cycle that has ended is nobody's any more
            if from.window_end(period) == now.window_end(period) {
                pool.give_back(hits);
            }
            beside.take(hits, Direction::GiveBack);
        });
        released.is_some()
    }
}
