//! The heartbeat: counts the instances, follows the epochs of their membership, measures the store's clock, and probes
//! nodes whose breaker is open.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{breaker::FailedCount, caller::Caller, demands::Demands, epochs::Epochs};
use crate::{
    clock::Reading,
    limit::{Period, Timestamp},
    store::remote::{Command, EPOCH_AHEAD, Exchange, Heartbeat, Members, Remote},
};

/// The heartbeats for which the largest number of instances is remembered: after a restart of many instances, or when
/// Redis has lost its data, the number is too low for a few of them.
const MEMORY: usize = 10;

/// Returns how long after a heartbeat the members that its reply names are certain: an instance that sends none is
/// removed after two periods, and the change takes effect later.
const fn certain_for(period: Period) -> Period {
    Period::from_nanos(2 * period.as_nanos() + EPOCH_AHEAD.as_nanos())
}

/// The registration of this instance among those that share the store.
#[derive(Debug)]
pub(in super::super) struct Membership {
    /// The number of instances, this one included. Zero until it is known.
    instances: AtomicUsize,
    /// The number of instances in each of the last heartbeats.
    lately: Mutex<[usize; MEMORY]>,
    /// The largest of them.
    most_lately: AtomicUsize,
    /// Who splits limits with this instance.
    epochs: ArcSwap<Epochs>,
    /// The demand for limits whose parts follow it.
    pub(in super::super) demands: Demands,
    /// Whether this instance has left and sends no more heartbeats.
    has_left: AtomicBool,
}

// === impl Membership ===

impl Membership {
    /// Creates the registration, which begins at `now` and is renewed in each `period`.
    pub(super) fn new(period: Period, now: Timestamp) -> Self {
        Self {
            instances: AtomicUsize::new(0),
            lately: Mutex::default(),
            most_lately: AtomicUsize::new(0),
            epochs: ArcSwap::from_pointee(Epochs::unanswered(
                now.after(certain_for(period)),
                Period::from_nanos(2 * period.as_nanos()),
            )),
            demands: Demands::default(),
            has_left: AtomicBool::new(false),
        }
    }

    /// Returns the number of instances, this one included; at least 1.
    pub(super) fn instances(&self) -> usize {
        self.instances.load(Ordering::Relaxed).max(1)
    }

    /// Returns the largest number of instances in the last [`MEMORY`] heartbeats. None until one was replied to.
    pub(in super::super) fn most_instances_lately(&self) -> Option<usize> {
        Some(self.most_lately.load(Ordering::Relaxed)).filter(|most| *most > 0)
    }

    /// Returns who splits limits with this instance.
    pub(in super::super) fn epochs(&self) -> arc_swap::Guard<Arc<Epochs>> {
        self.epochs.load()
    }

    /// Records the reply to a heartbeat that was sent at `sent`.
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
        let most_lately = self.most_instances_lately().unwrap_or_default();
        let mut epochs = Epochs::clone(&self.epochs.load());
        let certain_until = earliest.after(certain_for(caller.settings.heartbeat));
        epochs.follow(members, most_lately, members.now.unwrap_or(received.now), certain_until);
        self.epochs.store(Arc::new(epochs));
        // windows that have begun by now keep their parts
        self.demands.follow(&members.parts, received.now);
    }

    fn record_number(&self, instances: usize) {
        let instances = instances.max(1);
        self.instances.store(instances, Ordering::Relaxed);
        let mut lately = self.lately.lock();
        lately.rotate_right(1);
        lately[0] = instances;
        self.most_lately.store(lately.iter().copied().max().unwrap_or(instances), Ordering::Relaxed);
    }

    /// Sends heartbeats until it is dropped or the instance leaves. The store removes an instance after two missed
    /// heartbeats.
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

    /// Sends one heartbeat. Its reply also closes the breaker of the node that keeps the registered instances.
    async fn send<R: Remote>(&self, caller: &Caller<R>) {
        let (node, period) = (caller.remote.members_node(), caller.settings.heartbeat);
        let ttl = Period::from_nanos(2 * period.as_nanos());
        let sent = caller.look();
        let first_epoch = self.epochs.load().first();
        let demands = self.demands.report(caller.store_clock.at(sent.now).now);
        let heartbeat = Heartbeat::new(&caller.settings.instance, ttl);
        let heartbeat = caller.remote.heartbeat(Heartbeat { first_epoch, demands: &demands, ..heartbeat });
        match timeout(period.into(), caller.wait_for_reply(node, None, heartbeat, || {})).await {
            Ok(Ok(members)) => {
                self.record(&members, sent, caller);
                caller.breaker.record_reply(node);
            }
            Ok(Err(_)) | Err(_) => caller.breaker.record_failure(node, None),
        }
    }

    /// Deregisters this instance and stops the heartbeats.
    pub(super) async fn leave<R: Remote>(&self, caller: &Caller<R>) {
        self.has_left.store(true, Ordering::Relaxed);
        let left = caller.remote.heartbeat(Heartbeat::new(&caller.settings.instance, Period::default()));
        let _ = timeout(caller.settings.heartbeat.into(), left).await;
    }
}

/// Probes every node whose breaker is open by taking no hits of a target that it failed to count.
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
