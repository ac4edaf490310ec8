//! The conversation of a counter with the store: the tries of decisions that wait, and what is on its way.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    outcome::{Setter, Tried, Wakers},
    policy::Asks,
    records::PendingDelta,
};
use crate::{
    limit::{Hits, Timestamp},
    store::{
        coordinated::delivery::Undecided,
        remote::{Reply, Target},
    },
};

/// What one decision asks the store.
#[derive(Debug)]
pub(in super::super) struct Try {
    /// Its number among the tries and commands of the counter.
    pub(super) id: u32,
    /// The limit that it is decided by.
    pub(super) target: Arc<Target>,
    /// Whether the limit came with the request.
    pub(super) is_own: bool,
    pub(super) hits: Hits,
    pub(super) asks: Asks,
    pub(super) outcome: Setter,
}

/// Tries in order of arrival.
pub(in super::super) type Tries = SmallVec<[Try; 1]>;

/// The tries of a counter that wait, and its exchanges that are on their way.
#[derive(Debug, Default)]
pub(in super::super) struct Talk {
    /// Tries that wait to be sent, in order of arrival.
    pub(super) tries: Tries,
    /// The calls that were sent and have no reply yet, oldest first, but for one that carries nothing but reports: that
    /// is on its way as long as these are in flight.
    pub(super) on_way: SmallVec<[OnWay; 1]>,
    /// The one of these that is about the ledger.
    pub(super) ledger: Option<Ledger>,
    /// Tries on their way whose callers wait no longer.
    pub(super) given_up: SmallVec<[GivenUp; 0]>,
    /// The newest reply beside a hold on its way, which it may count: it is applied after that.
    pub(super) early: Option<Box<Early>>,
    /// Whether the sender has the counter in its queue.
    pub(super) is_queued: bool,
    /// Whether hits are to be held, although no decision waits for them.
    pub(super) wants_lease: bool,
}

/// A reply that is applied later.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) target: Arc<Target>,
    pub(super) reply: Reply,
    pub(super) number: u32,
    pub(super) now: Timestamp,
}

/// Commands of one number that were sent together.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnWay {
    pub(super) number: u32,
    /// Those that have no reply yet.
    pub(super) left: u32,
    pub(super) at: Timestamp,
}

/// An exchange on its way that is about the ledger.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ledger {
    pub(super) number: u32,
    /// The hits that are to be held.
    pub(super) want: u64,
}

/// A try on its way whose caller has been answered without the store.
#[derive(Debug)]
pub(super) struct GivenUp {
    pub(super) id: u32,
    /// The hits that it asks for.
    pub(super) hits: Hits,
    /// The hits that were admitted and are in the estimate, as what would report them.
    pub(super) admitted: Option<PendingDelta>,
}

// === impl Talk ===

impl Talk {
    /// Returns whether tries or a lease wait to be sent.
    pub(super) fn has_wishes(&self) -> bool {
        self.wants_lease || !self.tries.is_empty()
    }

    /// Returns whether nothing of it is needed.
    pub(super) fn is_over(&self) -> bool {
        let waits = self.is_queued || self.has_wishes();
        !waits && self.on_way.is_empty() && self.early.is_none()
    }

    /// Returns the hits of tries that were given up and are in the estimate, as what would report them.
    pub(super) fn admitted(&self) -> impl Iterator<Item = &PendingDelta> {
        self.given_up.iter().filter_map(|given| given.admitted.as_ref())
    }
}

// === impl Try ===

impl Try {
    /// Returns whether its caller still waits.
    pub(super) fn is_awaited(&self) -> bool {
        self.outcome.is_awaited()
    }

    /// Returns whether what is held meanwhile may cover it.
    pub(super) const fn leases(&self) -> bool {
        matches!(self.asks, Asks::Lease(_))
    }

    /// Returns whether it takes nothing.
    pub(super) const fn looks(&self) -> bool {
        matches!(self.asks, Asks::Look)
    }

    /// Sets what was decided for its caller, who must be `woken`.
    pub(super) fn succeed(self, tried: Tried, woken: &mut Wakers) {
        self.outcome.set(Ok(tried), woken);
    }

    /// Notes for its caller, who must be `woken`, that it is `undecided`.
    pub(in super::super) fn fail(self, undecided: Undecided, woken: &mut Wakers) {
        self.outcome.set(Err(undecided), woken);
    }
}
