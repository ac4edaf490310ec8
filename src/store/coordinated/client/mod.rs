//! The store client: the parts between a decision and the shared store that do not depend on local counters.
//!
//! It waits for replies ([`caller`]), estimates the store's clock ([`clock`]) and the round trip, opens a circuit breaker
//! for nodes that do not reply ([`breaker`]) and counts the instances ([`heartbeat`]).

mod breaker;
mod caller;
mod clock;
pub(super) mod heartbeat;
mod instances;
#[cfg(all(test, feature = "simulated"))]
mod tests;

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_util::future::Either;

use self::{breaker::FailedCount, caller::Caller, heartbeat::Membership};
pub(super) use self::{caller::RECHECK, instances::InstanceNumbers};
use super::{link::StoreTime, settings::CoordinationSettings};
use crate::{
    clock::{Clock, Reading},
    limit::{Coordination, LimitCheck, OnStoreFailure, Period, Timestamp, part::Place},
    store::{
        pool_command::{PoolCommand, PoolReply},
        remote::{Command, Remote, RemoteError, Replies, Reply, StoreNode, Target, Urgency},
    },
};

/// The modes in the order of fallback: a mode that the store does not support is replaced by the next one.
const MODES: [Coordination; 4] =
    [Coordination::Lease, Coordination::Strict, Coordination::Interval, Coordination::Local];

/// With the store's clock when it carried the command out.
pub(super) type ExchangeOutcome<'a> = Result<(&'a Reply, Timestamp), &'a RemoteError>;

pub(super) struct StoreClient<R> {
    pub(super) caller: Caller<R>,
    pub(super) membership: Membership,
    /// The number by which the store knows this process again, modulo 2^48.
    writer: AtomicU64,
}

// === impl StoreClient ===

impl<R: Remote> StoreClient<R> {
    /// `remote` need not be reachable yet.
    pub(super) fn new(remote: R, clock: Arc<dyn Clock>, settings: CoordinationSettings) -> Self {
        let membership = Membership::new(settings.heartbeat, clock.now());
        // of random keys
        let writer = AtomicU64::new(RandomState::new().hash_one(()));
        Self { caller: Caller::new(remote, clock, settings), membership, writer }
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
        self.caller.record_failure(self.node(target, at), failed);
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

    /// Waits for the replies, however late, and returns when they arrived, on this instance's clock. All `commands` are
    /// for `node`, and there is one at least. Runs `silent` now and then while the breaker of the node is open.
    pub(super) async fn send(
        &self,
        node: StoreNode,
        commands: Vec<Command>,
        urgency: Urgency,
        silent: impl FnMut(),
    ) -> (Result<Replies, RemoteError>, Timestamp) {
        let (count, first) = (commands.len(), &commands[0]);
        let failed = FailedCount { target: Arc::clone(&first.target), at: first.at };
        let call = match urgency {
            Urgency::Decision => Either::Left(self.caller.remote.call(commands)),
            Urgency::Background => Either::Right(self.caller.remote.call_in_background(commands)),
        };
        self.caller.measured(node, failed, count, call, |replies| replies.now, silent).await
    }

    /// Waits for the reply, however late.
    pub(super) async fn call_pool(&self, command: PoolCommand) -> Result<PoolReply, RemoteError> {
        let period = command.target.tiers[0].period.as_nanos();
        let at = Timestamp::from_nanos(command.cycle.saturating_mul(period));
        let failed = FailedCount { target: Arc::clone(&command.target), at };
        let node = self.node(&command.target, at);
        let call = self.caller.remote.call_pool(command);
        self.caller.measured(node, failed, 1, call, |reply| reply.now, || {}).await.0
    }
}
