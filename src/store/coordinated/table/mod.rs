//! The table of local counters: finds the counter of a check, queues it for a flush, and applies replies of the store.

mod batches;
mod due;
mod exchanges;
pub(super) mod flush;
mod mode;
mod queue;
mod shards;
mod siblings;

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU32, Ordering},
};

use self::{
    queue::AttentionQueue,
    shards::{Shard, Shards},
};
use super::{
    client::{QueuedCommand, StoreClient},
    counter::{CommandPlace, Dropped, Generation, LocalCounter, Sent, Try},
    delivery::{Delivery, Undecided},
    metrics::CoordinationMetrics,
    settings::CoordinationSettings,
};
use crate::{
    limit::{Coordination, CounterKey, LimitCheck, Period, Timestamp},
    store::remote::{Command, Op, Remote, RemoteError, Reply, Target},
};

/// The local counters of all coordinated rules.
pub(super) struct CounterTable<R> {
    shards: Shards,
    queue: AttentionQueue,
    client: Arc<StoreClient<R>>,
    /// The sync interval of rules that have none of their own.
    sync_interval: Period,
    /// Whether flushes may be sent before their interval ends, and so wait longer while the limit is far.
    early_sync: bool,
    /// The coordination mode of rules that have none of their own.
    coordination: Coordination,
    /// Whether counters that the store has denied until some instant are denied without a call under `strict`.
    pub(super) local_cache: bool,
    /// The generation of the next counter.
    generations: AtomicU32,
    /// Does for a counter what only the lease mode can do.
    lease_work: OnceLock<DoLeaseWork>,
    /// Also used by the modes, to count their decisions.
    pub(super) metrics: Arc<CoordinationMetrics>,
}

/// Does this for the counter of a key.
pub(super) type DoLeaseWork = Box<dyn Fn(CounterKey, LeaseWork) + Send + Sync>;

/// What the lease mode does for a counter that needs attention.
#[derive(Clone, Copy, Debug)]
pub(super) enum LeaseWork {
    /// It fetches the next lease.
    Renew,
    /// It receives a reply that a decision waits for.
    Receive,
}

/// A command that was queued.
pub(super) struct PlacedCommand {
    /// A reload may have given the counter another one when the reply arrives.
    pub(super) target: Arc<Target>,
    pub(super) place: CommandPlace,
    pub(super) queued: QueuedCommand,
}

/// Returns the key of the counter of `check`. Limits with the same keys in the shared store have the same counter, whether
/// they belong to a rule or to a request.
pub(super) fn counter_key(check: &LimitCheck<'_>) -> CounterKey {
    check.key.of_tiers(check.tiers())
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
            shards: Shards::new(settings.max_counters, settings.max_counter_bytes),
            queue: AttentionQueue::new(),
            client,
            sync_interval: settings.sync_interval,
            early_sync: settings.early_sync,
            coordination: settings.coordination,
            local_cache: settings.local_cache,
            generations: AtomicU32::new(1),
            lease_work: OnceLock::new(),
            metrics,
        }
    }

    /// Has `work` do what only the lease mode can do. To be called once.
    pub(super) fn do_lease_work_by(&self, work: DoLeaseWork) {
        let _ = self.lease_work.set(work);
    }

    /// Has the lease mode do `work` for the counters of `keys`. No shard may be locked.
    fn do_lease_work(&self, work: LeaseWork, keys: impl IntoIterator<Item = CounterKey>) {
        if let Some(act) = self.lease_work.get() {
            keys.into_iter().for_each(|key| act(key, work));
        }
    }

    /// Returns the number of counters.
    pub(super) fn len(&self) -> usize {
        self.shards.len()
    }

    /// Returns the most counters that it may hold.
    pub(super) const fn max_counters(&self) -> usize {
        self.shards.max()
    }

    /// Returns the bytes of their names.
    pub(super) fn name_bytes(&self) -> usize {
        self.shards.name_bytes()
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
        let mut counter = match shard.get_mut(key) {
            Some(counter) => counter,
            None => self.insert(&mut shard, key, check, now),
        };
        if counter.may_have_siblings() {
            counter = shard.get_with_siblings(key).expect("it is there");
        }
        let is_new = counter.requested_mode.is_none();
        if counter.update_rule(check, now) || is_new {
            counter.schedule.set_interval(self.sync_interval_of(check));
            self.choose_mode(counter, check);
        }
        if counter.requested_mode == Some(Coordination::Auto) {
            self.follow_instances(counter, check, now);
        }
        // after that, so that requests with limits of their own do not move the counter between modes
        let replaced = counter.apply_own_limit(check);
        counter.last_check_at = now;
        let result = act(counter);
        if let Some(replaced) = replaced {
            counter.restore_limit(replaced, now);
        }
        self.enqueue(key, counter, now);
        if counter.may_have_siblings() {
            self.shards.share(&mut shard, key, now);
        }
        result
    }

    /// Runs `act` on the counter of `key`, if there is one. Unlike [`CounterTable::with_counter`] it queues nothing.
    pub(super) fn with_existing<T>(
        &self,
        key: CounterKey,
        act: impl FnOnce(&mut LocalCounter) -> T,
    ) -> Option<T> {
        let mut shard = self.shards.lock(key);
        let mut counter = shard.get_mut(key)?;
        if counter.may_have_siblings() {
            counter = shard.get_with_siblings(key)?;
        }
        let result = act(counter);
        if counter.may_have_siblings() {
            let now = counter.last_check_at;
            self.shards.share(&mut shard, key, now);
        }
        Some(result)
    }

    /// Runs `act` on the counter of `key`, if there is one, and it is not another one that has taken the place of that of
    /// `generation`.
    pub(super) fn with_generation<T>(
        &self,
        key: CounterKey,
        generation: Generation,
        act: impl FnOnce(&mut LocalCounter) -> T,
    ) -> Option<T> {
        self.with_existing(key, |counter| (counter.generation == generation).then(|| act(counter))).flatten()
    }

    fn insert<'a>(
        &self,
        shard: &'a mut Shard,
        key: CounterKey,
        check: &LimitCheck<'_>,
        now: Timestamp,
    ) -> &'a mut LocalCounter {
        let generation = Generation(self.generations.fetch_add(1, Ordering::Relaxed));
        let target = Arc::new(Target::of(check));
        let states = shard.introduce(key, &target);
        let mut counter = LocalCounter::new(target, self.sync_interval_of(check), generation, now);
        if !states.is_empty() {
            counter.note_change_of_sibling();
            for sibling in &states {
                counter.adopt_states(sibling);
            }
        }
        self.shards.insert(shard, key, counter, |mut evicted| {
            let single = evicted.take_single_reply(None).map(|(_, want, awaited)| (awaited, want));
            for (mut awaited, want) in evicted.take_awaited().into_iter().chain(single) {
                // unless it was not sent yet, the reply is not received any more
                if !self.client.cancel(&mut awaited.queued) {
                    self.metrics.delivery_unknown.add(want);
                }
                awaited.wake();
            }
            for asked in evicted.take_tries() {
                let _ = asked.outcome.send(Err(Undecided { delivery: Delivery::NotApplied, late: false }));
            }
            evicted.notify();
            if evicted.is_settled() {
                self.metrics.evicted_reported.add(1);
            } else {
                self.metrics.evicted.add(1);
                // what is in flight is counted when its outcome is known
                self.record_dropped(evicted.owed_hits());
            }
        })
    }

    /// Returns the target of `check`.
    pub(super) fn target(&self, check: &LimitCheck<'_>, now: Timestamp) -> Arc<Target> {
        self.with_counter(check, now, |counter| Arc::clone(&counter.target))
    }

    /// Queues a command with `op` about the counter of `check`.
    pub(super) fn queue_command(&self, check: &LimitCheck<'_>, at: Timestamp, op: Op) -> PlacedCommand {
        // under the lock, so that commands are carried out in the order of their numbers
        self.with_counter(check, at, |counter| {
            let target = Arc::clone(&counter.target);
            let queued = self.client.queue(Command { target: Arc::clone(&target), at, op });
            PlacedCommand { target, place: counter.next_place(), queued }
        })
    }

    /// Has a try of `check` wait for the next call to its node. `asked` makes it, with the limit that it is decided by. Returns the generation
    /// of its counter and the number of the command that it will be part of; none if too many wait.
    pub(super) fn queue_try(
        &self,
        check: &LimitCheck<'_>,
        at: Timestamp,
        asked: impl FnOnce(Arc<Target>) -> Try,
    ) -> Option<(Generation, u32)> {
        let key = counter_key(check);
        self.with_counter(check, at, |counter| {
            let asked = asked(Arc::clone(&counter.target));
            let (number, is_first) = counter.add_try(asked).ok()?;
            // queued under the lock, so that commands are carried out in the order of their numbers
            if is_first && !self.client.queue_counter(key, &counter.target, at) {
                drop(counter.take_tries());
                return None;
            }
            Some((counter.generation, number))
        })
    }

    /// Queues the command of one try of `check`, or `op` if there is one in place of it. What is remembered of it has to be applied with the
    /// reply.
    pub(super) fn queue_alone(
        &self,
        check: &LimitCheck<'_>,
        at: Timestamp,
        op: Option<Op>,
        asked: impl FnOnce(Arc<Target>) -> Try,
    ) -> (QueuedCommand, Sent) {
        self.with_counter(check, at, |counter| {
            let target = Arc::clone(&counter.target);
            let sent = Sent::of(counter_key(check), counter.next_place(), asked(Arc::clone(&target)));
            let op = op.unwrap_or_else(|| sent.op());
            (self.client.queue(Command { target, at, op }), sent)
        })
    }

    /// Counts the hits that the reports of an evicted counter have `carried` and that the store has not counted.
    pub(super) fn record_evicted(&self, carried: Dropped, delivery: Delivery) {
        match delivery {
            Delivery::Applied => {}
            Delivery::NotApplied => self.record_dropped(carried),
            Delivery::Unknown => self.metrics.delivery_unknown.add(carried.all()),
        }
    }

    /// Applies the outcome of a flush to `counter`. Returns the reply, if there is one; it is not applied to the estimate yet.
    pub(super) fn apply_outcome<'a>(
        &self,
        counter: &mut LocalCounter,
        outcome: &'a Result<Reply, RemoteError>,
        now: Timestamp,
    ) -> Option<&'a Reply> {
        let delivered = counter.apply_delivery(Delivery::of(outcome));
        self.metrics.delivery_unknown.add(delivered.unknown);
        let reply = outcome.as_ref().ok()?;
        self.metrics.overshoot.add(counter.overshoot(reply, delivered.admitted, now));
        Some(reply)
    }

    /// Counts hits that a counter has dropped.
    pub(super) fn record_dropped(&self, dropped: Dropped) {
        self.metrics.unreported.add(dropped.unreported);
        self.metrics.stranded.add(dropped.stranded);
    }
}

#[cfg(test)]
mod tests;
