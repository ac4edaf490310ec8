//! The flush loop: reports pending hits to the store, returns unused leases, and removes idle counters.

use std::sync::Arc;

use tokio::{
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};

use super::{CounterTable, batches::Batches};
use crate::{
    limit::{Coordination, Period, Timestamp},
    store::{coordinated::counter::LocalCounter, remote::Remote},
};

/// The time between two sweeps.
const SWEEP_PERIOD: Period = Period::from_millis(250);

/// The counters that one sweep visits, which takes a few milliseconds.
const SWEEP_BATCH: usize = 50_000;

/// The longest that the final flush takes.
const FINAL_FLUSH: Period = Period::from_secs(2);

/// The time between two attempts of the final flush.
const FINAL_FLUSH_RETRY: Period = Period::from_millis(5);

/// Flushes once in an interval, and at once if a counter is urgent, until it is dropped.
pub(in super::super) async fn run<R: Remote>(table: Arc<CounterTable<R>>) {
    let interval = || Instant::now() + table.queue.interval().into();
    let (mut swept, mut next) = (Instant::now(), interval());
    loop {
        // urgent counters do not move the deadline of the others; a new rule with a shorter interval does
        next = next.min(interval());
        let urgent = tokio::select! {
            // a fixed order, so that simulations are reproducible, and the deadline first, so that it is kept
            biased;
            () = sleep_until(next) => false,
            () = table.queue.wait_for_urgent() => true,
        };
        if !urgent {
            next = interval();
        }
        let now = table.client.time().now;
        if swept.elapsed() >= SWEEP_PERIOD.into() {
            swept = Instant::now();
            sweep(&table);
        }
        // pending hits are kept while a node is unavailable; the heartbeat detects when it replies again
        if table.client.is_unavailable_everywhere() {
            continue;
        }
        if urgent {
            flush_urgent(&table, now);
        } else {
            flush(&table, |counter| {
                (counter.is_urgent || counter.schedule.due <= now)
                    && !table.client.is_unavailable_for(&counter.target, now)
            });
        }
    }
}

/// Returns every lease and reports all pending hits, for [`FINAL_FLUSH`] at most. Repeats, because a counter
/// whose flush is in flight has to wait for the reply first.
pub(in super::super) async fn final_flush<R: Remote>(table: &Arc<CounterTable<R>>) {
    let all = async {
        loop {
            let now = table.client.time().now;
            let mut unreported = false;
            table.shards.sweep(now, usize::MAX, |key, counter| {
                counter.return_leases();
                table.enqueue(key, counter, now);
                unreported |= counter.has_unacknowledged();
            });
            if !unreported {
                return;
            }
            for batch in flush(table, |_| true) {
                let _ = batch.await;
            }
            sleep_until(Instant::now() + FINAL_FLUSH_RETRY.into()).await;
        }
    };
    let _ = timeout(FINAL_FLUSH.into(), all).await;
}

/// Removes idle counters, and returns the leases of abandoned ones.
fn sweep<R: Remote>(table: &CounterTable<R>) {
    let time = table.client.time();
    table.shards.sweep(time.now, SWEEP_BATCH, |key, counter| {
        table.record_dropped(counter.expire_leases(time));
        // a fetch that was running when the counter left `lease` may have been granted hits since
        if counter.mode != Coordination::Lease || counter.is_abandoned(time.now) {
            counter.return_leases();
        }
        table.enqueue(key, counter, time.now);
    });
}

/// Sends the pending hits of the queued counters that are `due`, in the background.
fn flush<R: Remote>(
    table: &Arc<CounterTable<R>>,
    due: impl Fn(&LocalCounter) -> bool,
) -> Vec<JoinHandle<()>> {
    let now = table.client.time().now;
    let (mut later, mut batches) = (Vec::new(), Batches::new(table));
    for key in table.queue.take() {
        table.with_existing(key, |counter| {
            if due(counter) {
                batches.add(key, counter, now);
            }
            // counters that are not due yet, or wait for a reply, stay queued
            counter.is_queued = counter.has_pending();
            if counter.is_queued {
                later.push(key);
            }
        });
    }
    table.queue.put_back(later);
    batches.finish()
}

/// Sends the pending hits of the urgent counters, which stay queued.
fn flush_urgent<R: Remote>(table: &Arc<CounterTable<R>>, now: Timestamp) {
    let mut batches = Batches::new(table);
    for key in table.queue.take_urgent() {
        table.with_existing(key, |counter| {
            if counter.is_urgent && !table.client.is_unavailable_for(&counter.target, now) {
                batches.add(key, counter, now);
                counter.schedule.due = now.after(table.queue.pause(key, counter));
            }
        });
    }
    batches.finish();
}
