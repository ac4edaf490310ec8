//! The interface of a store that many instances share: a few operations, each atomic over all tiers of a rule.
//!
//! Redis implements it, and so does a simulated store for tests, which control its time and failures. Coordination accesses
//! the shared store only through this trait.

use std::{future::Future, sync::Arc};

use smallvec::SmallVec;

use crate::limit::{Coordination, OverLimitPolicy, Period, Tiers, Timestamp, algorithm::CounterState};

/// A store that many instances share.
pub trait Remote: Send + Sync + 'static {
    /// Carries out `commands`, each of them atomically, and those for one target in their order. All of them are sent
    /// together. Returns one reply for each, in their order.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached, or does not reply in time. The commands may have been carried out,
    /// unless [`RemoteError::is_definitely_not_applied`] returns true, so a command that would count twice must not be
    /// repeated.
    fn call(&self, commands: Vec<Command>) -> impl Future<Output = Result<Replies, RemoteError>> + Send;

    /// Registers the instance named `instance` for `ttl` from now, and returns the number of registered instances, including
    /// this one. With a `ttl` of zero the instance leaves.
    fn heartbeat(
        &self,
        instance: &str,
        ttl: Period,
    ) -> impl Future<Output = Result<usize, RemoteError>> + Send;

    /// Returns whether this store can count `target` in coordination mode `mode`. Not every store carries out every [`Op`]:
    /// Memcached, for example, can add to a single fixed window and take from it, but not grant. A rule whose mode is not
    /// supported must not send commands to the store.
    fn supports(&self, target: &Target, mode: Coordination) -> bool {
        let _ = (target, mode);
        true
    }

    /// Returns the node that counts `target` at the instant `at`, as far as it is known; it may change. By default a store
    /// has one node. Commands for several nodes in one [`Remote::call`] wait for each other's replies.
    fn node(&self, target: &Target, at: Timestamp) -> StoreNode {
        let _ = (target, at);
        StoreNode::default()
    }

    /// Returns the node that keeps the registered instances.
    fn members_node(&self) -> StoreNode {
        StoreNode::default()
    }
}

/// A part of a store that replies or fails independently: a server of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreNode(pub u64);

/// An operation on the counters of a target.
#[derive(Clone, Debug)]
pub struct Command {
    /// The counters.
    pub target: Arc<Target>,
    /// The instant of the hits, on the store's clock as far as it is known: hits that were admitted in one window must not be
    /// counted in the next.
    pub at: Timestamp,
    /// The operation.
    pub op: Op,
}

/// The tiers of one rule for one list of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The domain, keys and values in the format of envoyproxy/ratelimit, such as `shop_tenant_acme_`; where values share a
    /// counter, their pattern stands in for the value. The store adds its prefix, and a suffix for the tier and the window.
    pub path: Box<str>,
    /// The tiers, at least one.
    pub tiers: Tiers,
    /// [`OverLimitPolicy::Count`] marks a rule in the format of envoyproxy/ratelimit: one fixed window, with the same key and
    /// count as there, so that both services can share a store.
    pub over_limit_policy: OverLimitPolicy,
}

/// An operation on the counters of a target: on all tiers together, or on none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Counts `hits` that were admitted already, whether or not they fit. Negative hits are given back; a counter never falls
    /// below zero. A fixed window counts them in the window of [`Command::at`], sliding windows and buckets now.
    Add {
        /// The number of hits.
        hits: i64,
    },
    /// Gives back granted hits that were not used; a counter never falls below zero. A fixed window gives them back in the
    /// window of [`Command::at`], a sliding window from the hits that it counts as of `until` or earlier.
    Return {
        /// The number of hits.
        hits: u64,
        /// The instant until which they could have been used.
        until: Timestamp,
    },
    /// Takes `hits` if all tiers admit them. Otherwise it takes none, and strict buckets restart their refill. With
    /// [`OverLimitPolicy::Count`] rejected hits count too.
    Take {
        /// The number of hits.
        hits: u64,
    },
    /// Takes as many hits as all tiers admit, at most `want`, and none if fewer than `least` fit. They must be used within
    /// `hold`, and before the end of a fixed window. A sliding window counts them as of the end of `hold`, when the last of
    /// them may be used.
    Grant {
        /// The fewest hits that are of use, at least 1.
        least: u64,
        /// The most hits that are wanted.
        want: u64,
        /// The time within which they must be used.
        hold: Period,
    },
}

/// The replies to some commands.
#[derive(Clone, Debug)]
pub struct Replies {
    /// The store's clock when it carried out the commands.
    pub now: Timestamp,
    /// One for each command.
    pub replies: Vec<Result<Reply, RemoteError>>,
}

/// The reply to one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The hits that were taken: for [`Op::Add`] all, for [`Op::Take`] all or none, for [`Op::Grant`] none or between `least`
    /// and `want`.
    pub granted: u64,
    /// The counters after the command, one for each tier, on the store's clock.
    pub counters: SmallVec<[CounterState; 2]>,
}

/// The reason why a store did not carry out a command, or did not confirm it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// The store cannot be reached, or the connection broke. The command may have been carried out.
    #[error("cannot reach the store: {0}")]
    Unreachable(String),
    /// The store did not reply in time. The command may have been carried out.
    #[error("the store did not reply within {0}")]
    TimedOut(Period),
    /// The store rejected the command, and did not carry it out.
    #[error("the store rejected the command: {0}")]
    Rejected(String),
    /// The command was not sent, because there is no connection or the queue is full. It was not carried out.
    #[error("the store is not connected: {0}")]
    NotSent(String),
}

impl RemoteError {
    /// Returns whether the command was definitely not carried out, so that it may be sent again.
    #[must_use]
    pub const fn is_definitely_not_applied(&self) -> bool {
        matches!(self, Self::Rejected(_) | Self::NotSent(_))
    }
}
