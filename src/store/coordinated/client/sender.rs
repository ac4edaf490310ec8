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

use std::{collections::BTreeMap, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::{
    sync::Notify,
    task::yield_now,
    time::{Instant, sleep},
};

use super::caller::{Caller, RECHECK};
use crate::{
    limit::{CounterKey, Timestamp},
    store::remote::{Command, Remote, RemoteError, Replies, Reply, StoreNode, Urgency},
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

/// The shortest distance of two calls.
const FINEST: Duration = Duration::from_micros(50);

/// The counters whose decisions are in one call: few, so that the node works while replies to other calls are applied.
const MAX_BATCH: usize = 64;

/// The other commands in one call: few, so that a decision does not wait for long behind them.
const MAX_BACKGROUND: usize = 256;

/// The most counters whose decisions may wait for one node.
const MAX_QUEUE: usize = 4_096;

/// The empty queues that are kept: nodes come and go.
const MAX_IDLE_NODES: usize = 16;

/// The replies that are of one instant, and are applied before other tasks have their turn: those to a full call.
const AT_ONCE: usize = MAX_BATCH;

/// What composes the commands of the counters in the queue, and applies the replies.
pub(in super::super) trait Exchanges<S>: Send + Sync + 'static {
    type Link: Send;

    /// `now` is on this instance's clock.
    fn link(&self, now: Timestamp) -> Self::Link;

    fn compose(&self, key: CounterKey, link: &Self::Link, send: impl FnMut(Command, S));

    /// Returns whether the counter's present window is counted by another node than `node`, which does not reply.
    fn is_elsewhere(&self, sent: &S, node: StoreNode) -> bool;

    /// Adds the callers whose decisions it makes to `woken`.
    fn apply(&self, sent: &mut S, outcome: ExchangeOutcome<'_>, link: &Self::Link, woken: &mut Wakeups);
}

/// With the store's clock when it carried the command out.
pub(in super::super) type ExchangeOutcome<'a> = Result<(&'a Reply, Timestamp), &'a RemoteError>;

/// Commands, and what is remembered of each until its reply.
#[derive(Debug)]
pub(in super::super) struct Outbox<S> {
    commands: Vec<Command>,
    sent: Vec<S>,
}

#[derive(Debug)]
pub(super) struct Sender<S> {
    queues: Mutex<BTreeMap<StoreNode, NodeQueue<S>>>,
    /// Notified when something may be sent.
    ready: Notify,
}

#[derive(Debug)]
struct NodeQueue<S> {
    /// Their decisions wait, in order of arrival.
    counters: Vec<CounterKey>,
    /// What no decision waits for.
    background: Outbox<S>,
    /// For decisions, in flight.
    calls: usize,
    /// When the last of them left.
    left_at: Option<Instant>,
    /// A moving average. None before the first reply.
    round_trip: Option<Duration>,
    pace: Pace,
}

/// When calls for decisions to a node leave, unless they are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    /// That may be in flight.
    most: usize,
    /// The time between two while any is.
    distance: Duration,
}

struct Batch<S> {
    node: StoreNode,
    urgency: Urgency,
    outbox: Outbox<S>,
    /// None if the time that the call takes says nothing of others.
    left_at: Option<Instant>,
}

enum Next<S> {
    Background(Batch<S>),
    Counters(StoreNode, Vec<CounterKey>),
}

// === impl Pace ===

impl Pace {
    const FEW: Self = Self { most: FEW_CALLS, distance: Duration::ZERO };

    fn of(round_trip: Duration, budget: Duration) -> Self {
        if round_trip / PARTS < FINEST {
            return Self::FEW;
        }
        // half of what a decision may wait besides, since the reply may be later than others, but so long that the calls
        // of a round trip are not used up before it ends
        let spare = budget.saturating_sub(round_trip);
        let distance = (round_trip / PARTS).min((spare / 2).max(round_trip / (2 * PARTS)));
        Self { most: MAX_CALLS, distance: if spare > Duration::ZERO { distance } else { Duration::ZERO } }
    }
}

// === impl Sender ===

impl<S: Send> Sender<S> {
    /// Returns whether there was room.
    pub(super) fn queue(&self, node: StoreNode, key: CounterKey) -> bool {
        let mut queues = self.queues.lock();
        let queue = queues.entry(node).or_default();
        if queue.counters.len() >= MAX_QUEUE {
            return false;
        }
        queue.counters.push(key);
        // the first one sets the timer, and a call that returns looks by itself
        let tells = match queue.counters.len() {
            1 => queue.calls < queue.pace.most,
            waiting => waiting.is_multiple_of(MAX_BATCH) || queue.time_to_next() == Some(Duration::ZERO),
        };
        drop(queues);
        if tells {
            self.ready.notify_one();
        }
        true
    }

    pub(super) fn send_in_background(&self, outbox: Outbox<S>, node_of: impl Fn(&Command) -> StoreNode) {
        let Some(first) = outbox.commands.first().map(&node_of) else { return };
        let mut queues = self.queues.lock();
        if outbox.commands.iter().all(|command| node_of(command) == first) {
            queues.entry(first).or_default().background.append(outbox);
        } else {
            for (command, sent) in outbox.commands.into_iter().zip(outbox.sent) {
                queues.entry(node_of(&command)).or_default().background.push(command, sent);
            }
        }
        drop(queues);
        self.ready.notify_one();
    }

    pub(super) async fn run<R: Remote>(&self, caller: &Caller<R>, exchanges: &impl Exchanges<S>) {
        let mut calls = FuturesUnordered::new();
        let budget = caller.settings.budget.into();
        let mut next = None;
        loop {
            tokio::select! {
                // a fixed order, so that simulations are reproducible
                biased;
                Some((node, urgency, took)) = calls.next() => self.finish_call(node, urgency, took, budget),
                () = self.ready.notified() => {}
                () = sleep(next.unwrap_or_default()), if next.is_some() => {}
            }
            while let Some(ready) = self.next() {
                let batches = self.compose(caller, exchanges, ready);
                calls.extend(batches.into_iter().map(|batch| call(caller, exchanges, batch)));
            }
            next = self.time_to_next();
        }
    }

    fn next(&self) -> Option<Next<S>> {
        let mut queues = self.queues.lock();
        let next = queues.iter_mut().find_map(|(node, queue)| queue.next(*node));
        if next.is_none() && queues.len() > MAX_IDLE_NODES {
            queues.retain(|_, queue| queue.calls > 0 || !queue.counters.is_empty());
        }
        next
    }

    /// None if more may be sent only when a call returns.
    fn time_to_next(&self) -> Option<Duration> {
        let queues = self.queues.lock();
        queues.values().filter_map(NodeQueue::time_to_next).min()
    }

    /// One, unless tries were given up, or another node counts some of the counters in the window that is open by now.
    fn compose<R: Remote>(
        &self,
        caller: &Caller<R>,
        exchanges: &impl Exchanges<S>,
        next: Next<S>,
    ) -> SmallVec<[Batch<S>; 1]> {
        let (to, counters) = match next {
            Next::Background(batch) => return SmallVec::from_iter([batch]),
            Next::Counters(node, counters) => (node, counters),
        };
        let mut batches = SmallVec::<[Batch<S>; 1]>::new();
        let most = counters.len();
        let link = exchanges.link(caller.clock.now());
        for key in counters {
            exchanges.compose(key, &link, |command, sent| {
                let node = caller.remote.node(&command.target, command.counted_at());
                let place = batches.iter().position(|batch| batch.node == node).unwrap_or_else(|| {
                    batches.push(Batch::new(node, Urgency::Decision, Outbox::with_capacity(most)));
                    batches.len() - 1
                });
                batches[place].outbox.push(command, sent);
            });
        }
        let mut queues = self.queues.lock();
        for batch in &mut batches {
            let queue = queues.entry(batch.node).or_default();
            queue.calls += 1;
            if batch.node == to {
                batch.left_at = Some(Instant::now());
                queue.left_at = batch.left_at;
            }
        }
        drop(queues);
        batches
    }

    fn finish_call(&self, node: StoreNode, urgency: Urgency, took: Option<Duration>, budget: Duration) {
        if urgency == Urgency::Decision
            && let Some(queue) = self.queues.lock().get_mut(&node)
        {
            queue.finish_call(took, budget);
        }
    }
}

impl<S> Default for Sender<S> {
    fn default() -> Self {
        Self { queues: Mutex::default(), ready: Notify::new() }
    }
}

async fn call<R: Remote, S, E: Exchanges<S>>(
    caller: &Caller<R>,
    exchanges: &E,
    Batch { node, urgency, outbox: Outbox { commands, sent }, left_at }: Batch<S>,
) -> (StoreNode, Urgency, Option<Duration>) {
    let mut sent: Vec<Option<S>> = sent.into_iter().map(Some).collect();
    let silent = || {
        // the present windows of counters must not wait for those of a node that does not reply
        let is_moved = |sent: &mut S| exchanges.is_elsewhere(sent, node);
        let mut woken = Wakeups::new();
        for mut sent in sent.iter_mut().filter_map(|sent| sent.take_if(is_moved)) {
            let link = exchanges.link(caller.clock.now());
            exchanges.apply(&mut sent, Err(&RemoteError::TimedOut(RECHECK)), &link, &mut woken);
        }
        wake_all(&mut woken);
    };
    let (outcome, mut received) = caller.call(node, commands, urgency, silent).await;
    let took = left_at.filter(|_| outcome.is_ok()).map(|left_at| left_at.elapsed());
    let (mut replies, now) = match outcome {
        Ok(Replies { now, replies }) => (replies, now),
        Err(error) => (vec![Err(error); sent.len()], Timestamp::default()),
    };
    replies.resize_with(sent.len(), || Err(RemoteError::Unreachable("it sent too few replies".into())));
    let mut woken = Wakeups::new();
    for (sent, replies) in sent.chunks_mut(AT_ONCE).zip(replies.chunks(AT_ONCE)) {
        let link = exchanges.link(received);
        for (sent, reply) in sent.iter_mut().zip(replies) {
            if let Some(sent) = sent {
                let outcome = reply.as_ref().map(|reply| (reply, reply.at.unwrap_or(now)));
                exchanges.apply(sent, outcome, &link, &mut woken);
            }
        }
        // together: each of their threads is woken once
        wake_all(&mut woken);
        if replies.len() == AT_ONCE {
            // what other calls have received does not wait for all of them
            yield_now().await;
            received = caller.clock.now();
        }
    }
    (node, urgency, took)
}

// === impl Batch ===

impl<S> Batch<S> {
    const fn new(node: StoreNode, urgency: Urgency, outbox: Outbox<S>) -> Self {
        Self { node, urgency, outbox, left_at: None }
    }
}

// === impl NodeQueue ===

impl<S> NodeQueue<S> {
    /// None if no decision waits, or a call has to return before.
    fn time_to_next(&self) -> Option<Duration> {
        if self.counters.is_empty() {
            return None;
        }
        let is_full = self.counters.len() >= MAX_BATCH;
        if self.calls == 0 || is_full && self.calls < FULL_CALLS {
            return Some(Duration::ZERO);
        }
        let Pace { most, distance } = self.pace;
        let left_at = self.left_at.filter(|_| distance > Duration::ZERO);
        let rest = || left_at.map_or(Duration::ZERO, |left_at| distance.saturating_sub(left_at.elapsed()));
        (self.calls < most).then(rest)
    }

    fn finish_call(&mut self, took: Option<Duration>, budget: Duration) {
        self.calls -= 1;
        if let Some(took) = took {
            let round_trip = self.round_trip.map_or(took, |average| (average * 7 + took) / 8);
            (self.round_trip, self.pace) = (Some(round_trip), Pace::of(round_trip, budget));
        }
    }

    fn next(&mut self, node: StoreNode) -> Option<Next<S>> {
        if !self.background.is_empty() {
            let outbox = self.background.take(MAX_BACKGROUND);
            return Some(Next::Background(Batch::new(node, Urgency::Background, outbox)));
        }
        if self.time_to_next() != Some(Duration::ZERO) {
            return None;
        }
        Some(Next::Counters(node, take_first(&mut self.counters, MAX_BATCH)))
    }
}

impl<S> Default for NodeQueue<S> {
    fn default() -> Self {
        let (counters, background) = (Vec::new(), Outbox::default());
        Self { counters, background, calls: 0, left_at: None, round_trip: None, pace: Pace::FEW }
    }
}

// === impl Outbox ===

impl<S> Default for Outbox<S> {
    fn default() -> Self {
        Self { commands: Vec::new(), sent: Vec::new() }
    }
}

impl<S> Outbox<S> {
    pub(in super::super) fn with_capacity(commands: usize) -> Self {
        Self { commands: Vec::with_capacity(commands), sent: Vec::with_capacity(commands) }
    }

    const fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    pub(in super::super) fn push(&mut self, command: Command, sent: S) {
        self.commands.push(command);
        self.sent.push(sent);
    }

    fn append(&mut self, mut other: Self) {
        if self.is_empty() {
            *self = other;
        } else {
            self.commands.append(&mut other.commands);
            self.sent.append(&mut other.sent);
        }
    }

    fn take(&mut self, most: usize) -> Self {
        Self { commands: take_first(&mut self.commands, most), sent: take_first(&mut self.sent, most) }
    }
}

fn take_first<T>(list: &mut Vec<T>, most: usize) -> Vec<T> {
    let rest = list.split_off(most.min(list.len()));
    std::mem::replace(list, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_of_two_calls_fits_into_a_round_trip_and_the_budget() {
        let micros = Duration::from_micros;
        for (round_trip, most, distance) in [
            (399, FEW_CALLS, 0),
            (400, MAX_CALLS, 50),
            (4_000, MAX_CALLS, 500),
            (12_000, MAX_CALLS, 1_500),
            // half of what the budget of 15 ms leaves
            (13_000, MAX_CALLS, 1_000),
            // sixteen calls of a round trip
            (14_400, MAX_CALLS, 900),
            (15_000, MAX_CALLS, 0),
            (90_000, MAX_CALLS, 0),
        ] {
            let pace = Pace { most, distance: micros(distance) };
            assert_eq!(Pace::of(micros(round_trip), micros(15_000)), pace, "{round_trip}");
        }
    }
}
