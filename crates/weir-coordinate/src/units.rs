//! Requests with several checks of one counter, and those that count all or none, as with
//! `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`.
//!
//! A unit is what one command can decide. Other counters may be on other nodes, so those of a request that counts all or
//! none take their hits in turn: first those that probably reject it, so that the others need not take any. If one
//! rejects it later, because another request was faster, the others give their hits back. The answer does not wait for
//! that.

use std::pin::pin;

use futures_util::future::join_all;
use smallvec::{SmallVec, smallvec};

use super::{
    Coordinated,
    counter::{DecisionRequest, TryKind, TryVerdict},
    modes::{DecisionContext, recorded},
};
use weir_limit::{
    Coordination, Decision, Direction, Hits, LimitCheck, OverLimitPolicy, Period, Scope, Timestamp,
};
use weir_store::{
    Decisions, places_by_counter,
    remote::{Exchange, Remote},
};

impl<R: Remote> Coordinated<R> {
    /// Under `Scope::Request`, counts the hits of all `checks` or of none.
    pub(super) async fn take_units(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        context: DecisionContext<'_>,
    ) -> Decisions {
        let all_or_none = scope == Scope::Request;
        let places = places_by_counter(checks);
        let is_of_one_limit = |a: &usize, b: &usize| {
            let (a, b) = (&checks[*a], &checks[*b]);
            let limit = |check: &LimitCheck<'_>| (check.rule.id(), check.over_limit_policy());
            limit(a) == limit(b) && a.tiers() == b.tiers() && (!all_or_none || a.stands() == b.stands())
        };
        let stands = |unit: &[&LimitCheck<'_>]| all_or_none && unit[0].stands();
        let of_limits = places.iter().flat_map(|of_counter| of_counter.chunk_by(is_of_one_limit));
        let in_commands = of_limits.flat_map(|of_limit| of_limit.chunks(Exchange::MAX_RUNS));
        let units = in_commands.map(|places| {
            let unit: SmallVec<[&LimitCheck<'_>; 2]> = places.iter().map(|place| &checks[*place]).collect();
            let rank = if all_or_none && !stands(&unit) { self.rank(&unit, context.now) } else { 0 };
            (unit, rank, None::<SmallVec<[TryVerdict; 2]>>)
        });
        let (mut units, mut over): (Vec<_>, bool) = (units.collect(), false);
        for due in 0..=4 {
            let due = units.iter_mut().filter(|(_, rank, _)| *rank == due && !over);
            let taken = due.map(async |(unit, _, made)| {
                let scope = if stands(unit) { Scope::Descriptor } else { scope };
                *made = Some(self.take_unit(unit, scope, context).await);
            });
            join_all(taken).await;
            // of a counter that is above its limit nevertheless, hits may be given back
            let rejects = |(made, check): (&TryVerdict, &&LimitCheck<'_>)| {
                made.decision.over && check.direction != Direction::GiveBack
            };
            let mut made = units.iter().flat_map(|(unit, _, made)| made.iter().flatten().zip(unit));
            over = all_or_none && made.any(rejects);
        }
        let is_cached =
            units.iter().flat_map(|(.., made)| made).flatten().any(|made| made.decision.is_cached());
        // what other instances have used of the rest; if the cache rejects, no command is sent for an answer that stays
        let read = units.iter().filter(|(.., made)| made.is_none() && !is_cached).map(async |(unit, ..)| {
            let at = self.client.time_at(context.now).now;
            if self.shared(unit[0], at, |_, mode| mode).is_some_and(Coordination::asks_always) {
                // a failure leaves the estimate as it is
                let _ = recorded(context, 1, pin!(self.ask(unit[0], TryKind::Look, context.until))).await;
            }
        });
        join_all(read).await;
        let decided = units.into_iter().flat_map(|(unit, _, made)| -> Decisions {
            match made {
                Some(made) if over && !stands(&unit) => {
                    unit.iter().zip(made).map(|(check, made)| self.undo(check, made, context)).collect()
                }
                Some(made) => made.into_iter().map(|made| made.decision).collect(),
                None => unit.iter().map(|check| self.stand(check, context.now)).collect(),
            }
        });
        let mut decisions: Decisions = smallvec![Decision::unknown(Period::default()); checks.len()];
        for (place, decision) in places.iter().flatten().zip(decided) {
            decisions[*place] = decision;
        }
        decisions
    }

    async fn take_unit(
        &self,
        unit: &[&LimitCheck<'_>],
        scope: Scope,
        mut context: DecisionContext<'_>,
    ) -> SmallVec<[TryVerdict; 2]> {
        let mut all = SmallVec::new();
        while all.len() < unit.len() {
            let rest = &unit[all.len()..];
            if let Some(member) = self.pool_member(rest[0]) {
                let is_over =
                    all.iter().any(|made: &TryVerdict| made.decision.over) && scope == Scope::Request;
                all.push(if is_over {
                    let looked = self.look_shared(&member, rest[0], rest[0].hits, context.now);
                    TryVerdict { is_counted: false, ..TryVerdict::new(looked, context.now) }
                } else {
                    self.take_shared(&member, rest[0], context).await
                });
                context.now = self.client.local_time_since(context.now);
                continue;
            }
            let steps = self.steps(rest, scope, context);
            let made = rest.iter().zip(steps).map(|(check, step)| self.finish(check, step, context));
            all.extend(join_all(made).await);
            context.now = self.client.local_time_since(context.now);
        }
        all
    }

    /// When `unit` takes its hits, beside others of this rank: first what rejects the request by what this instance
    /// knows, then what needs no store, last what gives hits back.
    fn rank(&self, unit: &[&LimitCheck<'_>], now: Timestamp) -> u8 {
        let at = self.client.time_at(now).now;
        let shared = self.shared(unit[0], at, |(_, counter), _| {
            let asks: SmallVec<[DecisionRequest; 2]> =
                unit.iter().map(|check| DecisionRequest::of(check, Scope::Request)).collect();
            counter.reject_together(&asks, at).is_some()
        });
        // several are decided together
        let own_rejects = || match unit {
            [check] => check.direction == Direction::Take && self.look(check, check.hits, now).over,
            _ => false,
        };
        let gives_back =
            |check: &&LimitCheck<'_>| check.direction == Direction::GiveBack && check.hits > Hits(0);
        match unit {
            _ if shared.unwrap_or_else(own_rejects) => 0,
            unit if unit.iter().all(gives_back) => 4,
            unit if unit.iter().any(gives_back) => 3,
            _ => 1 + u8::from(shared.is_some() || self.pool_member(unit[0]).is_some()),
        }
    }

    /// Counts nothing, since another check of the request was rejected. A strict bucket notices what it rejects too.
    fn stand(&self, check: &LimitCheck<'_>, now: Timestamp) -> Decision {
        let at = self.client.time_at(now).now;
        let stands = self.shared(check, at, |(_, counter), _| match check.direction {
            Direction::Take if !counter.fits(check.hits, at) => {
                counter.count(Direction::Take, OverLimitPolicy::Ignore, check.hits, at)
            }
            // what begins without hits is rejected while nothing is left
            Direction::Look => counter.look(Hits(1), at),
            Direction::Take | Direction::GiveBack => counter.look(Hits(0), at),
        });
        let takes = check.pool.is_some() && check.direction == Direction::Take;
        stands.unwrap_or_else(|| self.look(check, if takes { check.hits } else { Hits(0) }, now))
    }

    /// Gives hits back, because another check of the request was rejected. Returns how the counter stands then.
    pub(super) fn undo(
        &self,
        check: &LimitCheck<'_>,
        made: TryVerdict,
        context: DecisionContext<'_>,
    ) -> Decision {
        let TryVerdict { decision, fallback, at, is_counted, .. } = made;
        if decision.over || check.hits == Hits(0) {
            return decision;
        }
        if let Some(member) = self.pool_member(check) {
            if is_counted && check.direction == Direction::Take {
                self.undo_shared(&member, check, made, context);
            }
        } else if is_counted {
            let undone = self.shared(check, at, |(_, counter), _| match (check.direction, fallback) {
                // of a counter whose descriptors were admitted before those of another one were not
                (Direction::GiveBack, _) => {
                    counter.count(Direction::Take, OverLimitPolicy::Count, check.hits, at);
                }
                (Direction::Take, Some(delivery)) => {
                    // hits of unknown delivery were not reported, and are given back here only
                    let reported = counter.reports(delivery);
                    let policy = OverLimitPolicy::Ignore;
                    counter.count_fallback(Direction::GiveBack, policy, check.hits, reported, at);
                    counter.note_answer(delivery, Hits(0), at);
                }
                (Direction::Take, None) => counter.uncount(check.hits, at),
                (Direction::Look, _) => {}
            });
            if undone.is_none() && check.direction == Direction::Take {
                self.own.give_back(check, at);
            }
        }
        self.look(check, Hits(0), context.now)
    }
}
