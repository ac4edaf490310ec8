//! The table of local counters: finds the counter of a check, queues it for a flush, and applies replies of the store.

mod flush;
pub(super) mod sender;
mod shards;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use self::{
    flush::AttentionQueue,
    sender::NodeQueue,
    shards::{CounterEntry, CounterShard, Shards},
};
use super::{
    CoordinationMetrics, CoordinationSettings,
    client::{Delivery, ExchangeOutcome, Link, SentTry, StoreClient, StoreTime, sha256},
    counter::{
        FlushUrgency, Generation, Group, LocalCounter, PendingOutcome, Sent, Switch, Tries, TryKind,
        TryOutcome,
    },
    metrics::HitCounts,
};
use weir_limit::{Coordination, CounterKey, Direction, Hits, LimitCheck, Timestamp, capacity};
use weir_store::{
    Unreported,
    remote::{Remote, StoreNode, Target},
    wakeup::Wakeups,
};

/// How long an instance asks the store for each decision about a counter that is reset, if it hears of no end.
const LONGEST_RESET: Duration = Duration::from_secs(5);

pub(super) struct CounterTable<R> {
    pub(super) shards: Shards,
    queue: AttentionQueue,
    nodes: Mutex<BTreeMap<StoreNode, NodeQueue>>,
    client: Arc<StoreClient<R>>,
    generations: AtomicU32,
    resets: Resets,
}

/// The counters that are about to be cleared in the store, each until the last reset of it ends.
#[derive(Debug, Default)]
struct Resets {
    /// How many there are, so that others need no lock.
    count: AtomicUsize,
    keys: Mutex<BTreeMap<CounterKey, HeldReset>>,
}

#[derive(Clone, Copy, Debug)]
struct HeldReset {
    /// The resets that have not ended.
    holders: u32,
    /// When they have ended at the latest: a reload may take the rule away by which an end finds the counter.
    until: Instant,
}

/// A decision that waits for the store. If dropped, its try is not sent, or what the store takes for it is given back.
#[derive(Debug)]
pub(crate) struct Waiting {
    key: CounterKey,
    generation: Generation,
    id: u32,
    hits: Hits,
    kind: TryKind,
    outcome: PendingOutcome,
    /// The commands that were sent for it, one or none.
    pub(crate) commands: u32,
}

/// Gives back what the store has taken if it is dropped.
struct Awaited<'a, R: Remote> {
    table: &'a CounterTable<R>,
    waiting: Option<Waiting>,
}

// === impl CounterTable ===

impl<R: Remote> CounterTable<R> {
    pub(super) fn new(client: Arc<StoreClient<R>>) -> Self {
        let settings = &client.settings;
        let shards = Shards::new(settings.max_counters, settings.max_counter_bytes);
        let (queue, nodes, generations) = (AttentionQueue::new(), Mutex::default(), AtomicU32::new(1));
        Self { shards, queue, nodes, client, generations, resets: Resets::default() }
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
            self.choose_mode(counter, key, check);
        }
        if counter.choice.requested_mode == Some(Coordination::Auto) {
            self.choose_again(counter, check, now);
        }
        counter.last_check_at = now;
        let result = act(key, counter);
        if entry.counter.traffic.has_to_send() {
            self.send_tries(entry, &self.link_now());
        }
        self.enqueue(entry, now);
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
            counter.begin_as_sibling(&mut other.counter);
            // what it has returned does not wait for the sweep
            self.enqueue(other, now);
        }
        self.shards.insert(shard, key, counter, |mut evicted| {
            // their decisions are made without the store
            orphans.extend(evicted.take_tries());
            // the store may take what the fallback has decided meanwhile
            hits.delivery_unknown.add(evicted.traffic.given_up_hits());
            if evicted.is_settled() {
                evictions.evicted_reported.add(1);
            } else {
                evictions.evicted.add(1);
                // what is in flight is counted when its outcome is known
                self.hits().record(evicted.ledger.owed());
            }
        })
    }

    pub(super) fn hits(&self) -> &HitCounts {
        &self.client.metrics.hits
    }

    /// To be called when the rule or the target of `counter` has changed.
    fn choose_mode(&self, counter: &mut LocalCounter, key: CounterKey, check: &LimitCheck<'_>) {
        let is_reset = self.resets.contain(key);
        let requested = if is_reset { Coordination::Strict } else { self.client.requested_mode(check) };
        if counter.choice.requested_mode.replace(requested) != Some(requested) {
            counter.choice.is_in_burst = false;
            let instances = self.client.membership.instances_or_many();
            self.switch_mode(counter, requested.of_limit(capacity(check.tiers()), instances));
        }
    }

    /// Until [`Self::end_reset`], each decision asks the store.
    pub(super) fn begin_reset(&self, check: &LimitCheck<'_>, unreported: Unreported, now: Timestamp) {
        let key = self.key_of(check);
        self.resets.begin(key);
        self.with_existing(key, None, |entry| {
            let Some(entry) = entry else { return };
            self.choose_mode(&mut entry.counter, key, check);
            if unreported == Unreported::Dropped {
                self.hits().record(entry.counter.drop_unreported());
            }
            self.enqueue(entry, now);
        });
    }

    /// The counter begins again.
    pub(super) fn end_reset(&self, check: &LimitCheck<'_>, now: Timestamp) {
        let key = self.key_of(check);
        if self.resets.end(key) {
            self.with_existing(key, None, |entry| {
                if let Some(entry) = entry {
                    entry.counter.begin_anew(now);
                }
            });
        }
    }

    /// For a rule that requests `auto`: the number of instances may have changed, or `check` may be part of a burst.
    fn choose_again(&self, counter: &mut LocalCounter, check: &LimitCheck<'_>, now: Timestamp) {
        let taking = (check.direction == Direction::Take).then_some(check.hits);
        let (instances, round_trip) = (self.client.membership.instances_or_many(), self.client.round_trip());
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

    /// Applies the outcome of what was `sent`. Adds the callers whose decisions it makes to `woken`.
    pub(super) fn apply(
        &self,
        sent: &mut Sent,
        outcome: ExchangeOutcome<'_>,
        link: &Link,
        woken: &mut Wakeups,
    ) {
        let (key, carried, delivery) = (sent.key, sent.carried, Delivery::of(&outcome));
        self.with_existing(key, Some(sent.generation), |entry| {
            let Some(entry) = entry else {
                let carried = carried.unwrap_or_default();
                match delivery {
                    Delivery::Applied => {}
                    Delivery::NotApplied => self.hits().record(carried),
                    _ => self.hits().delivery_unknown.add(carried.all()),
                }
                return sent.decide_alone(outcome, self.hits(), woken);
            };
            sent.apply(&mut entry.counter, outcome, link, self.hits(), woken);
            entry.counter.follow_instances(link.instances);
            self.send_tries(entry, link);
            // a store that rejects reports, for want of memory, say, would otherwise have one in every round trip
            let has_failed = delivery != Delivery::Applied && carried.is_some();
            let most = if has_failed { FlushUrgency::Interval } else { FlushUrgency::Now };
            self.enqueue_for(most, entry, link.time.now);
        });
    }

    pub(crate) fn outcome(&self, waiting: Waiting, deadline: Instant) -> impl Future<Output = TryOutcome> {
        // a block, which has it once: an `async fn` would have its argument too
        let mut awaited = Awaited { table: self, waiting: Some(waiting) };
        async move {
            let outcome = async { (&mut awaited.waiting.as_mut()?.outcome).await };
            let replied = timeout_at(deadline, outcome).await;
            let waiting = awaited.waiting.take();
            let outcome = replied.unwrap_or_else(|_| Some(self.give_up(waiting?)));
            // none if the counter was evicted
            outcome.unwrap_or(Err(Delivery::NotApplied))
        }
    }

    fn give_up(&self, waiting: Waiting) -> TryOutcome {
        let Waiting { key, generation, id, hits, kind, mut outcome, .. } = waiting;
        let taking = match kind {
            TryKind::Take(_) | TryKind::Lease(_) => Some(hits),
            TryKind::GiveBack(_) => None,
            TryKind::Look | TryKind::Reserve(_) => Some(Hits(0)),
        };
        self.with_existing(key, Some(generation), |entry| {
            let Some(CounterEntry { counter, .. }) = entry else { return Err(Delivery::Unknown) };
            // tries are decided under the lock: it may just have been
            if let Some(decided) = outcome.take_or_leave() {
                return decided;
            }
            let is_sent = counter.traffic.give_up(id, taking);
            let sent = SentTry { generation: generation.0, id };
            Err(if is_sent { Delivery::OnWay(sent) } else { Delivery::NotApplied })
        })
    }

    /// Queues `counter` if some of its tries may leave, or it wants a lease.
    pub(super) fn send_tries(&self, CounterEntry { key, counter, .. }: &mut CounterEntry, link: &Link) {
        if counter.can_send_tries(link) {
            counter.traffic.open().is_queued = true;
            self.queue_tries(*key, &counter.target, link.time.now);
        }
    }

    pub(super) fn drop_ended(&self, counter: &mut LocalCounter, link: &Link) {
        // an instance that is not alone any more returns other leases
        counter.follow_instances(link.instances);
        self.hits().record(counter.expire_leases(link.time));
        self.hits().record(counter.drop_ended(link.time.now));
    }

    pub(crate) fn link_now(&self) -> Link {
        self.link_at(self.client.time())
    }

    pub(crate) fn link_at(&self, time: StoreTime) -> Link {
        let CoordinationSettings { budget, local_cache, .. } = self.client.settings;
        let (instances, round_trip) = (self.client.instances(), self.client.round_trip());
        Link { time, instances, writer: self.client.writer, round_trip, budget, local_cache }
    }
}

// === impl Resets ===

impl Resets {
    fn contain(&self, key: CounterKey) -> bool {
        let is_held = || self.keys.lock().get(&key).is_some_and(|held| held.until > Instant::now());
        self.count.load(Ordering::Relaxed) > 0 && is_held()
    }

    fn begin(&self, key: CounterKey) {
        let (mut keys, now) = (self.keys.lock(), Instant::now());
        keys.retain(|_, held| held.until > now);
        let held = keys.entry(key).or_insert(HeldReset { holders: 0, until: now });
        *held = HeldReset { holders: held.holders + 1, until: now + LONGEST_RESET };
        self.count.store(keys.len(), Ordering::Relaxed);
    }

    /// Returns whether it was the last one of `key`.
    fn end(&self, key: CounterKey) -> bool {
        let mut keys = self.keys.lock();
        let others = keys.get_mut(&key).is_some_and(|held| {
            held.holders -= 1;
            held.holders > 0
        });
        if !others {
            keys.remove(&key);
        }
        self.count.store(keys.len(), Ordering::Relaxed);
        !others
    }
}

// === impl Waiting ===

impl Waiting {
    /// None if too many decisions wait for the counter. Up to `Exchange::MAX_RUNS` tries of a group are made together.
    pub(crate) fn ask(
        (key, counter): (CounterKey, &mut LocalCounter),
        (hits, kind): (Hits, TryKind),
        group: Option<Group>,
    ) -> Option<Self> {
        let (id, outcome) = counter.add_try(hits, kind, group)?;
        let generation = counter.generation();
        // the first one sends the command that others may join
        let commands = u32::from(counter.traffic.tries.len() == 1);
        Some(Self { key, generation, id, hits, kind, outcome, commands })
    }
}

// === impl Awaited ===

impl<R: Remote> Drop for Awaited<'_, R> {
    fn drop(&mut self) {
        let Some(Waiting { key, generation, hits, kind, mut outcome, .. }) = self.waiting.take() else {
            return;
        };
        self.table.with_existing(key, Some(generation), |entry| {
            // tries are decided under the lock
            let Some(decided) = outcome.take_or_leave() else { return };
            let taken = decided.map_or(Hits(0), |tried| tried.taken(kind, hits));
            let Some(entry) = entry else {
                // it was evicted
                return self.table.hits().stranded.add(taken.0);
            };
            let counter = &mut entry.counter;
            match (decided, kind) {
                (Ok(tried), TryKind::Reserve(request)) if taken > Hits(0) => {
                    counter.give_back_reserved(request, tried);
                }
                (Ok(tried), _) if taken > Hits(0) => counter.uncount(hits, tried.at),
                (Err(Delivery::NotApplied), _) => {
                    counter.count_return(hits, kind);
                }
                _ => return,
            }
            self.table.enqueue(entry, self.table.client.time().now);
        });
    }
}

#[cfg(test)]
mod tests;
