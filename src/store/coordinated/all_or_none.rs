//! Requests whose descriptors count all or none: `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`.
//!
//! The counters of a request may be on several nodes, so no single command decides them together. First each counter is
//! looked at: if this instance knows that one of them rejects the request, nothing is counted. Then all take their hits,
//! side by side. If one rejects the request after all, because another request was faster, the others give their hits
//! back. The answer does not wait for that.

use std::pin::pin;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::{
    Coordinated,
    counter::{Answer, Ask, Asks, Denial, TryOutcome},
    delivery::Undecided,
    modes::{Made, at_places, in_order, of_one_limit, record_mode, recorded},
    table::Waiting,
    turn::Turn,
};
use crate::{
    limit::{Coordination, Decision, Direction, Hits, LimitCheck, OverLimitPolicy, Scope, Timestamp},
    store::{Decisions, places_by_counter, remote::Remote},
};

/// What this instance knows about the checks of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlook {
    Fits,
    /// They do not fit, but the store has to say so.
    Doubtful,
    Rejects,
    /// They do not fit, as the local cache of `strict` knows.
    Cached,
}

impl Outlook {
    const fn rejects(self) -> bool {
        matches!(self, Self::Rejects | Self::Cached)
    }
}

impl<R: Remote> Coordinated<R> {
    /// Counts the hits only if all are admitted. `all_quotas`: none of the checks rejects the request alone.
    pub(super) async fn take_all_or_none(
        &self,
        checks: &[LimitCheck<'_>],
        turn: Turn<'_>,
        all_quotas: bool,
    ) -> Decisions {
        let all = places_by_counter(checks);
        let units: SmallVec<[SmallVec<[&LimitCheck<'_>; 2]>; 2]> =
            all.iter().map(|places| at_places(checks, places)).collect();
        let mut outlooks: SmallVec<[Outlook; 2]> =
            units.iter().map(|unit| self.outlook(unit, turn.now)).collect();
        if units.len() > 1 && !outlooks.iter().any(|outlook| outlook.rejects()) {
            let doubtful = outlooks.iter_mut().zip(&units);
            let doubtful = doubtful.filter(|(outlook, _)| **outlook == Outlook::Doubtful);
            let asked = doubtful.map(async |(outlook, unit)| {
                if self.read(unit, turn).await.is_ok() {
                    let fits = self.outlook(unit, turn.now) == Outlook::Fits;
                    *outlook = if fits { Outlook::Fits } else { Outlook::Rejects };
                }
            });
            join_all(asked).await;
        }
        let decided = if outlooks.iter().any(|outlook| outlook.rejects()) {
            // if the cache rejects the request, no other status changes the answer, and no command is sent for one
            let is_known = outlooks.iter().zip(&units).any(|(outlook, unit)| {
                let stays = |check: &&LimitCheck<'_>| check.rule.quota_mode() || check.rule.shadow_mode();
                *outlook == Outlook::Cached && !(all_quotas || unit.iter().all(stays))
            });
            let standing = units.iter().zip(outlooks).map(async |(unit, outlook)| {
                if !is_known && !outlook.rejects() && self.mode_now(unit[0], turn.now) == Coordination::Strict
                {
                    // a failure leaves the estimate as it is
                    let _ = self.read(unit, turn).await;
                }
                self.stand(unit, outlook, turn)
            });
            join_all(standing).await
        } else {
            self.take_units(&units, turn).await
        };
        in_order(all.into_iter().flatten().zip(decided.into_iter().flatten()))
    }

    /// Counts all `units`, each of one counter, or none: first those without the store, last those that give hits back.
    async fn take_units(&self, units: &[SmallVec<[&LimitCheck<'_>; 2]>], turn: Turn<'_>) -> Vec<Decisions> {
        let gives_back =
            |check: &&LimitCheck<'_>| check.direction == Direction::GiveBack && check.hits > Hits(0);
        let step_of = |unit: &[&LimitCheck<'_>]| match unit {
            unit if unit.iter().all(gives_back) => 3,
            unit if unit.iter().any(gives_back) => 2,
            unit => u8::from(self.mode_now(unit[0], turn.now).is_coordinated()),
        };
        let mut made: Vec<Option<SmallVec<[Made; 2]>>> = vec![None; units.len()];
        let mut over = false;
        for step in 0..=3 {
            let due = made.iter_mut().zip(units).filter(|(_, unit)| !over && step_of(unit) == step);
            let taken = due.map(async |(made, unit)| {
                *made = Some(self.take_of_counter(unit, Scope::Request, turn).await);
            });
            join_all(taken).await;
            // of a counter that is above its limit nevertheless, hits may be given back
            let rejects = |(made, check): (&Made, &&LimitCheck<'_>)| {
                made.decision.over && check.direction == Direction::Take
            };
            over = made.iter().zip(units).any(|(made, unit)| made.iter().flatten().zip(unit).any(rejects));
        }
        let decided = made.into_iter().zip(units).map(|(made, unit)| match made {
            Some(made) if over => {
                unit.iter().zip(made).map(|(check, made)| self.undo(check, made, turn)).collect()
            }
            Some(made) => made.into_iter().map(|made| made.decision).collect(),
            None => unit.iter().map(|check| self.look(check, Hits(0), turn.now)).collect(),
        });
        decided.collect()
    }

    fn outlook(&self, unit: &[&LimitCheck<'_>], now: Timestamp) -> Outlook {
        let (check, time) = (unit[0], self.client.time_at(now));
        let mode = self.mode(check, time.now);
        if !mode.is_coordinated() {
            // several are decided together
            let over = unit.len() == 1
                && check.direction == Direction::Take
                && self.look(check, check.hits, now).over;
            return if over { Outlook::Rejects } else { Outlook::Fits };
        }
        let asks = asks_of(&unit[..of_one_limit(unit)]);
        self.table.with_counter(check, time.now, |counter| {
            self.table.record_dropped(counter.expire_leases(time));
            if self.client.is_unavailable_for(&counter.target, time.now) {
                return Outlook::Fits;
            }
            let link = self.table.link_at(time);
            let is_cached = |ask: &Ask| counter.answer(mode, ask, &link) == Answer::Reject(Denial::Cached);
            match counter.reject_together(&asks, time.now) {
                _ if asks.iter().any(is_cached) => Outlook::Cached,
                None => Outlook::Fits,
                Some(_) if mode == Coordination::Strict => Outlook::Doubtful,
                Some(_) => Outlook::Rejects,
            }
        })
    }

    /// Reads how the counter of `unit` stands, and whether the hits of all of its checks fit.
    pub(super) async fn read(&self, unit: &[&LimitCheck<'_>], turn: Turn<'_>) -> TryOutcome {
        let (check, at) = (unit[0], self.client.time().now);
        let is_own = check.rule.id().is_none();
        let taken = unit.iter().filter(|check| check.direction == Direction::Take);
        let hits = taken.fold(Hits(0), |hits, check| hits.plus(check.hits));
        let waiting = self.table.with_counter_of(check, at, |key, counter| {
            // no decision waits for a node that does not reply
            let is_away = self.client.is_unavailable_for(&counter.target, at);
            if is_away { None } else { Waiting::ask((key, counter), is_own, hits, Asks::Look) }
        });
        let waiting = waiting.ok_or(Undecided::NOT_ASKED)?;
        let outcome = async {
            self.table.outcome(waiting, turn.until, false).await.unwrap_or(Err(Undecided::NOT_ASKED))
        };
        recorded(turn.record, 1, pin!(outcome)).await
    }

    /// For a unit of a rejected request. Counts nothing. What does not fit by itself is decided as in a request of its
    /// own: a strict bucket notices the try, and the store is asked now and then.
    fn stand(&self, unit: &[&LimitCheck<'_>], outlook: Outlook, turn: Turn<'_>) -> Decisions {
        let time = self.client.time_at(turn.now);
        let mode = self.mode(unit[0], time.now);
        record_mode(turn.record, mode);
        let mut decisions: Decisions = if mode.is_coordinated() {
            let asks = asks_of(unit);
            self.table.with_counter(unit[0], time.now, |counter| match &asks[..] {
                [ask] => Decisions::from_iter([counter.stand(outlook == Outlook::Cached, ask, time.now)]),
                asks => counter
                    .reject_together(asks, time.now)
                    .unwrap_or_else(|| asks.iter().map(|_| counter.look(Hits(0), time.now)).collect()),
            })
        } else {
            let of_check = |check: &&LimitCheck<'_>| {
                let over = check.direction == Direction::Take && self.look(check, check.hits, turn.now).over;
                match over.then(|| self.step(check, Scope::Request, turn.now, None)) {
                    Some(Ok(taken)) => self.undo(check, taken, turn),
                    _ => self.look(check, Hits(0), turn.now),
                }
            };
            unit.iter().map(of_check).collect()
        };
        if outlook == Outlook::Cached {
            self.client.metrics.decisions.denied.add(1);
        }
        // hits may have been given back since, but nothing was counted
        if outlook.rejects() && !decisions.iter().any(|decision| decision.over) {
            let mut taken = decisions.iter_mut().zip(unit).rev();
            if let Some((last, _)) = taken.find(|(_, check)| check.direction == Direction::Take) {
                last.over = true;
            }
        }
        decisions
    }

    /// The decision is over the limit if `hits` do not fit by what this instance knows.
    pub(super) fn look(&self, check: &LimitCheck<'_>, hits: Hits, now: Timestamp) -> Decision {
        let at = self.client.time_at(now).now;
        match self.mode(check, at) {
            Coordination::Local => self.memory.look(check, hits, now),
            Coordination::Split => self.split.look(&self.memory, check, hits, self.split.time_at(now)),
            _ => self.table.with_counter(check, at, |counter| counter.look(hits, at)),
        }
    }

    /// Gives hits back, because another check of the request was rejected. Returns how the counter stands then.
    pub(super) fn undo(&self, check: &LimitCheck<'_>, made: Made, turn: Turn<'_>) -> Decision {
        let Made { decision, fallback, at, is_counted } = made;
        if decision.over || check.hits == Hits(0) {
            return decision;
        }
        match (self.mode(check, at), fallback) {
            _ if !is_counted => {}
            (counts_in, _) if check.direction == Direction::GiveBack => {
                // of a counter whose descriptors were admitted before those of another one were not
                if counts_in.is_coordinated() {
                    self.table.with_counter(check, at, |counter| {
                        counter.count(Direction::Take, OverLimitPolicy::Count, check.hits, at)
                    });
                }
            }
            (_, Some(delivery)) => self.undo_without_store(check, delivery, at),
            (Coordination::Local, None) => self.memory.give_back(check, turn.now),
            (Coordination::Split, None) => self.split.undo(&self.memory, check, at),
            (counts_in, None) => {
                self.table.with_counter(check, at, |counter| counter.undo(counts_in, check.hits, at));
            }
        }
        self.look(check, Hits(0), turn.now)
    }

    fn mode_now(&self, check: &LimitCheck<'_>, now: Timestamp) -> Coordination {
        self.mode(check, self.client.time_at(now).now)
    }
}

fn asks_of(unit: &[&LimitCheck<'_>]) -> SmallVec<[Ask; 2]> {
    unit.iter().map(|check| Ask::of(check, Scope::Request)).collect()
}
