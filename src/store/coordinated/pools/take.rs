//! Decisions of requests with pools: each check in its pool and in the tiers beside it, or nowhere.
//!
//! The tiers beside a pool are ordinary counters of the member. They take the hits first, and give them back if the
//! pool rejects them: until then they may reject other requests, but only of a member that the pool has nothing for. A
//! pool would withhold hits from others.

use std::pin::pin;

use futures_util::future::join_all;
use smallvec::smallvec;
use tokio::time::timeout_at;

use super::{Member, instance::Waiting};
use crate::{
    limit::{
        Coordination, Decision, Direction, Hits, LimitCheck, Reservation, ReservationRequest, ReservedSpan,
        Scope, Timestamp,
    },
    store::{
        Decisions, TakeOptions,
        coordinated::{
            Coordinated,
            counter::Verdict,
            delivery::Delivery,
            modes::{record_mode, recorded},
            turn::Turn,
        },
        has_repeated,
        pools::{clamped, combined, decision_of},
        remote::Remote,
    },
};

/// With what tiers without the pool have taken, to give it back.
type Taken = (Decision, Option<Verdict>);

impl<R: Remote> Coordinated<R> {
    /// None without a pool, or if each instance has its own.
    pub(in super::super) fn pool_member<'a>(&self, check: &'a LimitCheck<'a>) -> Option<Member<'a>> {
        check.pool.as_ref()?;
        match self.table.requested_mode(check) {
            Coordination::Local => None,
            Coordination::Auto => self.pools.member(check, Coordination::Lease),
            mode => self.pools.member(check, mode),
        }
    }

    pub(in super::super) async fn take_with_pools(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
        TakeOptions { record, wait, .. }: TakeOptions<'_>,
    ) -> Decisions {
        let turn = || Turn::begin(now, self.client.settings.budget, wait, record);
        if let [check] = checks
            && check.own_tiers().is_empty()
            && let Some(member) = self.pool_member(check)
        {
            // it only counts in the pool, and most often needs no wait
            record_mode(record, member.mode);
            return smallvec![match self.pools.decide(&member, true, now) {
                Ok(decision) => decision,
                Err(waiting) => Box::pin(self.wait_for_pool(&member, waiting, turn())).await,
            }];
        }
        Box::pin(self.take_all_shared(checks, scope, turn())).await
    }

    async fn take_all_shared(&self, checks: &[LimitCheck<'_>], scope: Scope, turn: Turn<'_>) -> Decisions {
        self.memory.divide_pools_between(self.client.instances());
        let all_or_none = scope == Scope::Request;
        if !all_or_none && !has_repeated(checks) {
            let decided = checks.iter().map(async |check| self.take_one(check, scope, turn).await.0);
            return join_all(decided).await.into_iter().collect();
        }
        // in turn, so that the first rejection spares the others of all or none
        let (mut decisions, mut taken, mut over) = (Decisions::new(), Vec::new(), false);
        for (i, check) in checks.iter().enumerate() {
            let is_take = check.direction == Direction::Take;
            if over && is_take {
                decisions.push(self.look_at(check, check.hits, turn));
                continue;
            }
            let (decision, made) = self.take_one(check, scope, turn).await;
            if is_take && !decision.over {
                taken.push((i, made));
            }
            over |= all_or_none && decision.over;
            decisions.push(decision);
        }
        for (i, made) in taken.into_iter().filter(|_| over) {
            decisions[i] = self.give_one_back(&checks[i], made, turn);
        }
        decisions
    }

    async fn take_one(&self, check: &LimitCheck<'_>, scope: Scope, turn: Turn<'_>) -> Taken {
        let Some(member) = self.pool_member(check) else {
            let made = self.take_check(check, scope, turn).await;
            return (made.decision, Some(made));
        };
        record_mode(turn.record, member.mode);
        let beside = check.beside(check.hits);
        let mut taken = None;
        if let Some(beside) = &beside {
            taken = Some(self.take_check(beside, Scope::Request, turn).await);
        }
        let fits = taken.is_none_or(|taken| !taken.decision.over);
        let own = match self.pools.decide(&member, fits, turn.now) {
            Ok(decision) => decision,
            Err(waiting) => self.wait_for_pool(&member, waiting, turn).await,
        };
        if let (Some(beside), Some(taken), true) = (&beside, taken, own.over) {
            // the pool has rejected what they have taken
            self.undo(beside, taken, turn);
            return (own, None);
        }
        (combined(own, taken.map(|taken| taken.decision)), taken)
    }

    async fn wait_for_pool(&self, member: &Member<'_>, waiting: Waiting, turn: Turn<'_>) -> Decision {
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
    fn look_at(&self, check: &LimitCheck<'_>, hits: Hits, turn: Turn<'_>) -> Decision {
        let Some(member) = self.pool_member(check) else { return self.look(check, hits, turn.now) };
        let own =
            self.pools.with(&member.slot, self.client.time_at(turn.now), |pool| pool.look(&member.value));
        let own = Decision { over: hits.0 > u64::from(own.remaining), ..decision_of(own, hits) };
        combined(own, check.beside(hits).map(|beside| self.look(&beside, hits, turn.now)))
    }

    /// Returns how `check` stands then.
    fn give_one_back(&self, check: &LimitCheck<'_>, taken: Option<Verdict>, turn: Turn<'_>) -> Decision {
        let beside = check.beside(check.hits);
        if let Some(taken) = taken {
            self.undo(beside.as_ref().unwrap_or(check), taken, turn);
        }
        if let Some(member) = self.pool_member(check) {
            self.pools.with(&member.slot, self.client.time_at(turn.now), |pool| {
                pool.give_back(&member.value, clamped(check.hits));
            });
        }
        self.look_at(check, Hits(0), turn)
    }

    pub(in super::super) async fn reserve_shared(
        &self,
        member: &Member<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Reservation {
        let turn = Turn::begin(now, self.client.settings.budget, None, None);
        // a new member has a share from then on
        self.pools.with(&member.slot, self.client.time_at(now), |pool| _ = pool.ask(&member.value, 0));
        let looked = self.look_at(member.check, Hits(0), turn);
        let fitting = request.fit(Hits(looked.remaining.into()));
        let hits = if fitting == Hits(0) { request.least.max(Hits(1)) } else { fitting };
        let asked = LimitCheck { hits, direction: Direction::Take, ..member.check.copied() };
        let (decision, _) = self.take_one(&asked, Scope::Request, turn).await;
        let at = self.client.time_at(now).latest;
        let cycle_ends = at.window_end(asked.tiers()[0].period);
        let until = now.after(request.hold.min(cycle_ends.since(at)));
        let hits = if decision.over { Hits(0) } else { hits };
        Reservation { hits, until, decision, counted: ReservedSpan { from: now, until, is_reported: true } }
    }

    pub(in super::super) async fn release_shared(
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
            self.take_one(&check, Scope::Request, turn).await;
        } else if let Some(beside) = check.beside(hits) {
            self.take_check(&beside, Scope::Request, turn).await;
        }
    }
}
