//! The pools of fair shares that instances share through the store.
//!
//! `instance.rs` has what an instance knows of one pool, and what it asks the store, without I/O: at each step of a cycle
//! an instance *exchanges tables* with the store, from which shares are computed beside all decisions, and it *fetches*
//! hits for a member whose requests wait.
//!
//! A request counts in its pool and in the tiers beside it, or nowhere. The tiers beside a pool are ordinary counters of
//! the member. They take the hits first, and give them back if the pool rejects them: until then they may reject other
//! requests, but only of a member that the pool has nothing for. A pool would withhold hits from others.

mod instance;

use std::{
    borrow::Cow,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    pin::pin,
    sync::{Arc, Weak},
};

use tokio::{
    runtime::Handle,
    time::{sleep, timeout_at},
};

use self::instance::{AwaitedReply, InstancePool, Replied, rule};
use super::{
    Coordinated,
    client::{Delivery, StoreClient, StoreTime, sha256},
    counter::TryVerdict,
    modes::{DecisionContext, record_mode, recorded},
};
use weir_limit::{
    Coordination, Decision, Direction, Hits, LimitCheck, OnStoreFailure, OverLimitPolicy, Period,
    Reservation, ReservationRequest, ReservedSpan, Scope, Timestamp,
};
use weir_store::{
    TakeOptions,
    path::{pool_path_of, shortened, shortened_name},
    pool_command::PoolCommand,
    pools::{JobRunner, PoolSlot, PoolSummary, Pools, clamped, combined, decision_of},
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
    mode: Coordination,
    slot: InstanceSlot,
    value: Cow<'a, str>,
}

// === impl SharedPools ===

impl<R: Remote> SharedPools<R> {
    /// Must be called within a tokio runtime.
    pub(super) fn new(client: Arc<StoreClient<R>>) -> Arc<Self> {
        let (runtime, jobs) = (Handle::current(), Handle::current());
        let runner = JobRunner::new(move |job| drop(jobs.spawn_blocking(job)));
        let pools = Pools::new(client.settings.max_counters, runner);
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
        Some(Member { mode, slot, value: shortened_name(check.member(), sha256) })
    }

    /// What does not `fit` beside the pool is only demand.
    fn decide(
        self: &Arc<Self>,
        Member { mode, slot, value }: &Member<'_>,
        check: &LimitCheck<'_>,
        fits: bool,
        now: Timestamp,
    ) -> PoolStep {
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
            mode if mode.syncs() => step.min(self.client.settings.sync_interval),
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

// === impl Coordinated ===

impl<R: Remote> Coordinated<R> {
    /// None without a pool, or if each instance has its own.
    pub(crate) fn pool_member<'a>(&self, check: &'a LimitCheck<'a>) -> Option<Member<'a>> {
        check.pool.as_ref()?;
        let mode = self.client.requested_mode(check).of_pool();
        if mode.is_coordinated() { self.pools.member(check, mode) } else { None }
    }

    /// None if `check` does not count in a shared pool alone, which most often needs no wait.
    pub(crate) async fn take_of_pool(
        &self,
        check: &LimitCheck<'_>,
        now: Timestamp,
        options: TakeOptions<'_>,
    ) -> Option<Decision> {
        let member = self.pool_member(check).filter(|_| check.own_tiers().is_empty())?;
        record_mode(options.record, member.mode);
        Some(match self.pools.decide(&member, check, true, now) {
            Ok(decision) => decision,
            Err(waiting) => {
                Box::pin(self.wait_for_pool(&member, check, waiting, self.context(now, options))).await
            }
        })
    }

    /// The verdict is that of the tiers beside the pool, with the decision of both.
    pub(crate) async fn take_shared(
        &self,
        member: &Member<'_>,
        check: &LimitCheck<'_>,
        context: DecisionContext<'_>,
    ) -> TryVerdict {
        record_mode(context.record, member.mode);
        let beside = check.of_own_tiers(check.hits);
        let mut taken = None;
        if let Some(beside) = &beside {
            taken = Some(self.take_check(beside, Scope::Request, context).await);
        }
        let fits = taken.is_none_or(|taken| !taken.decision.over);
        let own = match self.pools.decide(member, check, fits, context.now) {
            Ok(decision) => decision,
            Err(waiting) => self.wait_for_pool(member, check, waiting, context).await,
        };
        if let (Some(beside), Some(taken), true) = (&beside, taken, own.over) {
            // the pool has rejected what they have taken
            self.undo(beside, taken, context);
            return TryVerdict { decision: own, ..taken };
        }
        let decision = combined(own, taken.map(|taken| taken.decision));
        taken.map_or(TryVerdict::new(decision, context.now), |taken| TryVerdict { decision, ..taken })
    }

    async fn wait_for_pool(
        &self,
        Member { slot, value, .. }: &Member<'_>,
        check: &LimitCheck<'_>,
        waiting: AwaitedReply,
        context: DecisionContext<'_>,
    ) -> Decision {
        let time = self.client.time_at(context.now);
        if let Some(reply) = waiting {
            let received = pin!(async {
                match timeout_at(context.until, reply).await {
                    Ok(Ok(decision)) => Ok(decision),
                    _ => Err(Delivery::NotApplied),
                }
            });
            if let Ok(decision) = recorded(context, 1, received).await {
                self.client.metrics.decisions.waited.add(1);
                return decision_of(decision, check.hits);
            }
        }
        self.client.metrics.decisions.fallback.add(1);
        let (policy, instances) = (self.client.failure_policy(check), self.pools.instances());
        let decided = self.pools.with(slot, time, |pool| {
            pool.decide_without_store(value, clamped(check.hits), policy, instances)
        });
        decision_of(decided, check.hits).by_fallback()
    }

    /// The decision is over the limit if `hits` do not fit by what this instance knows.
    pub(crate) fn look_shared(
        &self,
        member: &Member<'_>,
        check: &LimitCheck<'_>,
        hits: Hits,
        now: Timestamp,
    ) -> Decision {
        let own = self.pools.with(&member.slot, self.client.time_at(now), |pool| pool.look(&member.value));
        let own = Decision { over: hits.0 > u64::from(own.remaining), ..decision_of(own, hits) };
        combined(own, check.of_own_tiers(hits).map(|beside| self.look(&beside, hits, now)))
    }

    /// In the pool alone, where the hits are held for the next requests of the member.
    pub(crate) fn give_back_to_pool(&self, member: &Member<'_>, check: &LimitCheck<'_>, now: Timestamp) {
        self.pools.with(&member.slot, self.client.time_at(now), |pool| {
            pool.give_back(&member.value, clamped(check.hits));
        });
    }

    /// What the pool has taken is held for its next requests. Those of the tiers beside it are in `taken`.
    pub(crate) fn undo_shared(
        &self,
        member: &Member<'_>,
        check: &LimitCheck<'_>,
        taken: TryVerdict,
        context: DecisionContext<'_>,
    ) {
        if let Some(beside) = check.of_own_tiers(check.hits) {
            self.undo(&beside, taken, context);
        }
        self.give_back_to_pool(member, check, context.now);
    }

    pub(crate) async fn reserve_shared(
        &self,
        member: &Member<'_>,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Reservation {
        let context = self.context(now, TakeOptions::default());
        // a new member has a share from then on
        self.pools.with(&member.slot, self.client.time_at(now), |pool| _ = pool.ask(&member.value, 0));
        let looked = self.look_shared(member, check, Hits(0), now);
        let fitting = request.fit(Hits(looked.remaining.into()));
        let hits = if fitting == Hits(0) { request.least.max(Hits(1)) } else { fitting };
        let asked = LimitCheck { hits, direction: Direction::Take, ..check.copied() };
        let decision = self.take_shared(member, &asked, context).await.decision;
        let at = self.client.time_at(now).latest;
        let cycle_ends = at.window_end(asked.tiers()[0].period);
        let until = now.after(request.hold.min(cycle_ends.since(at)));
        let hits = if decision.over { Hits(0) } else { hits };
        Reservation { hits, until, decision, counted: ReservedSpan { from: now, until, is_reported: true } }
    }

    pub(crate) async fn release_shared(
        &self,
        member: &Member<'_>,
        check: &LimitCheck<'_>,
        from: Timestamp,
        hits: Hits,
        now: Timestamp,
    ) {
        let context = self.context(now, TakeOptions::default());
        let check = LimitCheck { hits, direction: Direction::GiveBack, ..check.copied() };
        let period = check.tiers()[0].period;
        if from.window_end(period) == now.window_end(period) {
            self.take_shared(member, &check, context).await;
        } else if let Some(beside) = check.of_own_tiers(hits) {
            self.take_check(&beside, Scope::Request, context).await;
        }
    }
}
