//! The `lease` mode: this instance reserves some of the limit in advance and spends it without calls.

use std::sync::Arc;

use super::{
    counter::{LeaseReply, LocalCounter},
    fetching::Waiting,
    leasing::Lease,
    single::SingleWaiting,
    store_time::StoreTime,
    table::counter_key,
};
use crate::{
    limit::{Coordination, Decision, Direction, Hits, LimitCheck, OverLimitPolicy, Period, Scope, Timestamp},
    observe::DecisionRecord,
    store::remote::{Remote, Target},
};

/// How often a decision asks again for hits that fit by the estimate, and that the store did not grant.
const MAX_RETRIES: u32 = 2;

/// What a check under `lease` needs.
pub(super) enum Leased<'a, R: Remote> {
    /// Nothing: it was decided.
    Decided(Decision),
    /// A lease.
    Wait(Wanted<'a, R>),
    /// A decision of the store, as under `strict`: it has no hits, or a limit of its own, or would have to wait for two replies.
    Ask,
    /// The same, after the reply to a flush that is on its way.
    AskAfterFlush,
    /// The same about this target, after the store has counted what this instance has, and has received its leases: the limit is of its own, and does not
    /// admit them too, or hits become available again gradually, so that the times of all hits matter.
    Settle(Arc<Target>),
}

/// How a decision waits for its hits.
pub(super) enum Wanted<'a, R: Remote> {
    /// By a command of its own.
    Single(SingleWaiting<'a, R>),
    /// With others of the counter.
    Shared(Waiting<'a, R>),
}

/// What becomes of a decision after a reply.
enum AfterReply {
    Decided(Decision),
    /// The call has failed.
    Failed,
    /// It needs another lease.
    Wait,
}

// === impl Lease ===

impl<R: Remote> Lease<R> {
    /// Decides `check`, if the estimate rejects it or a lease covers it. Returns the counter's mode if it is not `lease`.
    pub(super) fn decide_at_once(
        &self,
        check: &LimitCheck<'_>,
        scope: Scope,
        time: StoreTime,
    ) -> Result<Leased<'_, R>, Coordination> {
        let now = time.now;
        let instances = self.client.instances();
        let policy = check.over_limit_policy_in(scope);
        let mut report_first = false;
        let (leased, fetch_next) = self.table.with_mode(check, Coordination::Lease, now, |counter| {
            self.table.record_dropped(counter.expire_leases(time));
            if check.direction == Direction::GiveBack {
                self.table.metrics.local.add(1);
                let decision = counter.count(instances, check.direction, policy, check.hits, now);
                // the report waits for their replies
                self.hand_over(counter_key(check), counter);
                self.hand_over_single(counter_key(check), counter);
                return (Leased::Decided(decision), false);
            }
            if check.hits == Hits(0) {
                if counter.has_flush_in_flight() {
                    return (Leased::AskAfterFlush, false);
                }
                report_first = counter.can_flush();
                return (Leased::Ask, false);
            }
            // more hits than fit are rejected, and predict no need
            counter.record_demand(check.hits, now);
            match self.decide_leased(counter, policy, check.hits, now) {
                Some((decision, fetch_next)) => (Leased::Decided(decision), fetch_next),
                // a lease is granted under the limit of the rule
                None if check.rule.id().is_none() => {
                    // the store counts them against this limit
                    let held = Hits(counter.leased_hits() + counter.requested_hits());
                    if counter.target.is_versioned() || !counter.fits(check.hits.plus(held), now) {
                        return (Leased::Settle(Arc::clone(&counter.target)), false);
                    }
                    if counter.has_flush_in_flight() {
                        return (Leased::AskAfterFlush, false);
                    }
                    report_first = counter.can_flush();
                    (Leased::Ask, false)
                }
                None if self.is_far() && counter.needs_second_reply(check.hits, now) => (Leased::Ask, false),
                None => {
                    let key = counter_key(check);
                    let single = self.request_single(key, counter, check.hits, now).map(Wanted::Single);
                    let shared = || Wanted::Shared(self.wait_for(key, counter, check.hits, None));
                    (Leased::Wait(single.unwrap_or_else(shared)), false)
                }
            }
        })?;
        if fetch_next {
            self.fetch(counter_key(check));
        } else if report_first {
            self.report(counter_key(check));
        }
        Ok(leased)
    }

    /// Decides by the estimate and the leases, if that is possible. Also returns whether to fetch the next lease.
    pub(super) fn decide_leased(
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
        let leased = counter.leased_hits();
        let fetch_next = !counter.is_denied(now)
            && leased < counter.demand.in_the_next(soon, now)
            && leased < counter.remaining(now);
        Some((decision, fetch_next))
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
            let is_covered =
                counter.usable_hits(time.now) >= check.hits.0 && counter.fits(check.hits, time.now);
            let (decision, _) =
                is_covered.then(|| self.decide_leased(counter, policy, check.hits, time.now))??;
            counter.note_in_fallback(check.hits, time.now);
            Some(decision)
        })
    }

    /// Waits for a lease that holds enough hits for `check`, or for a reply that rejects it. Returns none if the call fails.
    /// Adds the commands that it sends to `record`. Also returns the instant of the decision.
    pub(super) async fn decide(
        &self,
        check: &LimitCheck<'_>,
        scope: Scope,
        wanted: Wanted<'_, R>,
        record: Option<&DecisionRecord>,
    ) -> Option<(Decision, Timestamp)> {
        let policy = check.over_limit_policy_in(scope);
        let key = counter_key(check);
        let mut retries = 0;
        let mut waiting = match wanted {
            Wanted::Shared(waiting) => waiting,
            Wanted::Single(waiting) => {
                if let Some(record) = record {
                    record.add_commands(1);
                }
                match self.decide_single(check, policy, waiting).await {
                    Ok(decided) => return decided,
                    Err(again) => again,
                }
            }
        };
        loop {
            if let Some(record) = record {
                record.add_commands(waiting.commands);
            }
            let (registration, generation) = (waiting.decision, waiting.generation);
            waiting.wait().await;

            let time = self.client.time();
            let outcome = self.table.with_counter(check, time.now, |counter| {
                // not with a counter that has taken the place of the one that was waited for
                let mut registered = Some(registration).filter(|_| counter.generation == generation);
                let has_finished =
                    registered.is_some() && counter.fetch_mut().has_finished(registration.round);
                let (dropped, now) = counter.expire_leases_after_wait(check.hits, has_finished, time);
                self.table.record_dropped(dropped);
                let retries = has_finished.then_some(&mut retries);
                let after = self.decide_after_reply(counter, policy, check.hits, now, retries);
                if (has_finished || !matches!(after, AfterReply::Wait))
                    && let Some(decision) = registered.take()
                {
                    counter.fetch_mut().leave(decision);
                    counter.forget_fetch(now);
                }
                match after {
                    AfterReply::Decided(decision) => Ok(Some((decision, now))),
                    AfterReply::Failed => Ok(None),
                    AfterReply::Wait => Err(self.wait_for(key, counter, check.hits, registered)),
                }
            });
            match outcome {
                Ok(decided) => return decided,
                Err(again) => waiting = again,
            }
        }
    }

    /// Decides after a reply, if that is possible. Counts in `retries` how often the fetch of these
    /// hits did not cover them; none if it has not finished.
    fn decide_after_reply(
        &self,
        counter: &mut LocalCounter,
        policy: OverLimitPolicy,
        hits: Hits,
        now: Timestamp,
        retries: Option<&mut u32>,
    ) -> AfterReply {
        let last_reply = counter.fetch().map_or_else(LeaseReply::default, |fetch| fetch.last_reply);
        if last_reply == LeaseReply::Failed && retries.is_some() {
            return AfterReply::Failed;
        }
        if let Some((decision, _)) = self.decide_leased(counter, policy, hits, now) {
            return AfterReply::Decided(decision);
        }
        // the store has just had no more; retrying immediately would queue without bound
        let retries = retries.filter(|_| last_reply == LeaseReply::Partial);
        let Some(retries) = retries else { return AfterReply::Wait };
        if let Some(decision) = counter.decide_at_last_reply(self.client.instances(), policy, hits, now) {
            return AfterReply::Decided(decision);
        }
        *retries += 1;
        if *retries > MAX_RETRIES {
            return AfterReply::Decided(counter.reject_unexpectedly(policy, hits, now));
        }
        AfterReply::Wait
    }

    /// Puts back the hits that were spent for `check`.
    pub(super) fn undo(&self, check: &LimitCheck<'_>, now: Timestamp) {
        self.table.with_counter(check, now, |counter| counter.unspend(check.hits, now));
    }
}
