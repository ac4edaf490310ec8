//! The table of local counters: finds the counter of a check, queues it for a flush, and applies replies of the store.

mod exchanges;
mod flush;
mod queue;
pub(super) mod sender;
mod shards;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use parking_lot::Mutex;

pub(super) use self::exchanges::Waiting;
use self::{
    queue::{AttentionQueue, NodeQueue},
    shards::{CounterEntry, CounterShard, Shards},
};
use super::{
    CoordinationMetrics,
    client::StoreClient,
    counter::{DroppedHits, Generation, LocalCounter, Switch, Tries, auto},
    link::sha256,
};
use weir_limit::{Coordination, CounterKey, Direction, LimitCheck, Timestamp};
use weir_store::{
    remote::{Remote, StoreNode, Target},
    wakeup::{Wakeups, wake_all},
};

pub(super) struct CounterTable<R> {
    pub(super) shards: Shards,
    queue: AttentionQueue,
    /// Of the nodes of the store.
    nodes: Mutex<BTreeMap<StoreNode, NodeQueue>>,
    client: Arc<StoreClient<R>>,
    generations: AtomicU32,
}

// === impl CounterTable ===

impl<R: Remote> CounterTable<R> {
    pub(super) fn new(client: Arc<StoreClient<R>>) -> Self {
        let settings = &client.settings;
        let shards = Shards::new(settings.max_counters, settings.max_counter_bytes);
        let (queue, nodes, generations) = (AttentionQueue::new(), Mutex::default(), AtomicU32::new(1));
        Self { shards, queue, nodes, client, generations }
    }

    /// Other numbers of the same tiers have the same key.
    #[inline]
    pub(super) fn key_of(&self, check: &LimitCheck<'_>) -> CounterKey {
        check.key.of_tiers(check.tiers()).of_home(self.client.remote.home(check.tiers()))
    }

    /// The counter is created if it does not exist, and queued if it then has something to send.
    pub(super) fn with_counter<T>(
        &self,
        check: &LimitCheck<'_>,
        now: Timestamp,
        act: impl FnOnce(CounterKey, &mut LocalCounter) -> T,
    ) -> T {
        let key = self.key_of(check);
        // dropped after the lock, which wakes their callers
        let mut orphans = Tries::new();
        let mut shard = self.shards.lock(key.shard());
        let entry = match shard.entry_mut(key) {
            Some(entry) => entry,
            None => self.insert(&mut shard, key, check, &mut orphans, now),
        };
        let counter = &mut entry.counter;
        counter.follow_instances(self.client.instances());
        let is_new = counter.choice.requested_mode.is_none();
        if counter.follow_limit(check, now) || is_new {
            self.shards.claim(&mut entry.key, key);
            let interval = check.rule.declared().and_then(|rule| rule.coordination.sync_interval);
            counter.plan.schedule.set_interval(interval.unwrap_or(self.client.settings.sync_interval));
            self.choose_mode(counter, check);
        }
        if counter.choice.requested_mode == Some(Coordination::Auto) {
            self.choose_again(counter, check, now);
        }
        counter.last_check_at = now;
        let result = act(key, counter);
        let mut woken = Wakeups::new();
        if entry.counter.talk.has_to_send() {
            self.send_tries(entry, &self.link_now(), &mut woken);
        }
        self.enqueue(entry, now);
        drop(shard);
        wake_all(&mut woken);
        result
    }

    /// `act` gets none if there is no counter, or it has another `generation`. Queues nothing.
    pub(super) fn with_existing<T>(
        &self,
        key: CounterKey,
        generation: Option<Generation>,
        act: impl FnOnce(Option<&mut CounterEntry>) -> T,
    ) -> T {
        let mut shard = self.shards.lock(key.shard());
        let entry = shard.entry_mut(key);
        act(entry.filter(|entry| generation.is_none_or(|meant| entry.counter.generation() == meant)))
    }

    fn insert<'a>(
        &self,
        shard: &'a mut CounterShard,
        key: CounterKey,
        check: &LimitCheck<'_>,
        orphans: &mut Tries,
        now: Timestamp,
    ) -> &'a mut CounterEntry {
        let CoordinationMetrics { hits, evictions, .. } = &*self.client.metrics;
        let generation = Generation(self.generations.fetch_add(1, Ordering::Relaxed));
        let target = Arc::new(Target::of(check, sha256));
        let mut counter = LocalCounter::new(target, self.client.settings.sync_interval, generation, now);
        for other in shard.all_of(key.shard()) {
            counter.begin_beside(&mut other.counter);
            // what it has returned does not wait for the sweep
            self.enqueue(other, now);
        }
        self.shards.insert(shard, key, counter, |mut evicted| {
            // their decisions are made without the store
            orphans.extend(evicted.take_tries());
            // the store may take what the fallback has decided meanwhile
            hits.delivery_unknown.add(evicted.talk.given_up_hits());
            if evicted.is_settled() {
                evictions.evicted_reported.add(1);
            } else {
                evictions.evicted.add(1);
                // what is in flight is counted when its outcome is known
                self.record_dropped(evicted.ledger.owed());
            }
        })
    }

    pub(super) fn record_dropped(&self, dropped: DroppedHits) {
        let hits = &self.client.metrics.hits;
        hits.unreported.add(dropped.unreported);
        hits.stranded.add(dropped.stranded);
    }

    /// To be called when the rule or the target of `counter` has changed.
    fn choose_mode(&self, counter: &mut LocalCounter, check: &LimitCheck<'_>) {
        let requested = self.client.requested_mode(check);
        if counter.choice.requested_mode.replace(requested) != Some(requested) {
            counter.choice.is_in_burst = false;
            let wanted = match requested {
                Coordination::Auto => auto::wanted(check.tiers(), false, self.client.membership.instances()),
                _ => requested,
            };
            self.switch_mode(counter, wanted);
        }
    }

    /// For a rule that requests `auto`: the number of instances may have changed, or `check` may be part of a burst.
    fn choose_again(&self, counter: &mut LocalCounter, check: &LimitCheck<'_>, now: Timestamp) {
        let taking = (check.direction == Direction::Take).then_some(check.hits);
        let (instances, round_trip) = (self.client.membership.instances(), self.client.round_trip());
        let switch = Switch::of(counter, taking, instances, round_trip, now);
        let Some(switch) = switch else { return };
        let was_in_burst = std::mem::replace(&mut counter.choice.is_in_burst, switch == Switch::Burst);
        let wanted = if switch == Switch::Large { Coordination::Interval } else { Coordination::Lease };
        let is_other = self.switch_mode(counter, wanted);
        let switches = &self.client.metrics.switches;
        match switch {
            Switch::Burst => switches.bursts.add(1),
            // the store may support neither
            Switch::Small if is_other => switches.to_lease.add(1),
            Switch::Large if !was_in_burst => switches.to_interval.add(1),
            Switch::Small | Switch::Large => {}
        }
    }

    /// To `wanted`, or the nearest mode that the store supports. Returns whether it is another one. Pending hits are
    /// reported before a lease is requested.
    fn switch_mode(&self, counter: &mut LocalCounter, wanted: Coordination) -> bool {
        let before = counter.choice.mode;
        counter.change_mode(self.client.nearest_mode(&counter.target, wanted));
        counter.choice.mode != before
    }
}

#[cfg(test)]
mod tests;
