//! The pools of fair shares that instances share through the store.
//!
//! `instance.rs` has what an instance knows of one pool, without I/O: `member.rs` for each member. `io.rs` speaks to the
//! store: at each step of a cycle an instance *exchanges tables* with it, from which shares are computed beside all
//! decisions, and it *fetches* hits for a member whose requests wait. `take.rs` decides requests, with the tiers beside
//! a pool.

mod exchange;
mod fetch;
mod instance;
mod io;
mod member;
mod take;

use std::{
    borrow::Cow,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Weak},
};

use tokio::{
    runtime::Handle,
    sync::oneshot,
    task::AbortHandle,
    time::{sleep, timeout_at},
};

use self::{
    instance::{Answer, InstancePool},
    member::TryReply,
};
use super::{
    client::StoreClient,
    delivery::{Delivery, Undecided},
    turn::Turn,
};
use crate::{
    limit::{
        Coordination, LimitCheck, OnStoreFailure, OverLimitPolicy, Period, Timestamp, share::PoolDecision,
    },
    store::{
        path::{pool_path_of, shortened},
        pools::{Beside, PoolSlot, PoolSummary, Pools},
        remote::{Remote, Target},
    },
};

/// How often idle pools are swept during one sweep of the counters.
const SWEEPS: u64 = 5;

type Slot = Arc<PoolSlot<InstancePool>>;

pub(super) struct SharedPools<R: Remote> {
    pools: Pools<InstancePool>,
    client: Arc<StoreClient<R>>,
    /// A number of this instance, for the times of its exchanges.
    instance: u64,
    /// Runs the background work. The threads that make decisions may end sooner.
    runtime: Handle,
    this: Weak<Self>,
}

// === impl SharedPools ===

impl<R: Remote> SharedPools<R> {
    /// Must be called within a tokio runtime.
    pub(super) fn new(client: Arc<StoreClient<R>>) -> Arc<Self> {
        let mut hasher = DefaultHasher::new();
        client.caller.settings.instance.hash(&mut hasher);
        let (runtime, jobs) = (Handle::current(), Handle::current());
        let beside = Beside::new(move |job| drop(jobs.spawn_blocking(job)));
        let pools = Pools::new(client.caller.settings.max_counters, beside);
        let instance = hasher.finish();
        Arc::new_cyclic(|this| Self { pools, client, instance, runtime, this: Weak::clone(this) })
    }

    pub(super) async fn sweep(self: Arc<Self>) {
        let pause = Period::from_nanos(self.client.caller.settings.sweep.as_nanos() / SWEEPS);
        for step in 0.. {
            sleep(pause.into()).await;
            self.pools.sweep(step, self.client.time().now);
        }
    }

    pub(super) fn summarize(&self, summary: &mut PoolSummary) {
        self.pools.summarize(summary);
    }

    /// None if `check` has no pool. `now` is on this instance's clock.
    fn step(&self, check: &LimitCheck<'_>, hits: u32, mode: Coordination, now: Timestamp) -> Option<Answer> {
        let slot = self.slot(check)?;
        // grants of the store would come on top of the parts that instances decide by
        let stays_away = self.client.failure_policy(check) == OnStoreFailure::Local;
        let mut answer = self.with_slot(&slot, check, mode, now, |pool, value, at| {
            let is_away = self.client.is_unavailable_for(&pool.target, at);
            pool.decide(value, hits, (is_away, stays_away), at)
        })?;
        match &mut answer {
            Answer::Decided(_, how) => self.client.caller.metrics.of(*how).add(1),
            Answer::Wait { fetch, .. } => {
                if let Some(name) = fetch.take() {
                    self.spawn(|this| this.fetch(slot, name));
                }
            }
            Answer::Away => {}
        }
        Some(answer)
    }

    async fn receive(
        &self,
        check: &LimitCheck<'_>,
        reply: oneshot::Receiver<TryReply>,
        mode: Coordination,
        Turn { now, until, is_of_caller, .. }: Turn<'_>,
    ) -> Result<PoolDecision, Undecided> {
        let Ok(reply) = timeout_at(until, reply).await else {
            let at = self.client.time_at(self.client.local_time_since(now)).now;
            let target = self.with(check, mode, now, |pool, _, _| Arc::clone(&pool.target));
            if let Some(target) = target.filter(|_| !is_of_caller) {
                self.client.record_late_decision(&target, at);
            }
            return Err(Undecided { delivery: Delivery::NotApplied, late: true });
        };
        let decision = reply.ok().flatten().ok_or(Undecided::NOT_ASKED)?;
        self.client.caller.metrics.decisions.waited.add(1);
        Ok(decision)
    }

    fn instances(&self) -> u32 {
        u32::try_from(self.client.instances()).unwrap_or(u32::MAX)
    }

    fn slot(&self, check: &LimitCheck<'_>) -> Option<Slot> {
        let (sharing, key) = (check.sharing()?, check.pool.as_deref()?);
        let tier = &check.tiers()[0];
        Some(self.pools.find(
            key.of_tier(tier),
            || check.rule.label().into(),
            || {
                let target = Target {
                    path: shortened(pool_path_of(check)),
                    tiers: [tier.clone()].into(),
                    over_limit_policy: OverLimitPolicy::Ignore,
                };
                InstancePool::new(target, Arc::clone(sharing), Arc::clone(&self.client.caller.metrics.hits))
            },
        ))
    }

    /// `act` gets the pool, the value that is its member, and the latest instant that it may be on the store's clock:
    /// hits must not be used after their cycle. Schedules an exchange if one is needed.
    fn with<T>(
        &self,
        check: &LimitCheck<'_>,
        mode: Coordination,
        now: Timestamp,
        act: impl FnOnce(&mut InstancePool, &str, Timestamp) -> T,
    ) -> Option<T> {
        self.with_slot(&self.slot(check)?, check, mode, now, act)
    }

    fn with_slot<T>(
        &self,
        slot: &Slot,
        check: &LimitCheck<'_>,
        mode: Coordination,
        now: Timestamp,
        act: impl FnOnce(&mut InstancePool, &str, Timestamp) -> T,
    ) -> Option<T> {
        let at = self.client.time_at(now).latest;
        let sharing = check.sharing()?;
        let value = member(check);
        Some(self.pools.with(slot, |pool| {
            pool.follow(check, sharing, mode);
            let done = act(pool, &value, at);
            if pool.has_news && pool.exchanges.is_none() && !slot.is_gone() {
                // under the lock, so that it ends with the pool
                let (slot, delay) = (Arc::clone(slot), self.delay(pool, true, at));
                pool.exchanges = self.spawn(|this| io::exchange_often(Arc::downgrade(&this), slot, delay));
            }
            (done, pool.idle_at())
        }))
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(
        &self,
        work: impl FnOnce(Arc<Self>) -> F,
    ) -> Option<AbortHandle> {
        Some(self.runtime.spawn(work(self.this.upgrade()?)).abort_handle())
    }
}

/// A long name is shortened in the same way at all instances.
fn member<'a>(check: &'a LimitCheck<'_>) -> Cow<'a, str> {
    match check.member() {
        name if name.len() <= MAX_NAME => name.into(),
        name => String::from(shortened(name.into())).into(),
    }
}

/// In bytes. Longer names are shortened.
const MAX_NAME: usize = 256;
