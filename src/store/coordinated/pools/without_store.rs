//! Decisions that the store does not make, and hits that are given back.

use std::sync::Arc;

use super::{
    alone::Alone,
    instance::{InstancePool, rule},
};
use crate::limit::{Coordination, Timestamp, share::PoolDecision};

impl InstancePool {
    /// Decides without the store: by this instance's part of what the pool had when the store replied last. The hits
    /// were counted as demand already.
    pub(super) fn decide_alone(
        &mut self,
        value: &str,
        hits: u32,
        instances: u32,
        at: Timestamp,
    ) -> PoolDecision {
        self.roll(at);
        let rule = rule(&self.target, &self.sharing);
        let left = rule.capacity.saturating_sub(self.total);
        let members = self.members.iter().map(|(name, member)| {
            let demand = if member.asked_before > 0 { member.asked_before } else { member.asked_in_cycle };
            (&**name, demand)
        });
        let alone = self.alone.get_or_insert_with(|| Alone::new(&rule, left / instances.max(1), members, at));
        let decision = alone.decide(&rule, value, hits, at);
        self.count_without_store(value, hits, decision.is_admitted);
        decision
    }

    /// Counts a request that was decided without the store.
    pub(super) fn count_without_store(&mut self, value: &str, hits: u32, is_admitted: bool) {
        let name = self.place(value);
        if let Some(member) = self.members.get_mut(name) {
            member.count(hits, is_admitted);
            if is_admitted {
                member.unreported.granted += i64::from(hits);
            }
        }
    }

    /// Gives `hits` back that `value` was admitted with in this cycle. They are held for its next requests, unless the
    /// store did not grant them.
    pub(super) fn give_back(&mut self, value: &str, hits: u32, mode: Coordination, at: Timestamp) {
        self.roll(at);
        let (name, is_away) = (self.place(value), self.is_away());
        let Some(member) = self.members.get_mut(name) else { return };
        let hits = hits.min(member.admitted);
        member.admitted -= hits;
        if mode != Coordination::Interval && !is_away {
            member.held += hits;
            return;
        }
        member.unreported.granted -= i64::from(hits);
        self.has_news = true;
        let rule = rule(&self.target, &self.sharing);
        match &mut self.alone {
            Some(alone) if is_away => alone.give_back(&rule, name, hits, at),
            _ => {
                Arc::make_mut(&mut self.view).add(name, 0, -i64::from(hits));
                self.total = self.view.granted();
            }
        }
    }
}
