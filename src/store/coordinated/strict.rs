//! `strict`: every decision is the store's.

use std::sync::Arc;

use super::{
    Inner,
    alone::{Told, Undecided},
    cell::negative,
};
use crate::{
    limit::{Ask, Direction, Hits, Period, Refused, Scope, Taken, Timestamp, decided},
    store::remote::{Command, Op, Remote},
};

impl<R: Remote> Inner<R> {
    /// With the local cache: denies what the store has denied until some instant.
    pub(super) fn decide_by_cache(&self, ask: &Ask<'_>, now: Timestamp) -> Option<Taken> {
        if !self.settings.local_cache || ask.direction == Direction::GiveBack || ask.hits == Hits(0) {
            return None;
        }
        let taken =
            self.with_cell(
                ask,
                now,
                |cell| {
                    if cell.is_denied(now) { cell.refuses(ask.hits, now) } else { None }
                },
            )?;
        self.figures.denied.add(1);
        Some(Taken { cached: true, ..taken })
    }
}

/// Asks the store, and waits for its answer within the budget.
pub(super) async fn decide<R: Remote>(
    inner: &Arc<Inner<R>>,
    ask: &Ask<'_>,
    scope: Scope,
) -> Result<Taken, Undecided> {
    let at = inner.time().now;
    let target = inner.with_cell(ask, at, |cell| Arc::clone(&cell.target));
    let refused = ask.refused_in(scope);
    let op = match (ask.direction, target.refused) {
        (Direction::GiveBack, _) => Op::Add { hits: negative(ask.hits.0) },
        // a rule in the reference's spelling would count what it refuses, which the whole request is not to
        (Direction::Take, Refused::Count) if refused == Refused::Vanish && ask.hits > Hits(0) => {
            Op::Grant { least: ask.hits.0, want: ask.hits.0, hold: Period::default() }
        }
        (Direction::Take, _) => Op::Take { hits: ask.hits.0 },
    };
    let node = inner.node(Some(&target), at);
    let command = Command { target, at, op };
    let (reply, now) = inner.desk.ask(node, command, inner.settings.budget).await?;
    if reply.counters.len() != ask.tiers().len() {
        return Err(Undecided { told: Told::Perhaps, late: false });
    }
    let taken = match ask.direction {
        Direction::GiveBack => inner.with_cell(ask, now, |cell| {
            cell.heard(&reply, now);
            cell.look(now)
        }),
        Direction::Take => {
            let over = if ask.hits == Hits(0) {
                ask.tiers().iter().zip(&reply.counters).any(|(tier, c)| !c.offer(tier, now, Hits(0)).admits)
            } else {
                reply.granted < ask.hits.0
            };
            inner.with_cell(ask, now, |cell| {
                cell.heard(&reply, now);
                if over && inner.settings.local_cache {
                    cell.deny_while_empty(now);
                }
            });
            decided(ask.tiers(), &reply.counters, refused, over, ask.hits, now)
        }
    };
    Ok(taken)
}
