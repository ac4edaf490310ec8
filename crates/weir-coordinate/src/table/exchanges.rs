//! The exchanges of counters: what is asked, what leaves, and what becomes of it.

use std::sync::atomic::Ordering;

use tokio::time::{Instant, timeout_at};

use super::{CounterTable, queue::Outbox, shards::CounterEntry};
use crate::{
    CoordinationSettings,
    client::ExchangeOutcome,
    counter::{
        Applied, Asks, DroppedHits, Generation, Group, LocalCounter, PendingOutcome, Sent, TryOutcome,
    },
    link::{Delivery, Link, SentTry, StoreTime},
};
use weir_limit::{CounterKey, Hits};
use weir_store::{remote::Remote, wakeup::Wakeups};

/// A decision that waits for the store. If dropped, its try is not sent, or what the store takes for it is given back.
#[derive(Debug)]
pub(crate) struct Waiting {
    key: CounterKey,
    generation: Generation,
    id: u32,
    hits: Hits,
    asks: Asks,
    outcome: PendingOutcome,
    /// The commands that were sent for it, one or none.
    pub(crate) commands: u32,
}

/// Gives back what the store has taken if it is dropped.
struct Awaited<'a, R: Remote> {
    table: &'a CounterTable<R>,
    waiting: Option<Waiting>,
}

impl<R: Remote> CounterTable<R> {
    /// Applies the outcome of what was `sent`. Adds the callers whose decisions it makes to `woken`.
    pub(super) fn apply(
        &self,
        sent: &mut Sent,
        outcome: ExchangeOutcome<'_>,
        link: &Link,
        woken: &mut Wakeups,
    ) {
        let (key, carried, delivery) = (sent.key, sent.carried, Delivery::of(&outcome));
        if delivery == Delivery::Unknown {
            // estimates lack what the command may have changed
            self.client.writer.fetch_add(1, Ordering::Relaxed);
        }
        self.with_existing(key, Some(sent.generation), |entry| {
            let Some(entry) = entry else {
                let carried = carried.unwrap_or_default();
                match delivery {
                    Delivery::Applied => {}
                    Delivery::NotApplied => self.record_dropped(carried),
                    _ => self.client.metrics.hits.delivery_unknown.add(carried.all()),
                }
                return self.record(sent.decide_alone(outcome), woken);
            };
            self.record(sent.apply(&mut entry.counter, outcome, link), woken);
            entry.counter.follow_instances(link.instances);
            self.send_tries(entry, link, woken);
            if delivery != Delivery::Applied && carried.is_some() {
                self.enqueue_again(entry, link.time.now);
            } else {
                self.enqueue(entry, link.time.now);
            }
        });
    }

    pub(crate) fn outcome(&self, waiting: Waiting, deadline: Instant) -> impl Future<Output = TryOutcome> {
        // a block, which has it once: an `async fn` would have its argument too
        let mut awaited = Awaited { table: self, waiting: Some(waiting) };
        async move {
            let outcome = async { (&mut awaited.waiting.as_mut()?.outcome).await };
            let replied = timeout_at(deadline, outcome).await;
            let waiting = awaited.waiting.take();
            let outcome = replied.unwrap_or_else(|_| Some(self.give_up(waiting?)));
            // none if the counter was evicted
            outcome.unwrap_or(Err(Delivery::NotApplied))
        }
    }

    fn give_up(&self, waiting: Waiting) -> TryOutcome {
        let Waiting { key, generation, id, hits, asks, mut outcome, .. } = waiting;
        let taking = match asks {
            Asks::Take(_) | Asks::Lease(_) => Some(hits),
            Asks::GiveBack(_) => None,
            Asks::Look | Asks::Reserve(_) => Some(Hits(0)),
        };
        self.with_existing(key, Some(generation), |entry| {
            let Some(CounterEntry { counter, .. }) = entry else { return Err(Delivery::Unknown) };
            // tries are decided under the lock: it may just have been
            if let Some(decided) = outcome.take_or_leave() {
                return decided;
            }
            let is_sent = counter.talk.give_up(id, taking);
            let sent = SentTry { generation: generation.0, id };
            Err(if is_sent { Delivery::OnWay(sent) } else { Delivery::NotApplied })
        })
    }

    /// Queues `counter` if some of its tries may leave, or it wants a lease. They fail if too many wait for the node.
    pub(super) fn send_tries(
        &self,
        CounterEntry { key, counter }: &mut CounterEntry,
        link: &Link,
        woken: &mut Wakeups,
    ) {
        if !counter.can_send_tries(link) {
            return;
        }
        if self.queue_tries(*key, &counter.target, link.time.now) {
            counter.talk.open().is_queued = true;
        } else {
            for asked in counter.take_tries() {
                asked.fail(Delivery::NotApplied, woken);
            }
        }
    }

    pub(crate) fn compose(&self, entry: &mut CounterEntry, link: &Link, outbox: &mut Outbox) {
        let CounterEntry { key, counter } = entry;
        counter.follow_instances(link.instances);
        self.record_dropped(counter.expire_leases(link.time));
        self.record_dropped(counter.compose(*key, link, |command, sent| outbox.push((command, sent))));
    }

    fn record(&self, applied: Applied, woken: &mut Wakeups) {
        let hits = &self.client.metrics.hits;
        hits.delivery_unknown.add(applied.unknown);
        hits.overshoot.add(applied.overshoot);
        self.record_dropped(applied.dropped);
        woken.extend(applied.woken);
    }

    pub(crate) fn link_now(&self) -> Link {
        self.link_at(self.client.time())
    }

    pub(crate) fn link_at(&self, time: StoreTime) -> Link {
        let CoordinationSettings { budget, local_cache, .. } = self.client.settings;
        let (instances, round_trip) = (self.client.instances(), self.client.round_trip());
        let writer = self.client.writer.load(Ordering::Relaxed);
        Link { time, instances, writer, round_trip, budget, local_cache }
    }
}

// === impl Waiting ===

impl Waiting {
    /// None if too many decisions wait for the counter. Up to `Exchange::MAX_RUNS` tries of a group are made together.
    pub(crate) fn ask(
        (key, counter): (CounterKey, &mut LocalCounter),
        (hits, asks): (Hits, Asks),
        group: Option<Group>,
    ) -> Option<Self> {
        let (id, outcome) = counter.add_try(hits, asks, group)?;
        let generation = counter.generation();
        // the first one sends the command that others may join
        let commands = u32::from(counter.talk.tries.len() == 1);
        Some(Self { key, generation, id, hits, asks, outcome, commands })
    }
}

// === impl Awaited ===

impl<R: Remote> Drop for Awaited<'_, R> {
    fn drop(&mut self) {
        let Some(Waiting { key, generation, hits, asks, mut outcome, .. }) = self.waiting.take() else {
            return;
        };
        self.table.with_existing(key, Some(generation), |entry| {
            // tries are decided under the lock
            let Some(decided) = outcome.take_or_leave() else { return };
            let taken = decided.map_or(Hits(0), |tried| tried.taken(asks, hits));
            let Some(entry) = entry else {
                // it was evicted
                return self.table.record_dropped(DroppedHits { unreported: 0, stranded: taken.0 });
            };
            let counter = &mut entry.counter;
            match (decided, asks) {
                (Ok(tried), Asks::Reserve(request)) if taken > Hits(0) => {
                    counter.give_back_reserved(request, tried);
                }
                (Ok(tried), _) if taken > Hits(0) => counter.uncount(hits, tried.at),
                (Err(Delivery::NotApplied), _) => {
                    counter.count_return(hits, asks);
                }
                _ => return,
            }
            self.table.enqueue(entry, self.table.client.time().now);
        });
    }
}
