//! The flush loop: reports pending hits to the store, returns unused leases, and removes idle counters.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::{
    task::yield_now,
    time::{Instant, sleep_until, timeout},
};

use super::{
    CounterTable, LeaseWork,
    batches::{AT_ONCE, Batches},
    due::SWEEP,
    shards::Entry,
};
use crate::{
    limit::{CounterKey, Period},
    store::{
        coordinated::{
            client::RECHECK,
            counter::{LocalCounter, Slot},
            store_time::StoreTime,
        },
        remote::Remote,
    },
};

/// The steps in which the sweep visits the whole table.
const SWEEP_STEPS: usize = 20;

/// The time between two of them.
const SWEEP_STEP: Period = Period::from_nanos(SWEEP.as_nanos() / SWEEP_STEPS as u64);

/// The longest that the final flush takes.
const FINAL_FLUSH: Period = Period::from_secs(2);

/// The time after which the final flush takes over the replies that decisions wait for: until then, those that are polled apply them.
const FINAL_DECISIONS: Period = Period::from_millis(100);

/// The time between two attempts of the final flush.
const FINAL_FLUSH_RETRY: Period = Period::from_millis(5);

/// Flushes what is due, and sweeps the table, until it is dropped.
pub(in super::super) async fn run<R: Remote>(table: Arc<CounterTable<R>>) {
    let next_sweep = || Instant::now() + SWEEP_STEP.into();
    let mut sweep_at = next_sweep();
    loop {
        tokio::select! {
            // a fixed order, so that simulations are reproducible, and the sweep first, so that no load delays it
            biased;
            () = sleep_until(sweep_at) => {}
            () = table.queue.wait() => {}
        }
        if Instant::now() >= sweep_at {
            sweep(&table);
            sweep_at = next_sweep();
        }
        // also while no node replies: the queue would keep the counters that were evicted meanwhile
        flush_due(&table, sweep_at).await;
    }
}

/// Sends the pending hits of all counters that are due, in the background, but only until the next sweep: if more become due all the
/// time, they would hold it up, and what was collected for nodes with few counters.
async fn flush_due<R: Remote>(table: &Arc<CounterTable<R>>, sweep_at: Instant) {
    let mut batches = Batches::new(table);
    while Instant::now() < sweep_at
        && let Some(chunk) = table.queue.take()
    {
        for shards in chunk.shards.chunks(AT_ONCE) {
            flush_shards(table, shards, chunk.slot, &mut batches);
            // decisions, whose commands and replies pass through this thread, do not wait for all of them
            yield_now().await;
        }
    }
    batches.finish();
}

/// Adds what the counters that are due with `slot` have to send to `batches`: those for whose keys [`CounterKey::shard`] returns one of
/// `shards`.
fn flush_shards<R: Remote>(
    table: &Arc<CounterTable<R>>,
    shards: &[u64],
    slot: Option<Slot>,
    batches: &mut Batches<'_, R>,
) {
    let time = table.client.time();
    for shard in shards {
        // nearly always none
        let mut with_siblings: SmallVec<[CounterKey; 1]> = SmallVec::new();
        let mut renewed: SmallVec<[CounterKey; 1]> = SmallVec::new();
        for Entry { key, counter } in table.shards.lock_of(*shard).all_of(*shard) {
            if !table.queue.is_due(*key, &mut counter.place, slot) {
                continue;
            }
            if counter.may_have_siblings() {
                with_siblings.push(*key);
            } else if flush_counter(table, *key, counter, batches, time) {
                renewed.push(*key);
            }
        }
        for key in with_siblings {
            // what they have counted before precedes what this one has counted
            for sibling in table.unsettled_siblings(key, time.now) {
                table.with_existing(sibling, |sibling_counter| {
                    if !table.client.is_unavailable_for(&sibling_counter.target, time.now) {
                        batches.add(sibling, sibling_counter, time.now);
                    }
                });
            }
            let renew = table.with_existing(key, |counter| flush_counter(table, key, counter, batches, time));
            renewed.extend(renew.is_some_and(|renew| renew).then_some(key));
        }
        table.do_lease_work(LeaseWork::Renew, renewed);
    }
}

/// Adds what `counter`, which is due, has to send to `batches`. Returns whether its lease should be renewed instead.
fn flush_counter<R: Remote>(
    table: &Arc<CounterTable<R>>,
    key: CounterKey,
    counter: &mut LocalCounter,
    batches: &mut Batches<'_, R>,
    time: StoreTime,
) -> bool {
    // pending hits are kept while the node does not reply; the heartbeat detects when it does again
    let is_available = !table.client.is_unavailable_for(&counter.target, time.now);
    if is_available && counter.should_renew(table.lease_lead(), time.now) {
        return true;
    }
    return_ended(table, counter, time);
    if is_available {
        batches.add(key, counter, time.now);
    }
    // what is not in flight now is due again
    table.enqueue(key, counter, time.now);
    false
}

/// Returns the leases of `counter` that have ended or are about to, and those that it does not need.
fn return_ended<R: Remote>(table: &CounterTable<R>, counter: &mut LocalCounter, time: StoreTime) {
    // an instance that is not alone any more returns other leases
    let instances = table.client.instances();
    counter.follow_instances(instances);
    table.record_dropped(counter.expire_leases(time));
    counter.return_ending(instances, table.lease_lead(), time.now);
}

/// Returns every lease and reports all pending hits, for [`FINAL_FLUSH`] at most. Repeats, because a counter
/// whose flush is in flight has to wait for the reply first.
pub(in super::super) async fn final_flush<R: Remote>(table: &Arc<CounterTable<R>>) {
    let begun = Instant::now();
    let all = async {
        loop {
            let now = table.client.time().now;
            let mut awaited: Vec<CounterKey> = Vec::new();
            let (mut unreported, mut batches) = (false, Batches::new(table));
            table.shards.sweep(1, now, |key, counter| {
                counter.return_leases();
                if counter.may_have_siblings() {
                    // what they have counted is not looked up here, so only its own hits are reported
                    counter.lose_version();
                }
                batches.add(key, counter, now);
                // what a running fetch is granted has to be returned too
                unreported |= !counter.is_settled();
                if counter.has_awaited_reply() {
                    awaited.push(key);
                }
            });
            if !unreported {
                return;
            }
            if begun.elapsed() >= Duration::from(FINAL_DECISIONS) {
                table.do_lease_work(LeaseWork::Receive, awaited);
            }
            // what a node that does not reply has been sent must not hold up what others are sent
            let _ = timeout(RECHECK.into(), join_all(batches.finish())).await;
            sleep_until(Instant::now() + FINAL_FLUSH_RETRY.into()).await;
        }
    };
    let _ = timeout(FINAL_FLUSH.into(), all).await;
}

/// Removes idle counters from a part of the table. What its other counters need was queued when it became known; only hits
/// whose windows ended while no node was available are dropped here.
fn sweep<R: Remote>(table: &CounterTable<R>) {
    let (time, instances) = (table.client.time(), table.client.instances());
    let mut held_up: Vec<CounterKey> = Vec::new();
    table.shards.sweep(SWEEP_STEPS, time.now, |key, counter| {
        if counter.is_keeping(instances, time) {
            return;
        }
        table.record_dropped(counter.drop_ended(time.now));
        counter.follow_instances(instances);
        table.record_dropped(counter.expire_leases(time));
        if counter.is_quiet() {
            return;
        }
        return_ended(table, counter, time);
        counter.shrink(time.now);
        table.enqueue(key, counter, time.now);
        if counter.is_held_up() {
            held_up.push(key);
        }
    });
    table.do_lease_work(LeaseWork::Receive, held_up);
}
