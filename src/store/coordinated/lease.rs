//! The `lease` mode: this instance reserves some of the limit in advance and spends it without calls.

use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use tokio::time::sleep;

use super::{
    client::StoreClient,
    counter::{LeaseReply, LocalCounter, negative},
    store_time::StoreTime,
    table::{CounterTable, counter_key},
};
use crate::{
    limit::{Coordination, CounterKey, Decision, Direction, Hits, LimitCheck, Period, Timestamp},
    store::remote::{Command, Op, Remote, RemoteError, Replies, Report},
};

/// The shortest time that a lease should last, unless [`ROUND_TRIPS`] take longer.
const HORIZON: Period = Period::from_millis(50);

/// The number of round trips that a lease should last.
const ROUND_TRIPS: u64 = 8;

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

    /// Decides `check` from a lease, or from an earlier reply that denies it. Returns none if the store has to be called
    /// first, and the counter's mode if it is not `lease`.
    pub(super) fn decide_at_once(
        &self,
        check: &LimitCheck<'_>,
        time: StoreTime,
    ) -> Result<Option<Decision>, Coordination> {
        let now = time.now;
        let (decision, fetch_next) = self.table.with_mode(check, Coordination::Lease, now, |counter| {
            self.table.record_dropped(counter.expire_leases(time));
            if check.direction == Direction::GiveBack {
                counter.add_pending(negative(check.hits.0), now);
                self.table.metrics.local.add(1);
                return (Some(counter.status(now)), false);
            }
            if check.hits == Hits(0) {
                self.table.metrics.local.add(1);
                return (Some(counter.status(now)), false);
            }
            if let Some(decision) = self.spend(counter, check, now) {
                // the next lease has to arrive before this one is used up
                let soon = Period::from_nanos(2 * self.client.round_trip().as_nanos());
                let fetch_next =
                    !counter.is_denied(now) && counter.leased_hits() < counter.demand.in_the_next(soon, now);
                return (Some(decision), fetch_next);
            }
            if counter.is_denied(now)
                && let Some(decision) = counter.known_rejection(check.hits, now)
            {
                self.table.metrics.denied.add(1);
                return (Some(decision), counter.is_probe_due(now));
            }
            (None, false)
        })?;
        if fetch_next {
            self.fetch(counter_key(check));
        }
        Ok(decision)
    }

    /// Decides `check` from a lease while the store is unavailable. Returns none if the lease holds too few hits.
    pub(super) fn decide_from_held(&self, check: &LimitCheck<'_>, time: StoreTime) -> Option<Decision> {
        if check.direction == Direction::GiveBack || check.hits == Hits(0) {
            return None;
        }
        self.table.with_counter(check, time.now, |counter| {
            self.table.record_dropped(counter.expire_leases(time));
            self.spend(counter, check, time.now)
        })
    }

    fn spend(&self, counter: &mut LocalCounter, check: &LimitCheck<'_>, now: Timestamp) -> Option<Decision> {
        counter.demand.record(check.hits.0, now);
        let decision = counter.spend(check.hits, now)?;
        self.table.metrics.leased.add(1);
        Some(decision)
    }

    /// Waits for a lease that holds enough hits for `check`, or for a reply that rejects it. Returns none if the call fails.
    pub(super) async fn decide(&self, check: &LimitCheck<'_>) -> Option<Decision> {
        // the number of the fetch that requests these hits, once they are registered
        let mut round = None;
        loop {
            let now = self.client.time().now;
            // registered under the lock, so that no reply is missed
            let done = self.table.with_counter(check, now, |counter| {
                let missing = check.hits.minus(Hits(counter.leased_hits()));
                round.get_or_insert_with(|| counter.fetch.wait_for(check.hits, missing));
                Arc::clone(counter.fetch.done.get_or_insert_default()).notified_owned()
            });
            self.fetch(counter_key(check));
            done.await;

            let time = self.client.time();
            let now = time.now;
            let outcome = self.table.with_counter(check, now, |counter| {
                self.table.record_dropped(counter.expire_leases(time));
                if counter.fetch.last_reply == LeaseReply::Failed {
                    return Some(None);
                }
                let decided =
                    counter.spend(check.hits, now).or_else(|| counter.known_rejection(check.hits, now));
                if decided.is_none() && round.is_some_and(|round| counter.fetch.has_finished(round)) {
                    // the store has just had no more; retrying immediately would queue without bound
                    if counter.fetch.last_reply == LeaseReply::Partial {
                        return Some(Some(counter.rejection_at_last_reply(check.hits, now)));
                    }
                    round = None;
                }
                decided.map(Some)
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

    /// Fetches a lease in the background, unless a fetch is running. In the background, since the decision that waits for it
    /// may be cancelled.
    fn fetch(&self, key: CounterKey) {
        let commands = self.table.with_existing(key, |counter| {
            if counter.fetch.is_running {
                return None;
            }
            counter.fetch.is_running = true;
            counter.fetch.round += 1;
            // pending hits first, so that the store does not grant them a second time
            let (mut commands, now) = (Vec::new(), self.client.time().now);
            self.table.record_dropped(counter.take_commands(now, &mut commands));
            let reported = commands.len();
            let (instances, horizon) = (self.client.instances(), self.horizon());
            commands.extend(counter.lease_commands(instances, horizon, self.lead(), now));
            Some((commands, reported))
        });
        if let Some((commands, reported)) = commands.flatten() {
            let lease = self.clone();
            self.client.spawn(async move { lease.call(key, commands, reported).await });
        }
    }

    /// Carries out a fetch. The first `reported` commands report pending hits.
    async fn call(self, key: CounterKey, commands: Vec<Command>, reported: usize) {
        let ops: SmallVec<[Op; 2]> = commands[reported..].iter().map(|command| command.op.clone()).collect();
        let target = commands.first().map(|command| Arc::clone(&command.target));
        let outcome = self.client.call(commands).await;
        for (i, op) in ops.iter().enumerate() {
            self.record_lost(op, &outcome, reported + i);
        }
        self.table.with_existing(key, |counter| {
            if reported > 0 {
                self.table.apply_outcome(counter, &outcome, 0..reported);
                // hits that were not applied are pending again
                self.table.enqueue(key, counter, self.client.time().now);
            }
            counter.fetch.is_running = false;
            counter.fetch.last_reply = LeaseReply::Failed;
            if let Ok(replies) = outcome
                && let Some(Ok(reply)) = replies.replies.last()
            {
                match ops.last() {
                    Some(Op::Grant { .. }) => {
                        counter.apply_grant(reply, self.client.round_trip(), replies.now);
                    }
                    _ => counter.apply_return(reply, replies.now),
                }
                if target.is_none_or(|target| !Arc::ptr_eq(&target, &counter.target)) {
                    // the limit has changed since the lease was requested
                    counter.return_leases();
                } else if !counter.fetch.is_watched
                    && let Some(time) = counter.first_lease_ends_in(self.lead(), self.client.time().now)
                {
                    counter.fetch.is_watched = true;
                    self.client.spawn(watch(self.downgrade(), key, time));
                }
                self.table.enqueue(key, counter, replies.now);
            }
            if let Some(done) = &counter.fetch.done {
                done.notify_waiters();
            }
        });
    }

    /// Counts the hits that are lost, or may be lost, if `op`, the `i`-th command of a call, has failed.
    fn record_lost(&self, op: &Op, outcome: &Result<Replies, RemoteError>, i: usize) {
        let error = match outcome {
            Ok(replies) => replies.replies.get(i).and_then(|reply| reply.as_ref().err()),
            Err(error) => Some(error),
        };
        match (op, error) {
            (Op::Add { report: Report { unused: Some(unused), .. } }, Some(_)) => {
                self.table.metrics.stranded.add(unused.hits);
            }
            (Op::Grant { want, .. }, Some(error)) if !error.is_definitely_not_applied() => {
                self.table.metrics.delivery_unknown.add(*want);
            }
            _ => {}
        }
    }

    /// Returns the time that a lease should last at the current demand.
    fn horizon(&self) -> Period {
        HORIZON.max(Period::from_nanos(self.client.round_trip().as_nanos().saturating_mul(ROUND_TRIPS)))
    }

    /// Returns how long before its end a lease has to be returned to arrive in time.
    fn lead(&self) -> Period {
        Period::from_nanos(self.client.round_trip().as_nanos().saturating_mul(2))
    }

    fn downgrade(&self) -> WeakLease<R> {
        WeakLease { table: Arc::downgrade(&self.table), client: Arc::downgrade(&self.client) }
    }
}

/// Shares the table and the client.
impl<R> Clone for Lease<R> {
    fn clone(&self) -> Self {
        Self { table: Arc::clone(&self.table), client: Arc::clone(&self.client) }
    }
}

/// A [`Lease`] that does not keep the store alive.
struct WeakLease<R> {
    table: Weak<CounterTable<R>>,
    client: Weak<StoreClient<R>>,
}

impl<R> WeakLease<R> {
    fn upgrade(&self) -> Option<Lease<R>> {
        Some(Lease { table: self.table.upgrade()?, client: self.client.upgrade()? })
    }
}

/// Waits until a lease is about to end, for `time` at first, and then fetches. The fetch returns its unused hits, and renews
/// it if there is demand.
async fn watch<R: Remote>(lease: WeakLease<R>, key: CounterKey, mut time: Period) {
    loop {
        sleep(time.into()).await;
        let Some(lease) = lease.upgrade() else {
            return;
        };
        let left = lease.table.with_existing(key, |counter| {
            let left = counter.first_lease_ends_in(lease.lead(), lease.client.time().now);
            counter.fetch.is_watched = left.is_some_and(|left| left > Period::default());
            left
        });
        match left.flatten() {
            None => return,
            Some(left) if left > Period::default() => time = left,
            Some(_) => return lease.fetch(key),
        }
    }
}
