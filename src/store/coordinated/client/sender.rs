//! Sends the exchanges of counters, and has their replies applied where they arrive.
//!
//! Counters queue here, by node: their commands, or themselves, to be composed when a call leaves, so that late tries join. One task sends
//! what is queued in as few calls as possible, so that concurrent decisions share the cost of a call. What no decision waits for is sent
//! in calls of its own.

use std::{collections::BTreeMap, pin::pin};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use parking_lot::Mutex;
use tokio::{sync::Notify, task::yield_now, time::timeout};

use super::caller::Caller;
use crate::{
    limit::{CounterKey, Period, Timestamp},
    store::remote::{Command, Remote, RemoteError, Replies, Reply, StoreNode, Urgency},
};

/// The most concurrent calls for decisions to one node: more than one, so that the node is not idle while replies are in transit; few,
/// so that commands that arrive meanwhile share a call.
const MAX_CALLS: usize = 4;

/// The most commands of decisions in one call.
const MAX_BATCH: usize = 512;

/// The most of other commands in one call: few, so that a decision that has to be made in the store does not wait for long behind it.
const MAX_BACKGROUND: usize = 256;

/// The most decisions that may wait for one node.
const MAX_QUEUE: usize = 4_096;

/// The time between two looks at whether the node of a command that has no reply yet has become silent.
const RECHECK: Period = Period::from_millis(100);

/// The replies that are applied before other tasks have their turn.
const AT_ONCE: usize = 32;

/// What composes the commands of the counters in the queue, and applies the replies.
pub(in super::super) trait Exchanges<S>: Send + Sync + 'static {
    /// Returns the commands of the counter of `key`, and what is remembered of each.
    fn compose(&self, key: CounterKey) -> impl IntoIterator<Item = (Command, S), IntoIter: Send>;

    /// Returns whether what was composed is still of use.
    fn is_needed(&self, sent: &S) -> bool;

    /// Returns whether the counter's present window is counted by another node than `node`, which does not reply.
    fn is_elsewhere(&self, sent: &S, node: StoreNode) -> bool;

    /// Applies the outcome of a command.
    fn apply(&self, sent: S, outcome: ExchangeOutcome);
}

/// What becomes of a command: the reply, and the store's clock when it carried out the call.
pub(in super::super) type ExchangeOutcome = Result<(Reply, Timestamp), RemoteError>;

/// Queues commands by node and sends them in batches.
#[derive(Debug)]
pub(super) struct Sender<S> {
    queues: Mutex<BTreeMap<StoreNode, NodeQueue<S>>>,
    /// Notified when there are commands that may be sent.
    ready: Notify,
}

/// What waits for calls to one node.
#[derive(Debug)]
struct NodeQueue<S> {
    /// What decisions wait for, in order of arrival.
    waiting: Vec<Queued<S>>,
    /// What no decision waits for.
    background: Vec<(Command, S)>,
    /// Calls for decisions in flight.
    calls: usize,
}

#[derive(Debug)]
enum Queued<S> {
    /// A command.
    Command(Command, S),
    /// The counter of this key, whose tries wait.
    Counter(CounterKey),
}

/// The commands of one call to `node`.
struct Batch<S> {
    node: StoreNode,
    urgency: Urgency,
    commands: Vec<Command>,
    sent: Vec<S>,
}

// === impl Sender ===

impl<S: Send> Sender<S> {
    pub(super) fn new() -> Self {
        Self { queues: Mutex::default(), ready: Notify::new() }
    }

    /// Queues the `commands` of one counter, which are for `node`. Returns them if too many wait.
    pub(super) fn queue<C: IntoIterator<Item = (Command, S)>>(
        &self,
        node: StoreNode,
        commands: C,
    ) -> Result<(), C> {
        let mut queues = self.queues.lock();
        let queue = queues.entry(node).or_default();
        if queue.waiting.len() >= MAX_QUEUE {
            return Err(commands);
        }
        queue.waiting.extend(commands.into_iter().map(|(command, sent)| Queued::Command(command, sent)));
        let is_ready = queue.calls < MAX_CALLS;
        drop(queues);
        self.notify(is_ready);
        Ok(())
    }

    /// Queues the counter of `key`, whose tries wait for a call to `node`. Returns whether there was room.
    pub(super) fn queue_counter(&self, node: StoreNode, key: CounterKey) -> bool {
        let mut queues = self.queues.lock();
        let queue = queues.entry(node).or_default();
        let has_room = queue.waiting.len() < MAX_QUEUE;
        if has_room {
            queue.waiting.push(Queued::Counter(key));
            let is_ready = queue.calls < MAX_CALLS;
            drop(queues);
            self.notify(is_ready);
        }
        has_room
    }

    /// Sends `commands`, each to its node, in calls that no decision waits for.
    pub(super) fn send_in_background(&self, commands: impl IntoIterator<Item = (StoreNode, Command, S)>) {
        let mut queues = self.queues.lock();
        let mut is_ready = false;
        for (node, command, sent) in commands {
            queues.entry(node).or_default().background.push((command, sent));
            is_ready = true;
        }
        drop(queues);
        self.notify(is_ready);
    }

    fn notify(&self, is_ready: bool) {
        // otherwise all calls are in flight, and what is queued is sent when one of them returns
        if is_ready {
            self.ready.notify_one();
        }
    }

    /// Sends what is queued, and what `exchanges` composes, until it is dropped.
    pub(super) async fn run<R: Remote>(&self, caller: &Caller<R>, exchanges: &impl Exchanges<S>) {
        let mut calls = FuturesUnordered::new();
        loop {
            tokio::select! {
                // a fixed order, so that simulations are reproducible
                biased;
                Some((node, urgency)) = calls.next() => self.finish_call(node, urgency),
                () = self.ready.notified() => {}
            }
            calls.extend(
                self.next_batches(caller, exchanges).into_iter().map(|batch| call(caller, exchanges, batch)),
            );
        }
    }

    /// Takes the batches that may be sent now.
    fn next_batches<R: Remote>(&self, caller: &Caller<R>, exchanges: &impl Exchanges<S>) -> Vec<Batch<S>> {
        let mut batches = Vec::new();
        loop {
            let mut taken = Vec::new();
            let mut queues = self.queues.lock();
            for (node, queue) in &mut *queues {
                while !queue.background.is_empty() {
                    let rest = queue.background.split_off(MAX_BACKGROUND.min(queue.background.len()));
                    let batch = std::mem::replace(&mut queue.background, rest);
                    let (commands, sent) = batch.into_iter().unzip();
                    batches.push(Batch { node: *node, urgency: Urgency::Background, commands, sent });
                }
                while queue.calls < MAX_CALLS && !queue.waiting.is_empty() {
                    queue.calls += 1;
                    let rest = queue.waiting.split_off(MAX_BATCH.min(queue.waiting.len()));
                    taken.push((*node, std::mem::replace(&mut queue.waiting, rest)));
                }
            }
            queues.retain(|_, queue| queue.calls > 0);
            drop(queues);
            if taken.is_empty() {
                return batches;
            }
            batches.extend(
                taken.into_iter().map(|(node, waiting)| self.compose(caller, exchanges, node, waiting)),
            );
        }
    }

    /// Returns the batch of what has waited for `node`.
    fn compose<R: Remote>(
        &self,
        caller: &Caller<R>,
        exchanges: &impl Exchanges<S>,
        node: StoreNode,
        waiting: Vec<Queued<S>>,
    ) -> Batch<S> {
        let (mut commands, mut all) = (Vec::with_capacity(waiting.len()), Vec::with_capacity(waiting.len()));
        for queued in waiting {
            match queued {
                Queued::Command(_, sent) if !exchanges.is_needed(&sent) => {
                    exchanges.apply(sent, Err(RemoteError::NotSent("nobody waits for it".to_owned())));
                }
                Queued::Command(command, sent) => {
                    commands.push(command);
                    all.push(sent);
                }
                Queued::Counter(key) => {
                    for (command, sent) in exchanges.compose(key) {
                        let of = caller.remote.node(&command.target, command.counted_at());
                        if of == node {
                            commands.push(command);
                            all.push(sent);
                        } else {
                            // of another window, which must not hold up this one
                            let mut queues = self.queues.lock();
                            queues.entry(of).or_default().waiting.push(Queued::Command(command, sent));
                        }
                    }
                }
            }
        }
        Batch { node, urgency: Urgency::Decision, commands, sent: all }
    }

    /// Records that a call to `node` has returned.
    fn finish_call(&self, node: StoreNode, urgency: Urgency) {
        if urgency == Urgency::Decision
            && let Some(queue) = self.queues.lock().get_mut(&node)
        {
            queue.calls -= 1;
        }
    }
}

/// Sends `batch` in one call, and has the replies applied.
async fn call<R: Remote, S, E: Exchanges<S>>(
    caller: &Caller<R>,
    exchanges: &E,
    Batch { node, urgency, commands, sent }: Batch<S>,
) -> (StoreNode, Urgency) {
    // all tries of its counters may have been given up
    if commands.is_empty() {
        return (node, urgency);
    }
    let mut sent: Vec<Option<S>> = sent.into_iter().map(Some).collect();
    let mut call = pin!(caller.call(node, commands, urgency));
    let outcome = loop {
        if let Ok(outcome) = timeout(RECHECK.into(), &mut call).await {
            break outcome;
        }
        if caller.breaker.is_open_for(node) {
            // the present windows of counters must not wait for those of a node that does not reply
            let is_moved = |sent: &mut S| exchanges.is_elsewhere(sent, node);
            for sent in sent.iter_mut().filter_map(|sent| sent.take_if(is_moved)) {
                exchanges.apply(sent, Err(RemoteError::TimedOut(RECHECK)));
            }
        }
    };
    let (mut replies, now) = match outcome {
        Ok(Replies { now, replies }) => (replies, now),
        Err(error) => (vec![Err(error); sent.len()], Timestamp::default()),
    };
    replies.resize_with(sent.len(), || Err(RemoteError::Unreachable("it sent too few replies".into())));
    for (number, (sent, reply)) in sent.into_iter().zip(replies).enumerate() {
        if number % AT_ONCE == AT_ONCE - 1 {
            // what other calls have received does not wait for all of them
            yield_now().await;
        }
        if let Some(sent) = sent {
            exchanges.apply(sent, reply.map(|reply| (reply, now)));
        }
    }
    (node, urgency)
}

// === impl NodeQueue ===

impl<S> Default for NodeQueue<S> {
    fn default() -> Self {
        Self { waiting: Vec::new(), background: Vec::new(), calls: 0 }
    }
}
