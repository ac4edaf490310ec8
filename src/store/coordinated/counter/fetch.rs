//! The state of fetching a lease.

use std::{sync::Arc, task::Waker};

use tokio::sync::{Notify, futures::OwnedNotified};

use crate::{
    limit::{Hits, Period, Timestamp},
    store::coordinated::client::QueuedCommand,
};

/// The reply to one command without reports, if the decision that has sent it applies it.
#[derive(Debug)]
pub(in super::super) struct AwaitedReply {
    pub(in super::super) queued: QueuedCommand,
    /// Wakes the decision, if somebody else applies the reply. None until it was polled.
    pub(in super::super) waker: Option<Waker>,
}

/// The state of fetching a lease.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
pub(in super::super) struct LeaseFetch {
    /// Whether a fetch is running.
    pub(in super::super) is_running: bool,
    /// The reply to it, while a single decision waits for it.
    pub(in super::super) awaited: Option<AwaitedReply>,
    /// The reply to the last fetch.
    pub(in super::super) last_reply: LeaseReply,
    /// Notified after the fetch for which decisions wait. None if none waits.
    pub(in super::super) done: Option<Arc<Notify>>,
    /// The number of decisions that have not been made yet.
    decisions: u32,
    /// The sum of the hits that decisions wait for.
    pub(super) waiting: u64,
    /// The fewest hits that complete one of those decisions.
    pub(super) least: u64,
    /// How often these sums were requested and began again.
    requested: u32,
    /// The number of the running fetch, or of the last one, from 1.
    pub(in super::super) round: u64,
    /// The hits that it requested.
    pub(in super::super) want: u64,
    /// Those of them that no decision waited for then.
    pub(in super::super) ahead: u64,
    /// The time within which they must be used, unless a window ends earlier.
    pub(super) hold: Period,
    /// The instant whose windows its first command is about.
    pub(in super::super) counted_at: Timestamp,
    /// The number of its last command.
    pub(super) number: u32,
    /// The instant of the last grant.
    pub(super) granted_at: Timestamp,
    /// When the reply with it was received.
    pub(super) received_at: Timestamp,
    /// Whether the store had the state that this instance knows exactly.
    pub(super) is_exact: bool,
    /// Whether the store counts granted hits whose lease has ended, which the estimate does not count.
    pub(super) is_overcounted: bool,
    /// Whether the store has run out of hits, and has not had enough for all instances again since.
    pub(super) is_scarce: bool,
    /// The time of the next look for hits that another instance has given back, while nothing is left.
    pub(super) probe_at: Timestamp,
    /// The wait after that. Zero while something is left.
    pub(super) probe_after: Period,
}

/// The reply to the request for a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) enum LeaseReply {
    /// All requested hits were granted.
    #[default]
    Full,
    /// Fewer were granted.
    Partial,
    /// The call failed.
    Failed,
}

/// A decision that waits for hits.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct WaitingDecision {
    /// The number of the fetch that will request its hits.
    pub(in super::super) round: u64,
    /// The value of [`LeaseFetch::requested`] until then.
    requested: u32,
    hits: Hits,
}

// === impl AwaitedReply ===

impl AwaitedReply {
    /// Wakes the decision.
    pub(in super::super) fn wake(self) {
        if let Some(waker) = self.waker {
            waker.wake();
        }
    }
}

// === impl LeaseFetch ===

impl LeaseFetch {
    /// Registers a decision that waits for `hits`, of which `missing` are not leased yet. The next fetch requests them, since a
    /// running one requests other hits.
    pub(in super::super) fn wait_for(&mut self, hits: Hits, missing: Hits) -> WaitingDecision {
        let missing = missing.0.max(1);
        self.decisions += 1;
        self.waiting = self.waiting.saturating_add(hits.0);
        self.least = if self.least == 0 { missing } else { self.least.min(missing) };
        WaitingDecision { round: self.round + 1, requested: self.requested, hits }
    }

    /// Removes a decision that waits no longer, and its hits unless they were requested: otherwise the next fetch would request hits that
    /// nobody uses.
    pub(in super::super) const fn leave(&mut self, decision: WaitingDecision) {
        self.decisions = self.decisions.saturating_sub(1);
        if decision.requested == self.requested {
            self.waiting = self.waiting.saturating_sub(decision.hits.0);
            if self.waiting == 0 {
                self.least = 0;
            }
        }
    }

    /// Returns whether a decision waits.
    pub(super) const fn has_decisions(&self) -> bool {
        self.decisions > 0
    }

    /// Notes that the next command requests the hits of all waiting decisions.
    pub(super) const fn take_waiting(&mut self) {
        (self.waiting, self.least) = (0, 0);
        self.requested = self.requested.wrapping_add(1);
    }

    /// Returns whether it says nothing that a counter has to know.
    pub(super) fn is_over(&self) -> bool {
        self.is_forgettable() && !self.is_scarce
    }

    /// Returns whether it says nothing that a counter has to know which has not been checked lately.
    pub(super) fn is_forgettable(&self) -> bool {
        !self.is_running
            && !self.has_decisions()
            && self.done.is_none()
            && self.least == 0
            && !self.is_overcounted
            && self.probe_after == Period::default()
    }

    /// Returns a future that completes with the next reply.
    pub(in super::super) fn reply(&mut self) -> OwnedNotified {
        Arc::clone(self.done.get_or_insert_default()).notified_owned()
    }

    /// Notes that there was a reply.
    pub(in super::super) fn notify(&mut self) {
        if let Some(done) = self.done.take() {
            done.notify_waiters();
        }
    }

    /// Returns whether fetch number `round` has finished.
    pub(in super::super) const fn has_finished(&self, round: u64) -> bool {
        self.round > round || (self.round == round && !self.is_running)
    }
}
