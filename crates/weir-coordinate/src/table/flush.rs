//! When counters are due, and what is done for them then: pending hits are reported, and unused leases returned. The sweep looks over
//! all counters, and removes idle ones.

use tokio::time::{sleep, timeout};

use super::{CounterTable, queue::Outbox, shards::CounterEntry};
use crate::{
    counter::{LocalCounter, Urgency},
    link::{Link, lead},
};
use weir_limit::{Algorithm, CounterKey, Period, Timestamp};
use weir_store::{
    remote::Remote,
    wakeup::{Wakeups, wake_all},
};

/// The steps in which the sweep visits the whole table.
pub(super) const SWEEP_STEPS: usize = 20;

const FINAL_FLUSH: Period = Period::from_secs(2);

const FINAL_FLUSH_RETRY: Period = Period::from_millis(5);

/// The time in which flushes that need not be punctual are collected.
const LONGEST_GRID: Period = Period::from_millis(100);

/// The same for leases that may have to be returned.
const LEASE_GRID: Period = Period::from_millis(250);

/// The same for leases that have to be returned in time.
const SHORTEST_GRID: Period = Period::from_millis(5);

/// The time between two looks at a counter whose node is silent, for each counter of the table: 100,000 looks a second.
const OUTAGE_PAUSE: Period = Period::from_nanos(10_000);

/// How long before the end of a window its hits are reported after the interval alone: they are not reported later.
const WINDOW_END: Period = Period::from_secs(1);

/// How long urgent flushes of counters with this sync interval are collected.
fn tick(interval: Period) -> Period {
    Period::from_nanos((interval.as_nanos() / 10).clamp(5_000_000, 10_000_000))
}

/// How long the next flush may wait.
fn pause(counter: &LocalCounter, now: Timestamp) -> Period {
    let schedule = &counter.plan.schedule;
    let fixed = counter.target.tiers.iter().filter(|tier| tier.algorithm == Algorithm::FixedWindow);
    let ends = fixed.map(|tier| now.window_end(tier.period).before(WINDOW_END).since(now));
    ends.fold(schedule.pause(), Period::min).max(schedule.interval())
}

/// How long a counter whose node does not reply waits until the next look at it, in a table of `counters`.
fn outage_pause(counters: usize) -> Period {
    (OUTAGE_PAUSE * counters as u64).max(LONGEST_GRID)
}

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

    fn flush_counter(&self, entry: &mut CounterEntry, link: &Link, outbox: &mut Outbox, woken: &mut Wakeups) {
        let (counter, now) = (&mut entry.counter, link.time.now);
        // pending hits are kept while the node does not reply; the heartbeat detects when it does again
        let is_available = !self.client.is_unavailable_for(&counter.target, now);
        if is_available && counter.should_renew(link.lead(), now) {
            // due again after the reply
            counter.talk.open().wants_lease = true;
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
            self.return_ended(&mut entry.counter, &link);
            self.record_dropped(entry.counter.drop_ended(now));
            self.enqueue(entry, now);
        });
    }

    /// Takes [`FINAL_FLUSH`] at most. Repeats, because a counter whose flush is in flight has to wait for the reply first.
    pub(crate) async fn final_flush(&self) {
        let all = async {
            loop {
                let mut unreported = false;
                self.shards.sweep(1, self.client.time().now, |CounterEntry { key, counter }| {
                    counter.return_leases();
                    if counter.can_flush() {
                        let (place, at_once) = (&mut counter.place, Period::default());
                        self.queue.push(*key, place, Urgency::Now, at_once, at_once);
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

    /// To be called whenever what `counter` has to report, or a lease that it has to return, may have changed.
    pub(super) fn enqueue(&self, entry: &mut CounterEntry, now: Timestamp) {
        self.enqueue_for(Urgency::Now, entry, now);
    }

    /// For a counter whose report has failed. However urgent the next one is, it waits: a store that rejects reports, for
    /// want of memory, say, would have one in every round trip.
    pub(super) fn enqueue_again(&self, entry: &mut CounterEntry, now: Timestamp) {
        self.enqueue_for(Urgency::Interval, entry, now);
    }

    /// For something of the urgency `most`, or less.
    fn enqueue_for(&self, most: Urgency, entry: &mut CounterEntry, now: Timestamp) {
        if !entry.counter.can_flush() {
            return self.enqueue_lease(entry, now);
        }
        let CounterEntry { key, counter } = entry;
        let interval = counter.plan.schedule.interval();
        let (tick, grid) = (tick(interval), interval.min(LONGEST_GRID));
        let mut urgency = counter.urgency(self.client.round_trip(), tick, now).min(most);
        if counter.place.is_due_for(urgency) {
            return;
        }
        if self.client.is_unavailable_for(&counter.target, now) {
            // the flush waits for the node, however urgent it is
            urgency = Urgency::Idle;
        }
        let (delay, grid) = match urgency {
            Urgency::Idle => (outage_pause(self.shards.len()), tick),
            Urgency::Pause => {
                let pause = pause(counter, now);
                // with the others of the interval, unless it would be much too early then
                let is_long = pause.as_nanos() >= 2 * interval.as_nanos();
                (pause, if is_long { grid } else { tick })
            }
            Urgency::Interval => (Period::default(), grid),
            Urgency::Tick | Urgency::Now => (Period::default(), tick),
        };
        self.queue.push(*key, &mut counter.place, urgency, delay, grid);
    }

    fn enqueue_lease(&self, CounterEntry { key, counter }: &mut CounterEntry, now: Timestamp) {
        let Some((at, is_punctual)) = counter.due_at(lead(self.client.round_trip())) else { return };
        // whatever it is due for, leases are looked at
        if is_punctual || !counter.place.is_due_for(Urgency::Idle) {
            let grid = if is_punctual { SHORTEST_GRID } else { LEASE_GRID };
            self.queue.push(*key, &mut counter.place, Urgency::Idle, at.since(now), grid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgent_flushes_are_collected_for_a_tenth_of_the_interval() {
        let ticks = [20, 50, 70, 100, 10_000].map(|interval| tick(Period::from_millis(interval)));
        assert_eq!(ticks, [5, 5, 7, 10, 10].map(Period::from_millis));
    }

    #[test]
    fn the_more_counters_there_are_the_longer_each_waits_for_a_node_that_does_not_reply() {
        let pauses = [0, 10_000, 100_000, 499_999].map(outage_pause);
        assert_eq!(pauses.map(|pause| pause.as_nanos() / 10_000), [10_000, 10_000, 100_000, 499_999]);
    }
}
