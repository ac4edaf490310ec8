//! A member of a pool at this instance: what it holds, what it has not reported, and who waits for the store.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use crate::limit::{Timestamp, share::PoolDecision};

const MAX_TRIES: usize = 256;

/// The times that a request asks before it is decided without the store: the store may begin another cycle meanwhile.
const MAX_ATTEMPTS: u32 = 3;

#[derive(Debug, Default)]
pub(super) struct LocalMember {
    /// Granted in this cycle and not used yet.
    pub(super) held: u32,
    /// Whether any held hits were used since the last exchange.
    pub(super) is_used: bool,
    pub(super) unreported: Unreported,
    /// Since the last exchange.
    pub(super) asked_in_step: u32,
    /// Asked for in the step before: so many are asked for ahead.
    pub(super) pace: u32,
    /// In this cycle. They may be given back.
    pub(super) admitted: u32,
    pub(super) denied: Option<Denied>,
    waiting: VecDeque<Try>,
    /// Whether a command for waiting requests is on its way.
    pub(super) is_fetching: bool,
    /// Hits that were admitted, and rejected, here.
    pub(super) totals: [u64; 2],
}

/// What the store does not know yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unreported {
    pub(super) asked: u32,
    /// Admitted without the store, less hits that are given back to it.
    pub(super) granted: i64,
}

/// A rejection, which holds until the next step or the next table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Denied {
    /// The fewest hits that were rejected.
    pub(super) hits: u32,
    pub(super) until: Timestamp,
}

/// A request that waits for the store.
#[derive(Debug)]
pub(super) struct Try {
    pub(super) hits: u32,
    attempts: u32,
    reply: oneshot::Sender<TryReply>,
}

/// None if the store has not decided.
pub(super) type TryReply = Option<PoolDecision>;

// === impl LocalMember ===

impl LocalMember {
    pub(super) const fn ask(&mut self, hits: u32) {
        self.unreported.asked = self.unreported.asked.saturating_add(hits);
        self.asked_in_step = self.asked_in_step.saturating_add(hits);
    }

    pub(super) fn count(&mut self, hits: u32, is_admitted: bool) {
        let total = &mut self.totals[usize::from(!is_admitted)];
        *total = total.saturating_add(hits.into());
        if is_admitted {
            self.admitted = self.admitted.saturating_add(hits);
        }
    }

    pub(super) fn is_denied(&self, hits: u32, at: Timestamp) -> bool {
        self.denied.is_some_and(|denied| hits >= denied.hits && at < denied.until)
    }

    pub(super) fn deny(&mut self, hits: u32, until: Timestamp, at: Timestamp) {
        let earlier = self.denied.filter(|denied| at < denied.until);
        let hits = earlier.map_or(hits, |denied| denied.hits.min(hits));
        self.denied = Some(Denied { hits, until });
    }

    pub(super) fn wait(&mut self, hits: u32) -> oneshot::Receiver<TryReply> {
        let (reply, receiver) = oneshot::channel();
        self.waiting.push_back(Try { hits, attempts: 0, reply });
        receiver
    }

    /// Leaves out requests that nobody waits for any more.
    pub(super) fn next_tries(&mut self) -> Vec<Try> {
        let mut tries = Vec::new();
        while tries.len() < MAX_TRIES
            && let Some(next) = self.waiting.pop_front()
        {
            if !next.reply.is_closed() {
                tries.push(Try { attempts: next.attempts + 1, ..next });
            }
        }
        tries
    }

    pub(super) fn wait_again(&mut self, tries: Vec<Try>) {
        for again in tries.into_iter().rev() {
            if again.attempts < MAX_ATTEMPTS {
                self.waiting.push_front(again);
            } else {
                again.resolve(None);
            }
        }
    }

    /// Returns what was not reported, and the hits that are of no use any more.
    pub(super) fn begin_cycle(&mut self) -> (Unreported, u32) {
        (self.is_used, self.admitted, self.denied) = (false, 0, None);
        (std::mem::take(&mut self.unreported), std::mem::take(&mut self.held))
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.is_fetching || !self.waiting.is_empty()
    }
}

// === impl Try ===

impl Try {
    /// Returns whether somebody received the reply.
    pub(super) fn resolve(self, reply: TryReply) -> bool {
        self.reply.send(reply).is_ok()
    }
}
