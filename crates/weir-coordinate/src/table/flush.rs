//! When counters are due, the queue of those that are, and what is done for them then: pending hits are reported, and
//! unused leases returned. The sweep looks over all counters, and removes idle ones.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use super::{CounterTable, shards::CounterEntry};
use crate::{
    client::{Link, lead},
    counter::{FlushUrgency, LEASE_GRID, LocalCounter, Outbox},
};
use weir_limit::{CounterKey, Period, Timestamp};
use weir_store::remote::Remote;

/// The steps in which the sweep visits the whole table.
pub(super) const SWEEP_STEPS: usize = 20;

const FINAL_FLUSH: Period = Period::from_secs(2);

const FINAL_FLUSH_RETRY: Period = Period::from_millis(5);

/// The time in which urgent flushes are collected.
const TICK: Period = Period::from_millis(10);

/// The same for flushes that need not be punctual.
const LONGEST_GRID: Period = Period::from_millis(100);

/// The same for leases that have to be returned in time.
const SHORTEST_GRID: Period = Period::from_millis(5);

/// The time between two looks at a counter whose node is silent, for each counter of the table: 100,000 looks a second.
const OUTAGE_PAUSE: Period = Period::from_nanos(10_000);

/// How long before the end of a window its hits are reported after the interval alone: they are not reported later.
const WINDOW_END: Period = Period::from_secs(1);

/// Of the times of [places](QueuePlace), in nanoseconds.
const UNIT: u64 = 8;

#[derive(Debug)]
pub(super) struct AttentionQueue {
    started: Instant,
    /// Each counter once, by the time that is its [place](QueuePlace). Those that were evicted meanwhile are still here.
    due: Mutex<BTreeSet<(u64, CounterKey)>>,
    /// Notified when something has to be done earlier than it was known when the table's task went to sleep.
    pub(super) earlier: Notify,
}

/// Where a counter is queued: by the time at which it is due, in units of eight nanoseconds since the queue began. The
/// three lowest bits are the urgency and one; zero if it is not queued.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueuePlace(u64);

/// How long the next flush may wait.
fn pause(counter: &LocalCounter, now: Timestamp) -> Period {
    let schedule = &counter.plan.schedule;
    let ends = counter.target.tiers.iter().filter_map(|tier| tier.window_end(now));
    let pauses = ends.map(|end| end.before(WINDOW_END).since(now));
    pauses.fold(schedule.pause(), Period::min).max(schedule.interval())
}

/// How long a counter whose node does not reply waits until the next look at it, in a table of `counters`.
fn outage_pause(counters: usize) -> Period {
    (OUTAGE_PAUSE * counters as u64).max(LONGEST_GRID)
}

// === impl AttentionQueue ===

impl AttentionQueue {
    pub(super) fn new() -> Self {
        Self { started: Instant::now(), due: Mutex::default(), earlier: Notify::new() }
    }

    /// The counter is due after `delay`, unless it is due before. That is rounded down to a multiple of `grid`, but not to
    /// the past: counters with the same grid share a turn.
    pub(super) fn push(
        &self,
        key: CounterKey,
        place: &mut QueuePlace,
        urgency: FlushUrgency,
        delay: Period,
        grid: Period,
    ) {
        let (now, grid) = (self.nanos_at(Instant::now()), grid.as_nanos());
        let turn = || (now.saturating_add(delay.as_nanos()) / grid).max(now / grid + 1);
        let at = if urgency == FlushUrgency::Now { now } else { turn().saturating_mul(grid) } / UNIT;
        let before = place.due_at();
        if !place.make_due(at, urgency) {
            return;
        }
        let mut due = self.due.lock();
        if let Some(before) = before {
            due.remove(&(before, key));
        }
        let is_first = due.first().is_none_or(|(first, _)| at < *first);
        due.insert((at, key));
        drop(due);
        if is_first {
            self.earlier.notify_one();
        }
    }

    /// Takes up to `most` counters that are due at `now`, each with the time at which it was.
    pub(super) fn take(&self, most: usize, now: Instant) -> Vec<(u64, CounterKey)> {
        let (now, mut due) = (self.nanos_at(now), self.due.lock());
        let is_due = |first: &(u64, CounterKey)| first.0 <= now / UNIT;
        std::iter::from_fn(|| due.first().is_some_and(is_due).then(|| due.pop_first())?).take(most).collect()
    }

    pub(super) fn next(&self) -> Option<Instant> {
        let (at, _) = *self.due.lock().first()?;
        Some(self.started + Period::from_nanos(at * UNIT).into())
    }

    /// In nanoseconds since the start.
    fn nanos_at(&self, now: Instant) -> u64 {
        u64::try_from(now.duration_since(self.started).as_nanos()).unwrap_or(u64::MAX)
    }
}

// === impl QueuePlace ===

impl QueuePlace {
    pub(crate) fn due_at(self) -> Option<u64> {
        (self.0 != 0).then_some(self.0 >> 3)
    }

    pub(crate) const fn is_due_for(self, urgency: FlushUrgency) -> bool {
        self.0 & 7 > urgency as u64
    }

    /// Returns whether the counter was not due so early. The higher urgency is kept, so that it is not computed again
    /// for every hit.
    pub(crate) fn make_due(&mut self, at: u64, urgency: FlushUrgency) -> bool {
        let (before, own) = (self.due_at(), urgency as u64 + 1);
        let is_earlier = before.is_none_or(|before| at < before);
        self.0 = if is_earlier { at << 3 | own } else { self.0 & !7 | own.max(self.0 & 7) };
        is_earlier
    }

    /// Returns whether the counter is due at this very time, and then is due no more.
    pub(crate) fn take_turn(&mut self, at: u64) -> bool {
        let is_due = self.due_at() == Some(at);
        if is_due {
            self.0 = 0;
        }
        is_due
    }
}

// === impl CounterTable ===

impl<R: Remote> CounterTable<R> {
    /// `due` are counters, each with the time at which it was due.
    pub(super) fn flush(&self, due: Vec<(u64, CounterKey)>) -> Outbox {
        let link = self.link_now();
        let mut outbox = Outbox::with_capacity(due.len());
        for (at, key) in due {
            let mut shard = self.shards.lock(key.shard());
            let is_single = shard.all_of(key.shard()).count() == 1;
            if let Some(entry) = shard.entry_mut(key)
                && entry.place.take_turn(at)
            {
                entry.counter.choice.has_sibling &= !is_single;
                self.flush_counter(entry, &link, &mut outbox);
            }
        }
        outbox
    }

    fn flush_counter(&self, entry: &mut CounterEntry, link: &Link, outbox: &mut Outbox) {
        let (counter, now) = (&mut entry.counter, link.time.now);
        // pending hits are kept while the node does not reply; the heartbeat detects when it does again
        let is_available = !self.client.is_unavailable_for(&counter.target, now);
        if is_available && counter.should_renew(link.lead(), now) {
            // due again after the reply
            counter.traffic.open().wants_lease = true;
            return self.send_tries(entry, link);
        }
        self.drop_ended(counter, link);
        counter.return_ending(link.lead(), now);
        if counter.traffic.waits_for_call() {
            // which carries the reports too: decisions must not leave behind those of others
            return;
        }
        if is_available && counter.can_flush() {
            counter.compose(entry.key, link, outbox);
        }
        // what is not in flight now is due again
        self.enqueue(entry, now);
    }

    /// What other counters need was queued when it became known. Hits whose windows ended in an outage are dropped here.
    pub(super) fn sweep(&self) {
        let link = self.link_now();
        let now = link.time.now;
        self.shards.sweep(SWEEP_STEPS, now, |entry| {
            self.drop_ended(&mut entry.counter, &link);
            entry.counter.return_ending(link.lead(), now);
            self.enqueue(entry, now);
        });
    }

    /// Takes [`FINAL_FLUSH`] at most. Repeats, because a counter whose flush is in flight has to wait for the reply first.
    pub(crate) async fn final_flush(&self) {
        let all = async {
            loop {
                let mut unreported = false;
                self.shards.sweep(1, self.client.time().now, |CounterEntry { key, place, counter }| {
                    counter.return_leases();
                    if counter.can_flush() {
                        let at_once = Period::default();
                        self.queue.push(*key, place, FlushUrgency::Now, at_once, at_once);
                    }
                    // what an exchange on its way leases, or by one to come, has to be returned too
                    unreported |=
                        !counter.is_settled() || !counter.is_silent() || counter.traffic.waits_for_call();
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
        self.enqueue_for(FlushUrgency::Now, entry, now);
    }

    /// For something of the urgency `most`, or less.
    pub(super) fn enqueue_for(&self, most: FlushUrgency, entry: &mut CounterEntry, now: Timestamp) {
        if !entry.counter.can_flush() {
            return self.enqueue_lease(entry, now);
        }
        let CounterEntry { key, place, counter } = entry;
        let interval = counter.plan.schedule.interval();
        let grid = interval.min(LONGEST_GRID);
        let mut urgency = counter.urgency(self.client.round_trip(), TICK, now).min(most);
        if place.is_due_for(urgency) {
            return;
        }
        if self.client.is_unavailable_for(&counter.target, now) {
            // the flush waits for the node, however urgent it is
            urgency = FlushUrgency::Idle;
        }
        let (delay, grid) = match urgency {
            FlushUrgency::Idle => (outage_pause(self.shards.len()), TICK),
            FlushUrgency::Pause => {
                let pause = pause(counter, now);
                // with the others of the interval, unless it would be much too early then
                let is_long = pause.as_nanos() >= 2 * interval.as_nanos();
                (pause, if is_long { grid } else { TICK })
            }
            FlushUrgency::Interval => (Period::default(), grid),
            FlushUrgency::Tick | FlushUrgency::Now => (Period::default(), TICK),
        };
        self.queue.push(*key, place, urgency, delay, grid);
    }

    fn enqueue_lease(&self, CounterEntry { key, place, counter }: &mut CounterEntry, now: Timestamp) {
        let Some((at, is_punctual)) = counter.due_at(lead(self.client.round_trip()), now) else { return };
        // whatever it is due for, leases are looked at
        if is_punctual || !place.is_due_for(FlushUrgency::Idle) {
            let grid = if is_punctual { SHORTEST_GRID } else { LEASE_GRID };
            self.queue.push(*key, place, FlushUrgency::Idle, at.since(now), grid);
        }
    }
}

#[cfg(test)]
mod tests;
