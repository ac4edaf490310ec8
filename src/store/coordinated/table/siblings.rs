//! Siblings: counters of the same entries whose limits have other tiers.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    CounterTable,
    shards::{Entry, Shard},
};
use crate::{
    limit::{CounterKey, Timestamp},
    store::{
        coordinated::counter::LocalCounter,
        remote::{Remote, Target},
    },
};

impl<R: Remote> CounterTable<R> {
    /// Returns the siblings of the counter of `key` that the store has to hear from before that counter reports what is pending. Nearly
    /// always none.
    pub(in super::super) fn unsettled_siblings(
        &self,
        key: CounterKey,
        now: Timestamp,
    ) -> SmallVec<[CounterKey; 1]> {
        self.shards.lock(key).unsettled_siblings(key, now)
    }

    /// Returns those of the counter of `key`, which has this `target`, and its siblings that have counted something that the store may
    /// not know, each with the instant of the oldest of that. They return their leases.
    pub(in super::super) fn unsettled(
        &self,
        key: CounterKey,
        target: &Target,
        now: Timestamp,
    ) -> SmallVec<[(Option<Timestamp>, CounterKey); 2]> {
        self.shards.lock(key).unsettled(key, target, now)
    }
}

// === impl Shard ===

impl Shard {
    /// As [`CounterTable::unsettled_siblings`]: those that have counted something before the counter did, in the order in which they
    /// did.
    fn unsettled_siblings(&mut self, key: CounterKey, now: Timestamp) -> SmallVec<[CounterKey; 1]> {
        let Some(counter) = self.get_mut(key).filter(|counter| counter.may_have_siblings()) else {
            return SmallVec::new();
        };
        let (target, is_of_rule) = (Arc::clone(&counter.target), counter.is_of_rule());
        let own = counter.oldest_pending_at();
        let precedes = |at: Option<Timestamp>| own.is_none_or(|own| at.is_none_or(|at| at <= own));
        let unsettled = self.siblings(key, &target).filter_map(|Entry { key, counter }| {
            // also of those that have counted later
            let must_settle = counter.must_settle(is_of_rule, now);
            let oldest = counter.oldest_pending_at();
            (must_settle && precedes(oldest)).then_some((oldest, *key))
        });
        let mut unsettled: SmallVec<[_; 1]> = unsettled.collect();
        unsettled.sort_unstable_by_key(|(oldest, _)| *oldest);
        unsettled.into_iter().map(|(_, key)| key).collect()
    }

    /// As [`CounterTable::unsettled`]. The counter itself may have been removed.
    fn unsettled(
        &mut self,
        key: CounterKey,
        target: &Target,
        now: Timestamp,
    ) -> SmallVec<[(Option<Timestamp>, CounterKey); 2]> {
        let mut unsettled = SmallVec::new();
        let mut add = |key: CounterKey, counter: &mut LocalCounter| {
            counter.return_leases();
            if counter.is_unsettled(now) {
                unsettled.push((counter.oldest_pending_at(), key));
            }
        };
        self.siblings(key, target).for_each(|entry| add(entry.key, &mut entry.counter));
        // last, since it has probably counted last where the instants are the same
        if let Some(counter) = self.get_mut(key) {
            add(key, counter);
        }
        unsettled
    }
}
