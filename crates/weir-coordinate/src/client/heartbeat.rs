//! The heartbeat: counts the instances, follows their number, measures the store's clock, and probes
//! nodes whose breaker is open.

use std::sync::{Arc, atomic::Ordering};

use futures_util::future::join_all;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{StoreClient, instances::InstanceNumbers};
use crate::CoordinationSettings;
use weir_limit::{Period, Timestamp, part::Place};
use weir_store::remote::{Heartbeat, Members, Remote};

/// Sends heartbeats until this instance leaves. The store removes an instance after two missed ones.
pub(crate) async fn run<R: Remote>(client: Arc<StoreClient<R>>) {
    let mut ticks = interval(client.settings.heartbeat.into());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if client.membership.has_left.load(Ordering::Relaxed) {
            return;
        }
        // concurrently: a node that does not reply must not delay the heartbeat to the others
        tokio::join!(client.beat(), client.probe_open_nodes());
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
        numbers.follow(Place::among(instances, rank), earliest, now);
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
        let probes = breaker.open_nodes().into_iter().map(async |(node, probe)| {
            if node == remote.members_node() {
                // the heartbeat probes it
                return;
            }
            // the registered instances, or the counters of the target, may have moved to another node by now
            if let Some(probe) = probe.filter(|probe| remote.node(&probe.target, probe.at) == node) {
                let reply = timeout(settings.heartbeat.into(), remote.call(vec![probe]));
                let Ok(Ok(_)) = reply.await else { return };
            }
            breaker.record_reply(node);
        });
        join_all(probes).await;
    }
}
