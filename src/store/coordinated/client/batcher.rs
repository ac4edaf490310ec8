//! Batches the commands of decisions that the shared store makes individually.
//!
//! Decisions run on many threads and queue their commands here, by node, or the counters whose tries wait. One task sends what is queued in
//! as few calls as possible, so that concurrent decisions share the cost of a call. The commands of a counter are composed when the call
//! leaves, so that late tries join, and their replies are applied where they arrive.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    task::yield_now,
    time::timeout,
};

use super::caller::Caller;
use crate::{
    limit::{CounterKey, Period, Timestamp},
    store::{
        coordinated::delivery::{Delivery, Undecided},
        remote::{Command, Op, Remote, RemoteError, Replies, Reply, StoreNode, Target, Urgency},
    },
};

/// The most concurrent calls to one node: more than one, so that the node is not idle while replies are in transit; few,
/// so that commands that arrive meanwhile share a call.
const MAX_CALLS: usize = 4;

/// The most commands in one call.
const MAX_BATCH: usize = 512;

/// The most commands that may wait for one node.
const MAX_QUEUE: usize = 4_096;

/// The replies that are applied before other tasks have their turn.
const AT_ONCE: usize = 32;

/// What composes the commands of the counters in the queue, and applies the replies.
pub(in super::super) trait Exchanges: Send + Sync + 'static {
    /// What is remembered of a command until its reply.
    type Sent: Send;

    /// Returns the commands of the counter of `key`, and what is remembered of each.
    fn compose(&self, key: CounterKey) -> impl IntoIterator<Item = (Command, Self::Sent), IntoIter: Send>;

    /// Applies the outcome of a command.
    fn apply(&self, sent: Self::Sent, outcome: QueuedOutcome);
}

/// Queues commands by node and sends them in batches.
#[derive(Debug, Default)]
pub(super) struct Batcher {
    queues: Mutex<Queues>,
    /// Notified when there are commands that may be sent.
    ready: Notify,
}

#[derive(Debug, Default)]
struct Queues {
    by_node: BTreeMap<StoreNode, NodeQueue>,
    /// The id of the last command.
    last_id: u64,
}

/// The commands for one node.
#[derive(Debug, Default)]
struct NodeQueue {
    /// In order of their ids.
    waiting: Vec<Pending>,
    /// Calls in flight.
    calls: usize,
}

/// What waits for a call.
#[derive(Debug)]
struct Pending {
    id: u64,
    what: Queued,
    /// Whether it was taken back.
    is_cancelled: bool,
}

#[derive(Debug)]
enum Queued {
    /// A command, and who waits for its reply.
    Command(Command, oneshot::Sender<QueuedOutcome>),
    /// The counter of this key, whose tries wait.
    Counter(CounterKey),
}

/// Who receives the reply to a command.
enum Receiver<S> {
    /// A decision. The reply is dated by the target's windows; none for a report, which may be of a window that has ended.
    Decision(oneshot::Sender<QueuedOutcome>, Option<Arc<Target>>),
    /// The counter that has composed the command.
    Counter(S, Arc<Target>),
}

/// A reply, and the store's clock when it carried out the command.
pub(super) type TimedReply = (Reply, Timestamp);

/// What becomes of a queued command.
pub(in super::super) type QueuedOutcome = Result<TimedReply, RemoteError>;

/// The reply to a queued command. It does not come if the store is closed.
pub(in super::super) type QueuedReply = oneshot::Receiver<QueuedOutcome>;

/// A queued command that can be taken back.
#[derive(Debug)]
pub(in super::super) struct QueuedCommand {
    /// Its node.
    pub(in super::super) node: StoreNode,
    id: u64,
    pub(in super::super) reply: QueuedReply,
}

// === impl QueuedCommand ===

#[cfg(test)]
impl QueuedCommand {
    /// Returns a command that is in no queue, and what its reply is sent with.
    pub(in super::super) fn unqueued() -> (Self, oneshot::Sender<QueuedOutcome>) {
        let (sender, reply) = oneshot::channel();
        (Self { node: StoreNode::default(), id: 0, reply }, sender)
    }
}

// === impl Batcher ===

impl Batcher {
    /// Queues `command` for `node`. It is sent, however long that takes, if the receiver of the reply is kept.
    pub(super) fn queue(&self, node: StoreNode, command: Command) -> QueuedCommand {
        let (reply, replied) = oneshot::channel();
        let mut queues = self.queues.lock();
        if !queues.has_room(node) {
            drop(queues);
            let error = format!("{MAX_QUEUE} decisions are already waiting for the node");
            let _ = reply.send(Err(RemoteError::NotSent(error)));
            return QueuedCommand { node, id: 0, reply: replied };
        }
        let (id, ready) = queues.push(node, Queued::Command(command, reply));
        drop(queues);
        self.notify(ready);
        QueuedCommand { node, id, reply: replied }
    }

    /// Queues the counter of `key`, whose tries wait for a call to `node`. Returns whether there was room.
    pub(super) fn queue_counter(&self, node: StoreNode, key: CounterKey) -> bool {
        let mut queues = self.queues.lock();
        let has_room = queues.has_room(node);
        if has_room {
            let (_, ready) = queues.push(node, Queued::Counter(key));
            drop(queues);
            self.notify(ready);
        }
        has_room
    }

    fn notify(&self, ready: bool) {
        // otherwise all calls are in flight, and what is queued is sent when one of them returns
        if ready {
            self.ready.notify_one();
        }
    }

    /// Takes `queued` back, unless it was sent. Returns whether it is never sent.
    pub(super) fn cancel(&self, QueuedCommand { node, id, reply }: &mut QueuedCommand) -> bool {
        let is_queued = self.queues.lock().cancel(*node, *id);
        if is_queued {
            reply.close();
        }
        is_queued
    }

    /// Returns the outcome of `queued`, whose reply is not awaited any longer, after `waited`. It is taken back, unless it was sent.
    pub(super) fn give_up(&self, queued: &mut QueuedCommand, waited: Period) -> QueuedOutcome {
        if self.cancel(queued) {
            return Err(RemoteError::NotSent("its node does not reply".to_owned()));
        }
        // the reply may just have arrived
        queued.reply.try_recv().unwrap_or(Err(RemoteError::TimedOut(waited)))
    }

    /// Waits for the reply to `queued`, but no longer than `budget`. Then it is taken back.
    pub(super) async fn receive(
        &self,
        mut queued: QueuedCommand,
        budget: Period,
    ) -> Result<TimedReply, Undecided> {
        let (outcome, late) = match timeout(budget.into(), &mut queued.reply).await {
            Ok(Ok(outcome)) => (outcome, false),
            Ok(Err(_)) => (Err(RemoteError::TimedOut(budget)), true),
            Err(_) => (self.give_up(&mut queued, budget), true),
        };
        outcome.map_err(|error| Undecided { delivery: Delivery::of_error(&error), late })
    }

    /// Sends what is queued, and what `exchanges` composes, until it is dropped.
    pub(super) async fn run<R: Remote>(&self, caller: &Caller<R>, exchanges: &impl Exchanges) {
        let mut calls = FuturesUnordered::new();
        loop {
            tokio::select! {
                // a fixed order, so that simulations are reproducible
                biased;
                Some(node) = calls.next() => self.finish_call(node),
                () = self.ready.notified() => {}
            }
            calls.extend(
                self.next_batches().into_iter().map(|(node, batch)| call(caller, exchanges, node, batch)),
            );
        }
    }

    /// Takes the batches that may be sent now.
    fn next_batches(&self) -> Vec<(StoreNode, Vec<Pending>)> {
        let queues = &mut self.queues.lock().by_node;
        let mut batches = Vec::new();
        for (node, queue) in &mut *queues {
            while let Some(batch) = queue.next_batch() {
                batches.push((*node, batch));
            }
        }
        queues.retain(|_, queue| queue.calls > 0);
        batches
    }

    /// Records that a call to `node` has returned.
    fn finish_call(&self, node: StoreNode) {
        if let Some(queue) = self.queues.lock().by_node.get_mut(&node) {
            queue.calls -= 1;
        }
    }
}

/// Sends `batch` in one call and distributes the replies.
async fn call<R: Remote, E: Exchanges>(
    caller: &Caller<R>,
    exchanges: &E,
    node: StoreNode,
    batch: Vec<Pending>,
) -> StoreNode {
    let mut commands = Vec::with_capacity(batch.len());
    let mut receivers = Vec::with_capacity(batch.len());
    for Pending { what, .. } in batch {
        match what {
            Queued::Command(command, reply) => {
                let dated = (!matches!(command.op, Op::Add { .. })).then(|| Arc::clone(&command.target));
                commands.push(command);
                receivers.push(Receiver::Decision(reply, dated));
            }
            Queued::Counter(key) => {
                for (command, sent) in exchanges.compose(key) {
                    receivers.push(Receiver::Counter(sent, Arc::clone(&command.target)));
                    commands.push(command);
                }
            }
        }
    }
    // all tries of a counter may have been given up
    if commands.is_empty() {
        return node;
    }
    let (mut replies, now) = match caller.call(commands, Urgency::Decision).await {
        Ok(Replies { now, replies }) => (replies, now),
        Err(error) => (vec![Err(error); receivers.len()], Timestamp::default()),
    };
    replies.resize_with(receivers.len(), || Err(RemoteError::Unreachable("it sent too few replies".into())));
    for (number, (receiver, reply)) in receivers.into_iter().zip(replies).enumerate() {
        if number % AT_ONCE == AT_ONCE - 1 {
            // what other calls have received does not wait for all of them
            yield_now().await;
        }
        let at = |reply: Reply, target: &Target| {
            let at = reply.instant(&target.tiers, now);
            (reply, at)
        };
        match receiver {
            // one whose budget ran out does not receive its reply
            Receiver::Decision(waiting, dated) => {
                let reply = reply.map(|reply| match &dated {
                    Some(target) => at(reply, target),
                    None => (reply, now),
                });
                let _ = waiting.send(reply);
            }
            Receiver::Counter(sent, target) => {
                exchanges.apply(sent, reply.map(|reply| at(reply, &target)));
            }
        }
    }
    node
}

// === impl Queues ===

impl Queues {
    /// Returns whether another decision may wait for `node`.
    fn has_room(&mut self, node: StoreNode) -> bool {
        self.by_node.get_mut(&node).is_none_or(NodeQueue::has_room)
    }

    /// Queues `what`. Returns its id, and whether it may be sent at once.
    fn push(&mut self, node: StoreNode, what: Queued) -> (u64, bool) {
        self.last_id += 1;
        let id = self.last_id;
        let queue = self.by_node.entry(node).or_default();
        queue.waiting.push(Pending { id, what, is_cancelled: false });
        (id, queue.calls < MAX_CALLS)
    }

    /// Cancels command `id`, which is left out of the next batch. Returns whether it was still queued.
    fn cancel(&mut self, node: StoreNode, id: u64) -> bool {
        let Some(queue) = self.by_node.get_mut(&node) else { return false };
        let Ok(place) = queue.waiting.binary_search_by_key(&id, |pending| pending.id) else { return false };
        queue.waiting[place].is_cancelled = true;
        true
    }
}

// === impl NodeQueue ===

impl NodeQueue {
    /// Returns whether another decision may wait.
    fn has_room(&mut self) -> bool {
        if self.waiting.len() >= MAX_QUEUE {
            self.waiting.retain(Pending::is_needed);
        }
        self.waiting.len() < MAX_QUEUE
    }

    /// Takes the next batch if another call may be sent. It leaves out cancelled commands: their decisions were made without
    /// the store, and must not count twice.
    fn next_batch(&mut self) -> Option<Vec<Pending>> {
        if self.calls >= MAX_CALLS {
            return None;
        }
        self.waiting.retain(Pending::is_needed);
        if self.waiting.is_empty() {
            return None;
        }
        self.calls += 1;
        let rest = self.waiting.split_off(MAX_BATCH.min(self.waiting.len()));
        Some(std::mem::replace(&mut self.waiting, rest))
    }
}

impl Pending {
    /// Returns whether its decision still waits, or it has to be carried out although nobody does: it reports hits that are in no record
    /// any more, such as those that are given back when the connection of their request ends. A counter knows itself which of its tries
    /// still wait.
    fn is_needed(&self) -> bool {
        let is_awaited = match &self.what {
            Queued::Command(command, reply) => matches!(command.op, Op::Add { .. }) || !reply.is_closed(),
            Queued::Counter(_) => true,
        };
        !self.is_cancelled && is_awaited
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        limit::OverLimitPolicy,
        store::remote::{Op, Target},
    };

    /// The nodes of a cluster come and go.
    #[test]
    fn a_node_without_calls_has_no_queue() {
        let batcher = Batcher::default();
        let target =
            Target { path: "k".into(), tiers: Vec::new().into(), over_limit_policy: OverLimitPolicy::Ignore };
        let command =
            Command { target: Arc::new(target), at: Timestamp::default(), op: Op::Take { hits: 1 } };
        let _reply = batcher.queue(StoreNode(1), command);
        assert_eq!(batcher.next_batches().len(), 1);
        assert!(batcher.next_batches().is_empty() && batcher.queues.lock().by_node.len() == 1);
        batcher.finish_call(StoreNode(1));
        assert!(batcher.next_batches().is_empty() && batcher.queues.lock().by_node.is_empty());
    }
}
