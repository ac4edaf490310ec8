//! Pending hits: collected, sent to the store, and acknowledged by its reply.

use std::sync::Arc;

use super::{
    LocalCounter,
    records::{DeliveryOutcome, Dropped, PendingDelta},
    tiers::{has_ended, has_flowed_back, same_windows},
};
use crate::{
    limit::{Hits, Timestamp},
    store::{
        coordinated::delivery::Delivery,
        remote::{Command, Op, Reply},
    },
};

impl LocalCounter {
    /// Returns whether there are hits to send.
    pub(in super::super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns whether there are hits to send, and none in flight.
    pub(in super::super) fn can_flush(&self) -> bool {
        self.has_pending() && self.in_flight.is_empty()
    }

    /// Returns when the oldest pending hits were counted.
    pub(in super::super) fn oldest_pending_at(&self) -> Option<Timestamp> {
        self.pending.first().map(|delta| delta.at)
    }

    /// Adds `hits` that were counted at `now` to the pending ones.
    pub(in super::super) fn add_pending(&mut self, hits: i64, now: Timestamp) {
        self.push_pending(PendingDelta { at: now, last_at: now, hits, rejected: 0, lease_end: None });
    }

    pub(super) fn push_pending(&mut self, delta: PendingDelta) {
        if delta.hits == 0 {
            return;
        }
        let tiers = &self.target.tiers;
        match self.pending.last_mut() {
            Some(last) if last.lease_end == delta.lease_end && same_windows(tiers, last.at, delta.at) => {
                last.hits = last.hits.saturating_add(delta.hits);
                last.last_at = delta.last_at;
                last.rejected = last.rejected.saturating_add(delta.rejected);
            }
            _ => self.pending.push(delta),
        }
    }

    /// Moves the pending hits to `commands`, unless an earlier flush is in flight. Hits whose windows have ended are
    /// dropped.
    pub(in super::super) fn take_commands(&mut self, now: Timestamp, commands: &mut Vec<Command>) -> Dropped {
        let mut dropped = Dropped::default();
        if !self.in_flight.is_empty() {
            return dropped;
        }
        for delta in std::mem::take(&mut self.pending) {
            if delta.hits == 0 {
                continue;
            }
            if self.target.tiers.iter().all(|tier| has_ended(tier, delta.at, now)) {
                dropped.unreported += u64::try_from(delta.hits).unwrap_or_default();
            } else if let Some(until) = delta.lease_end
                && has_flowed_back(&self.target.tiers, delta.at, until, now)
            {
                dropped.stranded += delta.hits.unsigned_abs();
            } else {
                self.in_flight.push(delta);
            }
        }
        let command = |delta: &PendingDelta| Command {
            target: Arc::clone(&self.target),
            at: delta.at,
            op: Op::Add { report: delta.report() },
        };
        commands.extend(self.in_flight.iter().map(command));
        dropped
    }

    /// Applies the `delivery` of each command of the last [`LocalCounter::take_commands`]. Commands that were definitely not
    /// applied are pending again.
    pub(in super::super) fn apply_delivery(
        &mut self,
        delivery: impl Fn(usize) -> Delivery,
    ) -> DeliveryOutcome {
        let mut outcome = DeliveryOutcome::default();
        let sent = std::mem::take(&mut self.in_flight);
        let last = sent.len().saturating_sub(1);
        for (i, delta) in sent.into_iter().enumerate().rev() {
            match delivery(i) {
                Delivery::Applied => {
                    let counted = u64::try_from(delta.hits).unwrap_or_default();
                    self.acknowledged += counted;
                    if i == last {
                        outcome.admitted = counted.saturating_sub(delta.rejected);
                    }
                }
                Delivery::NotApplied => self.pending.insert(0, delta),
                Delivery::Unknown => outcome.unknown += delta.hits.unsigned_abs(),
            }
        }
        outcome
    }

    /// Replaces the estimate with the store's counters, adds the pending hits to it, and plans the next flush.
    pub(in super::super) fn apply_reply(&mut self, reply: &Reply, now: Timestamp) {
        if reply.counters.len() != self.target.tiers.len() {
            return;
        }
        self.estimate.clone_from(&reply.counters);
        self.fallback = None;
        for delta in self.pending.iter().filter(|delta| delta.lease_end.is_none()) {
            for (tier, state) in self.target.tiers.iter().zip(&mut self.estimate) {
                match u64::try_from(delta.hits) {
                    Ok(hits) => state.take(tier, delta.at, Hits(hits)),
                    Err(_) => state.give_back(tier, delta.at, Hits(delta.hits.unsigned_abs())),
                }
            }
        }
        self.remaining_at_reply = self.remaining(now);
        // the hits counted here during the first flush are the first measurement of the rate
        let meanwhile = if self.last_reply_at.is_none() { self.unacknowledged_hits() } else { 0 };
        let own = std::mem::take(&mut self.acknowledged) + meanwhile;
        self.usage.record(self.used(now), own, self.instances, self.schedule.interval, now);
        self.schedule.plan(self.usage.time_for(self.remaining_at_reply), now);
        self.last_reply_at = Some(now);
    }

    /// Drops pending hits whose windows have ended, which the store would not count any more.
    pub(in super::super) fn drop_ended(&mut self, now: Timestamp) -> Dropped {
        let mut dropped = Dropped::default();
        let tiers = &self.target.tiers;
        self.pending.retain(|delta| {
            let ended = tiers.iter().all(|tier| has_ended(tier, delta.at, now));
            if ended {
                dropped.unreported += u64::try_from(delta.hits).unwrap_or_default();
            }
            !ended
        });
        dropped
    }

    /// Returns the hits that were taken here since the store's last reply.
    pub(super) fn unacknowledged_hits(&self) -> u64 {
        let deltas = self.pending.iter().chain(&self.in_flight);
        deltas.filter_map(|delta| u64::try_from(delta.hits).ok()).sum()
    }

    /// Returns the hits that are counted in the tier that has the fewest left.
    fn used(&self, now: Timestamp) -> u64 {
        self.estimated_status(now).before.0
    }

    /// Returns how many of the `admitted` hits, which the store has just counted according to `reply`, are above a limit. The
    /// hits counted last are the excess, so every excess hit is reported once, by the instance that admitted it.
    pub(in super::super) fn overshoot(&self, reply: &Reply, admitted: u64, now: Timestamp) -> u64 {
        let over = reply.counters.iter().zip(&self.target.tiers).map(|(state, tier)| {
            state.probe(tier, now, Hits(0)).used.0.saturating_sub(tier.capacity().into())
        });
        over.max().unwrap_or_default().min(admitted)
    }
}
