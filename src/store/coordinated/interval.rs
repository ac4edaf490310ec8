//! The `interval` mode: every instance counts by itself and exchanges its counts with the others at an interval.

use std::sync::Arc;

use super::{client::StoreClient, counter::LocalCounter, table::CounterTable};
use crate::{
    limit::{Coordination, Decision, Direction, Hits, LimitCheck, Period, Scope, Timestamp},
    store::remote::Remote,
};

/// The age of the last reply from which a rejected request asks the store whether hits were given back elsewhere.
const STALE_REJECTION: Period = Period::from_secs(1);

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
            Self::count(counter, instances, check, scope, now)
        })
    }

    fn count(
        counter: &mut LocalCounter,
        instances: usize,
        check: &LimitCheck<'_>,
        scope: Scope,
        now: Timestamp,
    ) -> Decision {
        if check.direction == Direction::Take {
            counter.record_demand(check.hits, now);
        }
        let policy = check.over_limit_policy_in(scope);
        let decision = counter.count(instances, check.direction, policy, check.hits, now);
        // counted hits are reported, and the reply includes the hits of others; other checks have to read
        if check.hits == Hits(0) {
            counter.refresh(counter.plan.schedule.interval(), now);
        } else if decision.over && instances > 1 {
            counter.refresh(STALE_REJECTION, now);
        }
        decision
    }

    /// Gives back the hits that were taken for `check` at the instant `at`.
    pub(super) fn undo(&self, check: &LimitCheck<'_>, at: Timestamp) {
        self.table.with_counter(check, at, |counter| counter.uncount(check.hits, at));
    }
}
