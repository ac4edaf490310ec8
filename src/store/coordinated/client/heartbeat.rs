//! The heartbeat: counts the instances, follows their number, measures the store's clock, and probes
//! nodes whose breaker is open.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{breaker::FailedCount, caller::Caller, instances::InstanceNumbers};
use crate::{
    clock::Reading,
    limit::{Period, Timestamp, part::Place},
    store::remote::{Command, Exchange, Heartbeat, Members, Remote},
};

/// The heartbeats whose largest number counts: after a mass restart, or a loss of data in Redis, some tell too few.
const MEMORY: usize = 10;

/// The registration of this instance among those that share the store.
#[derive(Debug)]
pub(in super::super) struct Membership {
    /// This one included. Zero until it is known.
    instances: AtomicUsize,
    lately: Mutex<[usize; MEMORY]>,
    most_lately: AtomicUsize,
    numbers: ArcSwap<InstanceNumbers>,
    has_left: AtomicBool,
}

// === impl Membership ===

impl Membership {
    pub(super) fn new(period: Period, now: Timestamp) -> Self {
        Self {
            instances: AtomicUsize::new(0),
            lately: Mutex::default(),
            most_lately: AtomicUsize::new(0),
            numbers: ArcSwap::from_pointee(InstanceNumbers::new(period, now)),
            has_left: AtomicBool::new(false),
        }
    }

    /// This one included; at least 1.
    pub(super) fn instances(&self) -> usize {
        self.instances.load(Ordering::Relaxed).max(1)
    }

    /// In the last [`MEMORY`] heartbeats. None until one was replied to.
    pub(in super::super) fn most_instances_lately(&self) -> Option<usize> {
        Some(self.most_lately.load(Ordering::Relaxed)).filter(|most| *most > 0)
    }

    pub(in super::super) fn numbers(&self) -> arc_swap::Guard<Arc<InstanceNumbers>> {
        self.numbers.load()
    }

    fn record<R: Remote>(&self, members: &Members, sent: Reading, caller: &Caller<R>) {
        self.record_number(members.instances);
        let received = caller.look();
        if let Some(now) = members.now {
            caller.measure(sent, received, now);
        }
        let (sent, received) = (caller.store_clock.at(sent.now), caller.store_clock.at(received.now));
        // by the earliest instant at which it can have been sent
        let earliest =
            Timestamp::from_nanos(sent.now.as_nanos().saturating_sub(sent.latest.since(sent.now).as_nanos()));
        let mut numbers = InstanceNumbers::clone(&self.numbers.load());
        let place = Place::among(members.instances, members.rank);
        numbers.follow(place, earliest, members.now.unwrap_or(received.now));
        self.numbers.store(Arc::new(numbers));
    }

    fn record_number(&self, instances: usize) {
        let instances = instances.max(1);
        self.instances.store(instances, Ordering::Relaxed);
        let mut lately = self.lately.lock();
        lately.rotate_right(1);
        lately[0] = instances;
        self.most_lately.store(lately.iter().copied().max().unwrap_or(instances), Ordering::Relaxed);
    }

    /// Until this instance leaves. The store removes an instance after two missed heartbeats.
    pub(super) async fn run<R: Remote>(&self, caller: &Caller<R>) {
        let mut ticks = interval(caller.settings.heartbeat.into());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if self.has_left.load(Ordering::Relaxed) {
                return;
            }
            // concurrently: a node that does not reply must not delay the heartbeat to the others
            tokio::join!(self.send(caller), probe_open_nodes(caller));
        }
    }

    /// The reply also closes the breaker of the node that keeps the registered instances.
    async fn send<R: Remote>(&self, caller: &Caller<R>) {
        let (node, period) = (caller.remote.members_node(), caller.settings.heartbeat);
        let ttl = Period::from_nanos(2 * period.as_nanos());
        let sent = caller.look();
        let heartbeat = caller.remote.heartbeat(Heartbeat { instance: &caller.settings.instance, ttl });
        match timeout(period.into(), caller.wait_for_reply(node, None, heartbeat, || {})).await {
            Ok(Ok(members)) => {
                self.record(&members, sent, caller);
                caller.breaker.record_reply(node);
            }
            Ok(Err(_)) | Err(_) => caller.breaker.record_failure(node, None),
        }
    }

    pub(super) async fn leave<R: Remote>(&self, caller: &Caller<R>) {
        self.has_left.store(true, Ordering::Relaxed);
        let left = caller
            .remote
            .heartbeat(Heartbeat { instance: &caller.settings.instance, ttl: Period::default() });
        let _ = timeout(caller.settings.heartbeat.into(), left).await;
    }
}

/// A probe takes no hits of a target that the node failed to count.
async fn probe_open_nodes<R: Remote>(caller: &Caller<R>) {
    let probes = caller.breaker.open_nodes().into_iter().map(async |(node, failed)| {
        if node == caller.remote.members_node() {
            // the heartbeat probes it
            return;
        }
        // the registered instances, or the counters of the target, may have moved to another node by now
        if let Some(FailedCount { target, at }) = failed
            && caller.remote.node(&target, at) == node
        {
            let probe = caller.remote.call(vec![Command { target, at, exchange: Exchange::read() }]);
            let Ok(Ok(_)) = timeout(caller.settings.heartbeat.into(), probe).await else { return };
        }
        caller.breaker.record_reply(node);
    });
    join_all(probes).await;
}
