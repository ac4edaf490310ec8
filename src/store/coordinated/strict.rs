//! `strict`: every decision is the store's.

use std::sync::Arc;

use super::{
    Inner,
    counter::negative,
    fallback::{Told, Undecided},
};
use crate::{
    limit::{
        Decision, Direction, Hits, LimitCheck, OverLimitPolicy, Period, Scope, Timestamp, decision_from_store,
    },
    store::remote::{Command, Op, Remote},
};

impl<R: Remote> Inner<R> {
    /// With the local cache: denies what the store has denied until some instant.
    pub(super) fn decide_by_cache(&self, check: &LimitCheck<'_>, now: Timestamp) -> Option<Decision> {
        if !self.settings.local_cache || check.direction == Direction::GiveBack || check.hits == Hits(0) {
            return None;
        }
        let decision = self.with_counter(check, now, |counter| {
            if counter.is_denied(now) { counter.refuses(check.hits, now) } else { None }
        })?;
        self.metrics.denied.add(1);
        Some(Decision { cached: true, ..decision })
    }
}

/// LimitChecks the store, and waits for its answer within the budget.
pub(super) async fn decide<R: Remote>(
    inner: &Arc<Inner<R>>,
    check: &LimitCheck<'_>,
    scope: Scope,
) -> Result<Decision, Undecided> {
    let at = inner.time().now;
    let target = inner.with_counter(check, at, |counter| Arc::clone(&counter.target));
    let policy = check.over_limit_policy_in(scope);
    let op = match (check.direction, target.over_limit_policy) {
        (Direction::GiveBack, _) => Op::Add { hits: negative(check.hits.0) },
        // a rule in the reference's spelling would count what it refuses, which the whole request is not to
        (Direction::Take, OverLimitPolicy::Count)
            if policy == OverLimitPolicy::Ignore && check.hits > Hits(0) =>
        {
            Op::Grant { least: check.hits.0, want: check.hits.0, hold: Period::default() }
        }
        (Direction::Take, _) => Op::Take { hits: check.hits.0 },
    };
    let node = inner.node(Some(&target), at);
    let command = Command { target, at, op };
    let (reply, now) = inner.batcher.ask(node, command, inner.settings.budget).await?;
    if reply.counters.len() != check.tiers().len() {
        return Err(Undecided { told: Told::Perhaps, late: false });
    }
    let decision = match check.direction {
        Direction::GiveBack => inner.with_counter(check, now, |counter| {
            counter.heard(&reply, now);
            counter.look(now)
        }),
        Direction::Take => {
            let over = if check.hits == Hits(0) {
                check.tiers().iter().zip(&reply.counters).any(|(tier, c)| !c.probe(tier, now, Hits(0)).fits)
            } else {
                reply.granted < check.hits.0
            };
            inner.with_counter(check, now, |counter| {
                counter.heard(&reply, now);
                if over && inner.settings.local_cache {
                    counter.deny_while_empty(now);
                }
            });
            decision_from_store(check.tiers(), &reply.counters, policy, over, check.hits, now)
        }
    };
    Ok(decision)
}
