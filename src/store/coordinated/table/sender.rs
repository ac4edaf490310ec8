//! Sends the exchanges of counters, and has their replies applied where they arrive.
//!
//! Counters queue here, by node. What they send is composed when a call leaves, so that late tries join. One task sends
//! what is queued in few calls, so that concurrent decisions share the cost of a call. What no decision waits for is
//! sent in calls of its own.
//!
//! A call for decisions leaves at once if none is in flight to its node, or if it is full, and otherwise an eighth of a
//! round trip after the one before. So a decision waits for little more than its own round trip, and those that arrive
//! meanwhile share a call. Without that distance the first decisions would use up all calls, and others would wait until
//! one returns. Timers count milliseconds: in a shorter distance, the next decision or the next reply sends the call.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::{
    task::yield_now,
    time::{Instant, sleep},
};

use super::{
    CounterTable,
    outgoing::{MAX_BATCH, Outbox},
};
use crate::{
    limit::{CounterKey, Timestamp},
    store::{
        coordinated::{client::RECHECK, counter::Sent},
        remote::{Remote, RemoteError, Replies, StoreNode, Target, Urgency},
    },
    wakeup::{Wakeups, wake_all},
};

/// The other commands in one call: few, so that a decision does not wait for long behind them.
const MAX_BACKGROUND: usize = 256;

/// The most counters whose decisions may wait for one node.
const MAX_QUEUE: usize = 4_096;

/// The replies that are of one instant, and are applied before other tasks have their turn: those to a full call.
const AT_ONCE: usize = MAX_BATCH;

fn take_first<T>(list: &mut Vec<T>, most: usize) -> Vec<T> {
    list.drain(..most.min(list.len())).collect()
}

pub(in super::super) async fn run<R: Remote>(table: Arc<CounterTable<R>>) {
    let mut calls = FuturesUnordered::new();
    loop {
        let next = loop {
            let (node, background, counters) = match table.take_queued() {
                Ok(taken) => taken,
                Err(next) => break next,
            };
            if !background.is_empty() {
                calls.push(table.call(node, Urgency::Background, background));
            }
            for (node, composed) in table.compose_queued(counters) {
                calls.push(table.call(node, Urgency::Decision, composed));
            }
        };
        tokio::select! {
            // a fixed order, so that simulations are reproducible
            biased;
            Some(()) = calls.next() => {}
            () = table.sender.ready.notified() => {}
            () = sleep(next.unwrap_or_default()), if next.is_some() => {}
        }
    }
}

// === impl CounterTable ===

impl<R: Remote> CounterTable<R> {
    /// Has the tries of a counter sent. Returns whether there was room.
    pub(super) fn queue_tries(&self, key: CounterKey, target: &Target, at: Timestamp) -> bool {
        let node = self.client.node(target, at);
        let mut queues = self.sender.queues.lock();
        let queue = queues.entry(node).or_default();
        if queue.counters.len() >= MAX_QUEUE {
            return false;
        }
        queue.counters.push(key);
        // the first one sets the timer, and a call that returns looks by itself
        let is_first = queue.counters.len() == 1;
        let tells = queue.time_to_next(self.budget()).is_some_and(|time| is_first || time.is_zero());
        drop(queues);
        if tells {
            self.sender.ready.notify_one();
        }
        true
    }

    pub(in super::super) fn send_in_background(&self, outbox: Outbox) {
        if outbox.is_empty() {
            return;
        }
        let by_node = self.by_node(outbox);
        let mut queues = self.sender.queues.lock();
        for (node, outbox) in by_node {
            queues.entry(node).or_default().background.extend(outbox);
        }
        drop(queues);
        self.sender.ready.notify_one();
    }

    fn by_node(&self, outbox: Outbox) -> BTreeMap<StoreNode, Outbox> {
        let mut by_node = BTreeMap::<StoreNode, Outbox>::new();
        for (command, sent) in outbox {
            let node = self.client.node(&command.target, command.counted_at());
            by_node.entry(node).or_default().push((command, sent));
        }
        by_node
    }

    fn budget(&self) -> Duration {
        self.client.settings.budget.into()
    }

    /// Returns what may leave to one of the nodes: what no decision waits for, and counters whose decisions wait. The error
    /// is the time until more may leave; none if a call has to return before.
    fn take_queued(&self) -> Result<(StoreNode, Outbox, Vec<CounterKey>), Option<Duration>> {
        let (mut next, mut queues) = (None, self.sender.queues.lock());
        for (node, queue) in &mut *queues {
            let time = queue.time_to_next(self.budget());
            let is_time = time == Some(Duration::ZERO);
            if is_time || !queue.background.is_empty() {
                let counters = take_first(&mut queue.counters, if is_time { MAX_BATCH } else { 0 });
                return Ok((*node, take_first(&mut queue.background, MAX_BACKGROUND), counters));
            }
            next = time.into_iter().chain(next).min();
        }
        Err(next)
    }

    /// For one node, unless tries were given up, or another counts some of the counters in the window that is open now.
    fn compose_queued(&self, counters: Vec<CounterKey>) -> BTreeMap<StoreNode, Outbox> {
        let (mut outbox, link) = (Outbox::with_capacity(counters.len()), self.link_now());
        for key in counters {
            self.with_existing(key, None, |entry| {
                // the tries of a counter that was evicted have failed
                let Some(entry) = entry else { return };
                let before = outbox.len();
                self.compose(entry, &link, &mut outbox);
                if outbox.len() == before {
                    // there is no reply after which it would be due again
                    self.enqueue(entry, link.time.now);
                }
            });
        }
        self.by_node(outbox)
    }

    /// Sends `outbox` to `node`, and applies the replies.
    fn call(&self, node: StoreNode, urgency: Urgency, outbox: Outbox) -> impl Future<Output = ()> {
        let left_at = Instant::now();
        if urgency == Urgency::Decision {
            let mut queues = self.sender.queues.lock();
            let queue = queues.entry(node).or_default();
            (queue.calls, queue.left_at) = (queue.calls + 1, Some(left_at));
        }
        async move {
            let (commands, mut sent): (Vec<_>, Vec<_>) =
                outbox.into_iter().map(|(command, sent)| (command, Some(sent))).unzip();
            let silent = || {
                // the present windows of counters must not wait for those of a node that does not reply
                let (link, mut woken) = (self.link_now(), Wakeups::new());
                let is_moved = |sent: &mut Sent| self.client.node(&sent.target, link.time.now) != node;
                for mut sent in sent.iter_mut().filter_map(|sent| sent.take_if(is_moved)) {
                    self.apply(&mut sent, Err(&RemoteError::TimedOut(RECHECK)), &link, &mut woken);
                }
                wake_all(&mut woken);
            };
            let (outcome, mut received) = self.client.send(node, commands, urgency, silent).await;
            let took = outcome.is_ok().then(|| left_at.elapsed());
            let (replies, now) = match outcome {
                Ok(Replies { now, replies }) => (replies, now),
                Err(error) => (vec![Err(error); sent.len()], Timestamp::default()),
            };
            for (sent, replies) in sent.chunks_mut(AT_ONCE).zip(replies.chunks(AT_ONCE)) {
                let (link, mut woken) = (self.link_at(self.client.time_at(received)), Wakeups::new());
                for (sent, reply) in sent.iter_mut().zip(replies) {
                    if let Some(sent) = sent {
                        let outcome = reply.as_ref().map(|reply| (reply, reply.at.unwrap_or(now)));
                        self.apply(sent, outcome, &link, &mut woken);
                    }
                }
                // together: each of their threads is woken once
                wake_all(&mut woken);
                if replies.len() == AT_ONCE {
                    // what other calls have received does not wait for all of them
                    yield_now().await;
                    received = self.client.clock.now();
                }
            }
            if urgency == Urgency::Decision {
                self.sender.queues.lock().entry(node).or_default().finish_call(took);
            }
        }
    }
}
