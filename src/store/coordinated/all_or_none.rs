//! Requests whose descriptors count all or none: `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`.
//!
//! The counters of a request may be on several nodes, so no single command decides them together. Checks that need no call
//! are decided first. If one of them rejects the request, the store only reports how the other counters stand. Otherwise the
//! others are decided in parallel; if one is rejected, hits that the others took are given back before the request is answered.

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::modes::{CoordinationModes, Counted, Made, Step};
use crate::{
    limit::{Coordination, Decision, Direction, Hits, LimitCheck, Period, Scope, Timestamp},
    store::{Decisions, remote::Remote},
};

impl<R: Remote> CoordinationModes<R> {
    /// Decides `checks` and counts their hits only if all of them are admitted.
    pub(super) async fn take_all_or_none(&self, checks: &[LimitCheck<'_>], now: Timestamp) -> Decisions {
        let begun = Instant::now();
        // hits that are given back follow once the request is known to be admitted
        let steps: SmallVec<[Option<Step>; 2]> = checks
            .iter()
            .map(|check| (check.direction == Direction::Take).then(|| self.step(check, Scope::Request, now)))
            .collect();
        let is_rejected = steps.iter().flatten().any(Step::is_rejection);
        let made = checks.iter().zip(steps).map(async |(check, step)| match step? {
            step @ (Step::Strict(_) | Step::Lease) if is_rejected => {
                Some(Made::nothing(self.status(check, Some(step), now).await, now))
            }
            step => Some(self.finish(check, Scope::Request, step, now).await),
        });
        let made: Vec<Option<Made>> = join_all(made).await;
        let is_rejected = made.iter().flatten().any(|made| made.decision.over);
        let elapsed = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let budget = Period::from_nanos(self.budget.as_nanos().saturating_sub(elapsed));
        let decisions = checks.iter().zip(made).map(async |(check, made)| match made {
            Some(made) if is_rejected => self.undo(check, made, budget, now).await,
            Some(made) => made.decision,
            None if is_rejected => self.status(check, None, now).await,
            None => {
                let step = self.step(check, Scope::Request, now);
                self.finish(check, Scope::Request, step, now).await.decision
            }
        });
        join_all(decisions).await.into_iter().collect()
    }

    /// Returns how the counter of `check` stands, without counting; over, if its hits do not fit.
    async fn status(&self, check: &LimitCheck<'_>, step: Option<Step>, now: Timestamp) -> Decision {
        if let Some(Step::Strict(target)) = step
            && let Ok(decision) = self.strict.status(check, target).await
        {
            return decision;
        }
        let at = self.client.time_at(now).now;
        if self.mode(check, at) == Coordination::Local {
            return self.memory.status(check, now);
        }
        self.table.with_counter(check, at, |counter| {
            let rejection = match check.direction {
                Direction::Take => counter.known_rejection(check.hits, at),
                Direction::GiveBack => None,
            };
            rejection.unwrap_or_else(|| counter.status(at))
        })
    }

    /// Gives back hits that were taken for `check`, because another check of the request was rejected. Waits for the store no
    /// longer than `budget`.
    async fn undo(&self, check: &LimitCheck<'_>, made: Made, budget: Period, now: Timestamp) -> Decision {
        let Made { mut decision, counted, at } = made;
        if decision.over || check.hits == Hits(0) {
            return decision;
        }
        match counted {
            Counted::Nothing => return decision,
            Counted::ByFallback(delivery) => self.fallback.undo(check, delivery, at),
            Counted::ByMode => match self.mode(check, at) {
                Coordination::Local => self.memory.give_back(check, now),
                // a counter's mode is never `auto`
                Coordination::Interval | Coordination::Auto => self.interval.undo(check, at),
                Coordination::Lease => self.lease.undo(check, at),
                Coordination::Strict => self.strict.undo(check, at, budget).await,
            },
        }
        let left = u64::from(decision.remaining).saturating_add(check.hits.0);
        let most = check.tiers()[decision.tier].capacity();
        decision.remaining = u32::try_from(left).unwrap_or(u32::MAX).min(most);
        decision
    }
}
