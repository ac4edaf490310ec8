//! The `strict` mode: the shared store makes every decision.

use std::sync::Arc;

use super::{
    budget::deadline,
    client::StoreClient,
    counter::{Asks, LocalCounter, has_strict_bucket},
    step::Step,
    table::{CounterTable, Waiting},
};
use crate::{
    limit::{
        Algorithm, Coordination, Decision, Direction, Hits, LimitCheck, OverLimitPolicy, Period, Scope, Tier,
        Timestamp,
    },
    store::remote::Remote,
};

/// Has the store decide each check. Those that wait for a call to the same node share it.
pub(super) struct Strict<R> {
    table: Arc<CounterTable<R>>,
    client: Arc<StoreClient<R>>,
}

// === impl Strict ===

impl<R: Remote> Strict<R> {
    pub(super) fn new((table, client): (Arc<CounterTable<R>>, Arc<StoreClient<R>>)) -> Self {
        Self { table, client }
    }

    /// Decides `check` if the local cache is on and the store has denied the counter until later than `now`; otherwise
    /// the store does. Returns the counter's mode if it is not `strict`.
    pub(super) fn decide(
        &self,
        check: &LimitCheck<'_>,
        scope: Scope,
        now: Timestamp,
    ) -> Result<Step, Coordination> {
        self.table.with_mode(check, Coordination::Strict, now, |counter| {
            if !self.has_cached(counter, check, check.hits, now) {
                return self.ask(counter, check, scope, now);
            }
            self.table.metrics.denied.add(1);
            // counts no hits
            let policy = OverLimitPolicy::Ignore;
            let instances = self.client.instances();
            let decision = counter.count(instances, Direction::Take, policy, check.hits, now);
            counter.deny_while_empty(now);
            Step::Done(Decision { cached: true, ..decision })
        })
    }

    /// Has the store decide `check`, whose `counter` is locked.
    pub(super) fn ask(
        &self,
        counter: &mut LocalCounter,
        check: &LimitCheck<'_>,
        scope: Scope,
        now: Timestamp,
    ) -> Step {
        let policy = check.over_limit_policy_in(scope);
        match check.direction {
            Direction::GiveBack => {
                counter.count(self.client.instances(), check.direction, policy, check.hits, now);
                counter.date_last_report(latest_arrival(check.tiers(), now, self.table.budget));
                match self.table.ask(counter, check, Hits(0), Asks::Look) {
                    Some(waiting) => Step::Counted(waiting),
                    None => Step::Full,
                }
            }
            Direction::Take if check.hits == Hits(0) => {
                Step::wait(self.table.ask(counter, check, Hits(0), Asks::Look))
            }
            Direction::Take => Step::wait(self.table.ask(counter, check, check.hits, Asks::Take(policy))),
        }
    }

    /// Returns whether the local cache rejects `hits` of `check`: not of one with a strict bucket, since the store has
    /// to notice the try before the next decision.
    pub(super) fn has_cached(
        &self,
        counter: &LocalCounter,
        check: &LimitCheck<'_>,
        hits: Hits,
        now: Timestamp,
    ) -> bool {
        self.table.local_cache
            && check.direction == Direction::Take
            && hits > Hits(0)
            && !has_strict_bucket(check.tiers())
            && counter.is_cached(hits, now)
    }

    /// Gives back the hits that were taken for `check` at the instant `at`. Waits for the store within `budget`; if it
    /// has not received them then, they are given back later.
    pub(super) async fn undo(&self, check: &LimitCheck<'_>, at: Timestamp, budget: Period) {
        let waiting: Option<Waiting> = self.table.with_counter(check, at, |counter| {
            // the newest hits, which are those of this request
            counter.uncount(check.hits, at);
            self.table.ask(counter, check, Hits(0), Asks::Look)
        });
        if let Some(waiting) = waiting {
            let _ = self.table.outcome(waiting, deadline(budget)).await;
        }
    }
}

/// Returns the latest instant at which a report arrives that is sent at `at`, in the same fixed windows. The store
/// counts a report of the future as of its arrival, as it does tries.
fn latest_arrival(tiers: &[Tier], at: Timestamp, budget: Period) -> Timestamp {
    let fixed = tiers.iter().filter(|tier| tier.algorithm == Algorithm::FixedWindow);
    let lasts = fixed.map(|tier| at.window_end(tier.period).since(at).as_nanos() - 1);
    at.after(Period::from_nanos(lasts.fold(budget.as_nanos(), u64::min)))
}
