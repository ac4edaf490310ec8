//! What is done for counters that are due: pending hits are reported, and unused leases returned. The sweep looks over
//! all counters, and removes idle ones.

use tokio::time::{sleep, timeout};

use super::{CounterTable, outgoing::Outbox, shards::Entry};
use crate::{
    limit::{CounterKey, Period},
    store::{
        coordinated::{
            counter::{LocalCounter, Urgency},
            link::Link,
        },
        remote::Remote,
    },
    wakeup::{Wakeups, wake_all},
};

/// The steps in which the sweep visits the whole table.
pub(super) const SWEEP_STEPS: usize = 20;

const FINAL_FLUSH: Period = Period::from_secs(2);

const FINAL_FLUSH_RETRY: Period = Period::from_millis(5);

// === impl CounterTable ===

impl<R: Remote> CounterTable<R> {
    /// `due` are counters, each with the time at which it was due.
    pub(super) fn flush(&self, due: Vec<(u64, CounterKey)>) -> Outbox {
        let link = self.link_now();
        let (mut outbox, mut woken) = (Outbox::with_capacity(due.len()), Wakeups::new());
        for (at, key) in due {
            let mut shard = self.shards.lock(key.shard());
            let is_single = shard.all_of(key.shard()).count() == 1;
            if let Some(entry) = shard.entry_mut(key)
                && entry.counter.place.take_turn(at)
            {
                entry.counter.choice.is_beside &= !is_single;
                self.flush_counter(entry, &link, &mut outbox, &mut woken);
            }
        }
        wake_all(&mut woken);
        outbox
    }

    fn flush_counter(&self, entry: &mut Entry, link: &Link, outbox: &mut Outbox, woken: &mut Wakeups) {
        let (counter, now) = (&mut entry.counter, link.time.now);
        // pending hits are kept while the node does not reply; the heartbeat detects when it does again
        let is_available = !self.client.is_unavailable_for(&counter.target, now);
        if is_available && counter.should_renew(link.lead(), now) {
            // due again after the reply
            counter.talk.want_lease();
            return self.send_tries(entry, link, woken);
        }
        self.return_ended(counter, link);
        if counter.talk.waits_for_call() {
            // which carries the reports too: decisions must not leave behind those of others
            return;
        }
        if is_available && counter.can_flush() {
            self.compose(entry, link, outbox);
        }
        // what is not in flight now is due again
        self.enqueue(entry, now);
    }

    fn return_ended(&self, counter: &mut LocalCounter, link: &Link) {
        // an instance that is not alone any more returns other leases
        counter.follow_instances(link.instances);
        self.record_dropped(counter.expire_leases(link.time));
        counter.return_ending(link.lead(), link.time.now);
    }

    /// What other counters need was queued when it became known. Hits whose windows ended in an outage are dropped here.
    pub(super) fn sweep(&self) {
        let link = self.link_now();
        let now = link.time.now;
        self.shards.sweep(SWEEP_STEPS, now, |entry| {
            let counter = &mut entry.counter;
            counter.follow_instances(link.instances);
            self.record_dropped(counter.drop_ended(now));
            self.return_ended(counter, &link);
            self.enqueue(entry, now);
        });
    }

    /// Takes [`FINAL_FLUSH`] at most. Repeats, because a counter whose flush is in flight has to wait for the reply first.
    pub(in super::super) async fn final_flush(&self) {
        let all = async {
            loop {
                let mut unreported = false;
                self.shards.sweep(1, self.client.time().now, |Entry { key, counter }| {
                    counter.return_leases();
                    if counter.can_flush() {
                        self.queue.push(
                            *key,
                            &mut counter.place,
                            Urgency::Now,
                            Period::default(),
                            Period::MAX,
                        );
                    }
                    // what is held by an exchange on its way, or by one to come, has to be returned too
                    unreported |=
                        !counter.is_settled() || !counter.is_silent() || counter.talk.waits_for_call();
                });
                if !unreported {
                    return;
                }
                sleep(FINAL_FLUSH_RETRY.into()).await;
            }
        };
        let _ = timeout(FINAL_FLUSH.into(), all).await;
    }
}
