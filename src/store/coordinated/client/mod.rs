//! The store client: the parts between a decision and the shared store that do not depend on local counters.
//!
//! It sends calls ([`caller`]), estimates the store's clock ([`clock`]) and the round trip, opens a circuit breaker for
//! nodes that do not reply ([`breaker`]), sends what counters have to say ([`sender`]) and counts the instances
//! ([`heartbeat`]).

mod breaker;
mod caller;
mod clock;
mod heartbeat;
mod instances;
mod sender;
#[cfg(all(test, feature = "simulated"))]
mod tests;

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::task::JoinSet;

use self::{breaker::FailedCount, caller::Caller, heartbeat::Membership, sender::Sender};
pub(super) use self::{
    instances::InstanceNumbers,
    sender::{ExchangeOutcome, Exchanges, Outbox},
};
use super::{counter::Sent, link::StoreTime, settings::CoordinationSettings};
use crate::{
    clock::{Clock, Reading},
    limit::{Coordination, CounterKey, LimitCheck, OnStoreFailure, Period, Timestamp, part::Place},
    store::{
        pool_command::{PoolCommand, PoolReply},
        remote::{Command, Remote, RemoteError, StoreNode, Target},
    },
};

/// The modes in the order of fallback: a mode that the store does not support is replaced by the next one.
const MODES: [Coordination; 4] =
    [Coordination::Lease, Coordination::Strict, Coordination::Interval, Coordination::Local];

pub(super) struct StoreClient<R, S = Sent> {
    pub(super) caller: Caller<R>,
    sender: Sender<S>,
    pub(super) membership: Membership,
    /// The number by which the store knows this process again, modulo 2^48.
    writer: AtomicU64,
}

// === impl StoreClient ===

impl<R: Remote, S: Send + 'static> StoreClient<R, S> {
    /// `remote` need not be reachable yet.
    pub(super) fn new(remote: R, clock: Arc<dyn Clock>, settings: CoordinationSettings) -> Self {
        let membership = Membership::new(settings.heartbeat, clock.now());
        // of random keys
        let writer = RandomState::new().hash_one(());
        Self {
            caller: Caller::new(remote, clock, settings),
            sender: Sender::default(),
            membership,
            writer: AtomicU64::new(writer),
        }
    }

    pub(super) fn start(self: &Arc<Self>, exchanges: Arc<impl Exchanges<S>>, tasks: &mut JoinSet<()>) {
        let client = Arc::clone(self);
        tasks.spawn(async move { client.membership.run(&client.caller).await });
        self.start_sender(exchanges, tasks);
    }

    pub(super) fn start_sender(self: &Arc<Self>, exchanges: Arc<impl Exchanges<S>>, tasks: &mut JoinSet<()>) {
        let client = Arc::clone(self);
        tasks.spawn(async move { client.sender.run(&client.caller, &*exchanges).await });
    }

    pub(super) fn writer(&self) -> u64 {
        (self.writer.load(Ordering::Relaxed) % (1 << 48)).max(1)
    }

    /// For commands that may be carried out without this process hearing of it: its estimates lack what they change.
    pub(super) fn renew_writer(&self) {
        self.writer.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn instances(&self) -> usize {
        self.membership.instances()
    }

    pub(super) fn place(&self) -> Place {
        self.membership.numbers().place().unwrap_or(Place::ALONE)
    }

    pub(super) fn time(&self) -> StoreTime {
        self.caller.time()
    }

    pub(super) fn time_at(&self, now: Timestamp) -> StoreTime {
        self.caller.store_clock.at(now)
    }

    pub(super) fn behind(&self, at: Timestamp) -> Period {
        self.caller.store_clock.behind(at)
    }

    pub(super) fn follow_clock(&self, reading: Reading) {
        if self.caller.remote.has_clock() {
            self.caller.store_clock.follow(reading);
        }
    }

    pub(super) fn local_time_since(&self, now: Timestamp) -> Timestamp {
        self.caller.clock.now().max(now)
    }

    /// Returns whether there was room.
    pub(super) fn queue(&self, key: CounterKey, target: &Target, at: Timestamp) -> bool {
        self.sender.queue(self.node(target, at), key)
    }

    pub(super) fn send_in_background(&self, outbox: Outbox<S>) {
        let node_of = |command: &Command| self.node(&command.target, command.counted_at());
        self.sender.send_in_background(outbox, node_of);
    }

    pub(super) fn node(&self, target: &Target, at: Timestamp) -> StoreNode {
        self.caller.remote.node(target, at)
    }

    pub(super) fn supports(&self, target: &Target, mode: Coordination) -> bool {
        !mode.is_coordinated() || self.caller.remote.supports(target, mode)
    }

    pub(super) fn nearest_mode(&self, target: &Target, requested: Coordination) -> Coordination {
        let mut modes = MODES.into_iter().skip_while(|mode| *mode != requested);
        modes.find(|mode| self.supports(target, *mode)).unwrap_or(Coordination::Local)
    }

    pub(super) fn record_late_decision(&self, target: &Arc<Target>, at: Timestamp) {
        let failed = FailedCount { target: Arc::clone(target), at };
        self.caller.record_failure(self.node(target, at), Some(failed));
    }

    pub(super) fn failure_policy(&self, check: &LimitCheck<'_>) -> OnStoreFailure {
        let own = check.rule.declared().and_then(|rule| rule.coordination.on_store_failure);
        own.unwrap_or(self.caller.settings.on_store_failure)
    }

    /// Returns whether the breaker is open for any node.
    pub(super) fn is_unavailable(&self) -> bool {
        self.caller.breaker.is_open()
    }

    pub(super) fn is_unavailable_for(&self, target: &Target, at: Timestamp) -> bool {
        self.caller.breaker.is_open() && self.caller.breaker.is_open_for(self.node(target, at))
    }

    pub(super) async fn leave(&self) {
        self.membership.leave(&self.caller).await;
    }
}

impl<R: Remote> StoreClient<R> {
    /// Waits for the reply, however late.
    pub(in super::super) async fn call_pool(&self, command: PoolCommand) -> Result<PoolReply, RemoteError> {
        let caller = &self.caller;
        caller.metrics.store.calls.add(1);
        caller.metrics.store.commands.add(1);
        let period = command.target.tiers[0].period.as_nanos();
        let at = Timestamp::from_nanos(command.cycle.saturating_mul(period));
        let node = self.node(&command.target, at);
        let failed = FailedCount { target: Arc::clone(&command.target), at };
        let sent = caller.look();
        let reply = caller.wait_for_reply(node, Some(&failed), caller.remote.call_pool(command), || {}).await;
        if let Ok(reply) = &reply {
            caller.breaker.record_reply(node);
            caller.measure(sent, caller.look(), reply.now);
        } else {
            caller.record_failure(node, Some(failed));
        }
        reply
    }
}
