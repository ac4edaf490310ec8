//! Telling the store what was counted here, and taking in what it tells.

use std::sync::Arc;

use super::{
    LocalCounter, Lost, Owed, Sent,
    tiers::{has_ended, has_flowed_back},
};
use crate::{
    limit::{Hits, OverLimitPolicy, Timestamp, decision_from_store},
    store::remote::{Command, Reply},
};

impl LocalCounter {
    pub(in super::super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// When the oldest hits were counted that the store is to be told of.
    pub(in super::super) fn oldest_unsent(&self) -> Option<Timestamp> {
        self.unsent.first().map(|owed| owed.at)
    }

    /// Adds to `commands` what the store is to be told now. Nothing while it has not answered the last time.
    pub(in super::super) fn send(&mut self, now: Timestamp, commands: &mut Vec<Command>) -> Lost {
        let mut lost = Lost::default();
        if !self.in_flight.is_empty() {
            return lost;
        }
        for owed in std::mem::take(&mut self.unsent) {
            if owed.hits == 0 {
                continue;
            }
            if self.target.tiers.iter().all(|tier| has_ended(tier, owed.at, now)) {
                lost.uncounted += u64::try_from(owed.hits).unwrap_or_default();
            } else if owed.returned.is_some() && has_flowed_back(&self.target.tiers, owed.at, now) {
                lost.stranded += owed.hits.unsigned_abs();
            } else {
                self.in_flight.push(owed);
            }
        }
        let command = |owed: &Owed| Command { target: Arc::clone(&self.target), at: owed.at, op: owed.op() };
        commands.extend(self.in_flight.iter().map(command));
        lost
    }

    /// The store has carried out, or not, what it was told with the last [`LocalCounter::send`]. What was certainly not
    /// carried out is owed again.
    pub(in super::super) fn sent(&mut self, undone: impl Fn(usize) -> Option<bool>) -> Sent {
        let mut sent = Sent::default();
        let told = std::mem::take(&mut self.in_flight);
        let last = told.len().saturating_sub(1);
        for (i, owed) in told.into_iter().enumerate().rev() {
            match undone(i) {
                None => {
                    let counted = u64::try_from(owed.hits).unwrap_or_default();
                    self.acknowledged += counted;
                    if i == last {
                        sent.admitted = counted.saturating_sub(owed.refused);
                    }
                }
                Some(true) => self.unsent.insert(0, owed),
                Some(false) => sent.unknown += owed.hits.unsigned_abs(),
            }
        }
        sent
    }

    /// The store has told how its counters are; they now are the view, with what it does not know of yet.
    pub(in super::super) fn heard(&mut self, reply: &Reply, now: Timestamp) {
        if reply.counters.len() != self.target.tiers.len() {
            return;
        }
        self.view.clone_from(&reply.counters);
        self.alone = None;
        for owed in self.unsent.iter().filter(|owed| owed.returned.is_none()) {
            for (tier, counter) in self.target.tiers.iter().zip(&mut self.view) {
                match u64::try_from(owed.hits) {
                    Ok(decision) => counter.take(tier, owed.at, Hits(decision)),
                    Err(_) => counter.give_back(tier, owed.at, Hits(owed.hits.unsigned_abs())),
                }
            }
        }
        self.room = self.remaining(now);
        // what was counted here while the first word was on its way says how fast it goes before anything else does
        let meanwhile = if self.heard_at.is_none() { self.own() } else { 0 };
        let own = std::mem::take(&mut self.acknowledged) + meanwhile;
        self.flow.heard(self.most_used(now), own, self.instances, self.sync.interval, now);
        self.sync.plan(self.flow.time_for(self.room), now);
        self.heard_at = Some(now);
    }

    /// Hits that are counted in the tier that has the fewest left.
    fn most_used(&self, now: Timestamp) -> u64 {
        decision_from_store(&self.target.tiers, &self.view, OverLimitPolicy::Ignore, false, Hits(0), now)
            .before
            .0
    }

    /// How many of the hits that were `admitted` here, and that the store has just counted as it tells by `reply`, are above a
    /// limit. What is counted last is too much: so every hit above it is told once, by the instance that admitted it.
    pub(in super::super) fn overshoot(&self, reply: &Reply, admitted: u64, now: Timestamp) -> u64 {
        let over = reply.counters.iter().zip(&self.target.tiers).map(|(counter, tier)| {
            counter.probe(tier, now, Hits(0)).used.0.saturating_sub(tier.capacity().into())
        });
        over.max().unwrap_or_default().min(admitted)
    }

    /// What all tiers would still admit, by the view.
    pub(super) fn remaining(&self, now: Timestamp) -> u64 {
        let left = self
            .view
            .iter()
            .zip(&self.target.tiers)
            .map(|(c, tier)| c.availability(tier, now).remaining.into());
        left.min().unwrap_or_default()
    }
}
