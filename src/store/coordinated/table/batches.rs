//! Collects the pending hits of counters into one batch for each node, and sends them.

use std::{collections::BTreeMap, sync::Arc};

use tokio::task::JoinHandle;

use super::CounterTable;
use crate::{
    limit::{CounterKey, Timestamp},
    store::{
        coordinated::counter::LocalCounter,
        remote::{Command, Remote, StoreNode},
    },
};

/// The number of commands at which a batch is sent: few, so that a decision that has to be made in the store does not wait
/// for long behind it.
const MAX_BATCH: usize = 256;

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
    /// The counters that the commands are of, in order.
    counters: Vec<Sender>,
}

/// A counter that has sent commands.
struct Sender {
    key: CounterKey,
    /// Its generation: another counter may take its place before the reply arrives.
    generation: u64,
    /// The number of its commands.
    commands: usize,
    /// The hits that they report.
    hits: u64,
}

// === impl Batches ===

impl<'a, R: Remote> Batches<'a, R> {
    pub(super) fn new(table: &'a Arc<CounterTable<R>>) -> Self {
        Self { table, open: BTreeMap::new(), sent: Vec::new() }
    }

    /// Adds the pending hits of `counter`, unless an earlier flush of it is in flight.
    pub(super) fn add(&mut self, key: CounterKey, counter: &mut LocalCounter, now: Timestamp) {
        let Some(at) = counter.oldest_pending_at() else { return };
        let batch = self.open.entry(self.table.client.node(&counter.target, at)).or_default();
        let before = batch.commands.len();
        self.table.record_dropped(counter.take_commands(now, &mut batch.commands));
        let count = batch.commands.len() - before;
        if count > 0 {
            batch.counters.push(Sender {
                key,
                generation: counter.generation,
                commands: count,
                hits: counter.hits_in_flight(),
            });
        }
        if batch.commands.len() >= MAX_BATCH {
            self.sent.push(send(self.table, std::mem::take(batch)));
        }
    }

    /// Sends the remaining batches. Returns handles that wait for all replies.
    pub(super) fn finish(mut self) -> Vec<JoinHandle<()>> {
        let rest = self.open.into_values().filter(|batch| !batch.commands.is_empty());
        self.sent.extend(rest.map(|batch| send(self.table, batch)));
        self.sent
    }
}

/// Sends `batch` in the background and applies the replies, however late.
fn send<R: Remote>(table: &Arc<CounterTable<R>>, batch: Batch) -> JoinHandle<()> {
    let task_table = Arc::clone(table);
    table.client.spawn(async move {
        let table = task_table;
        let Batch { commands, counters } = batch;
        let outcome = table.client.call_in_background(commands).await;
        let now = outcome.as_ref().map_or_else(|_| table.client.time().now, |replies| replies.now);
        let mut first = 0;
        for Sender { key, generation, commands, hits } in counters {
            let range = first..first + commands;
            first = range.end;
            let found = table.with_generation(key, generation, |counter| {
                if let Some(reply) = table.apply_outcome(counter, &outcome, range.clone()) {
                    counter.apply_flush_reply(reply, now);
                }
                table.enqueue(key, counter, now);
            });
            if found.is_none() {
                table.record_lost(&outcome, range, hits);
            }
        }
    })
}
