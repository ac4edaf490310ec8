//! What a shared store does for the pools of fair shares: two operations, each atomic.

use std::sync::Arc;

use smallvec::SmallVec;

use super::target::Target;
use weir_limit::{
    Timestamp,
    share::{OTHER, PoolTable, Sharing, Terms},
};

/// How far ahead of the store's clock a command may begin a cycle: in nanoseconds, and at most a tenth of the cycle.
pub const MAX_POOL_AHEAD: u64 = 100_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolCommand {
    /// The pool: its path is that of the entries without the member, and its first tier has the capacity and the cycle.
    pub target: Arc<Target>,
    /// The number of the cycle that the command is about, counted from the Unix epoch.
    pub cycle: u64,
    /// The places for members: further names share [`OTHER`]. [Named](PoolMember::is_named) members always have one.
    pub places: u32,
    /// The cycles without demand after which a member is none any more.
    pub forget_after: u32,
    pub op: PoolOp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolMember {
    pub name: Box<str>,
    /// Whether it has a place even if there is none left.
    pub is_named: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolOp {
    /// Grants hits to one member, which has a place from then on if there is one.
    Lease {
        member: PoolMember,
        terms: Terms,
        /// The hits of each request that waits: each is granted as a whole, or not at all.
        tries: SmallVec<[u32; 4]>,
        /// Granted besides if all `tries` fit: see [`Account::take_ahead`](weir_limit::share::Account::take_ahead).
        ahead: u32,
        instances: u32,
    },
    /// Applies reports of what has happened in the cycle, and returns what is counted of all members.
    Exchange(Vec<PoolReport>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolReport {
    pub member: PoolMember,
    pub news: MemberNews,
}

/// What has happened to a member at one instance since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberNews {
    /// The hits that it asked for in the last cycle: demand that the present one is shared by.
    pub late: u32,
    pub asked: u32,
    /// The hits that the instance has admitted by itself, or, negative, gives back.
    pub granted: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolReply {
    /// The store's clock when it carried out the command.
    pub now: Timestamp,
    pub outcome: PoolOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolOutcome {
    Leased(Leased),
    Table(PoolTable),
    /// Another cycle is open, and nothing was changed.
    OtherCycle(u64),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leased {
    /// For each request that waits, whether it was granted.
    pub tries: SmallVec<[bool; 4]>,
    /// The hits that were granted besides.
    pub ahead: u32,
    /// The hits that the member was granted in this cycle.
    pub granted: u32,
    /// The hits that all members were granted in this cycle.
    pub total: u32,
}

// === impl PoolMember ===

impl PoolMember {
    pub fn new(name: &str, sharing: &Sharing) -> Self {
        Self { name: name.into(), is_named: name == OTHER || sharing.weights.contains_key(name) }
    }
}
