//! Single requests: commands that request the hits of one decision, and what is leased ahead with them.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::sync::futures::OwnedNotified;

use super::{LocalCounter, fetch::AwaitedReply, records::SingleRequest, tiers::flows};
use crate::{
    limit::{Hits, Period, Timestamp},
    store::{
        coordinated::client::{QueuedCommand, QueuedOutcome},
        remote::{Command, Op, Reply},
    },
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

/// What its decision finds when it looks for the reply to a single request.
#[derive(Debug)]
pub(in super::super) enum SingleReply {
    /// The reply. None if the store is closed.
    Own(Option<QueuedOutcome>),
    /// Somebody else receives it.
    Other(OwnedNotified),
    /// The request has ended.
    Over,
}

impl LocalCounter {
    /// Returns the command that takes `hits` for one decision, and those that are leased ahead with them, if nothing is to be reported,
    /// and the order of the replies does not matter: for a key that has hardly any hits. None otherwise. `at_least` is the time that a
    /// lease should last. The counter knows of the request until its reply is applied, so that others can wait for it.
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
        self.rare.set_single(SingleRequest { at: now, number, hits: hits.0, ahead, awaited: None });
        let op = Op::Grant { report: None, least: hits.0, want, hold: Period::default() };
        let command = Command { target: Arc::clone(&self.target), at: now, op };
        Some(SingleCommand { command, number, want })
    }

    /// Notes how the reply to the single request is received.
    pub(in super::super) fn await_single(&mut self, queued: QueuedCommand) {
        if let Some(request) = self.rare.single_mut() {
            request.awaited = Some(AwaitedReply { queued, waker: None });
        }
    }

    /// Looks for the reply to the single request `number`, for its decision.
    pub(in super::super) fn poll_single(
        &mut self,
        number: u32,
        context: &mut Context<'_>,
    ) -> Poll<SingleReply> {
        let request = self.rare.single_mut().filter(|request| request.number == number);
        let Some(request) = request else { return Poll::Ready(SingleReply::Over) };
        let Some(awaited) = &mut request.awaited else {
            return Poll::Ready(SingleReply::Other(self.fetch_mut().reply()));
        };
        if let Poll::Ready(outcome) = Pin::new(&mut awaited.queued.reply).poll(context) {
            request.awaited = None;
            return Poll::Ready(SingleReply::Own(outcome.ok()));
        }
        awaited.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Returns the reply to the single request of this `number`, or to any, if nobody has received it yet, and the number. Its decision does
    /// not use the hits any more before they are a lease like any other.
    pub(in super::super) fn take_single_reply(
        &mut self,
        number: Option<u32>,
    ) -> Option<(u32, u64, AwaitedReply)> {
        let request = self.rare.single_mut()?;
        let awaited = request.awaited.take_if(|_| number.is_none_or(|number| number == request.number))?;
        request.ahead = request.ahead.saturating_add(std::mem::take(&mut request.hits));
        Some((request.number, request.ahead, awaited))
    }

    /// Returns the hits that a single request in flight leases ahead.
    pub(super) fn requested_ahead(&self) -> u64 {
        self.rare.single().map_or(0, |request| request.ahead)
    }

    /// Applies the reply to the single request `number`, whose decision uses the granted hits but for `left`, which are leased.
    pub(in super::super) fn apply_single(&mut self, reply: &Reply, number: u32, left: u64, now: Timestamp) {
        let leases_ahead = self.rare.take_single().is_some_and(|request| request.ahead > 0);
        self.hold_granted(left, reply, Period::default(), now);
        self.keep_granted(reply.granted, now);
        // if a later reply was applied, that was as if the reply to this request was known; a flush may have overtaken it
        let may_lack_it = leases_ahead || self.applied == self.flushed;
        self.wants_read |= !self.apply_reply_to(reply, number, now) && may_lack_it;
        self.notify();
    }

    /// Notes that the single request `number` will have no reply, or was not sent.
    pub(in super::super) fn end_single(&mut self, number: u32) {
        let leases_ahead = self.rare.take_single().is_some_and(|request| request.ahead > 0);
        // a later reply was applied as if it counted what this one was to grant
        self.wants_read |= leases_ahead && !self.is_later(number);
        self.notify();
    }

    /// Returns whether hits are pending while a decision waits for a reply. Reports may have to wait for it too.
    pub(in super::super) fn is_held_up(&self) -> bool {
        self.has_awaited_reply() && self.has_pending()
    }

    /// Returns whether a decision waits for a reply that it applies itself. It may not be polled.
    pub(in super::super) fn has_awaited_reply(&self) -> bool {
        self.fetch().is_some_and(|fetch| fetch.awaited.is_some())
            || self.rare.single().is_some_and(|single| single.awaited.is_some())
    }

    /// Returns whether hits that were given back have to wait for the reply to a request before they are reported: the store gives back
    /// none of the hits that it grants meanwhile.
    pub(super) fn must_report_after_request(&self) -> bool {
        let is_requesting = self.rare.single().is_some()
            || self.fetch().is_some_and(|fetch| fetch.is_running && fetch.want > 0);
        is_requesting && self.unacknowledged.pending().iter().any(|delta| !delta.change.is_addition())
    }
}
