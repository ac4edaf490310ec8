//! Siblings: counters of the same entries whose limits have other tiers.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{CounterTable, shards::Shard};
use crate::{
    limit::{CounterKey, Timestamp},
    store::remote::Remote,
};

impl<R: Remote> CounterTable<R> {
    /// Returns the siblings of the counter of `key` that the store has to hear from before it decides about that counter. Nearly
    /// always none.
    pub(in super::super) fn unsettled_siblings(
        &self,
        key: CounterKey,
        now: Timestamp,
    ) -> SmallVec<[CounterKey; 1]> {
        self.shards.lock(key).unsettled_siblings(key, now)
    }

    /// Returns the siblings of the counter of `key` for which a decision waits.
    pub(in super::super) fn awaited_siblings(&self, key: CounterKey) -> SmallVec<[CounterKey; 1]> {
        self.shards.lock(key).awaited_siblings(key)
    }
}

// === impl Shard ===

impl Shard {
    /// Returns the siblings of the counter of `key` that have something to send to the store before it decides about that counter.
    fn unsettled_siblings(&mut self, key: CounterKey, now: Timestamp) -> SmallVec<[CounterKey; 1]> {
        let Some(counter) = self.get_mut(key).filter(|counter| counter.may_have_siblings()) else {
            return SmallVec::new();
        };
        let (target, is_of_rule) = (Arc::clone(&counter.target), counter.is_of_rule());
        let siblings = self.siblings(key, &target);
        let unsettled =
            siblings.filter_map(|entry| entry.counter.must_settle(is_of_rule, now).then_some(entry.key));
        unsettled.collect()
    }

    /// Returns the siblings of the counter of `key` for which a decision waits.
    fn awaited_siblings(&mut self, key: CounterKey) -> SmallVec<[CounterKey; 1]> {
        let Some(counter) = self.get_mut(key).filter(|counter| counter.may_have_siblings()) else {
            return SmallVec::new();
        };
        let target = Arc::clone(&counter.target);
        let siblings = self.siblings(key, &target).filter(|entry| entry.counter.is_awaited());
        siblings.map(|entry| entry.key).collect()
    }
}
