//! The order of a counter's commands. Replies may arrive in another order, and must not replace what a later one has shown.

use super::{Generation, LocalCounter};
use crate::{limit::Timestamp, store::remote::Reply};

/// The place of a command among those of its counter.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct CommandPlace {
    pub(in super::super) generation: Generation,
    number: u32,
}

impl LocalCounter {
    /// Returns the number of the next command. Commands of one counter are queued, and carried out, in this order, except for flushes,
    /// which are calls of their own.
    pub(super) const fn next_number(&mut self) -> u32 {
        self.sent = self.sent.wrapping_add(1);
        self.sent
    }

    /// Returns the place of the next command, which has to be queued before the counter's lock is released.
    pub(in super::super) const fn next_place(&mut self) -> CommandPlace {
        CommandPlace { number: self.next_number(), generation: self.generation }
    }

    /// Returns the place of command `number`.
    pub(super) const fn place_of(&self, number: u32) -> CommandPlace {
        CommandPlace { number, generation: self.generation }
    }

    /// Applies the reply to the command of `place`, which may be one of an evicted counter that this one has replaced. Returns whether it
    /// was applied: a reply that a later one has overtaken changes nothing.
    pub(in super::super) fn apply_reply(
        &mut self,
        reply: &Reply,
        place: CommandPlace,
        now: Timestamp,
    ) -> bool {
        // the store has carried it out before all commands of this counter, whose numbers begin with 1
        let number = if place.generation == self.generation { place.number } else { 0 };
        self.apply_reply_to(reply, number, now)
    }

    /// Returns whether command `number` is later than the one whose reply was applied last.
    pub(super) const fn is_later(&self, number: u32) -> bool {
        number != self.applied && number.wrapping_sub(self.applied) < u32::MAX / 2
    }

    /// Returns whether a flush is in flight, which the next command may overtake, since it is a call of its own. Reports of a fetch are
    /// carried out in their order.
    pub(in super::super) fn has_flush_in_flight(&self) -> bool {
        self.unacknowledged.is_in_flight() && !self.reports_in_order()
    }

    /// Returns whether reports are in flight which the next command does not overtake.
    pub(in super::super) fn reports_in_order(&self) -> bool {
        self.unacknowledged.is_in_flight() && self.fetch().is_some_and(|fetch| fetch.is_running)
    }

    /// Returns whether the next command would be carried out by a store that does not know some of what was counted here, or when.
    pub(in super::super) fn is_ahead_of_store(&self, now: Timestamp) -> bool {
        if self.unacknowledged.is_in_flight() {
            return self.has_flush_in_flight();
        }
        self.has_unacknowledged() || self.counted_until() > now
    }
}
