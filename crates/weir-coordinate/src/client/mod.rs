//! The store client: the parts between a decision and the shared store that do not depend on local counters.
//!
//! It sends calls, each of which measures the store's clock ([`clock`]) and the round trip, opens a circuit breaker for
//! nodes that do not reply ([`breaker`]) and counts the instances ([`instances`]). [`Link`] is what decisions know of
//! the way to the store.

mod board;
mod breaker;
mod clock;
mod instances;
#[cfg(test)]
mod tests;

use std::{
    hash::{BuildHasher as _, RandomState},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::Either;
use ring::digest::{SHA256, digest};
use tokio::time::{Instant, timeout};

pub(super) use self::instances::{InstanceNumbers, beat_until_left};
use self::{
    board::Board,
    breaker::{Breaker, FailedTarget, OPENS},
    clock::StoreClock,
    instances::Membership,
};
use super::{CoordinationMetrics, CoordinationSettings};
use weir_limit::{Capabilities, Coordination, LimitCheck, OnStoreFailure, Period, Tier, Timestamp};
use weir_store::{
    clock::{Clock, Reading},
    place_command::{PlaceCommand, PlaceReplies},
    pool_command::{PoolCommand, PoolReply},
    remote::{CallPriority, Command, Remote, RemoteError, Replies, Reply, StoreNode, Target},
};

/// The shortest silence that opens a breaker. A lost packet or a fork delays a healthy Redis for less.
const SILENCE: Period = Period::from_millis(500);

/// The time between two looks at whether a node that has not replied yet has become silent.
pub(crate) const RECHECK: Period = Period::from_millis(100);

const INITIAL_ROUND_TRIP: Period = Period::from_millis(1);

/// With the store's clock when it carried the command out.
pub(super) type ExchangeOutcome<'a> = Result<(&'a Reply, Timestamp), &'a RemoteError>;

pub(super) struct StoreClient<R> {
    pub(super) remote: R,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) settings: CoordinationSettings,
    /// Apart from what every decision reads, since many decisions write it.
    pub(super) metrics: Box<CoordinationMetrics>,
    pub(super) store_clock: StoreClock,
    breaker: Breaker,
    pub(super) membership: Membership,
    pub(super) board: Board,
    /// A moving average, in nanoseconds. Zero before the first reply.
    pub(super) round_trip: AtomicU64,
    /// The number by which the store knows the counters of this process again.
    pub(super) writer: u64,
}

/// The shortest time that a lease should last, unless [`ROUND_TRIPS`] take longer.
const HORIZON: Period = Period::from_millis(50);

const ROUND_TRIPS: u64 = 8;

/// How late the queue may be.
const LATE: Period = Period::from_millis(6);

pub(super) fn sha256(bytes: &[u8]) -> [u8; 32] {
    digest(&SHA256, bytes).as_ref().try_into().expect("it has 32 bytes")
}

/// An instant on the store's clock, as this instance estimates it.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreTime {
    /// The best estimate. Hits are counted in the window of this instant.
    pub(super) now: Timestamp,
    /// The latest instant that it can be. A lease is not used after its end by this clock.
    pub(super) latest: Timestamp,
}

/// What the way to the store is like now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) time: StoreTime,
    pub(super) instances: usize,
    /// What this process has in common among the [writers](weir_store::remote::Exchange::writer) of counters.
    pub(super) writer: u64,
    pub(super) round_trip: Period,
    pub(super) budget: Period,
    pub(super) local_cache: bool,
}

/// How long before its end a lease has to be returned: two round trips, and how late the queue may be.
pub(super) fn lead(round_trip: Period) -> Period {
    round_trip * 2 + LATE
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    Applied,
    /// The store has definitely not applied it, so it may be sent again.
    NotApplied,
    /// The connection broke, or no reply came in time. It must not be repeated: its hits could count twice.
    Unknown,
    /// It is not known yet: this try was sent, and its outcome decides whether the hits of the answer are reported.
    OnWay(SentTry),
}

/// A try that was sent, whose caller waits no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SentTry {
    pub(super) generation: u32,
    pub(super) id: u32,
}

// === impl StoreClient ===

impl<R: Remote> StoreClient<R> {
    /// `remote` need not be reachable yet.
    pub(super) fn new(remote: R, clock: Arc<dyn Clock>, settings: CoordinationSettings) -> Self {
        Self {
            membership: Membership::new(settings.heartbeat, clock.now()),
            board: Board::default(),
            remote,
            clock,
            settings,
            metrics: Box::default(),
            store_clock: StoreClock::default(),
            breaker: Breaker::default(),
            round_trip: AtomicU64::new(0),
            // of random keys
            writer: RandomState::new().hash_one(()),
        }
    }

    pub(super) fn instances(&self) -> usize {
        self.membership.instances().unwrap_or(1)
    }

    pub(super) fn time(&self) -> StoreTime {
        self.time_at(self.clock.now())
    }

    pub(super) fn time_at(&self, now: Timestamp) -> StoreTime {
        self.store_clock.at(now)
    }

    pub(super) fn local_time_since(&self, now: Timestamp) -> Timestamp {
        self.clock.now().max(now)
    }

    pub(super) fn nearest_mode(&self, target: &Target, requested: Coordination) -> Coordination {
        requested.nearest(|mode| self.remote.supports(target, mode))
    }

    pub(super) fn round_trip(&self) -> Period {
        match self.round_trip.load(Ordering::Relaxed) {
            0 => INITIAL_ROUND_TRIP,
            nanos => Period::from_nanos(nanos),
        }
    }

    pub(super) fn failure_policy(&self, check: &LimitCheck<'_>) -> OnStoreFailure {
        let own = check.rule.declared().and_then(|rule| rule.coordination.on_store_failure);
        own.unwrap_or(self.settings.on_store_failure)
    }

    pub(super) fn requested_mode(&self, check: &LimitCheck<'_>) -> Coordination {
        if check.pool.is_some() && self.remote.shared_store().capabilities != Capabilities::All {
            // each instance has its part
            return Coordination::Local;
        }
        let requested = check.rule.coordination().unwrap_or(self.settings.coordination);
        // a pool has members instead of parts, and the pace of a bucket of a request is not that of the counter
        let is_whole = || check.pool.is_some() || check.tiers().iter().any(Tier::has_any_pace);
        if requested == Coordination::Split && is_whole() { Coordination::Auto } else { requested }
    }

    /// Returns whether the breaker is open for any node.
    pub(super) fn is_unavailable(&self) -> bool {
        self.breaker.is_open()
    }

    pub(super) fn is_unavailable_for(&self, target: &Target, at: Timestamp) -> bool {
        self.breaker.is_open() && self.is_unavailable_at(self.remote.node(target, at))
    }

    pub(super) fn is_unavailable_at(&self, node: StoreNode) -> bool {
        self.breaker.is_open_for(node)
    }

    /// Waits for the replies, however late, and returns when they arrived, on this instance's clock. All `commands` are
    /// for `node`, and there is one at least. Runs `silent` now and then while the breaker of the node is open.
    pub(crate) async fn send(
        &self,
        node: StoreNode,
        commands: Vec<Command>,
        priority: CallPriority,
        silent: impl FnMut(),
    ) -> (Result<Replies, RemoteError>, Timestamp) {
        let (count, about) = (commands.len(), (Arc::clone(&commands[0].target), commands[0].at));
        let call = match priority {
            CallPriority::Decision => Either::Left(self.remote.call(commands)),
            CallPriority::Background => Either::Right(self.remote.call_in_background(commands)),
        };
        self.measured(node, &about, count, call, |replies| replies.now, silent).await
    }

    /// Waits for the reply, however late.
    pub(crate) async fn call_pool(&self, command: PoolCommand) -> Result<PoolReply, RemoteError> {
        let period = command.target.tiers[0].period.as_nanos();
        let at = Timestamp::from_nanos(command.cycle.saturating_mul(period));
        let (node, about) = (self.remote.node(&command.target, at), (Arc::clone(&command.target), at));
        let call = self.remote.call_pool(command);
        self.measured(node, &about, 1, call, |reply| reply.now, || {}).await.0
    }

    /// Waits for the replies, however late. All `commands` are for `node`, which keeps the target that they are `about`.
    pub(crate) async fn call_places(
        &self,
        node: StoreNode,
        about: Arc<Target>,
        commands: Vec<PlaceCommand>,
    ) -> Result<PlaceReplies, RemoteError> {
        let (count, about) = (commands.len(), (about, self.time().now));
        let call = self.remote.call_places(commands);
        self.measured(node, &about, count, call, |replies| replies.now, || {}).await.0
    }

    /// Waits for the reply to `call` of `commands`, the first of which is `about` a target, however late, and returns when
    /// it arrived, on this instance's clock. `now_of` is the store's clock in a reply. Runs `silent` now and then while the
    /// breaker of the node is open.
    async fn measured<T>(
        &self,
        node: StoreNode,
        about: &FailedTarget,
        commands: usize,
        call: impl Future<Output = Result<T, RemoteError>>,
        now_of: impl FnOnce(&T) -> Timestamp,
        silent: impl FnMut(),
    ) -> (Result<T, RemoteError>, Timestamp) {
        self.metrics.store.calls.add(1);
        self.metrics.store.commands.add(commands as u64);
        let sent = self.look();
        let reply = self.wait_for_reply(node, Some(about), call, silent).await;
        let received = self.look();
        if let Ok(reply) = &reply {
            self.breaker.record_reply(node);
            self.measure(sent, received, now_of(reply));
            let last = received.uptime.as_nanos().saturating_sub(sent.uptime.as_nanos());
            let before = self.round_trip.load(Ordering::Relaxed);
            let average = if before == 0 { last } else { before - before / 8 + last / 8 };
            self.round_trip.store(average, Ordering::Relaxed);
        } else {
            self.breaker.record_failures(node, Some(about), 1);
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
        about: Option<&FailedTarget>,
        call: impl Future<Output = T>,
        mut silent: impl FnMut(),
    ) -> T {
        let (mut call, sent) = (pin!(call), Instant::now());
        loop {
            if let Ok(reply) = timeout(RECHECK.into(), &mut call).await {
                return reply;
            }
            let replied_at = self.breaker.replied_at(node).map_or(sent, |at| at.max(sent));
            if replied_at.elapsed() >= Duration::from(SILENCE.max(self.round_trip() * 2)) {
                self.breaker.record_failures(node, about, OPENS);
            }
            if self.breaker.is_open_for(node) {
                silent();
            }
        }
    }
}

// === impl Link ===

impl Link {
    /// Returns the writer's number of the counter with this `generation`, modulo 2^48: as several instances, two counters
    /// do not know what the other one has changed, nor what was changed by the commands whose outcomes a counter has `lost`.
    pub(super) fn writer_of(&self, generation: u32, lost: u16) -> u64 {
        let own = (u64::from(generation) << 16) + u64::from(lost);
        (self.writer.wrapping_add(own) % (1 << 48)).max(1)
    }

    pub(super) fn horizon(&self) -> Period {
        HORIZON.max(self.round_trip * ROUND_TRIPS)
    }

    pub(super) fn lead(&self) -> Period {
        lead(self.round_trip)
    }

    /// So far away that no decision should wait for two replies.
    pub(super) fn is_far(&self) -> bool {
        self.round_trip * 3 > self.budget
    }
}

// === impl Delivery ===

impl Delivery {
    pub(super) fn of<T>(outcome: &Result<T, &RemoteError>) -> Self {
        outcome.as_ref().map_or_else(|error| Self::of_error(error), |_| Self::Applied)
    }

    pub(super) const fn of_error(error: &RemoteError) -> Self {
        if error.is_definitely_not_applied() { Self::NotApplied } else { Self::Unknown }
    }
}
