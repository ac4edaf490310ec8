//! The coordination modes together: picks the mode of a check, and has it decide within its budget.

use std::{pin::pin, time::Duration};

use futures_util::future::join_all;
use smallvec::{SmallVec, smallvec};

use super::{
    Coordinated,
    counter::{Ask, Asks, Decided, LocalCounter, Tried},
    delivery::{Delivery, Undecided},
    link::StoreTime,
    table::Waiting,
    turn::Turn,
};
use crate::{
    limit::{
        Coordination, CounterKey, Decision, Direction, Hits, LimitCheck, Period, Reservation,
        ReservationRequest, Scope, SharedCounts, Timestamp,
        line::Estimate,
        part::Place,
        request_bucket::{BucketName, BucketReply, BucketRequest},
    },
    observe::DecisionRecord,
    store::{
        Decisions, MemoryStore, Store, StoreError, TakeOptions, has_repeated, places_by_counter,
        remote::{Exchange, Remote},
    },
};

/// A decision that needed no wait, or what it waits for: the store decides.
pub(super) type Step = Result<Made, Waiting>;

/// A decision, and how its hits are given back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    pub(super) decision: Decision,
    /// What became of the command, if the hits were counted in the fallback. None if they count where the mode counts.
    pub(super) fallback: Option<Delivery>,
    /// On the store's clock.
    pub(super) at: Timestamp,
    /// Whether its hits are counted, if they are admitted.
    pub(super) is_counted: bool,
}

pub(super) fn at_places<'a, 'b>(
    checks: &'a [LimitCheck<'b>],
    places: &[usize],
) -> SmallVec<[&'a LimitCheck<'b>; 2]> {
    places.iter().map(|place| &checks[*place]).collect()
}

pub(super) fn in_order(decided: impl IntoIterator<Item = (usize, Decision)>) -> Decisions {
    let mut decided: SmallVec<[(usize, Decision); 4]> = decided.into_iter().collect();
    decided.sort_unstable_by_key(|(place, _)| *place);
    decided.into_iter().map(|(_, decision)| decision).collect()
}

/// Returns how many of `checks` of one counter fit in one command: the first, and those that follow under its limit.
pub(super) fn of_one_limit(checks: &[&LimitCheck<'_>]) -> usize {
    let first = checks[0];
    let is_of_limit = |check: &&&LimitCheck<'_>| {
        check.rule.id() == first.rule.id()
            && check.tiers() == first.tiers()
            && check.over_limit_policy() == first.over_limit_policy()
    };
    checks.iter().take(Exchange::MAX_RUNS).take_while(is_of_limit).count()
}

// === impl Made ===

impl Made {
    const fn by_mode(decision: Decision, at: Timestamp) -> Self {
        Self { decision, fallback: None, at, is_counted: true }
    }

    const fn by_fallback(decision: Decision, delivery: Delivery, at: Timestamp) -> Self {
        Self { decision, fallback: Some(delivery), at, is_counted: true }
    }
}

// === impl Coordinated ===

impl<R: Remote> Store for Coordinated<R> {
    fn longest_wait(&self) -> Duration {
        self.client.settings.budget.into()
    }

    fn shared_counts(&self) -> SharedCounts {
        let settings = &self.client.settings;
        SharedCounts {
            store: Some(self.remote().shared_store()),
            mode: settings.coordination,
            sync_interval: settings.sync_interval,
            on_store_failure: settings.on_store_failure,
            instances: Some(self.instances()),
        }
    }

    fn memory(&self) -> Option<&MemoryStore> {
        Some(self.memory())
    }

    fn lines_for(&self, check: &LimitCheck<'_>) -> Option<&MemoryStore> {
        // the counters of other modes are not in this memory alone
        let is_local = self.table.requested_mode(check) == Coordination::Local;
        is_local.then(|| self.memory())
    }

    fn place(&self, check: &LimitCheck<'_>) -> Place {
        if self.table.requested_mode(check) == Coordination::Split {
            // nobody else asks for this instance's part
            return Place::ALONE;
        }
        self.client.place()
    }

    fn estimate(&self, check: &LimitCheck<'_>, now: Timestamp) -> Option<Estimate> {
        if self.table.requested_mode(check) == Coordination::Split {
            return self.split.estimate(&self.memory, check, now);
        }
        let at = self.client.time_at(now).now;
        let counters = self.table.with_counter(check, at, |counter| counter.estimated().into());
        Some(Estimate { counters, at, part: None })
    }

    async fn reserve_for_waiters(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        patience: Period,
        now: Timestamp,
    ) -> Result<Reservation, StoreError> {
        self.reserve_within(check, request, patience, now).await
    }

    async fn take_with(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
        options: TakeOptions<'_>,
    ) -> Result<Decisions, StoreError> {
        let mut decisions = self.take_checks(checks, scope, now, options).await;
        for (check, decision) in checks.iter().zip(&mut decisions) {
            self.bound_wait(check, decision, now);
        }
        Ok(decisions)
    }

    async fn reserve(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Result<Reservation, StoreError> {
        self.reserve_within(check, request, self.client.settings.budget, now).await
    }

    async fn release(
        &self,
        check: &LimitCheck<'_>,
        reservation: Reservation,
        unused: Hits,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let (at, span) = (self.client.time_at(now).now, reservation.counted);
        let hits = unused.min(reservation.hits);
        if let Some(member) = self.pool_member(check) {
            Box::pin(self.release_shared(&member, span.from, hits, now)).await;
            return Ok(());
        }
        match self.mode(check, at) {
            Coordination::Local => self.memory.release_now(check, reservation, unused, now),
            Coordination::Split => self.split.release(&self.memory, check, reservation, unused, now),
            // sent with the next flush, after all hits that were counted here before, so that it does not wait and no
            // outage loses it
            _ => self.table.with_counter(check, at, |counter| {
                counter.release(span, hits, at);
            }),
        }
        Ok(())
    }

    async fn decide_bucket(
        &self,
        name: &BucketName<'_>,
        request: &BucketRequest,
        now: Timestamp,
    ) -> Result<BucketReply, StoreError> {
        self.decide_bucket_of(name, request, now).await
    }

    async fn find_buckets(
        &self,
        name: &BucketName<'_>,
        deletes: bool,
        now: Timestamp,
    ) -> Result<Option<Period>, StoreError> {
        self.find_buckets_of(name, deletes, now).await
    }
}

impl<R: Remote> Coordinated<R> {
    async fn take_checks(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
        TakeOptions { record, wait, all_quotas }: TakeOptions<'_>,
    ) -> Decisions {
        let has_pools = checks.iter().any(|check| check.pool.is_some());
        if checks.iter().all(|check| self.table.requested_mode(check) == Coordination::Local) {
            self.client.metrics.decisions.local.add(checks.len() as u64);
            if has_pools {
                self.memory.divide_pools_between(self.client.instances());
            }
            if let Some(record) = record.filter(|_| !checks.is_empty()) {
                record.add_mode(Coordination::Local.name());
            }
            return self.memory.decide(checks, scope, now);
        }
        if has_pools {
            return self.take_with_pools(checks, scope, now, TakeOptions { record, wait, all_quotas }).await;
        }
        let turn = || Turn::begin(now, self.client.settings.budget, wait, record);
        if scope == Scope::Request {
            if checks.iter().all(|check| self.table.requested_mode(check) == Coordination::Split)
                && let Some(decisions) =
                    self.split.decide_together(&self.memory, checks.iter(), scope, self.split.time_at(now))
            {
                record_mode(record, Coordination::Split);
                return decisions;
            }
            // boxed to keep the future of all other requests small
            return Box::pin(self.take_all_or_none(checks, turn(), all_quotas)).await;
        }
        if let [check] = checks {
            let step = match self.step(check, scope, now, record) {
                Ok(made) => return smallvec![made.decision],
                waiting => waiting,
            };
            return smallvec![self.finish(check, scope, step, turn()).await.decision];
        }
        // the store carries out commands for one counter in their order
        let is_strict = |check: &LimitCheck<'_>| self.table.requested_mode(check) == Coordination::Strict;
        // but the local cache does not know of hits that are about to be given back
        let gives_back = |check: &LimitCheck<'_>| check.direction == Direction::GiveBack;
        if has_repeated(checks) && (!checks.iter().all(is_strict) || checks.iter().any(gives_back)) {
            return Box::pin(self.take_in_turn(checks, scope, turn())).await;
        }
        let steps: SmallVec<[Step; 2]> =
            checks.iter().map(|check| self.step(check, scope, now, record)).collect();
        if steps.iter().all(Result::is_ok) {
            return steps.iter().flatten().map(|made| made.decision).collect();
        }
        let turn = turn();
        let made = checks.iter().zip(steps).map(|(check, step)| self.finish(check, scope, step, turn));
        join_all(made).await.into_iter().map(|made| made.decision).collect()
    }

    /// Cuts the wait of `decision` to the longest that the limit can imply, and the wait for a clock that was set back.
    /// The counter may have been used while this instance was wrong about the store's clock.
    fn bound_wait(&self, check: &LimitCheck<'_>, decision: &mut Decision, now: Timestamp) {
        if let Some(tier) = check.tiers().get(decision.tier)
            && decision.reset > tier.period
            && self.table.requested_mode(check).is_coordinated()
        {
            let behind = self.client.behind(self.client.time_at(now).now);
            let longest = tier.longest_wait().as_nanos().saturating_add(behind.as_nanos());
            decision.reset = decision.reset.min(Period::from_nanos(longest));
        }
    }

    pub(super) fn step(
        &self,
        check: &LimitCheck<'_>,
        scope: Scope,
        now: Timestamp,
        record: Option<&DecisionRecord>,
    ) -> Step {
        let requested = self.table.requested_mode(check);
        if requested.is_coordinated() {
            let time = self.client.time_at(now);
            let step = self.table.with_counter_of(check, time.now, |key, counter| {
                let mode = self.table.mode_of(counter, check);
                if !mode.is_coordinated() {
                    return None;
                }
                record_mode(record, mode);
                Some(self.decide_on((key, counter), mode, check, scope, time, record))
            });
            if let Some(step) = step {
                return step;
            }
        }
        if requested == Coordination::Split {
            record_mode(record, requested);
            let at = self.split.time_at(now);
            return Ok(Made::by_mode(self.split.decide(&self.memory, check, scope, at), at));
        }
        // it is requested, or the store supports no other mode
        record_mode(record, Coordination::Local);
        self.client.metrics.decisions.local.add(1);
        let decision = self.memory.decide(std::slice::from_ref(check), scope, now)[0];
        Ok(Made::by_mode(decision, self.client.time_at(now).now))
    }

    /// As [`Coordinated::step`], for the first of `checks` of one counter, and those that can be decided with it, so
    /// that no other request comes between: none under another limit, nor after one that waits for the store alone.
    pub(super) fn steps(
        &self,
        checks: &[&LimitCheck<'_>],
        scope: Scope,
        turn: Turn<'_>,
    ) -> SmallVec<[Step; 2]> {
        let Turn { now, record, .. } = turn;
        let checks = &checks[..of_one_limit(checks)];
        let first = checks[0];
        if let [check] = checks {
            return smallvec![self.step(check, scope, now, record)];
        }
        let requested = self.table.requested_mode(first);
        if requested.is_coordinated() {
            let time = self.client.time_at(now);
            let steps = self.table.with_counter_of(first, time.now, |key, counter| {
                let mode = self.table.mode_of(counter, first);
                mode.is_coordinated().then(|| {
                    record_mode(record, mode);
                    self.decide_in_order((key, counter), mode, checks, scope, time, record)
                })
            });
            if let Some(steps) = steps {
                return steps;
            }
        }
        let (decisions, at) = if requested == Coordination::Split {
            record_mode(record, requested);
            let at = self.split.time_at(now);
            let each =
                || checks.iter().map(|check| self.split.decide(&self.memory, check, scope, at)).collect();
            let together = self.split.decide_together(&self.memory, checks.iter().copied(), scope, at);
            (together.unwrap_or_else(each), at)
        } else {
            record_mode(record, Coordination::Local);
            self.client.metrics.decisions.local.add(checks.len() as u64);
            let copies: SmallVec<[LimitCheck<'_>; 2]> = checks.iter().map(|check| check.copied()).collect();
            (self.memory.decide(&copies, scope, now), self.client.time_at(now).now)
        };
        let is_counted = scope == Scope::Descriptor || !decisions.iter().any(|decision| decision.over);
        let made = |decision| Ok(Made { is_counted, ..Made::by_mode(decision, at) });
        decisions.into_iter().map(made).collect()
    }

    /// Stops at the first check that waits and may leave alone.
    fn decide_in_order(
        &self,
        (key, counter): (CounterKey, &mut LocalCounter),
        mode: Coordination,
        checks: &[&LimitCheck<'_>],
        scope: Scope,
        time: StoreTime,
        record: Option<&DecisionRecord>,
    ) -> SmallVec<[Step; 2]> {
        let asks: SmallVec<[Ask; 2]> = checks.iter().map(|check| Ask::of(check, scope)).collect();
        let all_or_none = scope == Scope::Request;
        self.table.record_dropped(counter.expire_leases(time));
        if !self.client.is_unavailable_for(&counter.target, time.now) {
            let tries = counter.tries_together(mode, &asks, all_or_none, time.now);
            let waiting = tries.and_then(|tries| {
                Waiting::ask_together((key, &mut *counter), asks[0].is_own, &tries, all_or_none)
            });
            if let Some(waiting) = waiting {
                return waiting.into_iter().map(Err).collect();
            }
            let rejected = if all_or_none { counter.reject_together(&asks, time.now) } else { None };
            if let Some(rejected) = rejected {
                let step = |decision| Ok(Made { is_counted: false, ..Made::by_mode(decision, time.now) });
                return rejected.into_iter().map(step).collect();
            }
        }
        let mut steps = SmallVec::new();
        for check in checks {
            steps.push(self.decide_on((key, &mut *counter), mode, check, scope, time, record));
            if mode == Coordination::Lease && steps.last().is_some_and(Result::is_err) {
                break;
            }
        }
        steps
    }

    #[inline]
    fn decide_on(
        &self,
        (key, counter): (CounterKey, &mut LocalCounter),
        mode: Coordination,
        check: &LimitCheck<'_>,
        scope: Scope,
        time: StoreTime,
        record: Option<&DecisionRecord>,
    ) -> Step {
        let ask = &Ask::of(check, scope);
        self.table.record_dropped(counter.expire_leases(time));
        let link = self.table.link_at(time);
        if self.client.is_unavailable() && self.client.is_unavailable_for(&counter.target, time.now) {
            // what is held is used first
            let held = (mode == Coordination::Lease).then(|| counter.decide_from_held(ask, &link)).flatten();
            if let Some(decision) = held {
                self.client.metrics.decisions.leased.add(1);
                return Ok(Made::by_mode(decision, time.now));
            }
        } else {
            match counter.decide(mode, ask, &link) {
                Decided::Now(decision, how) => {
                    self.client.metrics.of(how).add(1);
                    return Ok(Made::by_mode(decision, time.now));
                }
                Decided::Wait(asks) => {
                    let hits = if asks == Asks::Look { Hits(0) } else { ask.hits };
                    if let Some(waiting) = Waiting::ask((key, &mut *counter), ask.is_own, hits, asks) {
                        return Err(waiting);
                    }
                    // too many wait
                }
            }
        }
        record_fallback(record);
        let delivery = Delivery::NotApplied;
        let decision = self.decide_on_without_store(counter, check, delivery, time.now);
        Ok(Made::by_fallback(decision, delivery, time.now))
    }

    pub(super) fn mode(&self, check: &LimitCheck<'_>, now: Timestamp) -> Coordination {
        match self.table.requested_mode(check) {
            mode @ (Coordination::Local | Coordination::Split) => mode,
            _ => self.table.with_counter(check, now, |counter| self.table.mode_of(counter, check)),
        }
    }

    pub(super) async fn take_check(&self, check: &LimitCheck<'_>, scope: Scope, turn: Turn<'_>) -> Made {
        let step = self.step(check, scope, turn.now, turn.record);
        self.finish(check, scope, step, turn).await
    }

    pub(super) fn finish(
        &self,
        check: &LimitCheck<'_>,
        scope: Scope,
        step: Step,
        turn: Turn<'_>,
    ) -> impl Future<Output = Made> {
        let Turn { now, record, .. } = turn;
        // a block, which has `step` once: an `async fn` would have its argument too
        async move {
            let waiting = match step {
                Ok(made) => return made,
                Err(waiting) => waiting,
            };
            let commands = waiting.commands;
            match recorded(record, commands, pin!(self.wait(check, scope, waiting, turn))).await {
                Ok(made) => {
                    if made.fallback.is_none() {
                        self.client.metrics.decisions.waited.add(1);
                    }
                    made
                }
                Err(Undecided { delivery, .. })
                    if check.direction == Direction::GiveBack && delivery != Delivery::NotApplied =>
                {
                    record_fallback(record);
                    self.client.metrics.decisions.fallback.add(1);
                    Made::by_mode(self.look(check, Hits(0), now), self.client.time_at(now).now)
                }
                Err(undecided) => {
                    record_fallback(record);
                    let delivery = undecided.delivery;
                    let at = self.client.time_at(self.client.local_time_since(now)).now;
                    Made::by_fallback(self.decide_without_store(check, delivery, at), delivery, at)
                }
            }
        }
    }

    /// Checks of one counter are decided together, in their order.
    pub(super) async fn take_in_turn(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        turn: Turn<'_>,
    ) -> Decisions {
        let of_counters = places_by_counter(checks).into_iter().map(async |places| {
            let made = self.take_of_counter(&at_places(checks, &places), scope, turn).await;
            places.into_iter().zip(made.into_iter().map(|made| made.decision))
        });
        in_order(join_all(of_counters).await.into_iter().flatten())
    }

    pub(super) async fn take_of_counter(
        &self,
        checks: &[&LimitCheck<'_>],
        scope: Scope,
        mut turn: Turn<'_>,
    ) -> SmallVec<[Made; 2]> {
        let mut all = SmallVec::new();
        while all.len() < checks.len() {
            let rest = &checks[all.len()..];
            let steps = self.steps(rest, scope, turn);
            let waits = steps.iter().any(Result::is_err);
            let made = rest.iter().zip(steps).map(|(check, step)| self.finish(check, scope, step, turn));
            all.extend(join_all(made).await);
            if waits {
                turn.now = self.client.local_time_since(turn.now);
            }
        }
        all
    }

    async fn wait(
        &self,
        check: &LimitCheck<'_>,
        scope: Scope,
        mut waiting: Waiting,
        Turn { now, until, is_of_caller, record }: Turn<'_>,
    ) -> Result<Made, Undecided> {
        let blames = !is_of_caller && check.direction == Direction::Take;
        loop {
            if let Some(outcome) = self.table.outcome(waiting, until, blames).await {
                return outcome.map(|Tried { decision, at, is_counted, .. }| Made {
                    is_counted,
                    ..Made::by_mode(decision, at)
                });
            }
            // its counter was evicted: the one that takes its place is asked, but counts no return twice
            if check.direction == Direction::GiveBack {
                return Err(Undecided::NOT_ASKED);
            }
            let now = self.client.local_time_since(now);
            waiting = match self.step(check, scope, now, record) {
                Ok(made) => return Ok(made),
                Err(waiting) => waiting,
            };
        }
    }
}

/// `call` sends `commands`, and those that it records itself.
pub(super) async fn recorded<T>(
    record: Option<&DecisionRecord>,
    commands: u32,
    call: impl Future<Output = Result<T, Undecided>> + Unpin,
) -> Result<T, Undecided> {
    let begun = record.map(|record| (record, std::time::Instant::now()));
    let outcome = call.await;
    if let Some((record, begun)) = begun {
        let error = outcome.as_ref().err().map(|undecided| undecided.reason());
        record.add_commands(commands);
        record.add_wait(begun, error);
    }
    outcome
}

#[inline]
pub(super) fn record_mode(record: Option<&DecisionRecord>, mode: Coordination) {
    if let Some(record) = record {
        record.add_mode(mode.name());
    }
}

pub(super) fn record_fallback(record: Option<&DecisionRecord>) {
    if let Some(record) = record {
        record.set_fallback();
    }
}
