//! Single hits under `lease`: a hit of a key that has hardly any is requested for its decision alone.
//!
//! Most keys of a long tail have one hit in their window. Such a decision owns the reply to its command, as one under `strict` does, so
//! that the counter needs no state of a fetch. If the decision is cancelled, the command is taken back; if it was sent already, a task
//! receives the reply, and the granted hits are a lease like any other.

use std::{future::poll_fn, pin::Pin};

use super::{
    counter::{Generation, LocalCounter},
    fetching::Outcome,
    lease::{Lease, SingleFetch, Waiting},
    table::counter_key,
};
use crate::{
    limit::{CounterKey, Decision, Hits, LimitCheck, OverLimitPolicy, Period, Timestamp},
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
    /// Requests `hits` for one decision, if that decision needs no more and leaves nothing behind. None otherwise.
    pub(super) fn request_single(
        &self,
        counter: &mut LocalCounter,
        hits: Hits,
        now: Timestamp,
    ) -> Option<SingleFetch> {
        let (command, number) = counter.single_command(hits, now)?;
        // queued under the lock, so that commands are carried out in the order of their numbers
        Some(SingleFetch {
            queued: self.client.queue_for_one(command),
            number,
            generation: counter.generation,
        })
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
        let SingleFetch { number, generation, .. } = fetch;
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
                    if counter.generation == generation {
                        counter.apply_reply_to(&reply, number, now);
                    } else {
                        // it has taken the place of an evicted one
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
                self.record_failure(key, generation, hits, &outcome);
                Ok(None)
            }
        }
    }

    /// Receives the reply to `fetch`, whose decision was cancelled: what it grants is a lease.
    async fn complete_single(self, key: CounterKey, hits: Hits, fetch: SingleFetch) {
        let SingleFetch { queued, number, generation } = fetch;
        let outcome = queued.reply.await.ok();
        let Some(Ok((reply, now))) = outcome else {
            return self.record_failure(key, generation, hits, &outcome);
        };
        let held = self.table.with_generation(key, generation, |counter| {
            counter.hold_granted(&reply, Period::default(), now);
            counter.apply_reply_to(&reply, number, now);
            self.table.enqueue(key, counter, self.client.time().now);
        });
        if held.is_none() {
            // the counter was evicted
            self.table.metrics.stranded.add(reply.granted);
        }
    }

    /// Counts the `hits` of a call that has failed, if the store may have granted them.
    fn record_failure(&self, key: CounterKey, generation: Generation, hits: Hits, outcome: &Outcome) {
        if outcome.as_ref().map_or(Delivery::Unknown, Delivery::of) != Delivery::NotApplied {
            self.table.metrics.delivery_unknown.add(hits.0);
            self.table.with_generation(key, generation, LocalCounter::lose_version);
        }
    }
}

// === impl SingleWaiter ===

impl<R: Remote> Drop for SingleWaiter<'_, R> {
    fn drop(&mut self) {
        if let Some(mut fetch) = self.fetch.take()
            && !self.lease.client.cancel(&mut fetch.queued)
        {
            let (lease, key, hits) = (self.lease.clone(), self.key, self.hits);
            self.lease.client.spawn(async move { lease.complete_single(key, hits, fetch).await });
        }
    }
}
