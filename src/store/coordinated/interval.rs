//! The `interval` mode: every instance counts by itself and exchanges its counts with the others at an interval.

use std::sync::Arc;

use super::{client::StoreClient, table::CounterTable};
use crate::{
    limit::{Coordination, Decision, Direction, LimitCheck, OverLimitPolicy, Scope, Timestamp},
    store::remote::Remote,
};

/// Decides by the local estimate.
pub(super) struct Interval<R> {
    table: Arc<CounterTable<R>>,
    client: Arc<StoreClient<R>>,
}

// === impl Interval ===

impl<R: Remote> Interval<R> {
    pub(super) fn new((table, client): (Arc<CounterTable<R>>, Arc<StoreClient<R>>)) -> Self {
        Self { table, client }
    }

    /// Decides `check` without waiting. Returns the counter's mode if it is not `interval`.
    pub(super) fn decide(
        &self,
        check: &LimitCheck<'_>,
        scope: Scope,
        now: Timestamp,
    ) -> Result<Decision, Coordination> {
        let instances = self.client.instances();
        self.table.with_mode(check, Coordination::Interval, now, |counter| {
            self.table.metrics.local.add(1);
            if check.direction == Direction::Take {
                counter.demand.record(check.hits.0, now);
            }
            counter.count(instances, check.direction, check.over_limit_policy_in(scope), check.hits, now)
        })
    }

    /// Gives back the hits that were taken for `check`.
    pub(super) fn undo(&self, check: &LimitCheck<'_>, now: Timestamp) {
        let instances = self.client.instances();
        self.table.with_counter(check, now, |counter| {
            counter.count(instances, Direction::GiveBack, OverLimitPolicy::Ignore, check.hits, now);
        });
    }
}
