//! The `strict` mode: the shared store makes every decision.

use std::sync::Arc;

use super::{
    client::StoreClient,
    counter::{CommandPlace, LocalCounter, has_strict_bucket, negative},
    delivery::{Delivery, Undecided},
    settle::Wait,
    table::{CounterTable, PlacedCommand},
};
use crate::{
    limit::{
        Algorithm, Coordination, Decision, Direction, Hits, LimitCheck, OverLimitPolicy, Period, Scope, Tier,
        Timestamp, decision_from_store,
    },
    store::remote::{Op, Remote, Reply, Report, Target},
};

/// Decides with one command for each check.
pub(super) struct Strict<R> {
    table: Arc<CounterTable<R>>,
    client: Arc<StoreClient<R>>,
    /// Whether counters that the store has denied until some instant are denied without a call.
    local_cache: bool,
}

/// A decision that needs no call, or is ready to be sent.
pub(super) enum Prepared {
    /// The local cache rejects the check.
    Rejected(Decision),
    /// The store has to decide about this target.
    Send(Arc<Target>),
    /// The same, after it has counted what the counter and its siblings have counted here.
    Settle(Arc<Target>),
}

/// A command that the store has replied to.
struct Sent {
    target: Arc<Target>,
    place: CommandPlace,
    reply: Reply,
    now: Timestamp,
}

// === impl Strict ===

impl<R: Remote> Strict<R> {
    pub(super) fn new(
        (table, client): (Arc<CounterTable<R>>, Arc<StoreClient<R>>),
        local_cache: bool,
    ) -> Self {
        Self { table, client, local_cache }
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
                return Prepared::Send(Arc::clone(&counter.target));
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

    /// Sends `check`, whose target is `target`, to the store and waits for the decision. Returns it
    /// with the instant at which the store made it.
    pub(super) async fn decide(
        &self,
        check: &LimitCheck<'_>,
        target: &Target,
        scope: Scope,
        wait: Wait,
    ) -> Result<(Decision, Timestamp), Undecided> {
        if check.hits == Hits(0) && check.direction == Direction::Take {
            return self.status(check, wait).await;
        }
        let at = self.client.time().now;
        let policy = check.over_limit_policy_in(scope);
        let op = match (check.direction, target.over_limit_policy) {
            (Direction::GiveBack, _) => {
                let arrives = latest_arrival(check.tiers(), at, wait.budget);
                Op::Add { report: Report::of(arrives, negative(check.hits.0)) }
            }
            // `Take` would count rejected hits of such a target, but this request must not count them
            (Direction::Take, OverLimitPolicy::Count) if policy == OverLimitPolicy::Ignore => {
                Op::Grant { report: None, least: check.hits.0, want: check.hits.0, hold: Period::default() }
            }
            (Direction::Take, _) => Op::Take { hits: check.hits.0 },
        };
        let Sent { target, place, reply, now } = self.send(check, at, op, wait).await?;
        if check.direction == Direction::GiveBack {
            let decision = self.table.with_counter(check, now, |counter| {
                let applied = counter.apply_reply(&reply, place, now);
                look(counter, applied, &reply, Hits(0), now)
            });
            return Ok((decision, now));
        }
        let over = reply.granted < check.hits.0;
        let known = self.table.with_counter(check, now, |counter| {
            let is_applied = self.apply_and_cache(counter, over, now, |counter| {
                let is_applied = counter.apply_reply(&reply, place, now);
                if !over {
                    counter.note_change();
                    counter.note_admission();
                }
                is_applied
            });
            // the reply counts the leases of the rule, which are left for this limit too
            (is_applied && counter.leased_hits() > 0).then(|| counter.decided(policy, over, check.hits, now))
        });
        let by_reply = || decision_from_store(&target.tiers, &reply.counters, policy, over, check.hits, now);
        Ok((known.unwrap_or_else(by_reply), now))
    }

    /// Returns the status of `check` as the store knows it, without counting; over, if its hits do not fit.
    pub(super) async fn status(
        &self,
        check: &LimitCheck<'_>,
        wait: Wait,
    ) -> Result<(Decision, Timestamp), Undecided> {
        let hits = if check.direction == Direction::Take { check.hits } else { Hits(0) };
        let at = self.client.time().now;
        let PlacedCommand { place, queued, .. } = self.table.queue_command(check, at, Op::Take { hits: 0 });
        let received = self.client.receive(queued, wait.budget).await;
        wait.for_earlier().await;
        // it counts nothing
        let (reply, now) =
            received.map_err(|undecided| Undecided { delivery: Delivery::NotApplied, ..undecided })?;
        let states = check.tiers().iter().zip(&reply.counters);
        let over =
            hits > Hits(0) && states.into_iter().any(|(tier, state)| !state.probe(tier, now, hits).fits);
        let decision = self.table.with_counter(check, now, |counter| {
            let applied =
                self.apply_and_cache(counter, over, now, |counter| counter.apply_reply(&reply, place, now));
            look(counter, applied, &reply, hits, now)
        });
        Ok((decision, now))
    }

    /// Applies a reply by `apply`, and has the local cache know if it says that a counter of `strict` is `over` its limit.
    fn apply_and_cache(
        &self,
        counter: &mut LocalCounter,
        over: bool,
        now: Timestamp,
        apply: impl FnOnce(&mut LocalCounter) -> bool,
    ) -> bool {
        // the cache is that of mode `strict`, which the counter need not have
        let is_cached = over && self.local_cache && counter.mode == Coordination::Strict;
        if is_cached {
            // it needs the counts of the rejection, even if an estimated time puts it before an earlier reply
            counter.accept_time(now);
        }
        let is_applied = apply(counter);
        if is_cached {
            counter.deny_while_empty(now);
        }
        is_applied
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
        self.local_cache
            && check.direction == Direction::Take
            && hits > Hits(0)
            && !has_strict_bucket(check.tiers())
            && counter.is_cached(hits, now)
    }

    /// Sends a command with `op` about `check`, and waits for the reply, which has one state for each tier.
    async fn send(
        &self,
        check: &LimitCheck<'_>,
        at: Timestamp,
        op: Op,
        wait: Wait,
    ) -> Result<Sent, Undecided> {
        let PlacedCommand { target, place, queued } = self.table.queue_command(check, at, op);
        let (reply, now) = self.client.receive(queued, wait.budget).await?;
        wait.for_earlier().await;
        if reply.counters.len() != target.tiers.len() {
            return Err(Undecided { delivery: Delivery::Unknown, late: false });
        }
        Ok(Sent { target, place, reply, now })
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

/// Returns how `counter` stands after `reply`; over, if `hits` do not fit: by the estimate, which leaves out leased hits that are not
/// used and has those that are not reported yet, or by the reply itself, if a later one has overtaken it.
fn look(counter: &LocalCounter, is_applied: bool, reply: &Reply, hits: Hits, now: Timestamp) -> Decision {
    let tiers = &counter.target.tiers;
    if is_applied || reply.counters.len() != tiers.len() {
        return counter.look(hits, now);
    }
    let over = tiers.iter().zip(&reply.counters).any(|(tier, state)| !state.probe(tier, now, hits).fits);
    let hits = if over { hits } else { Hits(0) };
    decision_from_store(tiers, &reply.counters, OverLimitPolicy::Ignore, over, hits, now)
}
