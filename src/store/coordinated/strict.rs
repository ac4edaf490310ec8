//! The `strict` mode: the shared store makes every decision.

use std::sync::Arc;

use tokio::{sync::oneshot, time::timeout};

use super::{
    client::StoreClient,
    counter::{Asks, LocalCounter, Try, has_strict_bucket, negative},
    delivery::{Delivery, Undecided},
    settle::Wait,
    table::{CounterTable, PlacedCommand, counter_key},
};
use crate::{
    limit::{
        Algorithm, Coordination, Decision, Direction, Hits, LimitCheck, OverLimitPolicy, Period, Scope, Tier,
        Timestamp,
    },
    store::remote::{Op, Remote, Report, Target},
};

/// Has the store decide each check. Those that wait for a call to the same node share it.
pub(super) struct Strict<R> {
    table: Arc<CounterTable<R>>,
    client: Arc<StoreClient<R>>,
}

/// A decision that needs no call, or is ready to be sent.
pub(super) enum Prepared {
    /// The local cache rejects the check.
    Rejected(Decision),
    /// The store has to decide.
    Send,
    /// The same about this target, after the store has counted what the counter and its siblings have counted here.
    Settle(Arc<Target>),
}

// === impl Strict ===

impl<R: Remote> Strict<R> {
    pub(super) fn new((table, client): (Arc<CounterTable<R>>, Arc<StoreClient<R>>)) -> Self {
        Self { table, client }
    }

    /// Prepares the decision about `check`: rejects it if the local cache is on and the store has denied the counter until
    /// later than `now`. Returns the counter's mode if it is not `strict`.
    pub(super) fn prepare(&self, check: &LimitCheck<'_>, now: Timestamp) -> Result<Prepared, Coordination> {
        self.table.with_mode(check, Coordination::Strict, now, |counter| {
            // the store must know the hits of the fallback, or of another mode, before it decides about more, or takes some back
            let must_settle = match check.direction {
                Direction::GiveBack => counter.has_unacknowledged(),
                Direction::Take => counter.is_ahead_of_store(now),
            };
            if must_settle || counter.must_decide_in_order(check.direction, check.hits, now) {
                return Prepared::Settle(Arc::clone(&counter.target));
            }
            if !self.has_cached(counter, check, check.hits, now) {
                return Prepared::Send;
            }
            self.table.metrics.denied.add(1);
            // counts no hits
            let policy = OverLimitPolicy::Ignore;
            let instances = self.client.instances();
            let decision = counter.count(instances, Direction::Take, policy, check.hits, now);
            counter.deny_while_empty(now);
            Prepared::Rejected(Decision { cached: true, ..decision })
        })
    }

    /// Has the store decide `check`, and waits for that. Returns the decision with the instant at which the store made it.
    pub(super) async fn decide(
        &self,
        check: &LimitCheck<'_>,
        scope: Scope,
        wait: Wait,
    ) -> Result<(Decision, Timestamp), Undecided> {
        let policy = check.over_limit_policy_in(scope);
        match check.direction {
            Direction::GiveBack => {
                let at = self.client.time().now;
                let arrives = latest_arrival(check.tiers(), at, wait.budget);
                let op = Op::Add { report: Report::of(arrives, negative(check.hits.0)) };
                self.ask_alone(check, Some(op), Asks::Look, Hits(0), wait).await
            }
            Direction::Take if check.hits == Hits(0) => self.status(check, wait).await,
            Direction::Take => self.ask(check, Asks::Take(policy), check.hits, wait).await,
        }
    }

    /// Returns the status of `check` as the store knows it, without counting; over, if its hits do not fit.
    pub(super) async fn status(
        &self,
        check: &LimitCheck<'_>,
        wait: Wait,
    ) -> Result<(Decision, Timestamp), Undecided> {
        let hits = if check.direction == Direction::Take { check.hits } else { Hits(0) };
        let looked = self.ask(check, Asks::Look, hits, wait).await;
        // it counts nothing
        looked.map_err(|undecided| Undecided { delivery: Delivery::NotApplied, ..undecided })
    }

    /// Has the store decide `hits` of `check` together with others that wait, unless replies to earlier commands have to be applied first.
    async fn ask(
        &self,
        check: &LimitCheck<'_>,
        asks: Asks,
        hits: Hits,
        wait: Wait,
    ) -> Result<(Decision, Timestamp), Undecided> {
        if wait.has_earlier() {
            return self.ask_alone(check, None, asks, hits, wait).await;
        }
        let (outcome, mut decided) = oneshot::channel();
        let is_own = check.rule.id().is_none();
        let asked = |target| Try { target, is_own, hits, asks, outcome };
        let not_sent = Undecided { delivery: Delivery::NotApplied, late: false };
        let at = self.client.time().now;
        let (generation, number) = self.table.queue_try(check, at, asked).ok_or(not_sent)?;
        if let Ok(outcome) = timeout(wait.budget.into(), &mut decided).await {
            // it was neither sent nor lost: its counter was evicted
            return outcome.unwrap_or(Err(not_sent));
        }
        // from now on it is left out of commands
        decided.close();
        let is_waiting = |counter: &mut LocalCounter| counter.is_waiting(number);
        if self.table.with_generation(counter_key(check), generation, is_waiting).unwrap_or_default() {
            return Err(Undecided { late: true, ..not_sent });
        }
        // the decision may just have arrived
        decided.try_recv().unwrap_or(Err(Undecided { delivery: Delivery::Unknown, late: true }))
    }

    /// Has the store decide `hits` of `check` by a command of its own, or carry `op` out. The reply is applied after those that `wait` names.
    async fn ask_alone(
        &self,
        check: &LimitCheck<'_>,
        op: Option<Op>,
        asks: Asks,
        hits: Hits,
        wait: Wait,
    ) -> Result<(Decision, Timestamp), Undecided> {
        // nobody receives it there
        let (outcome, _) = oneshot::channel();
        let is_own = check.rule.id().is_none();
        let asked = |target| Try { target, is_own, hits, asks, outcome };
        let (queued, sent) = self.table.queue_alone(check, self.client.time().now, op, asked);
        let (reply, now) = self.client.receive(queued, wait.budget).await?;
        wait.for_earlier().await;
        // also to a counter that has taken the place of one that was evicted
        let decided = self.table.with_counter(check, now, |counter| {
            self.table.decide_with(Some(counter), sent, Ok((reply, now)))
        });
        let alone = decided.into_iter().next().map(|(_, outcome)| outcome);
        alone.unwrap_or(Err(Undecided { delivery: Delivery::Unknown, late: false }))
    }

    /// Returns whether the local cache rejects `hits` of `check`: not of one with a strict bucket, since the store has to notice the try
    /// before the next decision.
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

    /// Gives back the hits that were taken for `check` at the instant `at`. Waits for the store within `budget`; if it has not
    /// received the command then, the hits are given back with the next flush.
    pub(super) async fn undo(&self, check: &LimitCheck<'_>, at: Timestamp, budget: Period) {
        // the newest hits, which are those of this request
        let op = Op::Add { report: Report::unused(at, check.hits.0, at) };
        let PlacedCommand { place, queued, .. } = self.table.queue_command(check, at, op);
        match self.client.receive(queued, budget).await {
            Ok((reply, now)) => {
                self.table.with_counter(check, now, |counter| _ = counter.apply_reply(&reply, place, now));
            }
            Err(Undecided { delivery: Delivery::NotApplied, .. }) => {
                self.table.with_counter(check, at, |counter| counter.uncount(check.hits, at));
            }
            Err(_) => self.table.metrics.delivery_unknown.add(check.hits.0),
        }
    }
}

/// Returns the latest instant at which a report arrives that is sent at `at`, in the same fixed windows. The store counts a report of
/// the future as of its arrival, as it does other commands.
fn latest_arrival(tiers: &[Tier], at: Timestamp, budget: Period) -> Timestamp {
    let fixed = tiers.iter().filter(|tier| tier.algorithm == Algorithm::FixedWindow);
    let lasts = fixed.map(|tier| at.window_end(tier.period).since(at).as_nanos() - 1);
    at.after(Period::from_nanos(lasts.fold(budget.as_nanos(), u64::min)))
}
