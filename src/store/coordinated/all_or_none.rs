//! Requests whose descriptors count all or none: `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`.
//!
//! The counters of a request may be on several nodes, so no single command decides them together. First every counter
//! is looked at, without counting: if this instance knows that one of them rejects the request, nothing is counted.
//! Then the store decides what it has to, in parallel, and then this instance. If one of these rejects the request
//! after all, because another request was faster, the hits of the others are given back before the request is answered.

use std::pin::pin;

use futures_util::{FutureExt as _, future::join_all};
use smallvec::SmallVec;

use super::{
    Coordinated,
    counter::{Answer, Ask, Asks, Denial, TryOutcome, has_strict_bucket},
    delivery::Undecided,
    modes::{Made, of_one_limit, record_mode, recorded},
    table::Waiting,
    turn::Turn,
};
use crate::{
    limit::{Basis, Coordination, Decision, Direction, Hits, LimitCheck, OverLimitPolicy, Scope, Timestamp},
    store::{Decisions, places_by_counter, remote::Remote},
};

/// What this instance knows about a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlook {
    /// It fits, and this instance can decide it.
    Fits,
    /// The store has to decide it, and will probably admit it.
    Asks,
    /// The store has to decide it, and will probably reject it.
    Doubtful,
    /// It does not fit.
    Rejects,
    /// It does not fit, as the local cache of `strict` knows.
    Cached,
    /// It gives hits back.
    GivesBack,
    /// It is decided with others of its counter, of which some give hits back.
    Together,
}

impl Outlook {
    /// Returns whether it does not fit.
    const fn rejects(self) -> bool {
        matches!(self, Self::Rejects | Self::Cached)
    }

    /// Returns whether the store has to decide.
    const fn is_asked(self) -> bool {
        matches!(self, Self::Asks | Self::Doubtful)
    }
}

impl<R: Remote> Coordinated<R> {
    /// Decides `checks` and counts their hits only if all of them are admitted. None of the checks rejects the request
    /// alone if they are `all_quotas`.
    pub(super) async fn take_all_or_none(
        &self,
        checks: &[LimitCheck<'_>],
        turn: Turn<'_>,
        all_quotas: bool,
    ) -> Decisions {
        let Turn { now, record, .. } = turn;
        let mut outlooks: SmallVec<[Outlook; 4]> = SmallVec::new();
        let together = places_together(checks);
        for (i, check) in checks.iter().enumerate() {
            if together.iter().flatten().any(|place| *place == i) {
                outlooks.push(Outlook::Together);
                continue;
            }
            let earlier = earlier_hits(checks, &outlooks);
            outlooks.push(self.outlook(check, earlier, now));
        }
        let is_rejected_by_cache = |(check, outlook): (&LimitCheck<'_>, &Outlook)| {
            *outlook == Outlook::Cached
                && !(all_quotas || check.rule.quota_mode() || check.rule.shadow_mode())
        };
        // then no other status changes the answer, and no command is sent for one
        let is_known = checks.iter().zip(&outlooks).any(is_rejected_by_cache);
        if checks.len() > 1 && !outlooks.iter().any(|outlook| outlook.rejects()) {
            self.ask_doubtful(checks, &mut outlooks, turn).await;
        }
        if outlooks.iter().any(|outlook| outlook.rejects()) {
            let rejected = (0..checks.len()).map(async |i| {
                let (check, outlook) = (&checks[i], outlooks[i]);
                let at = self.client.time_at(now).now;
                let gives_back = matches!(outlook, Outlook::GivesBack | Outlook::Together);
                let is_unknown = gives_back && self.mode(check, at) == Coordination::Strict;
                if !is_known && (outlook.is_asked() || is_unknown) {
                    // a failure leaves the estimate as it is
                    let _ = recorded(record, 1, pin!(self.status(check, turn))).await;
                }
                if outlook == Outlook::Together {
                    return self.look(check, Hits(0), Hits(0), now);
                }
                let earlier = earlier_hits(checks, &outlooks[..i]);
                let decision = self.reject(check, earlier, turn).await;
                if outlook == Outlook::Cached {
                    self.client.caller.metrics.decisions.denied.add(1);
                    // another instance may give back what it took for a request that it then rejected
                    self.table.with_counter(check, at, |counter| counter.look_for_returned(at));
                }
                // hits may have been given back since, but nothing was counted
                let over = decision.over || outlook.rejects();
                let basis = if outlook == Outlook::Cached { Basis::LocalCache } else { decision.basis };
                Decision { over, basis, ..decision }
            });
            return join_all(rejected).await.into_iter().collect();
        }
        let asked = checks.iter().enumerate().map(async |(i, check)| match outlooks[i] {
            outlook if outlook.is_asked() => Some(self.take_check(check, Scope::Request, turn).await),
            // the store has to count them first
            Outlook::Fits if self.precedes_asked(&checks[i..], &outlooks[i..]) => {
                Some(self.take_check(check, Scope::Request, turn).await)
            }
            _ => None,
        });
        let mut made: Vec<Option<Made>> = join_all(asked).await;
        for (i, check) in checks.iter().enumerate() {
            if outlooks[i] == Outlook::Fits && made[i].is_none() && !is_rejected(&made) {
                made[i] = Some(self.take_check(check, Scope::Request, turn).await);
            }
        }
        for places in together {
            if is_rejected(&made) {
                break;
            }
            for (i, made_of) in places.iter().zip(self.take_together(checks, &places, turn).await) {
                made[*i] = Some(made_of);
            }
        }
        if !is_rejected(&made) {
            // hits are given back once the request is known to be admitted
            let made = checks.iter().zip(made).map(async |(check, made)| match made {
                Some(made) => made.decision,
                None => self.take_check(check, Scope::Request, turn).await.decision,
            });
            return join_all(made).await.into_iter().collect();
        }
        let undoing = checks.iter().zip(made).map(async |(check, made)| match made {
            Some(made) => self.undo(check, made, turn).await,
            None => self.look(check, Hits(0), Hits(0), now),
        });
        join_all(undoing).await.into_iter().collect()
    }

    /// Decides those of `checks` at `places`, which have one counter, and of which some give hits back: they count all or
    /// none.
    async fn take_together(
        &self,
        checks: &[LimitCheck<'_>],
        places: &[usize],
        turn: Turn<'_>,
    ) -> SmallVec<[Made; 2]> {
        let of_counter: SmallVec<[&LimitCheck<'_>; 2]> = places.iter().map(|i| &checks[*i]).collect();
        let steps = self.steps(&of_counter, Scope::Request, turn);
        let is_at_once = steps.iter().all(|step| step.as_ref().is_ok_and(|made| made.fallback.is_none()));
        let made =
            of_counter.iter().zip(steps).map(|(check, step)| self.finish(check, Scope::Request, step, turn));
        let mut made: SmallVec<[Made; 2]> = join_all(made).await.into_iter().collect();
        if is_at_once && made.iter().any(|made| made.decision.over) {
            made.iter_mut().for_each(|made| made.is_counted = false);
        }
        made
    }

    /// Returns what this instance knows about `check`, after `earlier` hits of its request.
    fn outlook(&self, check: &LimitCheck<'_>, earlier: Hits, now: Timestamp) -> Outlook {
        if check.direction == Direction::GiveBack {
            return Outlook::GivesBack;
        }
        let hits = check.hits.plus(earlier);
        let time = self.client.time_at(now);
        let mode = self.mode(check, time.now);
        if !mode.is_coordinated() {
            let over = self.look(check, Hits(0), hits, now).over;
            return if over { Outlook::Rejects } else { Outlook::Fits };
        }
        let ask = Ask { hits, ..Ask::of(check, Scope::Request) };
        self.table.with_counter(check, time.now, |counter| {
            self.table.record_dropped(counter.expire_leases(time));
            if self.client.is_unavailable_for(&counter.target, time.now) {
                return Outlook::Asks;
            }
            let fits = counter.fits(hits, time.now);
            match counter.answer(mode, &ask, &self.table.link_at(time)) {
                Answer::Reject(Denial::Cached) => Outlook::Cached,
                Answer::Wait(_) if mode == Coordination::Strict && !fits => Outlook::Doubtful,
                _ if !fits => Outlook::Rejects,
                Answer::Wait(_) | Answer::Reject(Denial::Pause) => Outlook::Asks,
                _ => Outlook::Fits,
            }
        })
    }

    /// Returns the status of `check` as the store knows it.
    async fn status(&self, check: &LimitCheck<'_>, turn: Turn<'_>) -> TryOutcome {
        let at = self.client.time().now;
        let (direction, hits) = (check.direction, check.hits);
        let hits = if direction == Direction::Take { hits } else { Hits(0) };
        let is_own = check.rule.id().is_none();
        let waiting = self.table.with_counter_of(check, at, |key, counter| {
            // no decision waits for a node that does not reply
            let is_away = self.client.is_unavailable_for(&counter.target, at);
            if is_away { None } else { Waiting::ask((key, counter), is_own, hits, Asks::Look) }
        });
        let waiting = waiting.ok_or(Undecided::NOT_ASKED)?;
        self.table.outcome(waiting, turn.until, false).await.unwrap_or(Err(Undecided::NOT_ASKED))
    }

    /// Has the store say whether the doubtful checks fit.
    async fn ask_doubtful(&self, checks: &[LimitCheck<'_>], outlooks: &mut [Outlook], turn: Turn<'_>) {
        let doubtful = checks.iter().zip(outlooks).filter(|(_, outlook)| **outlook == Outlook::Doubtful);
        let asked = doubtful.map(async |(check, outlook)| {
            let status = recorded(turn.record, 1, pin!(self.status(check, turn))).await;
            if status.is_ok_and(|tried| tried.decision.over) {
                *outlook = Outlook::Rejects;
            }
        });
        join_all(asked).await;
    }

    /// Returns the decision about `check`, of a request that is rejected, after `earlier` hits of that request. What
    /// does not fit by itself is decided as in a request of its own: a strict bucket notices the try, and the store is
    /// asked now and then. Counts nothing.
    async fn reject(&self, check: &LimitCheck<'_>, earlier: Hits, turn: Turn<'_>) -> Decision {
        let Turn { now, record, .. } = turn;
        let at = self.client.time_at(now).now;
        let hits = if check.direction == Direction::Take { check.hits } else { Hits(0) };
        let mode = self.mode(check, at);
        // whether they do not fit by themselves, and how it stands
        let stands = |look: &dyn Fn(Hits, Hits) -> Decision| {
            let alone = look(Hits(0), hits);
            if hits > Hits(0) && alone.over {
                return (true, alone);
            }
            let together = look(earlier, hits);
            (false, if together.over { together } else { look(Hits(0), Hits(0)) })
        };
        let (mut is_noticed, stands) = if mode.is_coordinated() {
            self.table.with_counter(check, at, |counter| {
                if check.hits == Hits(0) {
                    // as a check in a request of its own does
                    counter.refresh(counter.plan.schedule.interval(), at);
                }
                let (is_over, stands) = stands(&|earlier, hits| counter.look_after(earlier, hits, at));
                (is_over && !self.client.is_unavailable_for(&counter.target, at), stands)
            })
        } else {
            stands(&|earlier, hits| self.look(check, earlier, hits, now))
        };
        is_noticed &= mode != Coordination::Strict || has_strict_bucket(check.tiers());
        if !is_noticed {
            record_mode(record, mode);
            return stands;
        }
        // it fits only if hits were given back just now
        let taken = self.take_check(check, Scope::Request, turn).await;
        self.undo(check, taken, turn).await
    }

    /// Returns whether the store has to decide about a later one of `checks` that has the same counter as the first.
    fn precedes_asked(&self, checks: &[LimitCheck<'_>], outlooks: &[Outlook]) -> bool {
        let own = self.table.key_of(&checks[0]);
        let mut later = checks[1..].iter().zip(&outlooks[1..]);
        later.any(|(check, outlook)| outlook.is_asked() && self.table.key_of(check) == own)
    }

    /// Returns how the counter of `check` stands by what this instance knows, after `earlier` hits that are not
    /// counted; over, if `hits` do not fit then.
    pub(super) fn look(&self, check: &LimitCheck<'_>, earlier: Hits, hits: Hits, now: Timestamp) -> Decision {
        let at = self.client.time_at(now).now;
        match self.mode(check, at) {
            Coordination::Local => self.memory.look_after(check, earlier, hits, now),
            Coordination::Split => {
                self.split.look(&self.memory, check, earlier, hits, self.split.time_at(now))
            }
            _ => self.table.with_counter(check, at, |counter| counter.look_after(earlier, hits, at)),
        }
    }

    /// Gives back hits that were taken for `check`, because another check of the request was rejected.
    pub(super) async fn undo(&self, check: &LimitCheck<'_>, made: Made, turn: Turn<'_>) -> Decision {
        let (Made { decision, fallback, at, is_counted }, Turn { now, record, .. }) = (made, turn);
        if decision.over || check.hits == Hits(0) {
            return decision;
        }
        match fallback {
            _ if !is_counted => {}
            _ if check.direction == Direction::GiveBack => {
                // of a counter whose descriptors were admitted before those of another one were not
                if self.mode(check, at).is_coordinated() {
                    self.table.with_counter(check, at, |counter| {
                        counter.count(Direction::Take, OverLimitPolicy::Count, check.hits, at)
                    });
                }
            }
            Some(delivery) => self.undo_without_store(check, delivery, at),
            None => match self.mode(check, at) {
                Coordination::Local => self.memory.give_back(check, now),
                Coordination::Split => self.split.undo(&self.memory, check, at),
                coordinated => {
                    let is_own = check.rule.id().is_none();
                    let waiting = self.table.with_counter_of(check, at, |key, counter| {
                        counter.undo(coordinated, check.hits, at);
                        // if the store has not received that within the budget, it will later
                        let waits = coordinated == Coordination::Strict;
                        waits.then(|| Waiting::ask((key, counter), is_own, Hits(0), Asks::Look)).flatten()
                    });
                    if let Some(waiting) = waiting {
                        // the decision does not depend on it
                        let undoing = pin!(self.table.outcome(waiting, turn.until, false).map(Ok));
                        let _ = recorded(record, 1, undoing).await;
                    }
                }
            },
        }
        self.look(check, Hits(0), Hits(0), now)
    }
}

/// Returns the hits that the next check after those of `outlooks` finds in its counter: those of earlier checks of the
/// same limit that are not rejected.
fn earlier_hits(checks: &[LimitCheck<'_>], outlooks: &[Outlook]) -> Hits {
    let check = &checks[outlooks.len()];
    let counts = |(other, outlook): &(&LimitCheck<'_>, &Outlook)| {
        other.key == check.key
            && other.tiers() == check.tiers()
            && other.direction == Direction::Take
            && !outlook.rejects()
    };
    let is_taken = check.direction == Direction::Take;
    let earlier = checks.iter().zip(outlooks).filter(|_| is_taken).filter(counts);
    earlier.fold(Hits(0), |sum, (other, _)| sum.plus(other.hits))
}

/// Returns the places of those of `checks` that have one counter and one limit, and of which some give hits back, counter
/// by counter.
fn places_together(checks: &[LimitCheck<'_>]) -> SmallVec<[SmallVec<[usize; 2]>; 1]> {
    if !checks.iter().any(|check| check.direction == Direction::GiveBack) {
        return SmallVec::new();
    }
    let is_together = |places: &SmallVec<[usize; 2]>| {
        let of_counter: SmallVec<[&LimitCheck<'_>; 2]> = places.iter().map(|i| &checks[*i]).collect();
        let has =
            |direction| of_counter.iter().any(|check| check.direction == direction && check.hits > Hits(0));
        has(Direction::GiveBack) && has(Direction::Take) && of_one_limit(&of_counter) == places.len()
    };
    places_by_counter(checks).into_iter().filter(is_together).collect()
}

fn is_rejected(made: &[Option<Made>]) -> bool {
    made.iter().flatten().any(|made| made.decision.over)
}
