//! Decisions of requests with pools: each check in its pool and in the tiers beside it, or nowhere.
//!
//! The tiers beside a pool are ordinary counters of the member. They take the hits first, and give them back if the
//! pool rejects them: until then they may reject other requests, but only of a member that the pool has nothing for. A
//! pool would withhold hits from others.

use std::pin::pin;

use futures_util::future::join_all;
use smallvec::smallvec;

use super::{Answer, InstancePool};
use crate::{
    limit::{
        Coordination, Decision, Direction, Hits, LimitCheck, Period, Reservation, ReservationRequest,
        ReservedSpan, Scope, Timestamp, share::PoolDecision,
    },
    store::{
        Decisions, TakeOptions,
        coordinated::{
            Coordinated,
            modes::{Made, record_fallback, record_mode, recorded},
            turn::Turn,
        },
        has_repeated,
        pools::{combined, decision_of},
        remote::Remote,
    },
};

impl<R: Remote> Coordinated<R> {
    /// The mode in which the instances share the pool of `check`; none without a pool, or if each instance has its own.
    pub(in super::super) fn pool_mode(&self, check: &LimitCheck<'_>) -> Option<Coordination> {
        check.pool.as_ref().filter(|_| self.client.caller.remote.keeps_pools())?;
        match self.table.requested_mode(check) {
            Coordination::Local => None,
            Coordination::Auto => Some(Coordination::Lease),
            mode => Some(mode),
        }
    }

    pub(in super::super) async fn take_with_pools(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
        TakeOptions { record, wait, .. }: TakeOptions<'_>,
    ) -> Decisions {
        let turn = || Turn::begin(now, self.client.caller.settings.budget, wait, record);
        if let [check] = checks
            && let Some(mode) = self.pool_mode(check)
            && check.direction == Direction::Take
            && check.hits > Hits(0)
            && check.own_tiers().is_empty()
            && let Some(answer) = self.pools.step(check, clamp(check.hits), mode, now)
        {
            // it only counts in the pool, and most often needs no wait
            record_mode(record, mode);
            return smallvec![match answer {
                Answer::Decided(decision, _) => decision_of(decision, check.hits),
                answer => Box::pin(self.finish_answer(check, mode, answer, turn())).await,
            }];
        }
        Box::pin(self.take_all_with_pools(checks, scope, turn())).await
    }

    async fn take_all_with_pools(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        turn: Turn<'_>,
    ) -> Decisions {
        self.memory.divide_pools_between(self.client.instances());
        if scope == Scope::Descriptor || checks.len() == 1 {
            if has_repeated(checks) {
                let mut decisions = Decisions::new();
                for check in checks {
                    decisions.push(self.take_one(check, scope, turn).await.0);
                }
                return decisions;
            }
            let decided = checks.iter().map(async |check| self.take_one(check, scope, turn).await.0);
            return join_all(decided).await.into_iter().collect();
        }
        // in turn, so that the first rejection spares the others
        let (mut taken, mut over) = (Vec::new(), false);
        for check in checks {
            let is_spared = over && check.direction == Direction::Take;
            let (decision, made) = if is_spared {
                (self.look_at(check, check.hits, turn), None)
            } else {
                self.take_one(check, scope, turn).await
            };
            over |= decision.over;
            taken.push((decision, made, is_spared || check.direction == Direction::GiveBack));
        }
        let undone = checks.iter().zip(taken).map(|(check, (decision, made, stays))| {
            let stays = stays || decision.over || !over;
            if stays { decision } else { self.give_one_back(check, made, turn) }
        });
        undone.collect()
    }

    /// Also returns what its tiers without the pool have taken, to give it back.
    async fn take_one(
        &self,
        check: &LimitCheck<'_>,
        scope: Scope,
        turn: Turn<'_>,
    ) -> (Decision, Option<Made>) {
        if check.pool.is_none() {
            let made = self.take_check(check, scope, turn).await;
            return (made.decision, Some(made));
        }
        let Some(mode) = self.pool_mode(check) else {
            self.client.caller.metrics.decisions.local.add(1);
            return (self.memory.decide(std::slice::from_ref(check), scope, turn.now)[0], None);
        };
        record_mode(turn.record, mode);
        let beside = check.beside(check.hits);
        let taken = match &beside {
            Some(beside) => Some(self.take_check(beside, Scope::Request, turn).await),
            None => None,
        };
        let rejection = taken.filter(|taken| taken.decision.over).map(|taken| taken.decision);
        let own = self.take_in_pool(check, mode, rejection.is_none(), turn).await;
        let decision = match (&beside, taken) {
            _ if rejection.is_some() => combined(Decision { over: false, ..own }, rejection),
            (Some(beside), Some(taken)) if own.over => {
                // the pool has rejected what they have taken
                self.undo(beside, taken, turn);
                own
            }
            (_, taken) => combined(own, taken.map(|taken| taken.decision)),
        };
        (decision, taken)
    }

    /// The hits are demand only, unless they `fit` beside the pool.
    async fn take_in_pool(
        &self,
        check: &LimitCheck<'_>,
        mode: Coordination,
        fit: bool,
        turn: Turn<'_>,
    ) -> Decision {
        let hits = clamp(check.hits);
        if check.direction == Direction::Take
            && hits > 0
            && fit
            && let Some(answer) = self.pools.step(check, hits, mode, turn.now)
        {
            return self.finish_answer(check, mode, answer, turn).await;
        }
        let looked = self.pools.with(check, mode, turn.now, |pool, value, at| {
            if check.direction == Direction::GiveBack {
                pool.give_back(value, hits, at);
            }
            let looked = pool.look(value, at);
            if check.direction == Direction::Take && hits > 0 && !pool.is_anonymous(value) {
                pool.ask(value, hits);
            }
            looked
        });
        decision_of(looked.unwrap_or(NOTHING), check.hits)
    }

    async fn finish_answer(
        &self,
        check: &LimitCheck<'_>,
        mode: Coordination,
        answer: Answer,
        turn: Turn<'_>,
    ) -> Decision {
        match answer {
            Answer::Decided(decision, _) => return decision_of(decision, check.hits),
            Answer::Wait { reply, .. } => {
                let received = pin!(self.pools.receive(check, reply, mode, turn));
                if let Ok(decision) = recorded(turn.record, 1, received).await {
                    return decision_of(decision, check.hits);
                }
            }
            Answer::Away => {}
        }
        record_fallback(turn.record);
        self.client.caller.metrics.decisions.fallback.add(1);
        let (policy, instances) = (self.client.failure_policy(check), self.pools.instances());
        let decided = self.pools.with(check, mode, turn.now, |pool, value, at| {
            pool.decide_without_store(value, clamp(check.hits), policy, instances, at)
        });
        decision_of(decided.unwrap_or(NOTHING), check.hits).by_fallback()
    }

    /// The decision is over the limit if `hits` do not fit by what this instance knows.
    fn look_at(&self, check: &LimitCheck<'_>, hits: Hits, turn: Turn<'_>) -> Decision {
        let Some(mode) = self.pool_mode(check) else {
            return match check.pool {
                Some(_) => self.memory.look(check, hits, turn.now),
                None => self.look(check, hits, turn.now),
            };
        };
        let own = self.pools.with(check, mode, turn.now, InstancePool::look).unwrap_or(NOTHING);
        let over = hits.0 > u64::from(own.remaining);
        let own = Decision { over, ..decision_of(own, hits) };
        let beside = check.beside(hits);
        combined(own, beside.map(|beside| self.look(&beside, hits, turn.now)))
    }

    /// Returns how `check` stands then.
    fn give_one_back(&self, check: &LimitCheck<'_>, taken: Option<Made>, turn: Turn<'_>) -> Decision {
        let hits = clamp(check.hits);
        match (&check.pool, taken, check.beside(check.hits)) {
            (None, Some(taken), _) => return self.undo(check, taken, turn),
            (_, Some(taken), Some(beside)) => {
                self.undo(&beside, taken, turn);
            }
            _ => {}
        }
        match self.pool_mode(check) {
            Some(mode) => {
                self.pools.with(check, mode, turn.now, |pool, value, at| pool.give_back(value, hits, at));
            }
            None => self.memory.give_back(check, turn.now),
        }
        self.look_at(check, Hits(0), turn)
    }

    pub(in super::super) async fn reserve_shared(
        &self,
        check: &LimitCheck<'_>,
        mode: Coordination,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Reservation {
        let turn = Turn::begin(now, self.client.caller.settings.budget, None, None);
        self.pools.with(check, mode, now, |pool, value, at| {
            pool.roll(at);
            if !pool.is_anonymous(value) {
                // a new member has a share from then on
                pool.ask(value, 0);
            }
        });
        let looked = self.look_at(check, Hits(0), turn);
        let fitting = request.fit(Hits(looked.remaining.into()));
        let hits = if fitting == Hits(0) { request.least.max(Hits(1)) } else { fitting };
        let asked = LimitCheck { hits, direction: Direction::Take, ..check.copied() };
        let (decision, _) = self.take_one(&asked, Scope::Request, turn).await;
        let own = self.pools.with(check, mode, now, InstancePool::look).unwrap_or(NOTHING);
        let until = now.after(request.hold.min(own.reset));
        let hits = if decision.over { Hits(0) } else { hits };
        let counted = ReservedSpan { from: now, until, is_reported: true };
        Reservation { hits, until, decision, counted }
    }

    pub(in super::super) async fn release_shared(
        &self,
        check: &LimitCheck<'_>,
        mode: Coordination,
        from: Timestamp,
        hits: Hits,
        now: Timestamp,
    ) {
        let period = check.tiers()[0].period;
        if from.window_end(period) == now.window_end(period) {
            self.pools.with(check, mode, now, |pool, value, at| pool.give_back(value, clamp(hits), at));
        }
        if let Some(beside) = check.beside(hits) {
            let beside = LimitCheck { direction: Direction::GiveBack, ..beside };
            let turn = Turn::begin(now, self.client.caller.settings.budget, None, None);
            self.take_check(&beside, Scope::Request, turn).await;
        }
    }
}

const NOTHING: PoolDecision =
    PoolDecision { is_admitted: false, share: 0, before: 0, remaining: 0, reset: Period::from_nanos(0) };

fn clamp(hits: Hits) -> u32 {
    u32::try_from(hits.0).unwrap_or(u32::MAX)
}
