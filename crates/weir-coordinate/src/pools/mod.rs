//! The pools of fair shares that instances share through the store.
//!
//! `instance.rs` has what an instance knows of one pool, and `exchange.rs` what it asks the store, both without I/O: at
//! each step of a cycle an instance *exchanges tables* with the store, from which shares are computed beside all
//! decisions, and it *fetches* hits for a member whose requests wait. `take.rs` decides requests, with the tiers beside
//! a pool.

mod exchange;
mod instance;
mod take;

use std::{
    borrow::Cow,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Weak},
};

use tokio::{runtime::Handle, time::sleep};

use self::{
    exchange::Replied,
    instance::{AwaitedReply, InstancePool, rule},
};
use super::{
    client::StoreClient,
    link::{StoreTime, sha256},
};
use weir_limit::{
    Coordination, Decision, Direction, Hits, LimitCheck, OnStoreFailure, OverLimitPolicy, Period, Timestamp,
};
use weir_store::{
    path::{pool_path_of, shortened, shortened_name},
    pool_command::PoolCommand,
    pools::{Beside, PoolSlot, PoolSummary, Pools, clamped, decision_of},
    remote::{Remote, RemoteError, Target},
};

/// The longest random delay of an exchange, so that instances do not all ask at once, and its largest part of a cycle.
const JITTER: Period = Period::from_millis(20);
const JITTER_PART: u64 = 40;

type InstanceSlot = Arc<PoolSlot<InstancePool>>;

/// A decision that needed no wait, or what it waits for.
type PoolStep = Result<Decision, AwaitedReply>;

pub(super) struct SharedPools<R: Remote> {
    pools: Pools<InstancePool>,
    client: Arc<StoreClient<R>>,
    /// Runs the background work. The threads that make decisions may end sooner.
    runtime: Handle,
}

/// A member of a pool, as a check names it.
pub(super) struct Member<'a> {
    check: &'a LimitCheck<'a>,
    mode: Coordination,
    slot: InstanceSlot,
    value: Cow<'a, str>,
}

// === impl Member ===

impl Member<'_> {
    /// Returns the member for a `check` that differs in its hits.
    fn of<'a>(&'a self, check: &'a LimitCheck<'a>) -> Member<'a> {
        Member { check, mode: self.mode, slot: Arc::clone(&self.slot), value: Cow::Borrowed(&self.value) }
    }
}

// === impl SharedPools ===

impl<R: Remote> SharedPools<R> {
    /// Must be called within a tokio runtime.
    pub(super) fn new(client: Arc<StoreClient<R>>) -> Arc<Self> {
        let (runtime, jobs) = (Handle::current(), Handle::current());
        let beside = Beside::new(move |job| drop(jobs.spawn_blocking(job)));
        let pools = Pools::new(client.settings.max_counters, beside);
        Arc::new(Self { pools, client, runtime })
    }

    pub(super) async fn sweep(self: Arc<Self>) {
        for step in 0.. {
            sleep(self.client.settings.sweep.into()).await;
            self.pools.sweep(step, self.client.time().now);
        }
    }

    pub(super) fn summarize(&self, summary: &mut PoolSummary) {
        self.pools.summarize(summary);
    }

    /// To be called after the last decision. Reports what the store does not know, and returns held hits.
    pub(super) async fn close(self: &Arc<Self>) {
        for slot in self.pools.all() {
            // what is not reported, maybe in the next cycle, then hits that were held for those that asked
            for _ in 0..3 {
                self.exchange(&slot).await;
            }
        }
    }

    /// None if `check` has no pool.
    fn member<'a>(&self, check: &'a LimitCheck<'a>, mode: Coordination) -> Option<Member<'a>> {
        let (sharing, key, tier) = (check.sharing()?, check.pool.as_deref()?, &check.tiers()[0]);
        let make = || {
            let target = Target {
                path: shortened(pool_path_of(check), sha256),
                tiers: [tier.clone()].into(),
                over_limit_policy: OverLimitPolicy::Ignore,
            };
            InstancePool::new(target, Arc::clone(sharing), Arc::clone(&self.client.metrics.hits))
        };
        let slot = self.pools.find(key.of_tier(tier), || check.rule.label().into(), make);
        Some(Member { check, mode, slot, value: shortened_name(check.member(), sha256) })
    }

    /// What does not `fit` beside the pool is only demand.
    fn decide(self: &Arc<Self>, member: &Member<'_>, fits: bool, now: Timestamp) -> PoolStep {
        let Member { check, mode, slot, value } = member;
        let (hits, takes) = (clamped(check.hits), check.direction == Direction::Take);
        self.with(slot, self.client.time_at(now), |pool| {
            pool.follow(check, *mode);
            if takes && fits && hits > 0 {
                let is_away = self.client.is_unavailable_for(&pool.target, pool.now);
                pool.was_away |= is_away;
                // grants of the store would come on top of the parts that instances decide by
                let stays_away = pool.was_away && self.client.failure_policy(check) == OnStoreFailure::Local;
                let fetch = |name: &str| {
                    drop(self.runtime.spawn(Arc::clone(self).fetch(Arc::clone(slot), name.into())));
                };
                let (decision, how) = pool.decide(value, hits, is_away || stays_away, fetch)?;
                self.client.metrics.of(how).add(1);
                return Ok(decision_of(decision, check.hits));
            }
            if !takes {
                pool.give_back(value, hits);
            } else if hits > 0 {
                pool.ask(value, hits);
            }
            Ok(decision_of(pool.look(value), Hits(0)))
        })
    }

    /// Schedules an exchange if one is needed.
    fn with<T>(
        self: &Arc<Self>,
        slot: &InstanceSlot,
        time: StoreTime,
        act: impl FnOnce(&mut InstancePool) -> T,
    ) -> T {
        self.pools.with(slot, |pool| {
            // hits must not be used after their cycle
            pool.roll(time.latest);
            let done = act(pool);
            if pool.has_news && pool.exchanges.is_none() && !slot.is_gone() {
                // under the lock, so that it ends with the pool
                let exchanges = repeat(Arc::downgrade(self), Arc::clone(slot), self.delay(pool, true));
                pool.exchanges = Some(self.runtime.spawn(exchanges).abort_handle());
            }
            (done, pool.view.idle_at(&rule(&pool.target, &pool.sharing)))
        })
    }

    /// The time until the next exchange: at the next step, unless it is to be `soon`.
    fn delay(&self, pool: &InstancePool, soon: bool) -> Period {
        let longest = JITTER.as_nanos().min(pool.target.tiers[0].period.as_nanos() / JITTER_PART);
        let mut hasher = DefaultHasher::new();
        (&self.client.settings.instance, &pool.target.path, pool.now).hash(&mut hasher);
        let jitter = hasher.finish() % (longest + 1);
        let step = pool.span[1].since(pool.now);
        match pool.mode {
            _ if soon => Period::from_nanos(jitter),
            Coordination::Interval => step.min(self.client.settings.sync_interval),
            _ => step + Period::from_nanos(jitter),
        }
    }

    /// Until no request of the member waits.
    async fn fetch(self: Arc<Self>, slot: InstanceSlot, name: Box<str>) {
        let begin = |pool: &mut InstancePool| pool.begin_fetch(&name, self.instances());
        let mut next = self.with(&slot, self.client.time(), begin);
        while let Some(command) = next {
            let reply = self.call(&command).await;
            next = self.with(&slot, self.client.time(), |pool| {
                pool.end_fetch(&name, command, reply);
                // at once, so that nobody else begins
                begin(pool)
            });
        }
    }

    /// Returns the time until the next exchange; none if there is nothing to exchange.
    async fn exchange(self: &Arc<Self>, slot: &InstanceSlot) -> Option<Period> {
        let command = self.with(slot, self.client.time(), InstancePool::begin_exchange)?;
        let reply = self.call(&command).await;
        Some(self.with(slot, self.client.time(), |pool| {
            let is_other_cycle = pool.end_exchange(command, reply);
            self.delay(pool, is_other_cycle)
        }))
    }

    async fn call(&self, command: &PoolCommand) -> Replied {
        if self.client.is_unavailable_for(&command.target, self.client.time().latest) {
            return Err(RemoteError::NotSent("the node does not reply".into()));
        }
        self.client.call_pool(command.clone()).await
    }

    fn instances(&self) -> u32 {
        u32::try_from(self.client.instances()).unwrap_or(u32::MAX)
    }
}

/// Exchanges tables after `delay`, and then at each step, until there is nothing to exchange.
async fn repeat<R: Remote>(pools: Weak<SharedPools<R>>, slot: InstanceSlot, delay: Period) {
    let mut next = Some(delay);
    while let Some(delay) = next {
        sleep(delay.into()).await;
        let Some(pools) = pools.upgrade() else { return };
        // only for its time: pools wait much longer than they exchange tables
        next = Box::pin(pools.exchange(&slot)).await;
    }
}
