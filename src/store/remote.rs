//! What a store that is shared by many instances has to offer: few operations, each atomic over all tiers of a rule.
//!
//! Redis is one such store; a simulated one stands in for it where time and failures are to be
//! chosen. Everything that coordinates is written against this trait.

use std::{future::Future, sync::Arc};

use smallvec::SmallVec;

use crate::limit::{Coordination, OverLimitPolicy, Period, Tiers, Timestamp, algorithm::CounterState};

/// A store that is shared by many instances.
pub trait Remote: Send + Sync + 'static {
    /// Carries out `commands`, each atomically by itself, in their order where they are of one target. All of them travel
    /// together. There is one reply for each, in their order.
    ///
    /// # Errors
    ///
    /// If the store could not be asked, or did not answer in time. Unless the error [is undone](RemoteError::is_undone),
    /// commands may have been carried out all the same, so none must be repeated that would count twice.
    fn call(&self, commands: Vec<Command>) -> impl Future<Output = Result<Replies, RemoteError>> + Send;

    /// Says that the instance named `instance` lives for `ttl` from now, and tells how many do, this one included. With a
    /// `ttl` of zero the instance leaves.
    fn heartbeat(
        &self,
        instance: &str,
        ttl: Period,
    ) -> impl Future<Output = Result<usize, RemoteError>> + Send;

    /// Whether this store can count `target` in coordination mode `mode`. Not every store carries out every [`Op`]:
    /// Memcached, for example, can add to a single fixed window and take from it, but not grant. A rule whose mode is not
    /// supported must not send commands to the store.
    fn supports(&self, target: &Target, mode: Coordination) -> bool {
        let _ = (target, mode);
        true
    }

    /// Where `target` is counted at the instant `at`, as far as is known: that may change. A store is one node unless it
    /// says otherwise. Commands for several nodes in one [`Remote::call`] wait for each other's answers.
    fn node(&self, target: &Target, at: Timestamp) -> StoreNode {
        let _ = (target, at);
        StoreNode::default()
    }

    /// Where heartbeats are noted.
    fn members_node(&self) -> StoreNode {
        StoreNode::default()
    }
}

/// A part of a store that answers, or fails, by itself: a server of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreNode(pub u64);

/// Something to be done to the counters of a target.
#[derive(Clone, Debug)]
pub struct Command {
    /// What is counted.
    pub target: Arc<Target>,
    /// The instant that it is about, on the store's clock as far as it is known: hits that were admitted in one window
    /// must not be counted in the next.
    pub at: Timestamp,
    /// What is to be done.
    pub op: Op,
}

/// What is counted: the tiers of one rule for one list of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The domain, keys and values in the reference's format, with a shared pattern in the place of the value:
    /// `shop_tenant_acme_`. The store adds its prefix in front, and behind it what tells tiers and windows apart.
    pub path: Box<str>,
    /// At least one.
    pub tiers: Tiers,
    /// [`OverLimitPolicy::Count`] marks a rule in the reference's spelling: one fixed window, whose key and count are the
    /// reference's to the letter, so that both can share a store.
    pub over_limit_policy: OverLimitPolicy,
}

/// What can be done to the counters of a target. All tiers together, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Counts `hits`, whether or not they fit: they were admitted already. Negative ones are given back, never past
    /// unused. A fixed window counts them in the window of [`Command::at`], sliding windows and buckets now.
    Add {
        /// How many.
        hits: i64,
    },
    /// Gives back what was granted and not used, never past unused. A fixed window takes it back in the window of
    /// [`Command::at`], a sliding window from among the hits that it counts as of `until`, or as of before.
    Return {
        /// How many.
        hits: u64,
        /// Until when they might have been used.
        until: Timestamp,
    },
    /// Takes `hits` if all tiers admit them; else nothing, but strict buckets restart their clocks. With
    /// [`OverLimitPolicy::Count`] they are counted in any case.
    Take {
        /// How many.
        hits: u64,
    },
    /// Takes as many hits as all tiers admit, but not more than `want`, and none if they are fewer than `least`. They are
    /// to be used within `hold`, or within the window: a sliding window counts them as of the end of `hold`, for they may
    /// be used as late as that.
    Grant {
        /// The fewest that are of use, at least 1.
        least: u64,
        /// The most that are wanted.
        want: u64,
        /// How long they may be used, where there is no window's end.
        hold: Period,
    },
}

/// What came of some commands.
#[derive(Clone, Debug)]
pub struct Replies {
    /// The store's clock when it carried them out.
    pub now: Timestamp,
    /// One for each command.
    pub replies: Vec<Result<Reply, RemoteError>>,
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Hits that were taken: for [`Op::Add`] all, for [`Op::Take`] all or none, for [`Op::Grant`] between none and as many
    /// as were wanted.
    pub granted: u64,
    /// The counters as they are now, one for each tier, on the store's clock.
    pub counters: SmallVec<[CounterState; 2]>,
}

/// Why a store could not do what it was told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// It cannot be reached, or the connection broke: nobody knows whether a command was carried out.
    #[error("cannot reach the store: {0}")]
    Unreachable(String),
    /// It did not answer in time: nobody knows whether a command was carried out.
    #[error("the store did not answer within {0}")]
    TimedOut(Period),
    /// It rejected the command: it was not carried out.
    #[error("the store rejected the command: {0}")]
    Rejected(String),
    /// It was never sent, since there is no connection or too much is waiting already: it was not carried out.
    #[error("the store is not connected: {0}")]
    NotSent(String),
}

impl RemoteError {
    /// Whether the command was certainly not carried out, so that it may be tried again.
    #[must_use]
    pub const fn is_definitely_not_applied(&self) -> bool {
        matches!(self, Self::Rejected(_) | Self::NotSent(_))
    }
}
