//! The table of local counters: finds the counter of a check, queues it for a flush, and applies replies of the store.

mod batches;
pub(super) mod flush;
mod queue;
mod shards;

use std::{ops::Range, sync::Arc};

use self::{
    queue::FlushQueue,
    shards::{Shard, Shards},
};
use super::{
    auto,
    client::StoreClient,
    counter::{Dropped, LocalCounter},
    delivery::Delivery,
    metrics::CoordinationMetrics,
    settings::CoordinationSettings,
};
use crate::{
    limit::{Coordination, CounterKey, LimitCheck, Period, Timestamp},
    store::remote::{Remote, RemoteError, Replies, Reply, Target},
};

/// The local counters of all coordinated rules.
pub(super) struct CounterTable<R> {
    shards: Shards,
    queue: FlushQueue,
    client: Arc<StoreClient<R>>,
    /// The sync interval of rules that have none of their own.
    sync_interval: Period,
    /// The coordination mode of rules that have none of their own.
    coordination: Coordination,
    /// Also used by the modes, to count their decisions.
    pub(super) metrics: Arc<CoordinationMetrics>,
}

/// Returns the key of the counter of `check`. Limits with the same keys in the shared store have the same counter, whether
/// they belong to a rule or to a request.
pub(super) fn counter_key(check: &LimitCheck<'_>) -> CounterKey {
    check.key.of_tiers(check.tiers(), check.over_limit_policy())
}

// === impl CounterTable ===

impl<R: Remote> CounterTable<R> {
    /// Creates an empty table that flushes to `client`.
    pub(super) fn new(
        client: Arc<StoreClient<R>>,
        settings: &CoordinationSettings,
        metrics: Arc<CoordinationMetrics>,
    ) -> Self {
        Self {
            shards: Shards::new(settings.max_counters),
            queue: FlushQueue::new(settings.sync_interval, settings.early_sync),
            client,
            sync_interval: settings.sync_interval,
            coordination: settings.coordination,
            metrics,
        }
    }

    /// Returns the number of counters.
    pub(super) fn len(&self) -> usize {
        self.shards.len()
    }

    /// Runs `act` on the counter of `check`, which is created if it does not exist, and queues the counter if it then has
    /// pending hits.
    pub(super) fn with_counter<T>(
        &self,
        check: &LimitCheck<'_>,
        now: Timestamp,
        act: impl FnOnce(&mut LocalCounter) -> T,
    ) -> T {
        let key = counter_key(check);
        let mut shard = self.shards.lock(key);
        let counter = match shard.get_mut(&key) {
            Some(counter) => counter,
            None => self.insert(&mut shard, key, check, now),
        };
        if counter.update_rule(check) {
            self.choose_mode(counter, check);
        }
        if counter.requested_mode == Some(Coordination::Auto) {
            self.follow_instances(counter);
        }
        counter.last_check_at = now;
        let result = act(counter);
        self.enqueue(key, counter, now);
        result
    }

    /// Runs `act` on the counter of `key`, if there is one. Unlike [`CounterTable::with_counter`] it queues nothing.
    pub(super) fn with_existing<T>(
        &self,
        key: CounterKey,
        act: impl FnOnce(&mut LocalCounter) -> T,
    ) -> Option<T> {
        self.shards.lock(key).get_mut(&key).map(|counter| act(counter))
    }

    fn insert<'a>(
        &self,
        shard: &'a mut Shard,
        key: CounterKey,
        check: &LimitCheck<'_>,
        now: Timestamp,
    ) -> &'a mut LocalCounter {
        if self.shards.make_room(shard) {
            self.metrics.evicted.add(1);
        }
        let interval = check
            .rule
            .declared()
            .and_then(|rule| rule.coordination.sync_interval)
            .unwrap_or(self.sync_interval);
        self.queue.shorten_interval(interval);
        shard
            .entry(key)
            .or_insert_with(|| Box::new(LocalCounter::new(Arc::new(Target::of(check)), interval, now)))
    }

    /// Runs `act` on the counter of `check` if its coordination mode is `mode`. Otherwise returns the counter's mode.
    pub(super) fn with_mode<T>(
        &self,
        check: &LimitCheck<'_>,
        mode: Coordination,
        now: Timestamp,
        act: impl FnOnce(&mut LocalCounter) -> T,
    ) -> Result<T, Coordination> {
        self.with_counter(
            check,
            now,
            |counter| if counter.mode == mode { Ok(act(counter)) } else { Err(counter.mode) },
        )
    }

    /// Chooses the coordination mode of `counter` when its rule or its target has changed.
    fn choose_mode(&self, counter: &mut LocalCounter, check: &LimitCheck<'_>) {
        let requested = self.requested_mode(check);
        // a request that carries its own limit reaches this every time, although nothing has changed
        if counter.requested_mode != Some(requested) {
            counter.requested_mode = Some(requested);
            let requested = match requested {
                Coordination::Auto => auto::first(&counter.target.tiers, self.client.most_instances_lately()),
                requested => requested,
            };
            self.switch_mode(counter, requested);
        }
    }

    /// Chooses the coordination mode of `counter`, whose rule requests `auto`, again if the number of instances has changed.
    fn follow_instances(&self, counter: &mut LocalCounter) {
        let wanted = auto::next(counter.mode, &counter.target.tiers, self.client.most_instances_lately());
        let is_exact = matches!(counter.mode, Coordination::Lease | Coordination::Strict);
        if is_exact != (wanted == Coordination::Lease) {
            match wanted {
                Coordination::Lease => self.metrics.to_lease.add(1),
                _ => self.metrics.to_interval.add(1),
            }
            self.switch_mode(counter, wanted);
        }
    }

    /// Changes the mode of `counter` to `wanted`, or to the nearest that the store supports. Pending hits stay pending, and
    /// are reported before a lease is requested. Leases are returned.
    fn switch_mode(&self, counter: &mut LocalCounter, wanted: Coordination) {
        counter.mode = self.client.nearest_mode(&counter.target, wanted);
        if counter.mode != Coordination::Lease {
            counter.return_leases();
        }
    }

    /// Returns the coordination mode that the counter of `check`, whose rule requests `auto`, probably has.
    pub(super) fn expected_mode(&self, check: &LimitCheck<'_>) -> Coordination {
        auto::first(check.tiers(), self.client.most_instances_lately())
    }

    /// Returns the coordination mode that the rule of `check` requests.
    pub(super) fn requested_mode(&self, check: &LimitCheck<'_>) -> Coordination {
        check.rule.coordination().unwrap_or(self.coordination)
    }

    /// Returns the target of `check` and its coordination mode.
    pub(super) fn target_and_mode(
        &self,
        check: &LimitCheck<'_>,
        now: Timestamp,
    ) -> (Arc<Target>, Coordination) {
        self.with_counter(check, now, |counter| (Arc::clone(&counter.target), counter.mode))
    }

    /// Returns the target of `check`.
    pub(super) fn target(&self, check: &LimitCheck<'_>, now: Timestamp) -> Arc<Target> {
        self.with_counter(check, now, |counter| Arc::clone(&counter.target))
    }

    /// Queues `counter` for a flush, if it has pending hits.
    pub(super) fn enqueue(&self, key: CounterKey, counter: &mut LocalCounter, now: Timestamp) {
        if counter.has_pending() {
            self.queue.push(key, counter, self.client.instances(), self.client.round_trip(), now);
        }
    }

    /// Applies the outcome of a call to `counter`, whose commands are those in `range`. Returns the last reply to them, if
    /// there is one; it is not applied to the estimate yet.
    pub(super) fn apply_outcome<'a>(
        &self,
        counter: &mut LocalCounter,
        outcome: &'a Result<Replies, RemoteError>,
        range: Range<usize>,
    ) -> Option<&'a Reply> {
        let replies = match outcome {
            Err(error) => {
                let delivered = counter.apply_delivery(|_| Delivery::of_error(error));
                self.metrics.delivery_unknown.add(delivered.unknown);
                return None;
            }
            Ok(replies) => replies,
        };
        let own = replies.replies.get(range).unwrap_or_default();
        let delivered = counter.apply_delivery(|i| own.get(i).map_or(Delivery::Unknown, Delivery::of));
        self.metrics.delivery_unknown.add(delivered.unknown);
        let last = own.last()?.as_ref().ok()?;
        self.metrics.overshoot.add(counter.overshoot(last, delivered.admitted, replies.now));
        Some(last)
    }

    /// Counts hits that a counter has dropped.
    pub(super) fn record_dropped(&self, dropped: Dropped) {
        self.metrics.unreported.add(dropped.unreported);
        self.metrics.stranded.add(dropped.stranded);
    }
}
