//! Collects the pending hits of counters into one batch for each node, and sends them.

use std::{collections::BTreeMap, pin::pin, sync::Arc};

use tokio::{
    task::{JoinHandle, yield_now},
    time::timeout,
};

use super::CounterTable;
use crate::{
    limit::{CounterKey, Timestamp},
    store::{
        coordinated::{
            client::RECHECK,
            counter::{Dropped, Generation, LocalCounter},
            delivery::Delivery,
        },
        remote::{Command, Remote, RemoteError, Replies, Reply, StoreNode},
    },
};

/// The number of commands at which a batch is sent: few, so that a decision that has to be made in the store does not wait
/// for long behind it.
const MAX_BATCH: usize = 256;

/// The counters that are flushed, or that replies are applied to, before other tasks have their turn.
pub(super) const AT_ONCE: usize = 32;

/// Collects pending hits. Each batch is for one node, so that no counter waits for another node's reply.
pub(super) struct Batches<'a, R: Remote> {
    table: &'a Arc<CounterTable<R>>,
    open: BTreeMap<StoreNode, Batch>,
    sent: Vec<JoinHandle<()>>,
}

/// Commands for one node.
#[derive(Default)]
struct Batch {
    commands: Vec<Command>,
    /// The counter of each.
    counters: Vec<Sender>,
}

/// A counter that has sent a command.
struct Sender {
    key: CounterKey,
    /// Its generation: another counter may take its place before the reply arrives.
    generation: Generation,
    /// The hits that its command carries.
    carried: Dropped,
    /// Whether its hits were given up because the node does not reply.
    is_released: bool,
}

// === impl Batches ===

impl<'a, R: Remote> Batches<'a, R> {
    pub(super) fn new(table: &'a Arc<CounterTable<R>>) -> Self {
        Self { table, open: BTreeMap::new(), sent: Vec::new() }
    }

    /// Adds the pending hits of `counter`, unless an earlier flush of it is in flight.
    pub(super) fn add(&mut self, key: CounterKey, counter: &mut LocalCounter, now: Timestamp) {
        if !counter.has_pending() {
            return;
        }
        let (command, dropped) = counter.take_command(now);
        self.table.record_dropped(dropped);
        let Some(command) = command else { return };
        let node = self.table.client.node(&command.target, command.counted_at());
        let (generation, carried) = (counter.generation, counter.carried_hits());
        let batch = self.open.entry(node).or_default();
        batch.commands.push(command);
        batch.counters.push(Sender { key, generation, carried, is_released: false });
        if batch.commands.len() >= MAX_BATCH {
            self.sent.push(send(self.table, node, std::mem::take(batch)));
        }
    }

    /// Sends the remaining batches. Returns handles that wait for all replies.
    pub(super) fn finish(mut self) -> Vec<JoinHandle<()>> {
        let rest = self.open.into_iter().filter(|(_, batch)| !batch.commands.is_empty());
        self.sent.extend(rest.map(|(node, batch)| send(self.table, node, batch)));
        self.sent
    }
}

/// Sends `batch` to `node` in the background and applies the replies, however late.
fn send<R: Remote>(table: &Arc<CounterTable<R>>, node: StoreNode, batch: Batch) -> JoinHandle<()> {
    let table = Arc::clone(table);
    let client = Arc::clone(&table.client);
    client.spawn(async move {
        let Batch { commands, mut counters } = batch;
        let mut call = pin!(table.client.call_in_background(commands));
        let outcome = loop {
            if let Ok(outcome) = timeout(RECHECK.into(), &mut call).await {
                break outcome;
            }
            if table.client.is_silent(node) {
                table.release_moved(node, &mut counters);
            }
        };
        let now = outcome.as_ref().map_or_else(|_| table.client.time().now, |replies| replies.now);
        for (number, Sender { key, generation, carried, is_released }) in counters.into_iter().enumerate() {
            if number % AT_ONCE == AT_ONCE - 1 {
                // decisions, whose replies pass through this thread, do not wait for all of them
                yield_now().await;
            }
            if is_released {
                continue;
            }
            let reply = reply_in(&outcome, number);
            let found = table.with_generation(key, generation, |counter| {
                if let Some(reply) = table.apply_outcome(counter, &reply, now) {
                    counter.apply_flush_reply(reply, now);
                    table.enqueue(key, counter, now);
                } else {
                    table.enqueue_again(key, counter, now);
                }
                counter.notify();
            });
            if found.is_none() {
                table.record_evicted(carried, Delivery::of(&reply));
            }
        }
    })
}

/// Returns the outcome of command `number` of a call.
fn reply_in(outcome: &Result<Replies, RemoteError>, number: usize) -> Result<Reply, RemoteError> {
    match outcome {
        Ok(replies) => {
            let lost = || Err(RemoteError::Unreachable("it sent too few replies".into()));
            replies.replies.get(number).cloned().unwrap_or_else(lost)
        }
        Err(error) => Err(error.clone()),
    }
}

impl<R: Remote> CounterTable<R> {
    /// Gives up the hits in flight to `node`, which does not reply, of those `counters` that another node counts by now: their
    /// current window must not wait for the earlier one. Marks them as released.
    fn release_moved(&self, node: StoreNode, counters: &mut [Sender]) {
        let now = self.client.time().now;
        let silent = Err(RemoteError::TimedOut(RECHECK));
        for sender in counters.iter_mut().filter(|sender| !sender.is_released) {
            self.with_generation(sender.key, sender.generation, |counter| {
                if self.client.node(&counter.target, now) != node {
                    sender.is_released = true;
                    self.apply_outcome(counter, &silent, now);
                    self.enqueue(sender.key, counter, now);
                    counter.notify();
                }
            });
        }
    }
}
