//! The task of the table: sends the exchanges of counters, and has their replies applied where they arrive.
//!
//! Counters whose decisions wait queue here, by node. What they send is composed when a call leaves, so that late tries
//! join, in few calls, so that concurrent decisions share the cost of a call. What no decision waits for is sent in
//! calls of its own when it is due.
//!
//! A call for decisions leaves at once if none is in flight to its node, or if it is full, and otherwise an eighth of a
//! round trip after the one before. So a decision waits for little more than its own round trip, and those that arrive
//! meanwhile share a call. Without that distance the first decisions would use up all calls, and others would wait until
//! one returns. Timers count milliseconds: in a shorter distance, the next decision or the next reply sends the call.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use smallvec::SmallVec;
use tokio::{
    task::yield_now,
    time::{Instant, sleep_until},
};

use super::{CounterTable, flush::SWEEP_STEPS};
use crate::{
    client::RECHECK,
    counter::{Outbox, Sent},
};
use weir_limit::{CounterKey, Timestamp};
use weir_store::{
    remote::{CallPriority, Remote, RemoteError, Replies, StoreNode, Target},
    wakeup::{Wakeups, wake_all},
};

/// The most calls for decisions to one node: twice those of a round trip, for late replies and short distances.
const MAX_CALLS: usize = 16;

/// The most if they are full: nothing more can join one, so it leaves at once.
const FULL_CALLS: usize = 32;

/// The parts of a round trip that pass between two calls.
const PARTS: u32 = 8;

/// The most before the first reply, or on short round trips: enough to keep the node busy, few enough to share calls.
const FEW_CALLS: usize = 4;

const FINEST: Duration = Duration::from_micros(50);

/// The counters whose decisions are in one call: few, so that the node works while replies to other calls are applied.
const MAX_BATCH: usize = 64;

#[derive(Debug, Default)]
pub(super) struct NodeQueue {
    /// Their decisions wait, in order of arrival.
    counters: Vec<CounterKey>,
    /// In flight.
    calls: usize,
    /// When the last of them left.
    left_at: Option<Instant>,
}

/// Returns how many calls for decisions may be in flight to a node, and the time between two.
fn pace(round_trip: Duration, budget: Duration) -> (usize, Duration) {
    let distance = round_trip / PARTS;
    if distance < FINEST {
        return (FEW_CALLS, Duration::ZERO);
    }
    // half of what a decision may wait besides, since the reply may be later than others
    (MAX_CALLS, distance.min(budget.saturating_sub(round_trip) / 2))
}

/// The counters that are flushed, in a call of their own, before other tasks have their turn. Few, so that a decision
/// does not wait for long behind them.
const MAX_BACKGROUND: usize = 64;

pub(crate) async fn run<R: Remote>(table: Arc<CounterTable<R>>) {
    let step = table.client.settings.sweep / SWEEP_STEPS as u64;
    let (mut calls, mut sweep_at) = (FuturesUnordered::new(), Instant::now() + step.into());
    loop {
        let now = Instant::now();
        if now >= sweep_at {
            table.sweep();
            sweep_at = now + step.into();
        }
        let next = loop {
            match table.take_tries() {
                Ok(counters) => {
                    calls.extend(table.calls(CallPriority::Decision, table.compose_tries(counters)));
                }
                Err(next) => break next.map(|time| now + time),
            }
        };
        let due = table.queue.take(MAX_BACKGROUND, now);
        let is_idle = due.is_empty();
        if !is_idle {
            calls.extend(table.calls(CallPriority::Background, table.flush(due)));
        }
        let next = [next, table.queue.next()].into_iter().flatten().fold(sweep_at, Instant::min);
        tokio::select! {
            // a fixed order, so that simulations are reproducible
            biased;
            Some(()) = calls.next() => {}
            // decisions, whose commands and replies pass through this thread, do not wait for all that is due
            () = yield_now(), if !is_idle => {}
            () = table.queue.earlier.notified(), if is_idle => {}
            () = sleep_until(next), if is_idle => {}
        }
    }
}

// === impl NodeQueue ===

impl NodeQueue {
    /// None if no decision waits, or a call has to return before. `round_trip` is zero before the first reply.
    fn time_to_next(&self, round_trip: Duration, budget: Duration) -> Option<Duration> {
        let (most, distance) = pace(round_trip, budget);
        // nothing more can join a full call
        let is_full = self.counters.len() >= MAX_BATCH;
        let most = if is_full { FULL_CALLS } else { most };
        if self.counters.is_empty() || self.calls >= most {
            return None;
        }
        let since = self.left_at.filter(|_| self.calls > 0 && !is_full).map(|left_at| left_at.elapsed());
        Some(since.map_or(Duration::ZERO, |since| distance.saturating_sub(since)))
    }
}

// === impl CounterTable ===

impl<R: Remote> CounterTable<R> {
    pub(super) fn queue_tries(&self, key: CounterKey, target: &Target, at: Timestamp) {
        let node = self.client.remote.node(target, at);
        let mut nodes = self.nodes.lock();
        let queue = nodes.entry(node).or_default();
        queue.counters.push(key);
        // the first one sets the timer, and a call that returns looks by itself
        let is_first = queue.counters.len() == 1;
        let tells = self.time_to_next(queue).is_some_and(|time| is_first || time.is_zero());
        drop(nodes);
        if tells {
            self.queue.earlier.notify_one();
        }
    }

    fn time_to_next(&self, queue: &NodeQueue) -> Option<Duration> {
        let round_trip = self.client.round_trip.load(Ordering::Relaxed);
        queue.time_to_next(Duration::from_nanos(round_trip), self.client.settings.budget.into())
    }

    /// Returns counters whose decisions may leave to one of the nodes. The error is the time until some may; none if a
    /// call has to return before.
    fn take_tries(&self) -> Result<Vec<CounterKey>, Option<Duration>> {
        let (mut next, mut nodes) = (None, self.nodes.lock());
        for queue in nodes.values_mut() {
            let time = self.time_to_next(queue);
            if time == Some(Duration::ZERO) {
                let most = queue.counters.len().min(MAX_BATCH);
                return Ok(queue.counters.drain(..most).collect());
            }
            next = time.into_iter().chain(next).min();
        }
        Err(next)
    }

    fn compose_tries(&self, counters: Vec<CounterKey>) -> Outbox {
        let (mut outbox, link) = (Outbox::with_capacity(counters.len()), self.link_now());
        for key in counters {
            self.with_existing(key, None, |entry| {
                // the tries of a counter that was evicted have failed
                let Some(entry) = entry else { return };
                let before = outbox.len();
                self.drop_ended(&mut entry.counter, &link);
                entry.counter.compose(key, &link, &mut outbox);
                if outbox.len() == before {
                    // there is no reply after which it would be due again
                    self.enqueue(entry, link.time.now);
                }
            });
        }
        outbox
    }

    /// Returns one for each node that counts some of `outbox` in the windows that are open now.
    fn calls(
        &self,
        priority: CallPriority,
        outbox: Outbox,
    ) -> impl Iterator<Item = impl Future<Output = ()>> {
        // mostly one
        let mut by_node: SmallVec<[(StoreNode, Outbox); 1]> = SmallVec::new();
        for (command, sent) in outbox {
            let node = self.client.remote.node(&command.target, command.counted_at());
            match by_node.iter_mut().find(|(known, _)| *known == node) {
                Some((_, outbox)) => outbox.push((command, sent)),
                None => by_node.push((node, vec![(command, sent)])),
            }
        }
        by_node.into_iter().map(move |(node, outbox)| self.call(node, priority, outbox))
    }

    fn call(&self, node: StoreNode, priority: CallPriority, outbox: Outbox) -> impl Future<Output = ()> {
        if priority == CallPriority::Decision {
            let (mut nodes, left_at) = (self.nodes.lock(), Some(Instant::now()));
            let queue = nodes.entry(node).or_default();
            (queue.calls, queue.left_at) = (queue.calls + 1, left_at);
        }
        async move {
            let (commands, mut sent): (Vec<_>, Vec<_>) =
                outbox.into_iter().map(|(command, sent)| (command, Some(sent))).unzip();
            let silent = || {
                // the present windows of counters must not wait for those of a node that does not reply
                let (link, mut woken) = (self.link_now(), Wakeups::new());
                let is_moved = |sent: &mut Sent| self.client.remote.node(&sent.target, link.time.now) != node;
                for mut sent in sent.iter_mut().filter_map(|sent| sent.take_if(is_moved)) {
                    self.apply(&mut sent, Err(&RemoteError::TimedOut(RECHECK)), &link, &mut woken);
                }
                wake_all(&mut woken);
            };
            let (outcome, received) = self.client.send(node, commands, priority, silent).await;
            let (replies, now) = match outcome {
                Ok(Replies { now, replies }) => (replies, now),
                Err(error) => (vec![Err(error); sent.len()], Timestamp::default()),
            };
            let (link, mut woken) = (self.link_at(self.client.time_at(received)), Wakeups::new());
            for (sent, reply) in sent.iter_mut().zip(&replies) {
                if let Some(sent) = sent {
                    let outcome = reply.as_ref().map(|reply| (reply, reply.at.unwrap_or(now)));
                    self.apply(sent, outcome, &link, &mut woken);
                }
            }
            // together: each of their threads is woken once
            wake_all(&mut woken);
            if priority == CallPriority::Decision {
                self.nodes.lock().entry(node).or_default().calls -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
