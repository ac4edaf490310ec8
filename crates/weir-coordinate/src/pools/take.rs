//! Decisions of requests with pools: each check in its pool and in the tiers beside it, or nowhere.
//!
//! The tiers beside a pool are ordinary counters of the member. They take the hits first, and give them back if the
//! pool rejects them: until then they may reject other requests, but only of a member that the pool has nothing for. A
//! pool would withhold hits from others.

use std::pin::pin;

use tokio::time::timeout_at;

use super::{Member, instance::AwaitedReply};
use crate::{
    Coordinated,
    counter::TryVerdict,
    link::Delivery,
    modes::{Turn, record_mode, recorded},
};
use weir_limit::{
    Coordination, Decision, Direction, Hits, LimitCheck, Reservation, ReservationRequest, ReservedSpan,
    Scope, Timestamp,
};
use weir_observe::DecisionRecord;
use weir_store::{
    pools::{clamped, combined, decision_of},
    remote::Remote,
};

impl<R: Remote> Coordinated<R> {
    /// None without a pool, or if each instance has its own.
    pub(crate) fn pool_member<'a>(&self, check: &'a LimitCheck<'a>) -> Option<Member<'a>> {
        check.pool.as_ref()?;
        match self.client.requested_mode(check) {
            Coordination::Local => None,
            Coordination::Auto => self.pools.member(check, Coordination::Lease),
            mode => self.pools.member(check, mode),
        }
    }

    /// None if `check` does not count in a shared pool alone, which most often needs no wait. `turn` begins one.
    pub(crate) async fn take_of_pool<'t>(
        &self,
        check: &LimitCheck<'_>,
        now: Timestamp,
        record: Option<&DecisionRecord>,
        turn: impl FnOnce() -> Turn<'t>,
    ) -> Option<Decision> {
        let member = self.pool_member(check).filter(|_| check.own_tiers().is_empty())?;
        record_mode(record, member.mode);
        Some(match self.pools.decide(&member, true, now) {
            Ok(decision) => decision,
            Err(waiting) => Box::pin(self.wait_for_pool(&member, waiting, turn())).await,
        })
    }

    /// The verdict is that of the tiers beside the pool, with the decision of both.
    pub(crate) async fn take_shared(&self, member: &Member<'_>, turn: Turn<'_>) -> TryVerdict {
        record_mode(turn.record, member.mode);
        let check = member.check;
        let beside = check.beside(check.hits);
        let mut taken = None;
        if let Some(beside) = &beside {
            taken = Some(self.take_check(beside, Scope::Request, turn).await);
        }
        let fits = taken.is_none_or(|taken| !taken.decision.over);
        let own = match self.pools.decide(member, fits, turn.now) {
            Ok(decision) => decision,
            Err(waiting) => self.wait_for_pool(member, waiting, turn).await,
        };
        if let (Some(beside), Some(taken), true) = (&beside, taken, own.over) {
            // the pool has rejected what they have taken
            self.undo(beside, taken, turn);
            return TryVerdict { decision: own, ..taken };
        }
        let decision = combined(own, taken.map(|taken| taken.decision));
        taken.map_or(TryVerdict::new(decision, turn.now), |taken| TryVerdict { decision, ..taken })
    }

    async fn wait_for_pool(&self, member: &Member<'_>, waiting: AwaitedReply, turn: Turn<'_>) -> Decision {
        let Member { check, slot, value, .. } = member;
        let time = self.client.time_at(turn.now);
        if let Some(reply) = waiting {
            let received = pin!(async {
                match timeout_at(turn.until, reply).await {
                    Ok(Ok(decision)) => Ok(decision),
                    _ => Err(Delivery::NotApplied),
                }
            });
            if let Ok(decision) = recorded(turn, 1, received).await {
                self.client.metrics.decisions.waited.add(1);
                return decision_of(decision, check.hits);
            }
        }
        self.client.metrics.decisions.fallback.add(1);
        let (policy, instances) = (self.client.failure_policy(check), self.pools.instances());
        let decided = self.pools.with(slot, time, |pool| {
            pool.decide_without_store(value, clamped(check.hits), policy, instances)
        });
        decision_of(decided, check.hits).by_fallback()
    }

    /// The decision is over the limit if `hits` do not fit by what this instance knows.
    pub(crate) fn look_shared(&self, member: &Member<'_>, hits: Hits, now: Timestamp) -> Decision {
        let own = self.pools.with(&member.slot, self.client.time_at(now), |pool| pool.look(&member.value));
        let own = Decision { over: hits.0 > u64::from(own.remaining), ..decision_of(own, hits) };
        combined(own, member.check.beside(hits).map(|beside| self.look(&beside, hits, now)))
    }

    /// What the pool has taken is held for its next requests. Those of the tiers beside it are in `taken`.
    pub(crate) fn undo_shared(&self, member: &Member<'_>, taken: TryVerdict, turn: Turn<'_>) {
        let check = member.check;
        if let Some(beside) = check.beside(check.hits) {
            self.undo(&beside, taken, turn);
        }
        self.pools.with(&member.slot, self.client.time_at(turn.now), |pool| {
            pool.give_back(&member.value, clamped(check.hits));
        });
    }

    pub(crate) async fn reserve_shared(
        &self,
        member: &Member<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Reservation {
        let turn = Turn::begin(now, self.client.settings.budget, None, None);
        // a new member has a share from then on
        self.pools.with(&member.slot, self.client.time_at(now), |pool| _ = pool.ask(&member.value, 0));
        let looked = self.look_shared(member, Hits(0), now);
        let fitting = request.fit(Hits(looked.remaining.into()));
        let hits = if fitting == Hits(0) { request.least.max(Hits(1)) } else { fitting };
        let asked = LimitCheck { hits, direction: Direction::Take, ..member.check.copied() };
        let decision = self.take_shared(&member.of(&asked), turn).await.decision;
        let at = self.client.time_at(now).latest;
        let cycle_ends = at.window_end(asked.tiers()[0].period);
        let until = now.after(request.hold.min(cycle_ends.since(at)));
        let hits = if decision.over { Hits(0) } else { hits };
        Reservation { hits, until, decision, counted: ReservedSpan { from: now, until, is_reported: true } }
    }

    pub(crate) async fn release_shared(
        &self,
        member: &Member<'_>,
        from: Timestamp,
        hits: Hits,
        now: Timestamp,
    ) {
        let turn = Turn::begin(now, self.client.settings.budget, None, None);
        let check = LimitCheck { hits, direction: Direction::GiveBack, ..member.check.copied() };
        let period = check.tiers()[0].period;
        if from.window_end(period) == now.window_end(period) {
            self.take_shared(&member.of(&check), turn).await;
        } else if let Some(beside) = check.beside(hits) {
            self.take_check(&beside, Scope::Request, turn).await;
        }
    }
}
