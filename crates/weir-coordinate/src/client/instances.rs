//! The number of instances over time, by which they split limits.
//!
//! A larger number counts as soon as it is heard, a smaller one later, since the others may not have heard of it yet.
//! Who starts has a part when all others must have heard of it. So the parts of all instances are the limit at most.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use arc_swap::{ArcSwap, Guard};
use futures_util::future::join_all;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::StoreClient;
use crate::CoordinationSettings;
use weir_limit::{
    OnStoreFailure, Period, Timestamp,
    part::{InstanceRank, UNKNOWN_INSTANCES},
};
use weir_store::remote::{Command, Exchange, Heartbeat, Members, Remote};

/// The numbers that are remembered. What is longer ago has no part.
const MOST: usize = 4_096;

/// How long after its first heartbeat an instance has a part: two heartbeats of all others, and their replies.
const NEWCOMER: Period = Period::from_secs(4);

/// How long after it was heard a smaller number counts: until then a removed instance may use its part. And after a mass
/// restart, or a loss of data in Redis, some heartbeats tell too few.
const FEWER: Period = Period::from_secs(6);

/// The registration of this instance among those that share the store.
#[derive(Debug)]
pub(crate) struct Membership {
    /// The largest number that counts, this instance included. Zero until it is known.
    pub(super) instances: AtomicUsize,
    pub(super) numbers: ArcSwap<InstanceNumbers>,
    pub(super) has_left: AtomicBool,
}

#[derive(Clone, Debug)]
pub(crate) struct InstanceNumbers {
    /// Each counts from its instant until the next one does. None until the store has replied.
    counting: Vec<(Timestamp, NonZeroU32)>,
    /// When this instance has a part for the first time.
    begins: Timestamp,
    /// The same for limits that stop while the number may be another one: if it was, they begin again.
    begins_anew: Timestamp,
    /// When the last heartbeat with a reply was sent; before the first one, when this instance began.
    heard: Timestamp,
    period: Period,
    pub(crate) rank: InstanceRank,
}

/// Sends heartbeats until this instance leaves. The store removes an instance after two missed ones.
pub(crate) async fn beat_until_left<R: Remote>(client: Arc<StoreClient<R>>) {
    let mut ticks = interval(client.settings.heartbeat.into());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if client.membership.has_left.load(Ordering::Relaxed) {
            return;
        }
        // concurrently: a node that does not reply must not delay the heartbeat to the others
        tokio::join!(client.beat(), client.probe_open_nodes(), client.exchange_news());
    }
}

// === impl Membership ===

impl Membership {
    pub(super) fn new(period: Period, now: Timestamp) -> Self {
        Self {
            instances: AtomicUsize::new(0),
            numbers: ArcSwap::from_pointee(InstanceNumbers::new(period, now)),
            has_left: AtomicBool::new(false),
        }
    }

    /// None until a heartbeat was replied to.
    pub(crate) fn instances(&self) -> Option<usize> {
        Some(self.instances.load(Ordering::Relaxed)).filter(|instances| *instances > 0)
    }

    /// As many as may be until a heartbeat was replied to.
    pub(crate) fn instances_or_many(&self) -> usize {
        self.instances().unwrap_or(UNKNOWN_INSTANCES.get().into())
    }

    pub(crate) fn numbers(&self) -> Guard<Arc<InstanceNumbers>> {
        self.numbers.load()
    }
}

// === impl InstanceNumbers ===

impl InstanceNumbers {
    fn new(period: Period, now: Timestamp) -> Self {
        let begins = now.after(NEWCOMER);
        Self {
            counting: Vec::new(),
            begins,
            begins_anew: begins,
            heard: now,
            period,
            rank: InstanceRank::ALONE,
        }
    }

    /// Returns whether a newcomer that this instance has not heard of may have a part.
    pub(crate) fn is_silent(&self, at: Timestamp) -> bool {
        at >= self.heard.after(self.period * 2)
    }

    pub(crate) const fn begins(&self, failure: OnStoreFailure) -> Timestamp {
        if matches!(failure, OnStoreFailure::Deny) { self.begins_anew } else { self.begins }
    }

    /// Returns the largest number that counts at any instant from `from` to `to`.
    pub(crate) fn largest(&self, from: Timestamp, to: Timestamp) -> NonZeroU32 {
        let begun = |at| self.counting.partition_point(|(since, _)| *since <= at);
        let (first, last) = (begun(from).saturating_sub(1), begun(to));
        let counting = self.counting[first..last.max(first)].iter().map(|(_, number)| *number);
        counting.max().unwrap_or(UNKNOWN_INSTANCES.into())
    }

    /// `rank` is the reply to a heartbeat of the instant `sent`. Both instants are on the store's clock.
    pub(super) fn follow(&mut self, rank: InstanceRank, sent: Timestamp, now: Timestamp) {
        let (number, newcomer) = (rank.instances, now.after(NEWCOMER));
        self.rank = rank;
        let last = self.counting.last().map(|(_, number)| *number);
        if last.is_none() {
            self.begins = newcomer;
        }
        // the others may have shared out the part of one that was silent
        let is_other = last != Some(number) || now.since(self.heard) >= FEWER;
        if last.is_none() || (is_other && self.is_silent(now)) {
            self.begins_anew = newcomer;
        }
        self.heard = self.heard.max(sent);
        // what has not come yet and is less than there are now does not come
        while self.counting.pop_if(|(from, fewer)| *from > now && *fewer < number).is_some() {}
        let last = self.counting.last().map(|(_, number)| *number);
        if last != Some(number) {
            let counts = if last.is_some_and(|last| number < last) { now.after(FEWER) } else { now };
            self.counting.push((counts, number));
        }
        self.counting.drain(..self.counting.len().saturating_sub(MOST));
    }
}

// === impl StoreClient ===

impl<R: Remote> StoreClient<R> {
    /// The reply also closes the breaker of the node that keeps the registered instances.
    async fn beat(&self) {
        let Self { remote, breaker, membership, .. } = self;
        let CoordinationSettings { instance, heartbeat: period, .. } = &self.settings;
        let node = remote.members_node();
        let ttl = *period * 2;
        let sent = self.look();
        let reply = self.wait_for_reply(node, None, remote.heartbeat(Heartbeat { instance, ttl }), || {});
        let reply = timeout((*period).into(), reply).await;
        let Ok(Ok(Members { instances, rank, now })) = reply else {
            return breaker.record_failures(node, None, 1);
        };
        breaker.record_reply(node);
        let received = self.look();
        if let Some(now) = now {
            self.measure(sent, received, now);
        }
        let (sent, now) = (self.time_at(sent.now), now.unwrap_or(self.time_at(received.now).now));
        // by the earliest instant at which it can have been sent
        let earliest = sent.now.before(sent.latest.since(sent.now));
        let mut numbers = InstanceNumbers::clone(&membership.numbers());
        numbers.follow(InstanceRank::among(instances, rank), earliest, now);
        let largest = numbers.largest(now, Timestamp::from_nanos(u64::MAX)).get();
        membership.instances.store(largest as usize, Ordering::Relaxed);
        membership.numbers.store(Arc::new(numbers));
    }

    pub(crate) async fn leave(&self) {
        let CoordinationSettings { instance, heartbeat, .. } = &self.settings;
        self.membership.has_left.store(true, Ordering::Relaxed);
        let left = self.remote.heartbeat(Heartbeat { instance, ttl: Period::default() });
        let _ = timeout((*heartbeat).into(), left).await;
    }

    async fn probe_open_nodes(&self) {
        let Self { remote, breaker, settings, .. } = self;
        let probes = breaker.open_nodes().into_iter().map(async |(node, failed)| {
            if node == remote.members_node() {
                // the heartbeat probes it
                return;
            }
            // the registered instances, or the counters of the target, may have moved to another node by now
            if let Some((target, at)) = failed.filter(|(target, at)| remote.node(target, *at) == node) {
                let probe = Command { target, at, exchange: Exchange::read() };
                let reply = timeout(settings.heartbeat.into(), remote.call(vec![probe]));
                let Ok(Ok(_)) = reply.await else { return };
            }
            breaker.record_reply(node);
        });
        join_all(probes).await;
    }
}
