//! Decisions of requests with pools: each check in its pool and in the tiers beside it, or nowhere.
//!
//! The tiers beside a pool are ordinary counters of the member. They take the hits first, and give them back if the
//! pool rejects them: until then they may reject other requests, but only of a member that the pool has nothing for. A
//! pool would withhold hits from others.

use std::pin::pin;

use futures_util::future::join_all;
use smallvec::smallvec;

use super::PoolStep;
use crate::{
    limit::{
        Coordination, Decision, Direction, Hits, LimitCheck, OnStoreFailure, Period, Reservation,
        ReservationRequest, ReservedSpan, Scope, Timestamp, share::PoolDecision,
    },
    observe::DecisionRecord,
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

/// How the hits of a check are given back.
enum Taken {
    /// In the pool, and in the tiers beside it.
    Shared(Option<Made>),
    /// In the tiers of a check without a pool.
    Plain(Made),
}

impl<R: Remote> Coordinated<R> {
    /// Returns the mode in which the instances share the pool of `check`; none if it has none, or each instance has its
    /// own.
    pub(in super::super) fn pool_mode(&self, check: &LimitCheck<'_>) -> Option<Coordination> {
        check.pool.as_ref().filter(|_| self.client.caller.remote.keeps_pools())?;
        match self.table.requested_mode(check) {
            Coordination::Local => None,
            Coordination::Auto => Some(Coordination::Lease),
            mode => Some(mode),
        }
    }

    /// Returns whether a store that did not reply is not asked again in the cycle: each instance decides by its part
    /// then, and grants of the store would come on top.
    fn stays_away(&self, check: &LimitCheck<'_>) -> bool {
        self.client.failure_policy(check) == OnStoreFailure::Local
    }

    /// Decides `check`, if it only counts in a pool and that needs no wait.
    fn decide_pool_at_once(
        &self,
        check: &LimitCheck<'_>,
        now: Timestamp,
        record: Option<&DecisionRecord>,
    ) -> Option<Result<Decision, (Coordination, PoolStep)>> {
        let mode = self.pool_mode(check)?;
        if check.direction == Direction::GiveBack || check.hits == Hits(0) || !check.own_tiers().is_empty() {
            return None;
        }
        record_mode(record, mode);
        Some(match self.pools.step(check, clamp(check.hits), mode, self.stays_away(check), now)? {
            PoolStep::Decided(decision) => Ok(decision_of(decision, check.hits)),
            waiting => Err((mode, waiting)),
        })
    }

    /// Decides the only check of a request, which waits for the store at `step`.
    async fn finish_pool(
        &self,
        check: &LimitCheck<'_>,
        (mode, step): (Coordination, PoolStep),
        turn: Turn<'_>,
    ) -> Decision {
        self.finish_step(check, mode, step, turn).await
    }

    /// Decides `checks`, of which some have pools.
    pub(in super::super) async fn take_with_pools(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
        TakeOptions { record, wait, .. }: TakeOptions<'_>,
    ) -> Decisions {
        let turn = || Turn::begin(now, self.client.caller.settings.budget, wait, record);
        if let [check] = checks {
            match self.decide_pool_at_once(check, now, record) {
                Some(Ok(decision)) => return smallvec![decision],
                Some(Err(step)) => {
                    return smallvec![Box::pin(self.finish_pool(check, step, turn())).await];
                }
                None => {}
            }
        }
        Box::pin(self.take_all_with_pools(checks, scope, turn())).await
    }

    /// As [`Coordinated::take_with_pools`], if not at once.
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
        let (mut decisions, mut taken, mut over) = (Decisions::new(), Vec::new(), false);
        for check in checks {
            let (decision, how) = if over && check.direction == Direction::Take {
                (self.look_at(check, check.hits, turn), None)
            } else {
                let (decision, how) = self.take_one(check, scope, turn).await;
                (decision, Some(how))
            };
            over |= decision.over;
            decisions.push(decision);
            taken.push(how);
        }
        if over {
            let undoing = checks.iter().zip(taken).zip(&decisions).map(async |((check, how), decision)| {
                let how = how.filter(|_| !decision.over && check.direction == Direction::Take)?;
                Some(self.give_one_back(check, how, turn).await)
            });
            let undone = join_all(undoing).await;
            for (decision, undone) in decisions.iter_mut().zip(undone) {
                *decision = undone.unwrap_or(*decision);
            }
        }
        decisions
    }

    async fn take_one(&self, check: &LimitCheck<'_>, scope: Scope, turn: Turn<'_>) -> (Decision, Taken) {
        if check.pool.is_none() {
            let made = self.take_check(check, scope, turn).await;
            return (made.decision, Taken::Plain(made));
        }
        let Some(mode) = self.pool_mode(check) else {
            self.client.caller.metrics.decisions.local.add(1);
            return (
                self.memory.decide(std::slice::from_ref(check), scope, turn.now)[0],
                Taken::Shared(None),
            );
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
        (decision, Taken::Shared(taken))
    }

    /// Decides `check` in its pool. Its hits are demand only, unless they `fit` beside it.
    async fn take_in_pool(
        &self,
        check: &LimitCheck<'_>,
        mode: Coordination,
        fit: bool,
        turn: Turn<'_>,
    ) -> Decision {
        let hits = clamp(check.hits);
        if check.direction == Direction::GiveBack {
            self.pools.give_back(check, hits, mode, turn.now);
        }
        let decided = if check.direction == Direction::GiveBack || hits == 0 {
            self.pools.look(check, mode, turn.now)
        } else if fit {
            match self.pools.step(check, hits, mode, self.stays_away(check), turn.now) {
                Some(step) => return self.finish_step(check, mode, step, turn).await,
                None => None,
            }
        } else {
            self.pools.ask(check, hits, mode, turn.now)
        };
        decision_of(decided.unwrap_or(NOTHING), check.hits)
    }

    async fn finish_step(
        &self,
        check: &LimitCheck<'_>,
        mode: Coordination,
        step: PoolStep,
        turn: Turn<'_>,
    ) -> Decision {
        let reply = match step {
            PoolStep::Decided(decision) => return decision_of(decision, check.hits),
            PoolStep::Away => None,
            PoolStep::Wait(reply) => Some(reply),
        };
        if let Some(reply) = reply {
            let received = pin!(self.pools.receive(check, reply, mode, turn));
            if let Ok(decision) = recorded(turn.record, 1, received).await {
                return decision_of(decision, check.hits);
            }
        }
        record_fallback(turn.record);
        self.client.caller.metrics.decisions.fallback.add(1);
        let (hits, now) = (clamp(check.hits), turn.now);
        let decided = match self.client.failure_policy(check) {
            OnStoreFailure::Local => self.pools.decide_alone(check, hits, mode, now),
            OnStoreFailure::Allow => self.pools.decide_anyway(check, hits, true, mode, now),
            OnStoreFailure::Deny => {
                let decided = self.pools.decide_anyway(check, hits, false, mode, now);
                decided.map(|decided| PoolDecision {
                    remaining: 0,
                    reset: OnStoreFailure::DENY_RETRY,
                    ..decided
                })
            }
        };
        decision_of(decided.unwrap_or(NOTHING), check.hits).by_fallback()
    }

    /// Returns how `check` stands; over, if its `hits` do not fit by what this instance knows.
    fn look_at(&self, check: &LimitCheck<'_>, hits: Hits, turn: Turn<'_>) -> Decision {
        let Some(mode) = self.pool_mode(check) else {
            return match check.pool {
                Some(_) => self.memory.look(check, hits, turn.now),
                None => self.look(check, hits, turn.now),
            };
        };
        let own = self.pools.look(check, mode, turn.now).unwrap_or(NOTHING);
        let over = hits.0 > u64::from(own.remaining);
        let own = Decision { over, ..decision_of(own, hits) };
        let beside = check.beside(hits);
        combined(own, beside.map(|beside| self.look(&beside, hits, turn.now)))
    }

    /// Gives back what `check` has taken, and returns how it stands then.
    async fn give_one_back(&self, check: &LimitCheck<'_>, how: Taken, turn: Turn<'_>) -> Decision {
        match how {
            Taken::Plain(made) => return self.undo(check, made, turn),
            Taken::Shared(made) => {
                if let (Some(beside), Some(made)) = (check.beside(check.hits), made) {
                    self.undo(&beside, made, turn);
                }
            }
        }
        match self.pool_mode(check) {
            Some(mode) => self.pools.give_back(check, clamp(check.hits), mode, turn.now),
            None => self.memory.give_back(check, turn.now),
        }
        self.look_at(check, Hits(0), turn)
    }

    /// Reserves hits of the pool of `check` and of the tiers beside it.
    pub(in super::super) async fn reserve_shared(
        &self,
        check: &LimitCheck<'_>,
        mode: Coordination,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Reservation {
        let turn = Turn::begin(now, self.client.caller.settings.budget, None, None);
        let looked = self.look_at(check, Hits(0), turn);
        let fitting = request.fit(Hits(looked.remaining.into()));
        let hits = if fitting == Hits(0) { request.least.max(Hits(1)) } else { fitting };
        let asked = LimitCheck {
            rule: check.rule.copied(),
            domain: check.domain,
            entries: check.entries,
            key: check.key,
            pool: check.pool.clone(),
            hits,
            direction: Direction::Take,
        };
        let (decision, _) = self.take_one(&asked, Scope::Request, turn).await;
        let own = self.pools.look(check, mode, now).unwrap_or(NOTHING);
        let until = now.after(request.hold.min(own.reset));
        let hits = if decision.over { Hits(0) } else { hits };
        let counted = ReservedSpan { from: now, until, is_reported: true };
        Reservation { hits, until, decision, counted }
    }

    /// Gives back `hits` of a reservation of the instant `from`.
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
            self.pools.give_back(check, clamp(hits), mode, now);
        }
        if let Some(beside) = check.beside(hits) {
            let beside = LimitCheck { direction: Direction::GiveBack, ..beside };
            let turn = Turn::begin(now, self.client.caller.settings.budget, None, None);
            self.take_check(&beside, Scope::Request, turn).await;
        }
    }
}

/// The decision about a check that has no pool, which is not asked about.
const NOTHING: PoolDecision =
    PoolDecision { is_admitted: false, share: 0, before: 0, remaining: 0, reset: Period::from_nanos(0) };

fn clamp(hits: Hits) -> u32 {
    u32::try_from(hits.0).unwrap_or(u32::MAX)
}
