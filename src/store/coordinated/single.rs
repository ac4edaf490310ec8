//! Single hits under `lease`: a hit of a key that has hardly any is requested for its decision alone.
//!
//! Most keys of a long tail have one hit in their window. Such a decision receives the reply to its command and applies it, without the
//! state of a fetch, which others could share. What is leased ahead with it is held then. If the decision is cancelled, the command is taken
//! back. If it was sent already, or if somebody else needs the counter meanwhile, a task receives the reply, and the granted hits are
//! a lease like any other: a decision is not polled while its client receives nothing.

use std::{
    future::poll_fn,
    task::{Context, Poll, Waker},
};

use tokio::sync::futures::OwnedNotified;

use super::{
    counter::{AwaitedReply, Generation, LocalCounter, SingleCommand, SingleReply},
    fetching::{Outcome, Waiting},
    leasing::Lease,
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
    is_done: bool,
}

/// The decision and its instant, none if the call has failed, or what to wait for next.
type SingleOutcome<'a, R> = Result<Option<(Decision, Timestamp)>, Waiting<'a, R>>;

/// What a decision finds when it is polled.
enum Polled<'a, R: Remote> {
    /// It has applied its own reply.
    Own(SingleOutcome<'a, R>),
    /// Somebody else receives the reply.
    Other(OwnedNotified),
    /// Somebody else has applied it, or the counter was evicted.
    Over,
}

// === impl Lease ===

impl<R: Remote> Lease<R> {
    /// Requests `hits` for one decision, and what is leased ahead with them, if the key has hardly any. None otherwise.
    #[inline(never)] // most decisions wait for nothing
    pub(super) fn request_single(
        &self,
        key: CounterKey,
        counter: &mut LocalCounter,
        hits: Hits,
        now: Timestamp,
    ) -> Option<SingleWaiting<'_, R>> {
        let SingleCommand { command, number, want } = counter.single_command(hits, self.horizon(), now)?;
        // queued under the lock, so that commands are carried out in the order of their numbers
        counter.await_single(self.client.queue(command));
        let fetch = SingleFetch { key, generation: counter.generation, number, want };
        Some(SingleWaiting { lease: self, fetch, is_done: false })
    }

    /// Waits for the reply to the request of `waiting`, and decides. Returns none if the call fails, and what to wait for next if the
    /// hits fit by the estimate nevertheless. Also returns the instant of the decision.
    pub(super) async fn decide_single(
        &self,
        check: &LimitCheck<'_>,
        policy: OverLimitPolicy,
        mut waiting: SingleWaiting<'_, R>,
    ) -> SingleOutcome<'_, R> {
        loop {
            match poll_fn(|context| self.poll_single(check.hits, policy, waiting.fetch, context)).await {
                Polled::Own(outcome) => {
                    waiting.is_done = true;
                    return outcome;
                }
                // perhaps that to another command
                Polled::Other(reply) => reply.await,
                Polled::Over => return self.decide_from_lease(check, policy),
            }
        }
    }

    /// Applies the reply to `fetch`, when it is there, and decides about `hits`.
    fn poll_single(
        &self,
        hits: Hits,
        policy: OverLimitPolicy,
        fetch: SingleFetch,
        context: &mut Context<'_>,
    ) -> Poll<Polled<'_, R>> {
        let SingleFetch { key, generation, number, .. } = fetch;
        let polled = self.table.with_generation(key, generation, |counter| {
            counter.poll_single(number, context).map(|reply| match reply {
                SingleReply::Own(outcome) => {
                    Polled::Own(self.decide_with_reply(counter, hits, policy, fetch, outcome))
                }
                SingleReply::Other(reply) => Polled::Other(reply),
                SingleReply::Over => Polled::Over,
            })
        });
        // an evicted counter has none
        polled.unwrap_or(Poll::Ready(Polled::Over))
    }

    /// Applies the `outcome` of `fetch`, and decides about `hits`.
    fn decide_with_reply(
        &self,
        counter: &mut LocalCounter,
        hits: Hits,
        policy: OverLimitPolicy,
        fetch: SingleFetch,
        outcome: Outcome,
    ) -> SingleOutcome<'_, R> {
        match outcome {
            Some(Ok((reply, now))) if reply.counters.len() == counter.target.tiers.len() => {
                counter.apply_single(&reply, fetch.number, reply.granted.saturating_sub(hits.0), now);
                let decided = if reply.granted >= hits.0 {
                    self.table.metrics.leased.add(1);
                    Some(counter.decided(policy, false, hits, now))
                } else {
                    // if others were given back just now, the hits may fit nevertheless
                    self.decide_leased(counter, policy, hits, now).map(|(decision, _)| decision)
                };
                self.table.enqueue(fetch.key, counter, now);
                match decided {
                    Some(decision) => Ok(Some((decision, now))),
                    None => Err(self.wait_for(fetch.key, counter, hits, None)),
                }
            }
            outcome => {
                self.fail_single(counter, fetch, &outcome);
                Ok(None)
            }
        }
    }

    /// Decides `check` after a task has made what its request was granted a lease.
    fn decide_from_lease(&self, check: &LimitCheck<'_>, policy: OverLimitPolicy) -> SingleOutcome<'_, R> {
        let time = self.client.time();
        self.table.with_counter(check, time.now, |counter| {
            let (dropped, now) = counter.expire_leases_after_wait(check.hits, true, time);
            self.table.record_dropped(dropped);
            match self.decide_leased(counter, policy, check.hits, now) {
                Some((decision, _)) => Ok(Some((decision, now))),
                None => Err(self.wait_for(counter_key(check), counter, check.hits, None)),
            }
        })
    }

    /// Has a task receive the reply to the single request of `counter`, if there is one: its decision may be cancelled, or not be polled,
    /// while others wait.
    #[inline(never)]
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

    /// Receives the reply to `fetch`: what it grants is a lease.
    async fn complete_single(self, fetch: SingleFetch, AwaitedReply { mut queued, waker }: AwaitedReply) {
        let outcome = self.receive_reply(fetch.key, fetch.generation, &mut queued).await;
        self.hold_single(fetch, outcome, waker);
    }

    /// Applies the `outcome` of `fetch`, which no decision does. Wakes its decision, by `waker`, before all others.
    fn hold_single(&self, fetch: SingleFetch, outcome: Outcome, mut waker: Option<Waker>) {
        let mut wake = || waker.take().into_iter().for_each(Waker::wake);
        let is_unknown = is_unknown(&outcome);
        let granted =
            outcome.as_ref().and_then(|outcome| outcome.as_ref().ok()).map(|(reply, _)| reply.granted);
        let applied = self.table.with_generation(fetch.key, fetch.generation, |counter| {
            wake();
            match outcome {
                Some(Ok((reply, now))) if reply.counters.len() == counter.target.tiers.len() => {
                    let received = self.client.time();
                    counter.note_receipt(now, received.latest);
                    counter.apply_single(&reply, fetch.number, reply.granted, now);
                    self.table.enqueue(fetch.key, counter, received.now);
                }
                outcome => self.fail_single(counter, fetch, &outcome),
            }
        });
        if applied.is_none() {
            wake();
            // the counter was evicted
            match granted {
                Some(granted) => self.table.metrics.stranded.add(granted),
                None if is_unknown => self.table.metrics.delivery_unknown.add(fetch.want),
                None => {}
            }
        }
    }

    /// Notes that `fetch` of `counter` has failed. Counts its hits if the store may have granted them.
    fn fail_single(&self, counter: &mut LocalCounter, fetch: SingleFetch, outcome: &Outcome) {
        if is_unknown(outcome) {
            self.table.metrics.delivery_unknown.add(fetch.want);
            counter.lose_version();
        }
        self.end_single(counter, fetch);
    }

    /// Notes that `fetch` of `counter` will have no reply.
    fn end_single(&self, counter: &mut LocalCounter, fetch: SingleFetch) {
        counter.end_single(fetch.number);
        self.table.enqueue(fetch.key, counter, self.client.time().now);
    }
}

/// Returns whether the store may have granted hits by `outcome`, which says nothing that can be used.
fn is_unknown(outcome: &Outcome) -> bool {
    outcome.as_ref().map_or(Delivery::Unknown, Delivery::of) != Delivery::NotApplied
}

// === impl SingleWaiting ===

impl<R: Remote> Drop for SingleWaiting<'_, R> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let (lease, fetch) = (self.lease, self.fetch);
        let taken = lease.table.with_generation(fetch.key, fetch.generation, |counter| {
            counter.take_single_reply(Some(fetch.number))
        });
        // otherwise a task receives the reply already
        if let Some((_, _, mut awaited)) = taken.flatten() {
            if lease.client.cancel(&mut awaited.queued) {
                let end = |counter: &mut LocalCounter| lease.end_single(counter, fetch);
                lease.table.with_generation(fetch.key, fetch.generation, end);
            } else {
                lease.spawn_single(fetch, awaited);
            }
        }
    }
}
