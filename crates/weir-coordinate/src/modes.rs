//! The coordination modes together: picks the mode of a check, and has it decide within its budget.

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::future::join_all;
use smallvec::{SmallVec, smallvec};
use tokio::time::{Instant, timeout_at};

use super::{
    Coordinated,
    buckets::{self, STEPS, UNKNOWN_PACE},
    client::{Delivery, StoreTime},
    counter::{DecisionRequest, Group, LocalCounter, TryKind, TryOutcome, TryVerdict, reservation},
    places::{EndedHits, PlaceAsked},
    table::Waiting,
};
use weir_limit::{
    Basis, Coordination, CounterKey, Decision, Direction, Hits, LimitCheck, OnStoreFailure, OverLimitPolicy,
    Period, PlaceAsk, PlaceCheck, PlaceName, Reservation, ReservationRequest, ReservedHits, Scope,
    SharedCounts, Timestamp, capacity,
    line::Estimate,
    part::InstanceRank,
    request_bucket::{BucketName, BucketReply, BucketRequest},
};
use weir_observe::{DecisionRecord, PlaceStats};
use weir_store::{
    CounterSight, Decisions, EndedPlace, LocalSight, MemoryStore, PlaceRequest, ReturnedHits, SightSource,
    Store, StoreError, Summaries, TakeOptions, TakenPlaces, Unreported, all_given_back, has_repeated,
    remote::Remote,
};

/// How long a person waits for the store.
const SIGHT: Duration = Duration::from_secs(1);

pub(super) const NO_REPLY: &str = "no reply within WEIR_DECISION_BUDGET or the timeout of the caller";

/// What a check has at once.
pub(super) enum DecisionStep {
    Decided(TryVerdict),
    /// The store decides.
    Waits(Waiting),
}

/// What the decisions of one request have in common: all of their waits end together, however many there are.
#[derive(Clone, Copy)]
pub(super) struct DecisionContext<'a> {
    /// On this instance's clock.
    pub(super) now: Timestamp,
    pub(super) until: Instant,
    pub(super) record: Option<&'a DecisionRecord>,
}

// === impl Coordinated ===

impl<R: Remote> Store for Coordinated<R> {
    fn clock_offset(&self) -> i64 {
        self.client.store_clock.offset()
    }

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
        (self.client.requested_mode(check) == Coordination::Local).then(|| self.memory())
    }

    fn instance_rank(&self, check: &LimitCheck<'_>) -> InstanceRank {
        // nobody else asks for this instance's part
        let is_part = self.client.requested_mode(check) == Coordination::Split;
        if is_part { InstanceRank::ALONE } else { self.client.membership.numbers().rank }
    }

    fn estimate(&self, check: &LimitCheck<'_>, now: Timestamp) -> Option<Estimate> {
        let at = self.client.time_at(now).now;
        let counters = self.shared(check, at, |(_, counter), _| counter.estimate[..].into());
        counters
            .map(|counters| Estimate { counters, at, part: None })
            .or_else(|| self.own.estimate(check, now))
    }

    async fn sight(&self, check: &LimitCheck<'_>, now: Timestamp) -> CounterSight {
        let at = self.client.time_at(now).now;
        let pool = check.pool.is_some().then(|| self.look(check, check.hits.max(Hits(1)), now));
        let local = self.shared(check, at, |(_, counter), mode| LocalSight {
            counters: counter.estimate[..].into(),
            mode,
            leased: Hits(counter.ledger.leased()),
            pending: Hits(counter.ledger.owed().unreported),
        });
        let Some(local) = local else { return self.own.sight(check, pool, now) };
        let until = Instant::now() + Duration::from(self.client.settings.budget).max(SIGHT);
        let answered = self.ask(check, TryKind::Look, until).await.is_ok();
        let at = self.client.time().now;
        let counters = self.shared(check, at, |(_, counter), _| counter.estimate[..].into());
        let counters = counters.unwrap_or_else(|| local.counters.clone());
        let source = if answered { SightSource::Store } else { SightSource::Copy };
        CounterSight { local: Some(local), ..CounterSight::of(counters, pool, source, at) }
    }

    async fn reserve_for_waiters(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        patience: Period,
        now: Timestamp,
    ) -> Result<Reservation, StoreError> {
        if let Some(member) = self.pool_member(check) {
            return Ok(Box::pin(self.reserve_shared(&member, check, request, now)).await);
        }
        let at = self.client.time_at(now).now;
        // by the estimate, as exact as `interval`, if the store cannot
        let reserved = self.shared(check, at, |(_, counter), _| {
            let asks_store = self.client.remote.supports(&counter.target, Coordination::Lease)
                || self.client.is_unavailable_for(&counter.target, at);
            (!asks_store).then(|| {
                let hits = counter.reserve(request, at);
                counter.local_reservation(hits, request, at, now)
            })
        });
        match reserved {
            None => return Ok(self.own.reserve(check, request, now)),
            Some(Some(reservation)) => return Ok(reservation),
            Some(None) => {}
        }
        Ok(match self.ask(check, TryKind::Reserve(request), Instant::now() + patience.into()).await {
            Ok(TryVerdict { decision, at, reserved: hits, .. }) => {
                reservation(check.tiers(), hits, decision, request.hold, (at, now))
            }
            Err(delivery) => {
                let at = self.client.time_at(now).now;
                self.table.with_counter(check, at, |_, counter| {
                    self.reserve_without_store(counter, check, request, delivery, (at, now))
                })
            }
        })
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
            // the counter may have been used while this instance was wrong about the store's clock
            if let Some(tier) = check.tiers().get(decision.tier)
                && decision.reset > tier.period
                && self.client.requested_mode(check).is_coordinated()
            {
                decision.reset = decision.reset.min(tier.longest_wait());
            }
        }
        if let Some(record) = options.record
            && decisions.iter().any(|decision| decision.basis == Basis::Fallback)
        {
            record.set_fallback();
        }
        Ok(decisions)
    }

    async fn reserve(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Result<Reservation, StoreError> {
        self.reserve_for_waiters(check, request, self.client.settings.budget, now).await
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
            Box::pin(self.release_shared(&member, check, span.from, hits, now)).await;
            return Ok(());
        }
        // sent with the next flush, after all hits that were counted here before, so that it does not wait and no outage
        // loses it
        let released = self.shared(check, at, |(_, counter), _| counter.release(span, hits, at));
        if released.is_none() {
            self.own.release(check, reservation, unused, now);
        }
        Ok(())
    }

    async fn take_places(
        &self,
        places: &[PlaceRequest<'_>],
        serial: u64,
        now: Timestamp,
        options: TakeOptions<'_>,
    ) -> Result<TakenPlaces, StoreError> {
        let checks: SmallVec<[LimitCheck<'_>; 2]> =
            places.iter().map(|place| place.check.as_limit_check()).collect();
        let is_shared = |i: &usize| self.shares_places(&checks[*i]);
        let shared = (0..places.len()).filter(is_shared).map(|i| PlaceAsked {
            check: &checks[i],
            limit: places[i].check.limit,
            takes: places[i].check.ask == PlaceAsk::Take,
            stats: places[i].stats,
            reserved: places[i].reserved,
        });
        let shared: SmallVec<[PlaceAsked<'_>; 2]> = shared.collect();
        if shared.is_empty() {
            return Ok(self.own.memory.take_places_now(places, serial, now));
        }
        let TakenPlaces { name, decisions } = self.take_shared_places(&shared, serial, now, options).await;
        let own: SmallVec<[PlaceRequest<'_>; 2]> =
            (0..places.len()).filter(|i| !is_shared(i)).map(|i| places[i]).collect();
        // places here have the name of those in the store
        let mut of_own = self.own.memory.take_places_now(&own, serial, name.start()).decisions.into_iter();
        let mut of_store = decisions.into_iter();
        let decisions = (0..places.len())
            .filter_map(|i| if is_shared(&i) { of_store.next() } else { of_own.next() })
            .collect();
        Ok(TakenPlaces { name, decisions })
    }

    async fn end_places(&self, ended: &[EndedPlace<'_>], now: Timestamp) -> Result<ReturnedHits, StoreError> {
        let until = Instant::now() + Duration::from(self.client.settings.budget);
        let end = |place: &EndedPlace<'_>| {
            let EndedPlace { check, stats, name, awaits, is_undone } = *place;
            let of = check.as_limit_check();
            if self.shares_places(&of) {
                self.end_shared_place(&of, check.limit, stats, (name, awaits, is_undone))
            } else {
                let name = name.map(PlaceName::without_flags);
                EndedHits::Known(self.own.memory.end_places_now(&[EndedPlace { name, ..*place }], now)[0])
            }
        };
        // all leave before the first one waits
        let ends: SmallVec<[EndedHits; 2]> = ended.iter().map(end).collect();
        let mut returned = ReturnedHits::new();
        for ended in ends {
            returned.push(match ended {
                EndedHits::Known(reserved) => reserved,
                EndedHits::Waits(mut receiver) => {
                    if let Ok(reserved) = timeout_at(until, &mut receiver).await {
                        reserved.ok().flatten()
                    } else {
                        // it may have come between
                        receiver.close();
                        receiver.try_recv().ok().flatten()
                    }
                }
            });
        }
        Ok(returned)
    }

    fn given_up(&self, check: &PlaceCheck<'_>, stats: &Arc<PlaceStats>, now: Timestamp) -> Vec<ReservedHits> {
        let of = check.as_limit_check();
        if self.shares_places(&of) {
            self.shared_given_up(&of, check.limit, stats)
        } else {
            self.own.memory.given_up(check, stats, now)
        }
    }

    async fn clear(&self, check: &LimitCheck<'_>, now: Timestamp) -> Result<(), StoreError> {
        let all = all_given_back(check);
        if self.remote().has_board() {
            return self.clear_all(&all, now).await;
        }
        self.take(std::slice::from_ref(&all), Scope::Descriptor, now).await.map(drop)
    }

    async fn free_places(
        &self,
        check: &PlaceCheck<'_>,
        stats: &Arc<PlaceStats>,
        older_than: Period,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        if self.shares_places(&check.as_limit_check()) {
            self.free_shared_places(check, stats, older_than).await
        } else {
            Ok(self.own.memory.free_places_now(check, older_than, now))
        }
    }

    async fn announce(&self, note: &[u8]) -> Result<bool, StoreError> {
        let has_board = self.remote().has_board();
        if has_board {
            self.client.announce(note).await?;
        }
        Ok(has_board)
    }

    async fn announcements(&self) -> Vec<(Period, Vec<u8>)> {
        let notes = self.client.board.notes().await;
        let now = self.client.time().now;
        notes.into_iter().map(|(at, note)| (now.since(at), note)).collect()
    }

    fn summarize(&self, summary: Vec<u8>) {
        self.client.board.summarize(summary);
    }

    async fn summaries(&self) -> Result<Option<Summaries>, StoreError> {
        if self.remote().has_board() { self.client.summaries().await.map(Some) } else { Ok(None) }
    }

    fn hold_nothing(&self, check: &LimitCheck<'_>, unreported: Unreported, now: Timestamp) {
        self.hold_none(check, unreported, now);
    }

    fn forget(&self, check: &LimitCheck<'_>, now: Timestamp) {
        self.forget_shared(check, now);
    }

    async fn decide_bucket(
        &self,
        name: &BucketName<'_>,
        request: &BucketRequest,
        now: Timestamp,
    ) -> Result<BucketReply, StoreError> {
        if self.client.settings.coordination == Coordination::Local {
            return Ok(self.own.memory.decide_bucket_now(name, request, now));
        }
        let BucketRequest::Paced(request) = request else { return Err(STEPS) };
        buckets::decide_paced(self, name, request, false, now).await.map(BucketReply::Paced)
    }

    async fn find_buckets(
        &self,
        name: &BucketName<'_>,
        deletes: bool,
        now: Timestamp,
    ) -> Result<Option<Period>, StoreError> {
        match deletes {
            _ if self.client.settings.coordination == Coordination::Local => {
                Ok(self.own.memory.find_buckets_now(name, deletes, now))
            }
            false => Err(UNKNOWN_PACE),
            true => buckets::delete(self, name, now).await,
        }
    }
}

impl<R: Remote> Coordinated<R> {
    async fn take_checks(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
        options: TakeOptions<'_>,
    ) -> Decisions {
        let record = options.record;
        let has_pools = checks.iter().any(|check| check.pool.is_some());
        if has_pools {
            self.own.memory.divide_pools_between(self.client.instances());
        }
        if checks.iter().all(|check| self.client.requested_mode(check) == Coordination::Local) {
            self.client.metrics.decisions.local.add(checks.len() as u64);
            record_mode(record.filter(|_| !checks.is_empty()), Coordination::Local);
            return self.own.memory.decide(checks, scope, now);
        }
        if has_pools
            && let [check] = checks
            && let Some(decision) = self.take_of_pool(check, now, options).await
        {
            return smallvec![decision];
        }
        if !has_pools && let [check] = checks {
            let step = match self.step(check, scope, now, record) {
                DecisionStep::Decided(made) => return smallvec![made.decision],
                waits @ DecisionStep::Waits(_) => waits,
            };
            return smallvec![self.finish(check, step, self.context(now, options)).await.decision];
        }
        if has_pools || scope == Scope::Request || has_repeated(checks) {
            // boxed to keep the future of all other requests small
            return Box::pin(self.take_units(checks, scope, self.context(now, options))).await;
        }
        let steps: SmallVec<[DecisionStep; 2]> =
            checks.iter().map(|check| self.step(check, scope, now, record)).collect();
        let decided = steps.iter().map_while(|step| match step {
            DecisionStep::Decided(made) => Some(made.decision),
            DecisionStep::Waits(_) => None,
        });
        let decided: Decisions = decided.collect();
        if decided.len() == steps.len() {
            return decided;
        }
        let context = self.context(now, options);
        let made = checks.iter().zip(steps).map(|(check, step)| self.finish(check, step, context));
        join_all(made).await.into_iter().map(|made| made.decision).collect()
    }

    /// Waits end after [`TakeOptions::wait`], or after `WEIR_DECISION_BUDGET` if that is shorter.
    pub(super) fn context<'a>(
        &self,
        now: Timestamp,
        TakeOptions { record, wait, .. }: TakeOptions<'a>,
    ) -> DecisionContext<'a> {
        let budget = Duration::from(self.client.settings.budget);
        DecisionContext { now, until: Instant::now() + wait.map_or(budget, |wait| wait.min(budget)), record }
    }

    /// `act` gets the counter of `check` on the way to the store, and its mode. None if this instance counts
    /// [by itself](super::own).
    #[inline]
    pub(super) fn shared<T>(
        &self,
        check: &LimitCheck<'_>,
        at: Timestamp,
        act: impl FnOnce((CounterKey, &mut LocalCounter), Coordination) -> T,
    ) -> Option<T> {
        if check.pool.is_some() || !self.client.requested_mode(check).is_coordinated() {
            return None;
        }
        self.table.with_counter(check, at, |key, counter| {
            let mode = counter.choice.mode;
            // the store may support none
            mode.is_coordinated().then(|| act((key, counter), mode))
        })
    }

    fn step(
        &self,
        check: &LimitCheck<'_>,
        scope: Scope,
        now: Timestamp,
        record: Option<&DecisionRecord>,
    ) -> DecisionStep {
        let time = self.client.time_at(now);
        let step = self.shared(check, time.now, |counter, mode| {
            record_mode(record, mode);
            self.decide_on(counter, mode, check, scope, time)
        });
        step.unwrap_or_else(|| DecisionStep::Decided(self.own.decide(&[check], scope, now, record)[0]))
    }

    /// As [`Coordinated::step`], for the first of `checks` of one unit, and those that can be decided with it, so that no
    /// other request comes between: none after one that waits for the store alone.
    pub(super) fn steps(
        &self,
        checks: &[&LimitCheck<'_>],
        scope: Scope,
        context: DecisionContext<'_>,
    ) -> SmallVec<[DecisionStep; 2]> {
        let DecisionContext { now, record, .. } = context;
        if let [check] = checks {
            return smallvec![self.step(check, scope, now, record)];
        }
        let time = self.client.time_at(now);
        let all_or_none = scope == Scope::Request;
        let steps = self.shared(checks[0], time.now, |(key, counter), mode| {
            record_mode(record, mode);
            let asks: SmallVec<[DecisionRequest; 2]> =
                checks.iter().map(|check| DecisionRequest::of(check, scope)).collect();
            self.table.hits().record(counter.expire_leases(time));
            if !self.client.is_unavailable_for(&counter.target, time.now) {
                let tries = counter.tries_together(mode, &asks, all_or_none, time.now);
                if let Some(tries) = tries {
                    let number = (counter.next_number() & 0xffff) as u16;
                    let group = Some(Group { number, all_or_none });
                    let ask = |asked| Waiting::ask((key, &mut *counter), asked, group);
                    let waiting: Option<SmallVec<[Waiting; 2]>> = tries.into_iter().map(ask).collect();
                    if let Some(waiting) = waiting {
                        return waiting.into_iter().map(DecisionStep::Waits).collect();
                    }
                }
                let may_reject = all_or_none && !(mode.leases() && counter.traffic.is_overtaken());
                let rejected = if may_reject { counter.reject_together(&asks, time.now) } else { None };
                if let Some(rejected) = rejected {
                    let step = |decision| {
                        let verdict = TryVerdict::new(decision, time.now);
                        DecisionStep::Decided(TryVerdict { is_counted: false, ..verdict })
                    };
                    return rejected.into_iter().map(step).collect();
                }
            }
            let mut steps = SmallVec::new();
            for check in checks {
                steps.push(self.decide_on((key, &mut *counter), mode, check, scope, time));
                if mode.leases() && matches!(steps.last(), Some(DecisionStep::Waits(_))) {
                    break;
                }
            }
            steps
        });
        steps.unwrap_or_else(|| {
            let decided = self.own.decide(checks, scope, now, record);
            decided.into_iter().map(DecisionStep::Decided).collect()
        })
    }

    #[inline]
    fn decide_on(
        &self,
        (key, counter): (CounterKey, &mut LocalCounter),
        mode: Coordination,
        check: &LimitCheck<'_>,
        scope: Scope,
        time: StoreTime,
    ) -> DecisionStep {
        let ask = &DecisionRequest::of(check, scope);
        let link = self.table.link_at(time);
        self.table.hits().record(counter.expire_leases(time));
        let is_away = self.client.is_unavailable_for(&counter.target, time.now);
        let asks = match counter.decide(mode, ask, &link, is_away) {
            Ok((decision, how)) => {
                self.client.metrics.of(how).add(1);
                return DecisionStep::Decided(TryVerdict::new(decision, time.now));
            }
            Err(asks) => asks,
        };
        // none if too many wait
        if let Some(waiting) =
            asks.and_then(|asks| Waiting::ask((key, &mut *counter), (ask.hits, asks), None))
        {
            return DecisionStep::Waits(waiting);
        }
        DecisionStep::Decided(self.decide_without_store(counter, check, Delivery::NotApplied, time.now))
    }

    /// The decision is over the limit if `hits` do not fit by what this instance knows.
    pub(super) fn look(&self, check: &LimitCheck<'_>, hits: Hits, now: Timestamp) -> Decision {
        if let Some(member) = self.pool_member(check) {
            return self.look_shared(&member, check, hits, now);
        }
        let at = self.client.time_at(now).now;
        let looked = self.shared(check, at, |(_, counter), _| counter.look(hits, at));
        looked.unwrap_or_else(|| self.own.look(check, hits, now))
    }

    pub(super) async fn take_check(
        &self,
        check: &LimitCheck<'_>,
        scope: Scope,
        context: DecisionContext<'_>,
    ) -> TryVerdict {
        let step = self.step(check, scope, context.now, context.record);
        self.finish(check, step, context).await
    }

    #[expect(
        clippy::manual_async_fn,
        reason = "an `async fn` would have the step a second time, as its argument"
    )]
    pub(super) fn finish(
        &self,
        check: &LimitCheck<'_>,
        step: DecisionStep,
        context: DecisionContext<'_>,
    ) -> impl Future<Output = TryVerdict> {
        async move {
            let waiting = match step {
                DecisionStep::Decided(made) => return made,
                DecisionStep::Waits(waiting) => waiting,
            };
            let commands = waiting.commands;
            let outcome = self.table.outcome(waiting, context.until);
            match recorded(context, commands, pin!(outcome)).await {
                Ok(verdict) => {
                    self.client.metrics.decisions.waited.add(1);
                    verdict
                }
                Err(delivery) => {
                    let at = self.client.time_at(self.client.local_time_since(context.now)).now;
                    self.table.with_counter(check, at, |_, counter| {
                        self.decide_without_store(counter, check, delivery, at)
                    })
                }
            }
        }
    }

    /// Asks for what is no decision, of a node that replies.
    pub(super) async fn ask(&self, check: &LimitCheck<'_>, asks: TryKind, until: Instant) -> TryOutcome {
        let at = self.client.time().now;
        let hits = match asks {
            TryKind::Reserve(request) => request.fit(Hits(u64::MAX)),
            TryKind::GiveBack(_) => check.hits,
            _ => Hits(0),
        };
        let waiting = self.shared(check, at, |(key, counter), _| {
            let is_away = self.client.is_unavailable_for(&counter.target, at);
            if is_away { None } else { Waiting::ask((key, counter), (hits, asks), None) }
        });
        self.table.outcome(waiting.flatten().ok_or(Delivery::NotApplied)?, until).await
    }

    /// Admitted hits are reported later, unless `delivery` is unknown: no hit may count twice.
    pub(crate) fn decide_without_store(
        &self,
        counter: &mut LocalCounter,
        check: &LimitCheck<'_>,
        delivery: Delivery,
        now: Timestamp,
    ) -> TryVerdict {
        let (metrics, hits) = (&self.client.metrics, check.hits);
        metrics.decisions.fallback.add(1);
        if check.direction == Direction::GiveBack && delivery != Delivery::NotApplied {
            return TryVerdict::new(counter.look(Hits(0), now).by_fallback(), now);
        }
        if delivery == Delivery::Unknown {
            metrics.hits.delivery_unknown.add(hits.0);
        }
        let reported = counter.reports(delivery);
        // of all others, rejected hits do not count without the store
        let is_cost = check.is_cost();
        let policy = if is_cost { OverLimitPolicy::Count } else { OverLimitPolicy::Ignore };
        let count =
            |counter: &mut LocalCounter| counter.count_fallback(check.direction, policy, hits, reported, now);
        let decision = match self.client.failure_policy(check) {
            _ if check.direction == Direction::GiveBack => count(counter),
            OnStoreFailure::Local => count(counter),
            OnStoreFailure::Allow => counter.admit(hits, reported, now),
            OnStoreFailure::Deny => {
                let looked = if is_cost { count(counter) } else { counter.look(Hits(0), now) };
                Decision { over: true, remaining: 0, reset: OnStoreFailure::DENY_RETRY, ..looked }
            }
        };
        if (!decision.over || is_cost) && hits > Hits(0) {
            counter.note_answer(delivery, hits, now);
        }
        TryVerdict { fallback: Some(delivery), ..TryVerdict::new(decision.by_fallback(), now) }
    }

    /// `at` is `now` on the store's clock. Hits of unknown delivery are not reported, nor given back when they are released.
    pub(crate) fn reserve_without_store(
        &self,
        counter: &mut LocalCounter,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        delivery: Delivery,
        (at, now): (Timestamp, Timestamp),
    ) -> Reservation {
        let most = request.fit(Hits(u64::MAX));
        let fitting = match self.client.failure_policy(check) {
            OnStoreFailure::Local => counter.fit_fallback(request, at),
            OnStoreFailure::Allow | OnStoreFailure::Deny => most,
        };
        let hits = fitting.max(request.least).max(Hits(1));
        let is_reported = delivery != Delivery::Unknown;
        // what arrives later is given back
        let delivery = if is_reported { Delivery::NotApplied } else { delivery };
        let taken = LimitCheck { hits, direction: Direction::Take, ..check.copied() };
        let decision = self.decide_without_store(counter, &taken, delivery, at).decision;
        if !is_reported {
            let granted = most.0.min(capacity(&counter.target.tiers));
            self.client.metrics.hits.delivery_unknown.add(granted.saturating_sub(hits.0));
        }
        let hits = if decision.over { Hits(0) } else { hits };
        let mut reservation = counter.local_reservation(hits, request, at, now);
        reservation.counted.is_reported = is_reported;
        Reservation { decision, ..reservation }
    }
}

/// `call` sends `commands`, and those that it records itself.
pub(super) async fn recorded<T>(
    context: DecisionContext<'_>,
    commands: u32,
    call: impl Future<Output = Result<T, Delivery>> + Unpin,
) -> Result<T, Delivery> {
    let Some(record) = context.record else { return call.await };
    let begun = std::time::Instant::now();
    let outcome = call.await;
    let failure = if Instant::now() < context.until { "the call failed" } else { NO_REPLY };
    record.add_commands(commands);
    record.add_wait(begun, outcome.is_err().then_some(failure));
    outcome
}

#[inline]
pub(super) fn record_mode(record: Option<&DecisionRecord>, mode: Coordination) {
    if let Some(record) = record {
        record.add_mode(mode.name());
    }
}
