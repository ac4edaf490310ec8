//! The interface of a store that many instances share. Counters have one operation, the exchange, atomic over all tiers
//! of a rule; instances, pools and places have one each.
//!
//! The stores of weir-remotes implement it, and so does a simulated one for tests, which control its time and failures.
//! Coordination accesses the shared store only through this trait.

use std::{future::Future, sync::Arc};

use smallvec::{SmallVec, smallvec};

pub use super::target::Target;
use super::{
    board::{BoardPost, BoardReply, no_board},
    place_command::{PlaceCommand, PlaceReplies},
    pool_command::{PoolCommand, PoolReply},
};
use weir_limit::{
    Coordination, Direction, OverLimitPolicy, Period, SharedStore, Tier, Timestamp,
    algorithm::{CountChange, CounterState},
};

pub trait Remote: Send + Sync + 'static {
    /// Sends `commands` together. Each is atomic, and those for one target keep their order. Returns one reply each.
    /// Fails if the store cannot be reached, or does not reply in time. The commands may have been carried out, unless
    /// [`RemoteError::is_definitely_not_applied`] returns true, so a command that would count twice must not be
    /// repeated.
    fn call(&self, commands: Vec<Command>) -> impl Future<Output = Result<Replies, RemoteError>> + Send;

    /// [`Remote::call`] that no decision waits for: commands of decisions may go first, even if called later.
    fn call_in_background(
        &self,
        commands: Vec<Command>,
    ) -> impl Future<Output = Result<Replies, RemoteError>> + Send {
        self.call(commands)
    }

    /// Registers an instance, and returns the registered ones, including this one.
    fn heartbeat(
        &self,
        heartbeat: Heartbeat<'_>,
    ) -> impl Future<Output = Result<Members, RemoteError>> + Send;

    /// Whether this store can count `target` in this mode; if not, its rule sends no commands.
    fn supports(&self, target: &Target, mode: Coordination) -> bool {
        let capabilities = self.shared_store().capabilities;
        capabilities.count(&target.tiers) && capabilities.support(mode)
    }

    /// What this store can count, and its names in reports.
    fn shared_store(&self) -> SharedStore {
        SharedStore::REDIS
    }

    /// Returns whether this store has a clock that windows follow. Otherwise they follow that of each instance.
    fn has_clock(&self) -> bool {
        true
    }

    /// Carries out `command`, which decisions wait for if it [leases](super::pool_command::PoolOp::Lease) hits.
    fn call_pool(&self, command: PoolCommand) -> impl Future<Output = Result<PoolReply, RemoteError>> + Send {
        let _ = command;
        std::future::ready(Err(RemoteError::Rejected("it keeps no pools".into())))
    }

    /// Carries out `commands`, those for one counter in their order. Decisions wait for them if one
    /// [takes](super::place_command::PlaceOp::Take) places.
    ///
    /// # Errors
    ///
    /// As [`Remote::call`].
    fn call_places(
        &self,
        commands: Vec<PlaceCommand>,
    ) -> impl Future<Output = Result<PlaceReplies, RemoteError>> + Send {
        let _ = commands;
        std::future::ready(Err(RemoteError::Rejected("it keeps no places".into())))
    }

    /// Returns whether this store carries messages between instances.
    fn has_board(&self) -> bool {
        false
    }

    /// Writes what this instance tells all of them, and returns what others do.
    ///
    /// # Errors
    ///
    /// As [`Remote::call`]; [`RemoteError::Rejected`], if the store carries no messages.
    fn post(&self, post: BoardPost<'_>) -> impl Future<Output = Result<BoardReply, RemoteError>> + Send {
        let _ = post;
        std::future::ready(Err(no_board()))
    }

    /// A number for the place where `tiers` of a target are counted, if the place depends on them.
    fn home(&self, tiers: &[Tier]) -> u64 {
        let _ = tiers;
        0
    }

    /// The node that counts `target` at `at`, as far as known; it may change. A [`Remote::call`] waits for all nodes.
    fn node(&self, target: &Target, at: Timestamp) -> StoreNode {
        let _ = (target, at);
        StoreNode::default()
    }

    fn members_node(&self) -> StoreNode {
        StoreNode::default()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat<'a> {
    pub instance: &'a str,
    /// How long it is registered from now on. Zero if it leaves.
    pub ttl: Period,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    pub instances: usize,
    /// The store's clock when it replied; none if the reply does not carry it.
    pub now: Option<Timestamp>,
    /// The rank of the one that asked among them, below their number; none if the store does not tell ranks.
    pub rank: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPriority {
    Decision,
    Background,
}

/// A part of a store that replies or fails independently: a server of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreNode(pub u64);

#[derive(Clone, Debug)]
pub struct Command {
    pub target: Arc<Target>,
    /// Now, on the store's clock as far as known. Selects the windows of tries and a lease, unless others are open.
    pub at: Timestamp,
    pub exchange: Exchange,
}

/// One command, carried out on all tiers or none: what has happened, then tries of waiting decisions, then a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    /// Oldest first, at most [`Exchange::MAX_REPORTS`]. A fixed window counts each in the window of its [`Report::at`],
    /// even if that has ended. In the format of envoyproxy/ratelimit windows may be on different servers: then all
    /// reports must be of one window, that of [`Command::at`] if there are runs or a lease.
    pub reports: SmallVec<[Report; 1]>,
    /// The tries, at most [`Exchange::MAX_RUNS`] runs.
    pub runs: SmallVec<[Run; 1]>,
    /// Whether the runs change nothing if a try is rejected.
    pub all_or_none: bool,
    pub lease: Option<LeaseRequest>,
    /// A number from 1 to 2^48 - 1 that no other counter has, of this or another instance, or zero if the store need not
    /// know the sender again.
    pub writer: u64,
}

/// Equal tries of waiting decisions, one after the other. Each takes its hits if all tiers admit them; otherwise none,
/// and strict buckets restart their refill. Giving hits back is always admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Whether the hits are taken or given back. [`Direction::Look`] has no hits.
    pub direction: Direction,
    /// The hits of each try. Tries of no hits read the counters, and are always admitted.
    pub hits: u64,
    /// The number of tries, at least one.
    pub tries: u32,
    /// Whether the hits of a rejected try count too.
    pub counts_rejected: bool,
}

/// As many hits in advance as all tiers admit, up to `want`; none if fewer than `least` fit. Rejected hits never count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The fewest hits that are of use, at least 1.
    pub least: u64,
    pub want: u64,
    /// The time within which they must be used. A sliding window counts them as of its end.
    pub hold: Period,
}

/// Some of the tiers of a target, by their places in it. A place from 32 on is never among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierSet(pub u32);

/// What an instance has counted since its last report, in one window of each fixed tier. The store applies `unused`,
/// `change` and, in strict buckets, `rejected_at`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// When the last hit was, on the store's clock as far as known: no other window may count it. Sliding windows and
    /// buckets count the hits as of then or a little later, and a bucket may be in debt. The future counts as now.
    pub at: Timestamp,
    /// Hits that were admitted or given back, as one change.
    pub change: CountChange,
    /// Granted hits that are given back because they will not be used.
    pub unused: Option<UnusedHits>,
    /// When a strict bucket last rejected. Strict buckets restart their refill then, unless they counted a hit later.
    pub rejected_at: Option<Timestamp>,
}

/// Granted hits that are given back. A counter never falls below zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnusedHits {
    pub hits: u64,
    /// Until when they could be used. A sliding window gives them back from the hits that it counts up to this instant.
    pub until: Timestamp,
}

#[derive(Clone, Debug)]
pub struct Replies {
    /// The store's clock when it carried out the commands.
    pub now: Timestamp,
    pub replies: Vec<Result<Reply, RemoteError>>,
}

/// How far the clock of one node may be ahead of that of another.
const MAX_AHEAD: Period = Period::from_secs(1);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The hits that are leased: none, or between those of the [`LeaseRequest`].
    pub granted: u64,
    pub taken: SmallVec<[u32; 1]>,
    /// The store's clock at the command, if known. Of replies about one target the later one has the later counters.
    pub at: Option<Timestamp>,
    /// The counters after the reports, before the runs and the lease, one for each tier, on the store's clock: so the sender
    /// can repeat what has been decided.
    pub counters: SmallVec<[CounterState; 1]>,
    /// The sliding windows and buckets that the [writer](Exchange::writer) has changed last, as of before the command.
    pub own: TierSet,
    /// The sliding windows and buckets that the store did not have before the command: unused, or lost.
    pub missing: TierSet,
}

impl Reply {
    /// `now`, or the nearest instant in the windows that counted the command. The reply's time may be that of a call
    /// during which a window ended, and another clock, up to `MAX_AHEAD` ahead, may have begun one.
    pub fn instant(&self, tiers: &[Tier], now: Timestamp) -> Timestamp {
        tiers.iter().zip(&self.counters).fold(now, |at, (tier, state)| match state {
            CounterState::FixedWindow(window) => {
                let last = window.end().before(Period::from_nanos(1));
                let first = tier.window(last).0;
                let earliest = if first.since(at) <= MAX_AHEAD { first } else { at };
                at.max(earliest).min(last)
            }
            _ => at,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// The store cannot be reached, or the connection broke. The command may have been carried out.
    #[error("cannot reach the store: {0}")]
    Unreachable(String),
    /// The store did not reply in time. The command may have been carried out.
    #[error("the store did not reply within {0}")]
    TimedOut(Period),
    /// The store rejected a part of the command, which it may have begun.
    #[error("the store rejected a part of the command: {0}")]
    Half(String),
    /// The store rejected the command, and did not carry it out.
    #[error("the store rejected the command: {0}")]
    Rejected(String),
    /// The command was not sent, because there is no connection or the queue is full. It was not carried out.
    #[error("the store is not connected: {0}")]
    NotSent(String),
}

// === impl TierSet ===

impl TierSet {
    pub const fn contains(self, i: usize) -> bool {
        i < 32 && self.0 >> i & 1 == 1
    }

    pub const fn set(&mut self, i: usize, is_among: bool) {
        if i < 32 {
            self.0 = self.0 & !(1 << i) | (is_among as u32) << i;
        }
    }

    pub const fn and(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }

    pub const fn or(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

// === impl Members ===

impl From<usize> for Members {
    fn from(instances: usize) -> Self {
        Self { instances, ..Self::default() }
    }
}

// === impl Command ===

impl Command {
    /// Returns the instant whose fixed windows the command is about.
    pub fn counted_at(&self) -> Timestamp {
        self.exchange.counted_at(self.at)
    }
}

// === impl Exchange ===

impl Exchange {
    pub const MAX_REPORTS: usize = 17;

    pub const MAX_RUNS: usize = 64;

    /// Creates one that only reads.
    pub fn read() -> Self {
        Self::of_try(0, OverLimitPolicy::Ignore)
    }

    pub fn of_report(report: Report) -> Self {
        Self { reports: smallvec![report], ..Self::default() }
    }

    /// Creates one of a try of `hits`, which count under [`OverLimitPolicy::Count`] even if they are rejected.
    pub fn of_try(hits: u64, policy: OverLimitPolicy) -> Self {
        let counts_rejected = policy == OverLimitPolicy::Count;
        let run = Run { direction: Direction::Take, hits, tries: 1, counts_rejected };
        Self { runs: smallvec![run], ..Self::default() }
    }

    pub fn of_lease(lease: LeaseRequest) -> Self {
        Self { lease: Some(lease), ..Self::default() }
    }

    /// Returns whether it decides something, so that it is about the open windows.
    pub fn decides(&self) -> bool {
        !self.runs.is_empty() || self.lease.is_some()
    }

    /// Returns the hits of all tries that take some.
    pub fn tried(&self) -> u64 {
        self.hits_in(Direction::Take)
    }

    pub fn given_back(&self) -> u64 {
        self.hits_in(Direction::GiveBack)
    }

    fn hits_in(&self, direction: Direction) -> u64 {
        let runs = self.runs.iter().filter(|run| run.direction == direction);
        runs.fold(0_u64, |hits, run| hits.saturating_add(run.all_hits()))
    }

    /// Returns the instant whose windows it is about: `at` if it decides something, or the instant of the last report.
    pub fn counted_at(&self, at: Timestamp) -> Timestamp {
        self.reports.last().filter(|_| !self.decides()).map_or(at, |last| last.at)
    }

    /// Decides the runs, and then `least` hits, in a single window that has counted `used` hits of at most `limit`.
    /// Returns the tries that are taken of each run, whether the hits are taken, and the hits that are counted then.
    pub fn decide_in_window(&self, used: u64, limit: u64, least: u64) -> (SmallVec<[u32; 1]>, bool, u64) {
        let before = used;
        let (mut used, mut rejects) = (used, false);
        let taken = self.runs.iter().map(|run| {
            if run.direction == Direction::GiveBack {
                used = used.saturating_sub(run.all_hits());
                return run.tries;
            }
            let taken = run.fit(limit.saturating_sub(used));
            let counted = if run.counts_rejected { run.tries } else { taken };
            used = used.saturating_add(run.hits.saturating_mul(counted.into()));
            rejects |= taken < run.tries;
            taken
        });
        let taken = taken.collect();
        if self.all_or_none && rejects {
            used = before;
        }
        let fits = least <= limit.saturating_sub(used);
        (taken, fits, if fits { used.saturating_add(least) } else { used })
    }
}

// === impl Run ===

impl Run {
    pub fn fit(&self, room: u64) -> u32 {
        let fit = room.checked_div(self.hits).unwrap_or(u64::MAX);
        u32::try_from(fit.min(self.tries.into())).unwrap_or(self.tries)
    }

    pub const fn all_hits(&self) -> u64 {
        self.hits.saturating_mul(self.tries as u64)
    }
}

// === impl Report ===

impl Report {
    /// Creates a report of `hits` at `at`: admitted, or given back if they are negative.
    pub fn of(at: Timestamp, hits: i64) -> Self {
        Self { at, change: CountChange::of(hits), ..Self::default() }
    }

    /// Creates a report that gives back `hits` that were granted at `at` for use until `until`.
    pub fn unused(at: Timestamp, hits: u64, until: Timestamp) -> Self {
        Self { at, unused: Some(UnusedHits { hits, until }), ..Self::default() }
    }
}

// === impl RemoteError ===

impl RemoteError {
    /// Returns whether the command was definitely not carried out, so that it may be sent again.
    pub const fn is_definitely_not_applied(&self) -> bool {
        matches!(self, Self::Rejected(_) | Self::NotSent(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_limit::{Hits, algorithm::FixedWindow};

    #[test]
    fn a_reply_is_dated_in_the_windows_that_have_counted_the_command() {
        let tier = |seconds| Tier::fixed_window(9, Period::from_secs(seconds));
        let tiers = [tier(60), tier(10)];
        let millis = |millis: u64| Timestamp::from_nanos(millis * 1_000_000);
        let before = |end: u64| Timestamp::from_nanos(end * 1_000_000_000 - 1);
        let dated = |ends: [u64; 2], now| {
            let window =
                |end| CounterState::FixedWindow(FixedWindow::new(Timestamp::from_secs(end), Hits(1)));
            let counters = ends.into_iter().map(window).collect();
            Reply { counters, ..Reply::default() }.instant(&tiers, millis(now))
        };
        assert_eq!(dated([120, 80], 75_000), millis(75_000));
        // a window ended, or began, between the command and the look at the clock
        assert_eq!(dated([120, 70], 70_001), before(70));
        assert_eq!(dated([120, 120], 120_001), before(120));
        assert_eq!(dated([120, 80], 69_998), millis(70_000));
        assert_eq!(dated([180, 130], 119_998), millis(120_000));
        // no clock is so much ahead
        assert_eq!(dated([120, 80], 68_000), millis(68_000));
        assert_eq!(dated([0, 0], 68_000), millis(0));
        let sliding = Tier::sliding_window(9, Period::from_secs(60));
        let counters = [CounterState::unused(&sliding, millis(0))].into_iter().collect();
        let reply = Reply { counters, ..Reply::default() };
        assert_eq!(reply.instant(&[sliding], millis(70_001)), millis(70_001));
    }
}
