//! The `lease` mode: this instance reserves some of the limit in advance and spends it without calls.

use std::sync::Arc;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::{
    client::{QueuedReply, StoreClient},
    counter::{CarriedHits, FetchCommands, Generation, LeaseReply, LocalCounter},
    delivery::Delivery,
    store_time::StoreTime,
    table::{CounterTable, counter_key},
};
use crate::{
    limit::{
        Coordination, CounterKey, Decision, Direction, Hits, LimitCheck, OverLimitPolicy, Period, Scope,
        Timestamp,
    },
    observe::DecisionRecord,
    store::remote::{Remote, Target},
};

/// The shortest time that a lease should last, unless [`ROUND_TRIPS`] take longer.
const HORIZON: Period = Period::from_millis(50);

/// The number of round trips that a lease should last.
const ROUND_TRIPS: u64 = 8;

/// How often a decision asks again for hits that fit by the estimate, and that the store did not grant.
const MAX_RETRIES: u32 = 2;

/// Decides from leases.
pub(super) struct Lease<R> {
    pub(super) table: Arc<CounterTable<R>>,
    pub(super) client: Arc<StoreClient<R>>,
}

/// A fetch in flight.
struct Fetch {
    key: CounterKey,
    /// The generation of the counter.
    generation: Generation,
    /// The hits that each report carries. The first commands carry the reports.
    carried: CarriedHits,
    /// The hits that the last command requests.
    want: u64,
    /// In the order of the commands.
    replies: SmallVec<[QueuedReply; 1]>,
}

/// What a check under `lease` needs.
pub(super) enum Leased {
    /// Nothing: it was decided.
    Decided(Decision),
    /// A lease.
    Wait,
    /// A decision of the store about this target, as under `strict`: it has no hits, or a limit of its own.
    Ask(Arc<Target>),
    /// The same, after the store has counted what this instance has, at the right times: the limit is of its own, and hits become
    /// available again gradually.
    Settle(Arc<Target>),
}

/// The outcome of sending the commands of a counter.
struct Sent {
    commands: u32,
    /// Whether a reply about the counter is expected, to these commands or to earlier ones.
    awaits_reply: bool,
}

// === impl Lease ===

impl<R: Remote> Lease<R> {
    pub(super) fn new((table, client): (Arc<CounterTable<R>>, Arc<StoreClient<R>>)) -> Self {
        let (weak, renewing) = (Arc::downgrade(&table), Arc::clone(&client));
        table.renew_leases_by(Box::new(move |key| {
            if let Some(table) = weak.upgrade() {
                Self { table, client: Arc::clone(&renewing) }.fetch(key);
            }
        }));
        Self { table, client }
    }

    /// Decides `check`, if the estimate rejects it or a lease covers it. Returns the counter's mode if it is not `lease`.
    pub(super) fn decide_at_once(
        &self,
        check: &LimitCheck<'_>,
        scope: Scope,
        time: StoreTime,
    ) -> Result<Leased, Coordination> {
        let now = time.now;
        let instances = self.client.instances();
        let policy = check.over_limit_policy_in(scope);
        let mut report_first = false;
        let (decision, fetch_next) = self.table.with_mode(check, Coordination::Lease, now, |counter| {
            self.table.record_dropped(counter.expire_leases(time));
            if check.direction == Direction::GiveBack {
                self.table.metrics.local.add(1);
                let decision = counter.count(instances, check.direction, policy, check.hits, now);
                return (Leased::Decided(decision), false);
            }
            if check.hits == Hits(0) {
                report_first = counter.can_flush();
                return (Leased::Ask(Arc::clone(&counter.target)), false);
            }
            counter.demand.record(check.hits.0, now);
            match self.decide_leased(counter, policy, check.hits, now) {
                Some((decision, fetch_next)) => (Leased::Decided(decision), fetch_next),
                // a lease is granted under the limit of the rule
                None if check.rule.id().is_none() && counter.target.is_versioned() => {
                    (Leased::Settle(Arc::clone(&counter.target)), false)
                }
                None if check.rule.id().is_none() => {
                    if !counter.fits(check.hits.plus(Hits(counter.leased_hits())), now) {
                        // the store counts them against this limit
                        counter.return_leases();
                    }
                    report_first = counter.can_flush();
                    (Leased::Ask(Arc::clone(&counter.target)), false)
                }
                None => (Leased::Wait, false),
            }
        })?;
        if fetch_next {
            self.fetch(counter_key(check));
        } else if let Leased::Ask(_) = decision {
            self.report_siblings(counter_key(check));
            if report_first {
                self.report(counter_key(check));
            }
        }
        Ok(decision)
    }

    /// Decides by the estimate and the leases, if that is possible. Also returns whether to fetch the next lease.
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
            counter.demand.record(check.hits.0, time.now);
            let is_covered = counter.leased_hits() >= check.hits.0 && counter.fits(check.hits, time.now);
            is_covered.then(|| self.decide_leased(counter, policy, check.hits, time.now))?.map(|(d, _)| d)
        })
    }

    /// Waits for a lease that holds enough hits for `check`, or for a reply that rejects it. Returns none if the call fails.
    /// Adds the commands that it sends to `record`.
    pub(super) async fn decide(
        &self,
        check: &LimitCheck<'_>,
        scope: Scope,
        record: Option<&DecisionRecord>,
    ) -> Option<Decision> {
        let policy = check.over_limit_policy_in(scope);
        // the number of the fetch that requests these hits, once they are registered
        let mut round = None;
        let mut retries = 0;
        loop {
            let now = self.client.time().now;
            // registered under the lock, so that no reply is missed
            let done = self.table.with_counter(check, now, |counter| {
                let missing = check.hits.minus(Hits(counter.leased_hits()));
                let fetch = counter.fetch_mut();
                round.get_or_insert_with(|| fetch.wait_for(check.hits, missing));
                fetch.reply()
            });
            let commands = self.fetch(counter_key(check));
            if let Some(record) = record {
                record.add_commands(commands);
            }
            done.await;

            let time = self.client.time();
            let outcome = self.table.with_counter(check, time.now, |counter| {
                let (dropped, now) = counter.expire_leases_after_wait(time);
                self.table.record_dropped(dropped);
                if counter.fetch_mut().last_reply == LeaseReply::Failed {
                    return Some(None);
                }
                if let Some((decision, _)) = self.decide_leased(counter, policy, check.hits, now) {
                    return Some(Some(decision));
                }
                if round.is_some_and(|round| counter.fetch_mut().has_finished(round)) {
                    // the store has just had no more; retrying immediately would queue without bound
                    if counter.fetch_mut().last_reply == LeaseReply::Partial {
                        let instances = self.client.instances();
                        let decision = counter.decide_at_last_reply(instances, policy, check.hits, now);
                        if decision.is_some() {
                            return Some(decision);
                        }
                        retries += 1;
                        if retries > MAX_RETRIES {
                            return Some(Some(counter.reject_unexpectedly(check.hits, now)));
                        }
                    }
                    round = None;
                }
                None
            });
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
    }

    /// Puts back the hits that were spent for `check`.
    pub(super) fn undo(&self, check: &LimitCheck<'_>, now: Timestamp) {
        self.table.with_counter(check, now, |counter| counter.unspend(check.hits, now));
    }

    /// Fetches a lease, unless a fetch is running. If the counter has siblings, the store has to know their hits first, and this instance
    /// the state of the store then. Returns the number of commands that it sends.
    fn fetch(&self, key: CounterKey) -> u32 {
        if self.report_siblings(key) { 0 } else { self.fetch_now(key) }
    }

    fn fetch_now(&self, key: CounterKey) -> u32 {
        let (instances, horizon, lead) = (self.client.instances(), self.horizon(), self.table.lease_lead());
        self.send(key, |counter, now| {
            if counter.must_wait_for_reply(instances) {
                return FetchCommands::default();
            }
            if counter.must_read_first() {
                return counter.reading_commands(now);
            }
            let fetched = counter.fetch_commands(instances, horizon, lead, now);
            counter.fetch_mut().round += 1;
            fetched
        })
        .commands
    }

    /// Reports what is pending, unless a fetch is running, so that the store counts it before the next decision that it makes.
    /// Returns whether a reply about the counter of `key` is expected.
    pub(super) fn report(&self, key: CounterKey) -> bool {
        self.send(key, LocalCounter::settling_commands).awaits_reply
    }

    /// Reports what the siblings of the counter of `key` have counted. Returns whether a reply to one of them has to be waited for.
    fn report_siblings(&self, key: CounterKey) -> bool {
        let siblings = self.table.unsettled_siblings(key, self.client.time().now);
        let mut waits = false;
        for sibling in siblings {
            waits |= self.report(sibling);
        }
        waits
    }

    /// Sends the commands of the counter of `key`, unless a fetch is running. In the background, since the decision that waits for
    /// the replies may be cancelled.
    fn send(
        &self,
        key: CounterKey,
        commands: impl FnOnce(&mut LocalCounter, Timestamp) -> FetchCommands,
    ) -> Sent {
        let mut awaits_reply = false;
        let sent = self.table.with_existing(key, |counter| {
            if counter.fetch_mut().is_running {
                awaits_reply = true;
                return None;
            }
            let fetched = commands(counter, self.client.time().now);
            self.table.record_dropped(fetched.dropped);
            if fetched.commands.is_empty() {
                return None;
            }
            awaits_reply = true;
            counter.fetch_mut().is_running = true;
            let FetchCommands { commands, reports, want, .. } = fetched;
            // queued under the lock, so that they are carried out in the order of their numbers
            let replies = commands.into_iter().map(|command| self.client.queue(command)).collect();
            // without reports of its own, what is in flight is that of a flush
            let carried = if reports > 0 { counter.carried_hits() } else { CarriedHits::default() };
            Some(Fetch { key, generation: counter.generation, carried, want, replies })
        });
        let Some(fetch) = sent.flatten() else { return Sent { commands: 0, awaits_reply } };
        let commands = u32::try_from(fetch.replies.len()).unwrap_or(u32::MAX);
        let lease = self.clone();
        self.client.spawn(async move { lease.complete(fetch).await });
        Sent { commands, awaits_reply }
    }

    /// Applies the replies to `fetch`, however late they are.
    async fn complete(self, fetch: Fetch) {
        let Fetch { key, generation, carried, want, replies } = fetch;
        let replies: Vec<_> = join_all(replies).await.into_iter().map(Result::ok).collect();
        let delivery =
            |i: usize| replies.get(i).and_then(Option::as_ref).map_or(Delivery::Unknown, Delivery::of);
        let last = replies.last().and_then(Option::as_ref);
        if want > 0 && delivery(replies.len() - 1) == Delivery::Unknown {
            self.table.metrics.delivery_unknown.add(want);
        }
        let applied = self.table.with_generation(key, generation, |counter| {
            if !carried.is_empty() {
                let delivered = counter.apply_delivery(delivery);
                self.table.metrics.delivery_unknown.add(delivered.unknown);
            }
            let fetch = counter.fetch_mut();
            fetch.is_running = false;
            fetch.last_reply = LeaseReply::Failed;
            match last {
                Some(Ok((reply, now))) if want > 0 => {
                    counter.apply_grant(reply, self.client.round_trip(), *now);
                }
                Some(Ok((reply, now))) => counter.apply_fetched_report(reply, *now),
                Some(Err(error)) if error.is_definitely_not_applied() => {}
                Some(Err(_)) | None => counter.lose_version(),
            }
            // hits that were not applied are pending again
            self.table.enqueue(key, counter, self.client.time().now);
            counter.notify();
        });
        for sibling in self.table.awaited_siblings(key) {
            // also if the call has failed, so that nothing is repeated without end
            self.fetch_now(sibling);
        }
        if applied.is_none() {
            // the counter was evicted
            self.table.record_evicted(&carried, delivery);
            if let Some(Ok((reply, _))) = last
                && want > 0
            {
                self.table.metrics.stranded.add(reply.granted);
            }
        }
    }

    /// Returns the time that a lease should last at the current demand.
    fn horizon(&self) -> Period {
        HORIZON.max(Period::from_nanos(self.client.round_trip().as_nanos().saturating_mul(ROUND_TRIPS)))
    }
}

/// Shares the table and the client.
impl<R> Clone for Lease<R> {
    fn clone(&self) -> Self {
        Self { table: Arc::clone(&self.table), client: Arc::clone(&self.client) }
    }
}
