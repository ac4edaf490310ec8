//! The queue of counters with pending hits.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    limit::{CounterKey, Period, Timestamp},
    store::coordinated::counter::LocalCounter,
};

/// The keys of counters that have to be flushed.
#[derive(Debug)]
pub(super) struct FlushQueue {
    /// All counters with pending hits. The flush loop iterates over it once per interval.
    queued: Mutex<Vec<CounterKey>>,
    /// The urgent ones among them, kept separately so that an urgent flush does not iterate over all the others.
    urgent: Mutex<Vec<CounterKey>>,
    /// Notified when a counter becomes urgent.
    became_urgent: Notify,
    /// The shortest sync interval of all rules seen so far, in nanoseconds.
    shortest_interval: AtomicU64,
    /// Whether counters may be urgent at all.
    early_sync: bool,
}

// === impl FlushQueue ===

impl FlushQueue {
    pub(super) fn new(sync_interval: Period, early_sync: bool) -> Self {
        Self {
            queued: Mutex::default(),
            urgent: Mutex::default(),
            became_urgent: Notify::new(),
            shortest_interval: AtomicU64::new(sync_interval.as_nanos()),
            early_sync,
        }
    }

    /// Queues a counter that has pending hits, as urgent if the flush cannot wait for the interval. `round_trip` is the time
    /// that the store takes to reply.
    pub(super) fn push(
        &self,
        key: CounterKey,
        counter: &mut LocalCounter,
        instances: usize,
        round_trip: Period,
        now: Timestamp,
    ) {
        if !counter.is_queued {
            counter.is_queued = true;
            counter.schedule.due = now.after(self.pause(key, counter));
            self.queued.lock().push(key);
        }
        if self.early_sync && !counter.is_urgent && counter.needs_early_flush(instances, round_trip, now) {
            counter.is_urgent = true;
            self.urgent.lock().push(key);
            self.became_urgent.notify_one();
        }
    }

    /// Queues counters again that were taken with [`FlushQueue::take`].
    pub(super) fn put_back(&self, keys: Vec<CounterKey>) {
        self.queued.lock().extend(keys);
    }

    /// Takes all queued keys, the urgent ones among them.
    pub(super) fn take(&self) -> Vec<CounterKey> {
        self.urgent.lock().clear();
        std::mem::take(&mut *self.queued.lock())
    }

    /// Takes the urgent keys. They stay queued.
    pub(super) fn take_urgent(&self) -> Vec<CounterKey> {
        std::mem::take(&mut *self.urgent.lock())
    }

    /// Waits until a counter is urgent.
    pub(super) async fn wait_for_urgent(&self) {
        self.became_urgent.notified().await;
    }

    /// Returns the time between two flushes.
    pub(super) fn interval(&self) -> Period {
        Period::from_nanos(self.shortest_interval.load(Ordering::Relaxed))
    }

    /// Flushes at least every `interval` from now on.
    pub(super) fn shorten_interval(&self, interval: Period) {
        self.shortest_interval.fetch_min(interval.as_nanos(), Ordering::Relaxed);
    }

    /// Returns how long the next flush of a counter may wait. It may exceed the interval only if early flushes are enabled,
    /// since they are sent when the limit turns out to be near. Long pauses are shortened by up to a quarter, differently for each key, so
    /// that counters that became busy together are not flushed together from then on.
    pub(super) fn pause(&self, key: CounterKey, counter: &LocalCounter) -> Period {
        let (pause, interval) = (counter.schedule.pause.as_nanos(), counter.schedule.interval.as_nanos());
        if !self.early_sync {
            return counter.schedule.interval;
        }
        let shorter = pause / 4 / 256 * (key.hash() % 256);
        Period::from_nanos(pause.saturating_sub(shorter).max(interval))
    }
}
