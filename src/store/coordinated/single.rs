//! Single hits under `lease`: a hit of a key that has hardly any is requested for its decision alone.
//!
//! Most keys of a long tail have one hit in their window. Such a decision receives the reply to its command and applies it, without the
//! state of a fetch, which others could share. What is leased ahead with it is held then. If the decision is cancelled, the command is taken
//! back. If it was sent already, or if somebody else needs the counter meanwhile, a task receives the reply, and the granted hits are
//! a lease like any other: a decision is not polled while its client receives nothing.

use std::{
    future::poll_fn,
    task::{Context, Poll},
};

use super::{
    counter::{AwaitedReply, Generation, LocalCounter, SingleCommand, SingleReply},
    fetching::{Outcome, Waiting},
    lease::Lease,
    table::counter_key,
};
use crate::{
    limit::{CounterKey, Decision, Hits, LimitCheck, OverLimitPolicy, Timestamp},
    store::{coordinated::delivery::Delivery, remote::Remote},
};

/// A request for the hits of one decision, and of which counter.
#[derive(Clone, Copy)]
struct SingleFetch {
    key: CounterKey,
    generation: Generation,
    /// Its number among the commands of the counter.
    number: u32,
    /// The hits that it requests, those that are leased ahead included.
    want: u64,
}

/// A decision that waits for the reply to its own command. If it is cancelled, it takes the command back, or has a task apply the
/// reply.
pub(super) struct SingleWaiting<'a, R: Remote> {
    lease: &'a Lease<R>,
    fetch: SingleFetch,
    is_waiting: bool,
}

// === impl Lease ===

impl<R: Remote> Lease<R> {
    /// Requests `hits` for one decision, and what is leased ahead with them, if the key has hardly any. None otherwise.
    pub(super) fn request_single(
        &self,
        key: CounterKey,
        counter: &mut LocalCounter,
        hits: Hits,
        now: Timestamp,
    ) -> Option<SingleWaiting<'_, R>> {
        let SingleCommand { command, number, want } = counter.single_command(hits, self.horizon(), now)?;
        // queued under the lock, so that commands are carried out in the order of their numbers
        counter.await_single(self.client.queue_for_one(command));
        let fetch = SingleFetch { key, generation: counter.generation, number, want };
        Some(SingleWaiting { lease: self, fetch, is_waiting: true })
    }

    /// Waits for the reply to the request of `waiting`, and decides. Returns none if the call fails, and what to wait for next if the
    /// hits fit by the estimate nevertheless. Also returns the instant of the decision.
    pub(super) async fn decide_single(
        &self,
        check: &LimitCheck<'_>,
        policy: OverLimitPolicy,
        mut waiting: SingleWaiting<'_, R>,
    ) -> Result<Option<(Decision, Timestamp)>, Waiting<'_, R>> {
        let (key, hits) = (counter_key(check), check.hits);
        let SingleFetch { generation, number, .. } = waiting.fetch;
        let reply = poll_fn(|context| waiting.poll(context)).await;
        let outcome = match reply {
            SingleReply::Own(outcome) => {
                waiting.is_waiting = false;
                outcome
            }
            SingleReply::Other(reply) => {
                reply.await;
                return self.decide_from_lease(check, policy);
            }
            SingleReply::Over => return self.decide_from_lease(check, policy),
        };
        match outcome {
            Some(Ok((reply, now))) if reply.counters.len() == check.tiers().len() => {
                self.table.with_counter(check, now, |counter| {
                    let ahead = reply.granted.saturating_sub(hits.0);
                    if counter.generation == generation {
                        counter.apply_single(&reply, number, ahead, now);
                    } else {
                        // it has taken the place of an evicted one
                        self.table.metrics.stranded.add(ahead);
                        counter.apply_reply(&reply, now);
                    }
                    if reply.granted >= hits.0 {
                        self.table.metrics.leased.add(1);
                        return Ok(Some((counter.decided(policy, false, hits, now), now)));
                    }
                    // if others were given back just now, the hits may fit nevertheless
                    let decided = self.decide_leased(counter, policy, hits, now);
                    decided.map_or_else(
                        || Err(self.wait_for(key, counter, hits, None)),
                        |(decision, _)| Ok(Some((decision, now))),
                    )
                })
            }
            outcome => {
                self.record_failure(waiting.fetch, &outcome);
                Ok(None)
            }
        }
    }

    /// Decides `check` after a task has made what its request was granted a lease.
    fn decide_from_lease(
        &self,
        check: &LimitCheck<'_>,
        policy: OverLimitPolicy,
    ) -> Result<Option<(Decision, Timestamp)>, Waiting<'_, R>> {
        let time = self.client.time();
        self.table.with_counter(check, time.now, |counter| {
            let (dropped, now) = counter.expire_leases_after_wait(check.hits, time);
            self.table.record_dropped(dropped);
            let decided = self.decide_leased(counter, policy, check.hits, now);
            decided.map_or_else(
                || Err(self.wait_for(counter_key(check), counter, check.hits, None)),
                |(decision, _)| Ok(Some((decision, time.now))),
            )
        })
    }

    /// Has a task receive the reply to the single request of `counter`, if there is one: its decision may be cancelled, or not be polled,
    /// while others wait.
    pub(super) fn hand_over_single(&self, key: CounterKey, counter: &mut LocalCounter) {
        if let Some((number, want, awaited)) = counter.take_single_reply(None) {
            let fetch = SingleFetch { key, generation: counter.generation, number, want };
            self.spawn_single(fetch, awaited);
        }
    }

    fn spawn_single(&self, fetch: SingleFetch, awaited: AwaitedReply) {
        let lease = self.clone();
        self.client.spawn(async move { lease.complete_single(fetch, awaited).await });
    }

    /// Receives the reply to `fetch`: what it grants is a lease. Wakes its decision.
    async fn complete_single(self, fetch: SingleFetch, AwaitedReply { queued, waker }: AwaitedReply) {
        let outcome = queued.reply.await.ok();
        self.hold_single(fetch, outcome);
        waker.into_iter().for_each(std::task::Waker::wake);
    }

    /// Applies the `outcome` of `fetch`.
    fn hold_single(&self, fetch: SingleFetch, outcome: Outcome) {
        let Some(Ok((reply, now))) = outcome else {
            return self.record_failure(fetch, &outcome);
        };
        let is_held = self.table.with_generation(fetch.key, fetch.generation, |counter| {
            let is_of_tiers = reply.counters.len() == counter.target.tiers.len();
            if is_of_tiers {
                counter.apply_single(&reply, fetch.number, reply.granted, now);
                self.table.enqueue(fetch.key, counter, self.client.time().now);
            }
            is_of_tiers
        });
        match is_held {
            Some(true) => {}
            Some(false) => self.record_failure(fetch, &Some(Ok((reply, now)))),
            // the counter was evicted
            None => self.table.metrics.stranded.add(reply.granted),
        }
    }

    /// Notes that `fetch` has failed. Counts its hits if the store may have granted them.
    fn record_failure(&self, fetch: SingleFetch, outcome: &Outcome) {
        let is_unknown = outcome.as_ref().map_or(Delivery::Unknown, Delivery::of) != Delivery::NotApplied;
        if is_unknown {
            self.table.metrics.delivery_unknown.add(fetch.want);
        }
        self.end_single(fetch, is_unknown);
    }

    /// Notes that `fetch` will have no reply. If it `may_be_applied`, it is not known what the store counts.
    fn end_single(&self, fetch: SingleFetch, may_be_applied: bool) {
        self.table.with_generation(fetch.key, fetch.generation, |counter| {
            counter.end_single(fetch.number);
            if may_be_applied {
                counter.lose_version();
            }
            self.table.enqueue(fetch.key, counter, self.client.time().now);
        });
    }
}

// === impl SingleWaiting ===

impl<R: Remote> SingleWaiting<'_, R> {
    fn poll(&self, context: &mut Context<'_>) -> Poll<SingleReply> {
        let SingleFetch { key, generation, number, .. } = self.fetch;
        let polled =
            self.lease.table.with_generation(key, generation, |counter| counter.poll_single(number, context));
        // an evicted counter has none
        polled.unwrap_or(Poll::Ready(SingleReply::Over))
    }
}

impl<R: Remote> Drop for SingleWaiting<'_, R> {
    fn drop(&mut self) {
        if !self.is_waiting {
            return;
        }
        let (lease, fetch) = (self.lease, self.fetch);
        let taken = lease.table.with_generation(fetch.key, fetch.generation, |counter| {
            counter.take_single_reply(Some(fetch.number))
        });
        // otherwise a task receives the reply already
        if let Some((_, _, mut awaited)) = taken.flatten() {
            if lease.client.cancel(&mut awaited.queued) {
                lease.end_single(fetch, false);
            } else {
                lease.spawn_single(fetch, awaited);
            }
        }
    }
}
