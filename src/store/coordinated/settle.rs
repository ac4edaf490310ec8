//! Settles counters that have some of their tiers in common, before the shared store decides about one of them.

use futures_util::future::join_all;
use tokio::{
    sync::futures::OwnedNotified,
    time::{Instant, timeout},
};

use super::{
    budget::rest,
    counter::LocalCounter,
    delivery::{Delivery, Undecided},
    leasing::Lease,
    table::counter_key,
};
use crate::{
    limit::{Coordination, CounterKey, LimitCheck, Period},
    store::remote::{Remote, Target},
};

/// How often a decision in order waits for what is on its way: for a report, and what it has delayed.
const MOST_WAITS: usize = 2;

/// How long a decision waits for the store, and for what.
#[derive(Debug)]
pub(super) struct Wait {
    /// The longest that it waits.
    pub(super) budget: Period,
    begun: Instant,
    /// Replies that have to be applied before the reply to the decision.
    earlier: Vec<OwnedNotified>,
}

// === impl Wait ===

impl Wait {
    /// Waits for `budget` at most.
    pub(super) fn of(budget: Period) -> Self {
        Self::after(Vec::new(), budget)
    }

    /// Waits for `budget` at most, and until the `earlier` replies are applied.
    fn after(earlier: Vec<OwnedNotified>, budget: Period) -> Self {
        Self { budget, begun: Instant::now(), earlier }
    }

    /// Returns whether there are replies that have to be applied first.
    pub(super) const fn has_earlier(&self) -> bool {
        !self.earlier.is_empty()
    }

    /// Waits until the earlier replies are applied, for what is left of the budget. They were requested in the same call, or in an
    /// earlier one.
    pub(super) async fn for_earlier(self) {
        if !self.earlier.is_empty() {
            // one that is lost must not block this decision
            let _ = timeout(rest(self.budget, self.begun).into(), join_all(self.earlier)).await;
        }
    }
}

// === impl Lease ===

impl<R: Remote> Lease<R> {
    /// Has the store count what the counter of `check` and its siblings have counted, before what is sent next. `target` is that of
    /// the counter. Returns the rest of the wait, which is `budget` at most in all.
    pub(super) async fn settle(
        &self,
        check: &LimitCheck<'_>,
        target: &Target,
        budget: Period,
    ) -> Result<Wait, Undecided> {
        let begun = Instant::now();
        let late = Undecided { delivery: Delivery::NotApplied, late: true };
        let earlier = timeout(budget.into(), self.send_unsettled(counter_key(check), target))
            .await
            .map_err(|_| late)?;
        Ok(Wait::after(earlier, rest(budget, begun)))
    }

    /// Returns how long a decision about `check` that the store makes beside leases waits: the reply to a running fetch is applied
    /// first, since the store counts the hits that it grants.
    pub(super) fn wait_for_fetch(&self, check: &LimitCheck<'_>, budget: Period) -> Wait {
        Wait::after(self.next_reply(counter_key(check)).into_iter().collect(), budget)
    }

    /// Waits for the reply to a flush of the counter of `check` that is in flight, unless the store is far away, and has what was counted
    /// since reported. Returns the rest of the wait.
    pub(super) async fn wait_for_flush(
        &self,
        check: &LimitCheck<'_>,
        budget: Period,
    ) -> Result<Wait, Undecided> {
        let (begun, key) = (Instant::now(), counter_key(check));
        let flush = self.table.with_existing(key, |counter| {
            (counter.has_flush_in_flight() && !self.is_far()).then(|| counter.next_reply()).flatten()
        });
        if let Some(reply) = flush.flatten() {
            let late = Undecided { delivery: Delivery::NotApplied, late: true };
            timeout(budget.into(), reply).await.map_err(|_| late)?;
        }
        if self.table.with_existing(key, |counter| counter.can_flush()).unwrap_or_default() {
            self.report(key);
        }
        Ok(self.wait_for_fetch(check, rest(budget, begun)))
    }

    /// Sends what the counter of `check` and its siblings have counted, after the replies to earlier reports, which other commands
    /// might overtake. Returns the replies to be expected.
    async fn send_unsettled(&self, key: CounterKey, target: &Target) -> Vec<OwnedNotified> {
        let mut waits = 0;
        loop {
            let mut unsettled = self.table.unsettled(key, target, self.client.time().now);
            // the next command is carried out after the reports of the own counter, if they are not in a flush
            let may_overtake = |other: &CounterKey| {
                let follows = |counter: &mut LocalCounter| {
                    counter.mode != Coordination::Lease && counter.reports_in_order()
                };
                *other != key || !self.table.with_existing(key, follows).unwrap_or_default()
            };
            let awaited = unsettled.iter().filter(|(_, key)| may_overtake(key));
            let replies: Vec<_> = awaited.filter_map(|(_, key)| self.next_reply(*key)).collect();
            // under load the next lease is always on its way
            if replies.is_empty() || waits == MOST_WAITS {
                // in the order in which they were counted
                unsettled.sort_by_key(|(oldest, _)| *oldest);
                unsettled.iter().for_each(|(_, key)| self.report(*key));
                return unsettled.iter().filter_map(|(_, key)| self.next_reply(*key)).collect();
            }
            join_all(replies).await;
            waits += 1;
        }
    }
}
