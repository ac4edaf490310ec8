//! The flush loop: reports pending hits to the store, returns unused leases, and removes idle counters.

use std::sync::Arc;

use tokio::{
    task::yield_now,
    time::{Instant, sleep_until, timeout},
};

use super::{CounterTable, outgoing::Outbox, shards::Entry};
use crate::{
    limit::Period,
    store::{
        coordinated::{
            counter::{LocalCounter, Slot},
            link::Link,
        },
        remote::Remote,
    },
    wakeup::{Wakeups, wake_all},
};

/// The steps in which the sweep visits the whole table.
const SWEEP_STEPS: usize = 20;

const FINAL_FLUSH: Period = Period::from_secs(2);

/// The counters that are flushed before other tasks have their turn.
const AT_ONCE: usize = 32;

const FINAL_FLUSH_RETRY: Period = Period::from_millis(5);

pub(in super::super) async fn run<R: Remote>(table: Arc<CounterTable<R>>) {
    let step = table.client.settings.sweep / SWEEP_STEPS as u64;
    let next_sweep = || Instant::now() + step.into();
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
        // also while no node replies: the queue would keep the counters that were evicted meanwhile. But only until the
        // next sweep, which counters that become due all the time would hold up
        while Instant::now() < sweep_at
            && let Some((shards, slot)) = table.queue.take()
        {
            for shards in shards.chunks(AT_ONCE) {
                flush_shards(&table, shards, slot);
                // decisions, whose commands and replies pass through this thread, do not wait for all of them
                yield_now().await;
            }
        }
    }
}

/// `shards` are those of the keys of the counters that are due with `slot`.
fn flush_shards<R: Remote>(table: &CounterTable<R>, shards: &[u64], slot: Option<Slot>) {
    let link = table.link_now();
    let (mut all, mut woken) = (Outbox::with_capacity(shards.len()), Wakeups::new());
    for shard in shards {
        let mut of_shard = table.shards.lock(*shard);
        let is_single = of_shard.all_of(*shard).count() == 1;
        for entry in of_shard.all_of(*shard) {
            entry.counter.is_beside &= !is_single;
            if table.queue.is_due(entry.key, &mut entry.counter.place, slot) {
                flush_counter(table, entry, &link, &mut all, &mut woken);
            }
        }
    }
    table.send_in_background(all);
    wake_all(&mut woken);
}

fn flush_counter<R: Remote>(
    table: &CounterTable<R>,
    entry: &mut Entry,
    link: &Link,
    all: &mut Outbox,
    woken: &mut Wakeups,
) {
    let (counter, now) = (&mut entry.counter, link.time.now);
    // pending hits are kept while the node does not reply; the heartbeat detects when it does again
    let is_available = !table.client.is_unavailable_for(&counter.target, now);
    if is_available && counter.should_renew(link.lead(), now) {
        // due again after the reply
        counter.want_lease();
        return table.send_tries(entry, link, woken);
    }
    return_ended(table, counter, link);
    if counter.waits_for_call() {
        // which carries the reports too: decisions must not leave behind those of others
        return table.enqueue_again(entry, now);
    }
    if is_available && counter.can_flush() {
        table.compose(entry, link, all);
    }
    // what is not in flight now is due again
    table.enqueue(entry, now);
}

fn return_ended<R: Remote>(table: &CounterTable<R>, counter: &mut LocalCounter, link: &Link) {
    // an instance that is not alone any more returns other leases
    counter.follow_instances(link.instances);
    table.record_dropped(counter.expire_leases(link.time));
    counter.return_ending(link.lead(), link.time.now);
}

/// Takes [`FINAL_FLUSH`] at most. Repeats, because a counter whose flush is in flight has to wait for the reply first.
pub(in super::super) async fn final_flush<R: Remote>(table: &CounterTable<R>) {
    let all = async {
        loop {
            let link = table.link_now();
            let (mut unreported, mut composed) = (false, Outbox::default());
            table.shards.sweep(1, link.time.now, |entry| {
                entry.counter.return_leases();
                if entry.counter.can_flush() {
                    table.compose(entry, &link, &mut composed);
                }
                let counter = &entry.counter;
                // what is held by an exchange on its way, or by one to come, has to be returned too
                unreported |= !counter.is_settled() || !counter.is_silent() || counter.waits_for_call();
            });
            if !unreported {
                return;
            }
            table.send_in_background(composed);
            sleep_until(Instant::now() + FINAL_FLUSH_RETRY.into()).await;
        }
    };
    let _ = timeout(FINAL_FLUSH.into(), all).await;
}

/// What other counters need was queued when it became known. Hits whose windows ended in an outage are dropped here.
fn sweep<R: Remote>(table: &CounterTable<R>) {
    let link = table.link_now();
    let now = link.time.now;
    table.shards.sweep(SWEEP_STEPS, now, |entry| {
        let counter = &mut entry.counter;
        counter.follow_instances(link.instances);
        table.record_dropped(counter.drop_ended(now));
        return_ended(table, counter, &link);
        counter.shrink(now);
        table.enqueue(entry, now);
    });
}
