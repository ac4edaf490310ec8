//! `interval`, and what every way has to tell the store: hits that were counted here, and leases that are given back.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

use tokio::{
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};

use super::{
    Inner,
    counter::{LocalCounter, Lost},
};
use crate::{
    limit::{CounterKey, Decision, Direction, LimitCheck, Period, Scope, Timestamp},
    store::remote::{Command, Remote, RemoteError, Replies, Reply, StoreNode},
};

/// Commands that travel together at most.
const BATCH: usize = 2_000;

/// The time between two looks at all cells.
const SWEEP_EVERY: Period = Period::from_millis(250);

/// CounterTable that are looked at then; a few milliseconds' worth.
const SWEPT_AT_ONCE: usize = 50_000;

/// The time that the store has for the last words of an instance that stops.
const LAST_WORDS: Period = Period::from_secs(2);

/// The time between two tries to say them.
const BETWEEN_LAST_WORDS: Period = Period::from_millis(5);

/// A cell with its part of a batch.
type Part = (CounterKey, usize);

impl<R: Remote> Inner<R> {
    /// Decides by what is known here.
    pub(super) fn decide_by_interval(
        &self,
        check: &LimitCheck<'_>,
        scope: Scope,
        now: Timestamp,
    ) -> Decision {
        self.metrics.local.add(1);
        let instances = self.instances();
        self.with_counter(check, now, |counter| {
            if check.direction == Direction::Take {
                counter.demand.asked(check.hits.0, now);
            }
            counter.count(instances, check.direction, check.over_limit_policy_in(scope), check.hits, now)
        })
    }

    /// Notes what came of telling what `cell` owed: of the commands in `range` of a call. The last reply to them, if there is
    /// one.
    pub(super) fn told<'a>(
        &self,
        counter: &mut LocalCounter,
        outcome: &'a Result<Replies, RemoteError>,
        range: Range<usize>,
    ) -> Option<&'a Reply> {
        let replies = match outcome {
            Err(error) => {
                self.metrics.unknown.add(counter.sent(|_| Some(error.is_definitely_not_applied())).unknown);
                return None;
            }
            Ok(replies) => replies,
        };
        let part = replies.replies.get(range).unwrap_or_default();
        let sent = counter.sent(|i| match part.get(i) {
            Some(Ok(_)) => None,
            Some(Err(error)) => Some(error.is_definitely_not_applied()),
            None => Some(false),
        });
        self.metrics.unknown.add(sent.unknown);
        let last = part.last()?.as_ref().ok()?;
        self.metrics.overshoot.add(counter.overshoot(last, sent.admitted, replies.now));
        Some(last)
    }

    pub(super) fn count_given_up(&self, lost: Lost) {
        self.metrics.uncounted.add(lost.uncounted);
        self.metrics.stranded.add(lost.stranded);
    }
}

/// Tells the store at the intervals, and at once where it is urgent, until it is dropped.
pub(super) async fn run<R: Remote>(inner: Arc<Inner<R>>) {
    let mut swept = Instant::now();
    loop {
        let interval = Period::from_nanos(inner.shortest_interval.load(Ordering::Relaxed));
        let next = Instant::now() + interval.into();
        let urgent = tokio::select! {
            // in this order, not by chance: a simulation is to repeat
            biased;
            () = sleep_until(next) => false,
            () = inner.urgent.notified() => true,
        };
        let now = inner.time().now;
        if !urgent && swept.elapsed() >= SWEEP_EVERY.into() {
            swept = Instant::now();
            sweep(&inner, now);
        }
        // while a node is known not to answer, what it is owed is kept; the heartbeat finds out when it is back
        if inner.breaker.is_open_everywhere() {
            continue;
        }
        if urgent {
            tell_pressing(&inner, now);
        } else {
            tell(&inner, |counter| {
                (counter.sync.urgent || counter.sync.due <= now) && !inner.is_cut_off(&counter.target, now)
            });
        }
    }
}

/// Gives every lease back and tells the store everything, until there is nothing left to tell or the time is over: what is
/// on its way when it begins has to be answered before the rest can go.
pub(super) async fn settle<R: Remote>(inner: &Arc<Inner<R>>) {
    let all = async {
        loop {
            let now = inner.time().now;
            let mut owes = false;
            inner.counters.sweep(now, usize::MAX, |key, counter| {
                counter.give_leases_back();
                inner.list(key, counter, now);
                owes |= counter.owes();
            });
            if !owes {
                return;
            }
            for told in tell(inner, |_| true) {
                let _ = told.await;
            }
            sleep_until(Instant::now() + BETWEEN_LAST_WORDS.into()).await;
        }
    };
    let _ = timeout(LAST_WORDS.into(), all).await;
}

/// Forgets what is idle, and gives back what was granted for hits that do not come.
fn sweep<R: Remote>(inner: &Arc<Inner<R>>, now: Timestamp) {
    let time = inner.time();
    inner.counters.sweep(now, SWEPT_AT_ONCE, |key, counter| {
        inner.count_given_up(counter.end_leases(time));
        if counter.is_deserted(now) {
            counter.give_leases_back();
        }
        inner.list(key, counter, now);
    });
}

/// Sends what the listed cells that are `due` owe, in the background, in as many batches as it takes.
fn tell<R: Remote>(inner: &Arc<Inner<R>>, due: impl Fn(&LocalCounter) -> bool) -> Vec<JoinHandle<()>> {
    let now = inner.time().now;
    // whatever was pressing is among the listed ones
    inner.pressing.lock().clear();
    let listed = std::mem::take(&mut *inner.listed.lock());
    let (mut later, mut batches) = (Vec::new(), Batches::new(inner));
    for key in listed {
        let mut shard = inner.counters.lock(key);
        let Some(counter) = shard.get_mut(&key) else { continue };
        if due(counter) {
            batches.add(key, counter, now);
        }
        // what is not due yet, or waits for the last answer, stays on the list
        counter.sync.listed = counter.has_unsent();
        if counter.sync.listed {
            later.push(key);
        }
    }
    inner.listed.lock().extend(later);
    batches.finish()
}

/// Sends what the pressing cells owe. They stay listed.
fn tell_pressing<R: Remote>(inner: &Arc<Inner<R>>, now: Timestamp) {
    let pressing = std::mem::take(&mut *inner.pressing.lock());
    let mut batches = Batches::new(inner);
    for key in pressing {
        let mut shard = inner.counters.lock(key);
        if let Some(counter) = shard.get_mut(&key)
            && counter.sync.urgent
            && !inner.is_cut_off(&counter.target, now)
        {
            batches.add(key, counter, now);
            counter.sync.due = now.after(inner.pause(key, counter));
        }
    }
    batches.finish();
}

/// What cells owe, on its way into as many batches as it takes: each to one node, so that none has to wait for what another
/// does not answer.
struct Batches<'a, R: Remote> {
    inner: &'a Arc<Inner<R>>,
    open: BTreeMap<StoreNode, Batch>,
    sent: Vec<JoinHandle<()>>,
}

/// What goes to one node together.
#[derive(Default)]
struct Batch {
    commands: Vec<Command>,
    parts: Vec<Part>,
}

impl<'a, R: Remote> Batches<'a, R> {
    fn new(inner: &'a Arc<Inner<R>>) -> Self {
        Self { inner, open: BTreeMap::new(), sent: Vec::new() }
    }

    /// Adds what `cell` owes: nothing while it waits for the last answer.
    fn add(&mut self, key: CounterKey, counter: &mut LocalCounter, now: Timestamp) {
        counter.sync.urgent = false;
        let Some(at) = counter.oldest_unsent() else { return };
        let batch = self.open.entry(self.inner.remote.node(&counter.target, at)).or_default();
        let before = batch.commands.len();
        self.inner.count_given_up(counter.send(now, &mut batch.commands));
        let count = batch.commands.len() - before;
        if count > 0 {
            batch.parts.push((key, count));
        }
        if batch.commands.len() >= BATCH {
            self.sent.push(send(self.inner, std::mem::take(batch)));
        }
    }

    fn finish(mut self) -> Vec<JoinHandle<()>> {
        let rest = self.open.into_values().filter(|batch| !batch.commands.is_empty());
        self.sent.extend(rest.map(|batch| send(self.inner, batch)));
        self.sent
    }
}

/// Sends one batch, and takes in what comes back, however late.
fn send<R: Remote>(inner: &Arc<Inner<R>>, batch: Batch) -> JoinHandle<()> {
    let background = inner.background.clone();
    let inner = Arc::clone(inner);
    background.spawn(async move {
        let Batch { commands, parts } = batch;
        let outcome = inner.call(commands).await;
        let now = outcome.as_ref().map_or_else(|_| inner.time().now, |replies| replies.now);
        let mut first = 0;
        for (key, count) in parts {
            let range = first..first + count;
            first = range.end;
            let mut shard = inner.counters.lock(key);
            let Some(counter) = shard.get_mut(&key) else {
                continue;
            };
            if let Some(reply) = inner.told(counter, &outcome, range) {
                counter.heard(reply, now);
            }
            inner.list(key, counter, now);
        }
    })
}
