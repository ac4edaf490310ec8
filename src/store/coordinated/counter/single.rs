//! Single requests: commands that request the hits of one decision, and what is leased ahead with them.

use std::sync::Arc;

use tokio::sync::futures::OwnedNotified;

use super::{
    LocalCounter,
    records::SingleRequest,
    tiers::{flows, saturated},
};
use crate::{
    limit::{Hits, Period, Timestamp},
    store::remote::{Command, Op, Reply},
};

/// A command that requests the hits of one decision.
#[derive(Debug)]
pub(in super::super) struct SingleCommand {
    pub(in super::super) command: Command,
    /// Its number among the commands of the counter.
    pub(in super::super) number: u32,
    /// The hits that it requests.
    pub(in super::super) want: u64,
}

impl LocalCounter {
    /// Returns the command that takes `hits` for one decision, and those that are leased ahead with them, if nothing is to be reported,
    /// and the order of the replies does not matter: for a key that has hardly any hits. None otherwise. `at_least` is the time that a
    /// lease should last.
    pub(in super::super) fn single_command(
        &mut self,
        hits: Hits,
        at_least: Period,
        now: Timestamp,
    ) -> Option<SingleCommand> {
        let is_single = self.rare.is_nothing()
            && self.unacknowledged.is_empty()
            && !self.wants_read
            && self.demand.is_of_few_hits()
            && !flows(&self.target.tiers);
        if !is_single {
            return None;
        }
        let ahead = self.ahead(hits.0, 0, at_least, now);
        let want = hits.0.saturating_add(ahead);
        let number = self.next_number();
        if ahead > 0 {
            self.rare.set_single(SingleRequest { at: now, number, ahead: saturated(ahead) });
        }
        let op = Op::Grant { report: None, least: hits.0, want, hold: Period::default() };
        let command = Command { target: Arc::clone(&self.target), at: now, op };
        Some(SingleCommand { command, number, want })
    }

    /// Returns the hits that a single request in flight leases ahead.
    pub(super) fn requested_ahead(&self) -> u64 {
        self.rare.single().map_or(0, |request| request.ahead.into())
    }

    /// Applies the reply to the single request `number`, whose decision uses the granted hits but for `left`, which are leased.
    pub(in super::super) fn apply_single(&mut self, reply: &Reply, number: u32, left: u64, now: Timestamp) {
        let request = self.rare.take_single(number);
        self.hold_granted(left, reply, Period::default(), now);
        let is_applied = self.apply_reply_to(reply, number, now);
        // a later reply was applied, as if that of this request was known
        self.wants_read |= !is_applied && request.is_some();
        self.notify();
    }

    /// Notes at `now` that the decision of the single request `number`, which was sent, uses none of its `hits`: they are a lease once
    /// they are granted.
    pub(in super::super) fn abandon_single(&mut self, number: u32, hits: Hits, now: Timestamp) {
        let hits = saturated(hits.0);
        match self.rare.single_mut(number) {
            Some(request) => request.ahead = request.ahead.saturating_add(hits),
            None => self.rare.set_single(SingleRequest { at: now, number, ahead: hits }),
        }
    }

    /// Notes that the single request `number` will have no reply, or was not sent.
    pub(in super::super) fn end_single(&mut self, number: u32) {
        // a later reply was applied as if it counted what this one was to grant
        self.wants_read |= self.rare.take_single(number).is_some() && !self.is_later(number);
        self.notify();
    }

    /// Returns whether command `number` is later than the one whose reply was applied last.
    pub(super) fn is_later(&self, number: u32) -> bool {
        number != self.applied && number.wrapping_sub(self.applied) < u32::MAX / 2
    }

    /// Returns a future that completes when a single request in flight has ended. None if there is none, and if it was waited for
    /// already: its decision may not be polled, and nobody else can receive its reply.
    pub(in super::super) fn single_reply(&mut self) -> Option<OwnedNotified> {
        self.rare.single()?;
        let more = self.rare.make_more();
        let is_overdue = std::mem::replace(&mut more.is_single_overdue, true);
        (!is_overdue).then(|| self.fetch_mut().reply())
    }
}
