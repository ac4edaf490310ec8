//! Fair shares: one capacity, divided between clients by their demand.
//!
//! A *pool* is a limit whose hits are divided. Its *members* are the values of the descriptor's last entry. In each
//! *cycle*, one window of the limit's period, every member has a share of the capacity, and borrows what others leave
//! unused. [`Division`] computes shares from demands, and [`Pool`] decides about hits, from the first cycle to the
//! last.

mod census;
mod computation;
mod division;
mod fill;
mod grant;
mod member;
mod members;
mod pool;
mod rule;
mod table;

use std::collections::BTreeMap;

pub use computation::{Computation, Shares};
pub use division::{Claim, Division};
pub use grant::{Account, LEAST_AHEAD, Terms};
pub use member::MemberState;
pub use pool::{AT_ONCE, Pool, PoolDecision};
pub use rule::PoolRule;
pub use table::{MemberCounts, PoolTable};

/// The most members that a pool may have, with the one that all others share.
pub const MAX_MEMBERS: u32 = 1_024;

/// The highest sum of the weights of all members.
pub const MAX_WEIGHTS: u32 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharing {
    pub borrow: Borrow,
    pub lend: Lend,
    /// The percentage of its default that a member keeps without demand, 0 to 100.
    pub reserve: u32,
    /// The percentage of the capacity that is held back for members in their first cycle, 0 to 100.
    pub headroom: u32,
    /// The weights of named members, which always have a place; 1 to 2^20. All others have the weight 1.
    pub weights: BTreeMap<Box<str>, u32>,
    pub anonymous: Anonymous,
    /// The cycles without demand after which a member is none any more.
    pub forget_after: u32,
    /// The most members that are not named, with [`OTHER`]: 2 to [`MAX_MEMBERS`]. See [`Sharing::places`].
    pub max_members: u32,
    /// The hits that each member's default is at least, unless all of them exceed the capacity.
    pub min: u32,
    /// The hits that each member may have in a cycle at most.
    pub max: Option<u32>,
}

/// The member that all values share which have no place of their own.
pub const OTHER: &str = "other";

/// How members borrow what others leave unused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Borrow {
    /// In proportion to what each of them lacks.
    #[default]
    ByDemand,
    /// Evenly by weight, the smallest demands first: max-min fairness. Nobody gains by asking for more than it needs.
    MaxMin,
    /// Not at all: each member has its default.
    None,
}

/// When members borrow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lend {
    /// Within the cycle: shares are computed anew in up to 20 steps of it.
    #[default]
    WithinCycle,
    /// In the next cycle: shares hold for the whole cycle.
    NextCycle,
}

/// What becomes of requests whose member has no name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Anonymous {
    /// They are rejected, and are no demand.
    #[default]
    Deny,
    /// They are admitted, and count nowhere.
    Allow,
    /// They are one member.
    Share,
}

impl Default for Sharing {
    fn default() -> Self {
        Self {
            borrow: Borrow::default(),
            lend: Lend::default(),
            reserve: 10,
            headroom: 0,
            weights: BTreeMap::new(),
            anonymous: Anonymous::default(),
            forget_after: 10,
            max_members: 1_000,
            min: 0,
            max: None,
        }
    }
}

impl Sharing {
    /// Returns the most members that are not named, with [`OTHER`]. All members together are [`MAX_MEMBERS`] at most.
    pub fn places(&self) -> u32 {
        let named = u32::try_from(self.weights.len()).unwrap_or(u32::MAX);
        self.max_members.min(MAX_MEMBERS.saturating_sub(named))
    }

    pub fn weight(&self, name: &str) -> u32 {
        self.weights.get(name).copied().unwrap_or(1)
    }
}
