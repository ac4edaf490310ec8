//! Calls to the shared store. Each reply updates the clock offset, the round trip and the circuit breaker.

use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::future::Either;
use tokio::time::{Instant, timeout};

use super::{StoreClient, breaker::OPENS};
use weir_limit::{Period, Timestamp};
use weir_store::{
    clock::Reading,
    pool_command::{PoolCommand, PoolReply},
    remote::{Command, Exchange, Remote, RemoteError, Replies, StoreNode, Target, Urgency},
};

/// The shortest silence that opens a breaker. A lost packet or a fork delays a healthy Redis for less.
const SILENCE: Period = Period::from_millis(500);

/// The time between two looks at whether a node that has not replied yet has become silent.
pub(crate) const RECHECK: Period = Period::from_millis(100);

/// Reads `target`, to see whether its node replies.
fn probe(target: &Arc<Target>, at: Timestamp) -> Command {
    Command { target: Arc::clone(target), at, exchange: Exchange::read() }
}

impl<R: Remote> StoreClient<R> {
    /// Waits for the replies, however late, and returns when they arrived, on this instance's clock. All `commands` are
    /// for `node`, and there is one at least. Runs `silent` now and then while the breaker of the node is open.
    pub(crate) async fn send(
        &self,
        node: StoreNode,
        commands: Vec<Command>,
        urgency: Urgency,
        silent: impl FnMut(),
    ) -> (Result<Replies, RemoteError>, Timestamp) {
        let (count, probe) = (commands.len(), probe(&commands[0].target, commands[0].at));
        let call = match urgency {
            Urgency::Decision => Either::Left(self.remote.call(commands)),
            Urgency::Background => Either::Right(self.remote.call_in_background(commands)),
        };
        self.measured(node, probe, count, call, |replies| replies.now, silent).await
    }

    /// Waits for the reply, however late.
    pub(crate) async fn call_pool(&self, command: PoolCommand) -> Result<PoolReply, RemoteError> {
        let period = command.target.tiers[0].period.as_nanos();
        let at = Timestamp::from_nanos(command.cycle.saturating_mul(period));
        let (node, probe) = (self.remote.node(&command.target, at), probe(&command.target, at));
        let call = self.remote.call_pool(command);
        self.measured(node, probe, 1, call, |reply| reply.now, || {}).await.0
    }

    /// Waits for the reply to `call` of `commands`, however late, and returns when it arrived, on this instance's clock.
    /// `now_of` is the store's clock in a reply. Runs `silent` now and then while the breaker of the node is open.
    async fn measured<T>(
        &self,
        node: StoreNode,
        probe: Command,
        commands: usize,
        call: impl Future<Output = Result<T, RemoteError>>,
        now_of: impl FnOnce(&T) -> Timestamp,
        silent: impl FnMut(),
    ) -> (Result<T, RemoteError>, Timestamp) {
        self.metrics.store.calls.add(1);
        self.metrics.store.commands.add(commands as u64);
        let sent = self.look();
        let reply = self.wait_for_reply(node, Some(&probe), call, silent).await;
        let received = self.look();
        if let Ok(reply) = &reply {
            self.breaker.record_reply(node);
            self.measure(sent, received, now_of(reply));
            let last = received.uptime.as_nanos().saturating_sub(sent.uptime.as_nanos());
            let before = self.round_trip.load(Ordering::Relaxed);
            let average = if before == 0 { last } else { before - before / 8 + last / 8 };
            self.round_trip.store(average, Ordering::Relaxed);
        } else {
            self.breaker.record_failures(node, Some(probe), 1);
            self.metrics.store.failures.add(1);
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

    /// Waits for the reply to `call`, however late: the call is never repeated, so its reply must not be missed. If the
    /// node replies to no call meanwhile, its breaker opens. Runs `silent` every [`RECHECK`] while it is open.
    pub(super) async fn wait_for_reply<T>(
        &self,
        node: StoreNode,
        probe: Option<&Command>,
        call: impl Future<Output = T>,
        mut silent: impl FnMut(),
    ) -> T {
        let (mut call, sent) = (pin!(call), Instant::now());
        loop {
            if let Ok(reply) = timeout(RECHECK.into(), &mut call).await {
                return reply;
            }
            let heard = self.breaker.replied_at(node).map_or(sent, |at| at.max(sent));
            if heard.elapsed() >= Duration::from(SILENCE.max(self.round_trip() * 2)) {
                self.breaker.record_failures(node, probe.cloned(), OPENS);
            }
            if self.breaker.is_open_for(node) {
                silent();
            }
        }
    }
}
