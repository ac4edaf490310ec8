//! Fetches leases: sends the command of a counter, and applies the reply, however late it is.
//!
//! A decision that sends a fetch applies the reply itself, without a task: where each key has one hit, a task took a quarter of all
//! instructions. A task takes over as soon as anybody else waits for the reply, or the decision is cancelled.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use tokio::{sync::futures::OwnedNotified, time::timeout};

use super::{
    client::{QueuedCommand, QueuedOutcome, RECHECK},
    counter::{AwaitedReply, Dropped, FetchCommand, Generation, LeaseReply, LocalCounter, WaitingDecision},
    delivery::Delivery,
    leasing::Lease,
};
use crate::{
    limit::{CounterKey, Hits, Period, Timestamp},
    store::remote::Remote,
};

/// The shortest time that a lease should last, unless [`ROUND_TRIPS`] take longer.
const HORIZON: Period = Period::from_millis(50);

/// The number of round trips that a lease should last.
const ROUND_TRIPS: u64 = 8;

/// The reply to a command; none if the store is closed.
pub(super) type Outcome = Option<QueuedOutcome>;

/// A fetch in flight.
struct Fetch {
    key: CounterKey,
    /// The generation of the counter.
    generation: Generation,
    /// The hits that its reports carry. None if it has none.
    carried: Option<Dropped>,
    /// The hits that it requests.
    want: u64,
    queued: QueuedCommand,
}

/// What a decision waits for: a reply to the counter of its check. If the decision is cancelled, nothing more is requested for it, and a
/// task applies the reply.
pub(super) struct Waiting<'a, R: Remote> {
    lease: &'a Lease<R>,
    key: CounterKey,
    pub(super) generation: Generation,
    pub(super) decision: WaitingDecision,
    /// The reply, if another one applies it, or a task. Boxed to keep all other decisions small.
    other: Option<Pin<Box<OwnedNotified>>>,
    /// The commands that it has sent, one or none.
    pub(super) commands: u32,
    is_done: bool,
}

/// Returns the delivery of a command.
fn delivery_of(outcome: &Outcome) -> Delivery {
    outcome.as_ref().map_or(Delivery::Unknown, Delivery::of)
}

// === impl Lease ===

impl<R: Remote> Lease<R> {
    /// Registers a decision that waits for `hits`, unless it is `registered`, and fetches a lease.
    #[inline(never)] // most decisions wait for nothing
    pub(super) fn wait_for(
        &self,
        key: CounterKey,
        counter: &mut LocalCounter,
        hits: Hits,
        registered: Option<WaitingDecision>,
    ) -> Waiting<'_, R> {
        // its decision may not be polled
        self.hand_over_single(key, counter);
        let missing = hits.minus(Hits(counter.leased_hits()));
        let fetch = counter.fetch_mut();
        let decision = registered.unwrap_or_else(|| fetch.wait_for(hits, missing));
        let generation = counter.generation;
        let sent = self.begin(key, counter, |counter, now| self.fetch_command(counter, now));
        let commands = u32::from(sent.is_some());
        let other = match sent {
            Some(Fetch { carried: None, queued, .. }) => {
                counter.fetch_mut().awaited = Some(AwaitedReply { queued, waker: None });
                None
            }
            sent => {
                let reply = counter.fetch_mut().reply();
                self.spawn(sent);
                Some(Box::pin(reply))
            }
        };
        Waiting { lease: self, key, generation, decision, other, commands, is_done: false }
    }

    /// Fetches a lease, unless a fetch is running.
    pub(super) fn fetch(&self, key: CounterKey) {
        let sent = self.send(key, |counter, now| self.fetch_command(counter, now));
        self.spawn(sent);
    }

    fn fetch_command(&self, counter: &mut LocalCounter, now: Timestamp) -> FetchCommand {
        let (instances, horizon, lead) = (self.client.instances(), self.horizon(), self.table.lease_lead());
        if counter.must_wait_for_reply(instances) {
            return FetchCommand::default();
        }
        if counter.must_read_first() {
            return counter.reading_command(now);
        }
        let fetched = counter.fetch_command(instances, horizon, lead, now);
        counter.fetch_mut().round += 1;
        fetched
    }

    /// Reports what is pending, unless a fetch is running, so that the store counts it before the next decision that it makes.
    pub(super) fn report(&self, key: CounterKey) {
        let sent = self.send(key, LocalCounter::settling_command);
        self.spawn(sent);
    }

    /// Has a task receive what a decision about the counter of `key` waits for, which may not be polled.
    pub(super) fn receive(&self, key: CounterKey) {
        self.table.with_existing(key, |counter| {
            self.hand_over(key, counter);
            self.hand_over_single(key, counter);
        });
    }

    /// Returns a future that completes with the next reply to the counter of `key`, if one is expected.
    pub(super) fn next_reply(&self, key: CounterKey) -> Option<OwnedNotified> {
        let next = self.table.with_existing(key, |counter| {
            self.hand_over(key, counter);
            self.hand_over_single(key, counter);
            counter.next_reply()
        });
        next.flatten()
    }

    /// Sends the command of the counter of `key`. Returns none if there is none, or if a fetch is running.
    fn send(
        &self,
        key: CounterKey,
        command: impl FnOnce(&mut LocalCounter, Timestamp) -> FetchCommand,
    ) -> Option<Fetch> {
        self.table.with_existing(key, |counter| self.begin(key, counter, command)).flatten()
    }

    /// As [`Lease::send`], of `counter`.
    fn begin(
        &self,
        key: CounterKey,
        counter: &mut LocalCounter,
        command: impl FnOnce(&mut LocalCounter, Timestamp) -> FetchCommand,
    ) -> Option<Fetch> {
        if counter.fetch_mut().is_running {
            self.hand_over(key, counter);
            return None;
        }
        let FetchCommand { command, reports, want, ahead, dropped } =
            command(counter, self.client.time().now);
        self.table.record_dropped(dropped);
        let command = command?;
        let fetch = counter.fetch_mut();
        // zero if it only reports
        (fetch.is_running, fetch.want, fetch.ahead) = (true, want, ahead);
        fetch.counted_at = command.counted_at();
        // queued under the lock, so that commands are carried out in the order of their numbers
        let queued = self.client.queue(command);
        // without reports of its own, what is in flight is that of a flush
        let carried = reports.then(|| counter.carried_hits());
        Some(Fetch { key, generation: counter.generation, carried, want, queued })
    }

    /// Has a task apply the reply to what was sent.
    fn spawn(&self, sent: Option<Fetch>) {
        if let Some(fetch) = sent {
            let lease = self.clone();
            self.client.spawn(async move { lease.complete(fetch, None).await });
        }
    }

    /// Has a task apply the reply that a decision would apply, since that may be cancelled, or not be polled, while others wait.
    pub(super) fn hand_over(&self, key: CounterKey, counter: &mut LocalCounter) {
        if let Some((AwaitedReply { queued, waker }, want)) = counter.take_awaited() {
            let (lease, generation) = (self.clone(), counter.generation);
            let fetch = Fetch { key, generation, carried: None, want, queued };
            self.client.spawn(async move { lease.complete(fetch, waker).await });
        }
    }

    /// Applies the reply to `fetch`, however late it is. Wakes the decision that has sent it before all others: if one whose hits
    /// are not requested yet used those that were granted to it, it would have to wait once more.
    async fn complete(self, fetch: Fetch, mut sender: Option<Waker>) {
        let Fetch { key, generation, carried, want, mut queued } = fetch;
        let outcome = self.receive_reply(key, generation, &mut queued).await;
        let applied = self.table.with_generation(key, generation, |counter| {
            sender.take().into_iter().for_each(Waker::wake);
            self.apply(counter, carried.is_some(), want, &outcome);
            let now = self.client.time().now;
            counter.forget_fetch(now);
            // hits that were not applied are pending again
            self.table.enqueue(key, counter, now);
        });
        if applied.is_none() {
            // the counter was evicted
            sender.into_iter().for_each(Waker::wake);
            self.record_unknown(want, &outcome);
            self.table.record_evicted(carried.unwrap_or_default(), delivery_of(&outcome));
            if let Some(Ok((reply, _))) = outcome
                && want > 0
            {
                self.table.metrics.stranded.add(reply.granted);
            }
        }
    }

    /// Waits for the reply to `queued`, however long that takes, unless its node does not reply and another one counts the present window
    /// of the counter, which must not wait for the earlier one.
    pub(super) async fn receive_reply(
        &self,
        key: CounterKey,
        generation: Generation,
        queued: &mut QueuedCommand,
    ) -> Outcome {
        loop {
            if let Ok(reply) = timeout(RECHECK.into(), &mut queued.reply).await {
                return reply.ok();
            }
            let is_elsewhere = |counter: &mut LocalCounter| {
                self.client.node(&counter.target, self.client.time().now) != queued.node
            };
            if self.client.is_silent(queued.node)
                && self.table.with_generation(key, generation, is_elsewhere).unwrap_or(false)
            {
                return Some(self.client.give_up(queued, RECHECK));
            }
        }
    }

    /// Counts the `want` hits that a command has requested, if the store may have granted them.
    fn record_unknown(&self, want: u64, outcome: &Outcome) {
        if delivery_of(outcome) == Delivery::Unknown {
            self.table.metrics.delivery_unknown.add(want);
        }
    }

    /// Applies the outcome of a fetch, which has requested `want` hits, and whether it `reports` hits.
    fn apply(&self, counter: &mut LocalCounter, reports: bool, want: u64, outcome: &Outcome) {
        self.record_unknown(want, outcome);
        if reports {
            let delivered = counter.apply_delivery(delivery_of(outcome));
            self.table.metrics.delivery_unknown.add(delivered.unknown);
        }
        let fetch = counter.fetch_mut();
        fetch.is_running = false;
        fetch.last_reply = LeaseReply::Failed;
        match outcome {
            Some(Ok((reply, _))) if reply.counters.len() != counter.target.tiers.len() => {
                self.table.metrics.delivery_unknown.add(want);
                counter.lose_version();
            }
            Some(Ok((reply, now))) if want > 0 => {
                counter.note_receipt(*now, self.client.time().latest);
                counter.apply_grant(reply, self.client.round_trip(), *now);
            }
            Some(Ok((reply, now))) => counter.apply_fetched_report(reply, *now),
            Some(Err(error)) if error.is_definitely_not_applied() => {}
            Some(Err(_)) | None => counter.lose_version(),
        }
        counter.notify();
    }

    /// Returns the time that a lease should last at the current demand.
    pub(super) fn horizon(&self) -> Period {
        HORIZON.max(Period::from_nanos(self.client.round_trip().as_nanos().saturating_mul(ROUND_TRIPS)))
    }
}

// === impl Waiting ===

impl<R: Remote> Waiting<'_, R> {
    /// Waits for the reply, and applies it if nobody else does.
    pub(super) async fn wait(mut self) {
        if self.other.is_none() {
            self.other = poll_fn(|context| self.poll(context)).await.map(Box::pin);
        }
        if let Some(other) = &mut self.other {
            other.await;
        }
        self.is_done = true;
    }

    /// Applies the reply to its own fetch, when it is there. The caller decides next, which queues the counter for what it needs
    /// then. If another one applies the reply, returns what completes with it.
    fn poll(&self, context: &mut Context<'_>) -> Poll<Option<OwnedNotified>> {
        let Self { lease, key, generation, decision, .. } = *self;
        let polled = lease.table.with_generation(key, generation, |counter| {
            let fetch = counter.fetch_mut();
            if fetch.has_finished(decision.round) {
                return Poll::Ready(None);
            }
            let Some(mut awaited) = fetch.awaited.take() else { return Poll::Ready(Some(fetch.reply())) };
            let Poll::Ready(outcome) = Pin::new(&mut awaited.queued.reply).poll(context) else {
                awaited.waker = Some(context.waker().clone());
                fetch.awaited = Some(awaited);
                return Poll::Pending;
            };
            let want = fetch.want;
            lease.apply(counter, false, want, &outcome.ok());
            Poll::Ready(None)
        });
        // an evicted counter has none
        polled.unwrap_or(Poll::Ready(None))
    }
}

impl<R: Remote> Drop for Waiting<'_, R> {
    fn drop(&mut self) {
        if !self.is_done {
            self.lease.table.with_generation(self.key, self.generation, |counter| {
                counter.fetch_mut().leave(self.decision);
                self.lease.hand_over(self.key, counter);
            });
        }
    }
}
