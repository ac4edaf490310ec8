//! Calls to the shared store. Each reply updates the clock offset, the round trip and the circuit breaker.

use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering},
};

use futures_util::future::Either;
use tokio::time::timeout;

use super::{
    StoreClient,
    breaker::{FailedCount, OPENS},
};
use crate::{
    clock::Reading,
    limit::{Period, Timestamp},
    store::{
        pool_command::{PoolCommand, PoolReply},
        remote::{Command, Remote, RemoteError, Replies, StoreNode, Urgency},
    },
};

/// The shortest silence that opens a breaker. A lost packet or a fork delays a healthy Redis for less.
const SILENCE: Period = Period::from_millis(500);

/// The time between two looks at whether a node that has not replied yet has become silent.
pub(in super::super) const RECHECK: Period = Period::from_millis(100);

/// The calls that the round trip is an average of.
const AVERAGED: u64 = 8;

impl<R: Remote> StoreClient<R> {
    /// Waits for the replies, however late, and returns when they arrived, on this instance's clock. All `commands` are
    /// for `node`, and there is one at least. Runs `silent` now and then while the breaker of the node is open.
    pub(in super::super) async fn send(
        &self,
        node: StoreNode,
        commands: Vec<Command>,
        urgency: Urgency,
        silent: impl FnMut(),
    ) -> (Result<Replies, RemoteError>, Timestamp) {
        let (count, first) = (commands.len(), &commands[0]);
        let failed = FailedCount { target: Arc::clone(&first.target), at: first.at };
        let call = match urgency {
            Urgency::Decision => Either::Left(self.remote.call(commands)),
            Urgency::Background => Either::Right(self.remote.call_in_background(commands)),
        };
        self.measured(node, failed, count, call, |replies| replies.now, silent).await
    }

    /// Waits for the reply, however late.
    pub(in super::super) async fn call_pool(&self, command: PoolCommand) -> Result<PoolReply, RemoteError> {
        let period = command.target.tiers[0].period.as_nanos();
        let at = Timestamp::from_nanos(command.cycle.saturating_mul(period));
        let failed = FailedCount { target: Arc::clone(&command.target), at };
        let node = self.node(&command.target, at);
        let call = self.remote.call_pool(command);
        self.measured(node, failed, 1, call, |reply| reply.now, || {}).await.0
    }

    /// Waits for the reply to `call` of `commands`, however late, and returns when it arrived, on this instance's clock.
    /// `now_of` is the store's clock in a reply. Runs `silent` now and then while the breaker of the node is open.
    async fn measured<T>(
        &self,
        node: StoreNode,
        failed: FailedCount,
        commands: usize,
        call: impl Future<Output = Result<T, RemoteError>>,
        now_of: impl FnOnce(&T) -> Timestamp,
        silent: impl FnMut(),
    ) -> (Result<T, RemoteError>, Timestamp) {
        self.metrics.store.calls.add(1);
        self.metrics.store.commands.add(commands as u64);
        let sent = self.look();
        let reply = self.wait_for_reply(node, Some(&failed), call, silent).await;
        let received = self.look();
        if let Ok(reply) = &reply {
            self.breaker.record_reply(node);
            self.measure(sent, received, now_of(reply));
            let last = received.uptime.as_nanos().saturating_sub(sent.uptime.as_nanos());
            let average = self.round_trip.load(Ordering::Relaxed);
            let averaged = (self.averaged.load(Ordering::Relaxed) + 1).min(AVERAGED);
            self.averaged.store(averaged, Ordering::Relaxed);
            self.round_trip.store(average - average / averaged + last / averaged, Ordering::Relaxed);
        } else {
            self.record_failure(node, failed);
        }
        (reply, received.now)
    }

    pub(super) fn look(&self) -> Reading {
        Reading::of(&*self.clock)
    }

    /// The store's clock showed `there` at some instant between `sent` and `received`.
    pub(super) fn measure(&self, sent: Reading, received: Reading, there: Timestamp) {
        if self.remote.has_clock() && self.store_clock.record(sent, received, there) {
            self.metrics.store.clock_steps.add(1);
        }
    }

    pub(super) fn record_failure(&self, node: StoreNode, failed: FailedCount) {
        self.breaker.record_failures(node, Some(failed), 1);
        self.metrics.store.failures.add(1);
    }

    /// Waits for the reply to `call`, however late: the call is never repeated, so its reply must not be missed. If the
    /// node replies to no call meanwhile, its breaker opens. Runs `silent` every [`RECHECK`] while it is open.
    pub(super) async fn wait_for_reply<T>(
        &self,
        node: StoreNode,
        failed: Option<&FailedCount>,
        call: impl Future<Output = T>,
        mut silent: impl FnMut(),
    ) -> T {
        let mut call = pin!(call);
        let (mut replies, mut looks) = (self.breaker.replies(node), 0);
        loop {
            if let Ok(reply) = timeout(RECHECK.into(), &mut call).await {
                return reply;
            }
            looks += 1;
            let now = self.breaker.replies(node);
            if now != replies {
                (replies, looks) = (now, 0);
            }
            let longest = SILENCE.as_nanos().max(self.round_trip().as_nanos().saturating_mul(2));
            if RECHECK.as_nanos() * looks >= longest {
                self.breaker.record_failures(node, failed.cloned(), OPENS);
                looks = 0;
            }
            if self.breaker.is_open_for(node) {
                silent();
            }
        }
    }
}
