//! Single hits under `lease`: a hit of a key that has hardly any is requested for its decision alone.
//!
//! Most keys of a long tail have one hit in their window. Such a decision owns the reply to its command, as one under `strict` does, so
//! that the counter needs no state of a fetch. What is leased ahead with the first one is held when the reply is applied. If there is
//! something, the counter knows of the command until then, so that a later reply does not count these hits as those of others. If the decision is cancelled, the
//! command is taken back; if it was sent already, a task receives the reply, and the granted hits are a lease like any other.

use std::{future::poll_fn, pin::Pin};

use super::{
    counter::{Generation, LocalCounter, SingleCommand},
    fetching::Outcome,
    lease::{Lease, SingleFetch, Waiting},
    table::counter_key,
};
use crate::{
    limit::{CounterKey, Decision, Hits, LimitCheck, OverLimitPolicy, Timestamp},
    store::{coordinated::delivery::Delivery, remote::Remote},
};

/// A decision that waits for the reply to its own command. If it is cancelled, it takes the command back, or has a task apply the
/// reply.
struct SingleWaiter<'a, R: Remote> {
    lease: &'a Lease<R>,
    key: CounterKey,
    hits: Hits,
    /// None when the reply is there.
    fetch: Option<SingleFetch>,
}

// === impl Lease ===

impl<R: Remote> Lease<R> {
    /// Requests `hits` for one decision, and what is leased ahead with them, if the key has hardly any. None otherwise.
    pub(super) fn request_single(
        &self,
        counter: &mut LocalCounter,
        hits: Hits,
        now: Timestamp,
    ) -> Option<SingleFetch> {
        let SingleCommand { command, number, want } = counter.single_command(hits, self.horizon(), now)?;
        // queued under the lock, so that commands are carried out in the order of their numbers
        let queued = self.client.queue_for_one(command);
        Some(SingleFetch { queued, number, want, generation: counter.generation })
    }

    /// Waits for the reply to `fetch`, and decides. Returns none if the call fails, and what to wait for next if the hits fit by the
    /// estimate nevertheless. Also returns the instant of the decision.
    pub(super) async fn decide_single(
        &self,
        check: &LimitCheck<'_>,
        policy: OverLimitPolicy,
        fetch: SingleFetch,
    ) -> Result<Option<(Decision, Timestamp)>, Waiting> {
        let (key, hits) = (counter_key(check), check.hits);
        let SingleFetch { number, want, generation, .. } = fetch;
        let mut waiter = SingleWaiter { lease: self, key, hits, fetch: Some(fetch) };
        let outcome = poll_fn(|context| {
            let fetch = waiter.fetch.as_mut().expect("polled until there is a reply");
            Pin::new(&mut fetch.queued.reply).poll(context)
        })
        .await
        .ok();
        waiter.fetch = None;
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
                self.record_failure(key, generation, (number, want), &outcome);
                Ok(None)
            }
        }
    }

    /// Receives the reply to `fetch`, whose decision was cancelled: what it grants is a lease.
    async fn complete_single(self, key: CounterKey, fetch: SingleFetch) {
        let SingleFetch { queued, number, want, generation } = fetch;
        let outcome = queued.reply.await.ok();
        let Some(Ok((reply, now))) = outcome else {
            return self.record_failure(key, generation, (number, want), &outcome);
        };
        let is_held = self.table.with_generation(key, generation, |counter| {
            let is_of_tiers = reply.counters.len() == counter.target.tiers.len();
            if is_of_tiers {
                counter.apply_single(&reply, number, reply.granted, now);
                self.table.enqueue(key, counter, self.client.time().now);
            }
            is_of_tiers
        });
        match is_held {
            Some(true) => {}
            Some(false) => self.record_failure(key, generation, (number, want), &Some(Ok((reply, now)))),
            // the counter was evicted
            None => self.table.metrics.stranded.add(reply.granted),
        }
    }

    /// Notes that command `number` of a counter, which has requested `want` hits, has failed. Counts them if the store may have granted
    /// them.
    fn record_failure(
        &self,
        key: CounterKey,
        generation: Generation,
        (number, want): (u32, u64),
        outcome: &Outcome,
    ) {
        let is_unknown = outcome.as_ref().map_or(Delivery::Unknown, Delivery::of) != Delivery::NotApplied;
        if is_unknown {
            self.table.metrics.delivery_unknown.add(want);
        }
        self.table.with_generation(key, generation, |counter| {
            counter.end_single(number);
            if is_unknown {
                counter.lose_version();
            }
            self.table.enqueue(key, counter, self.client.time().now);
        });
    }
}

// === impl SingleWaiter ===

impl<R: Remote> Drop for SingleWaiter<'_, R> {
    fn drop(&mut self) {
        let Some(mut fetch) = self.fetch.take() else { return };
        let (lease, key, hits) = (self.lease, self.key, self.hits);
        let SingleFetch { number, generation, .. } = fetch;
        let is_cancelled = lease.client.cancel(&mut fetch.queued);
        let now = lease.client.time().now;
        lease.table.with_generation(key, generation, |counter| {
            if is_cancelled {
                counter.end_single(number);
                lease.table.enqueue(key, counter, now);
            } else {
                counter.abandon_single(number, hits, now);
            }
        });
        if is_cancelled {
            return;
        }
        let owner = lease.clone();
        lease.client.spawn(async move { owner.complete_single(key, fetch).await });
    }
}
