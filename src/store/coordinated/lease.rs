//! The `lease` mode: this instance reserves some of the limit in advance and spends it without calls.

use std::sync::Arc;

use super::{
    client::StoreClient, counter::Asks, counter::LocalCounter, step::Step, store_time::StoreTime,
    table::CounterTable,
};
use crate::{
    limit::{Coordination, Decision, Direction, Hits, LimitCheck, OverLimitPolicy, Period, Scope, Timestamp},
    store::remote::Remote,
};

/// Decides from leases.
pub(super) struct Lease<R> {
    table: Arc<CounterTable<R>>,
    client: Arc<StoreClient<R>>,
}

// === impl Lease ===

impl<R: Remote> Lease<R> {
    pub(super) fn new((table, client): (Arc<CounterTable<R>>, Arc<StoreClient<R>>)) -> Self {
        Self { table, client }
    }

    /// Decides `check`, if the estimate rejects it or a lease covers it. Returns the counter's mode if it is not
    /// `lease`.
    pub(super) fn decide(
        &self,
        check: &LimitCheck<'_>,
        scope: Scope,
        time: StoreTime,
    ) -> Result<Step, Coordination> {
        let policy = check.over_limit_policy_in(scope);
        self.table.with_mode(check, Coordination::Lease, time.now, |counter| {
            self.table.record_dropped(counter.expire_leases(time));
            if check.direction == Direction::GiveBack {
                self.table.metrics.local.add(1);
                let instances = self.client.instances();
                return Step::Done(counter.count(instances, check.direction, policy, check.hits, time.now));
            }
            if check.hits == Hits(0) {
                return Step::wait(self.table.ask(counter, check, Hits(0), Asks::Look));
            }
            // more hits than fit are rejected, and predict no need
            counter.record_demand(check.hits, time.now);
            if let Some((decision, lease_next)) = self.decide_leased(counter, policy, check.hits, time.now) {
                if lease_next {
                    counter.want_lease();
                }
                return Step::Done(decision);
            }
            // a lease is granted under the limit of the rule
            let is_own = check.rule.id().is_none();
            let asks = if is_own { Asks::Take(policy) } else { Asks::Lease(policy) };
            Step::wait(self.table.ask(counter, check, check.hits, asks))
        })
    }

    /// Decides by the estimate and the leases, if that is possible. Also returns whether to request the next lease.
    fn decide_leased(
        &self,
        counter: &mut LocalCounter,
        policy: OverLimitPolicy,
        hits: Hits,
        now: Timestamp,
    ) -> Option<(Decision, bool)> {
        let instances = self.client.instances();
        let decision = counter.decide_leased(instances, policy, hits, now)?;
        if decision.over {
            self.table.metrics.denied.add(1);
            let is_ending = counter.is_pause_ending(now);
            if !counter.is_denied(now) {
                counter.look_for_returned(now);
            }
            return Some((decision, is_ending));
        }
        self.table.metrics.leased.add(1);
        // the next lease has to arrive before this one is used up
        let soon = Period::from_nanos(2 * self.client.round_trip().as_nanos());
        Some((decision, counter.lease_policy().runs_low(soon, now)))
    }

    /// Decides `check` from a lease while the store is unavailable. Returns none if the lease holds too few hits.
    pub(super) fn decide_from_held(
        &self,
        check: &LimitCheck<'_>,
        scope: Scope,
        time: StoreTime,
    ) -> Option<Decision> {
        if check.direction == Direction::GiveBack || check.hits == Hits(0) {
            return None;
        }
        let policy = check.over_limit_policy_in(scope);
        self.table.with_counter(check, time.now, |counter| {
            self.table.record_dropped(counter.expire_leases(time));
            counter.record_demand(check.hits, time.now);
            let is_covered = counter.leased_hits() >= check.hits.0 && counter.fits(check.hits, time.now);
            let (decision, _) =
                is_covered.then(|| self.decide_leased(counter, policy, check.hits, time.now))??;
            counter.note_in_fallback(check.hits, time.now);
            Some(decision)
        })
    }

    /// Puts back the hits that were taken for `check`.
    pub(super) fn undo(&self, check: &LimitCheck<'_>, now: Timestamp) {
        self.table.with_counter(check, now, |counter| counter.unspend(check.hits, now));
    }
}
