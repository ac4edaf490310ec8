//! Callers that wait: the path of a request that may be decided later.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use super::{LimitError, Limiter, LoadedRules, asking::places::awaited, at_once, validate};
use weir_limit::{
    Basis, Code, Coordination, CounterKey, Decision, Direction, Hits, LimitCheck, Matched, Named,
    OverLimitPolicy, Period, PlaceAsk, PlaceCheck, PlaceDecision, PlaceDecisions, PlaceName, Request,
    RequestName, Reservation, RuleRef, RuleSet, Scope, SharedTiers, Status, Tier, Timestamp, Verdict,
    capacity, decision_from_store,
    line::{Answer, Estimate, Rejection, Unused, can_wait, unused},
};
use weir_observe::RareCounts;
use weir_store::{
    Arrival, Decisions, Receipt, Store, StoreError, TakeOptions, Ticket, WaitingLines, clock::Clock,
};

#[derive(Clone, Debug)]
pub struct Acquired {
    pub rejection: Option<Rejection>,
    /// The time from its arrival to the decision.
    pub waited: Period,
    /// With which unused hits are given back. None with no or several limits, or counters in another process.
    pub receipt: Option<Receipt>,
    /// The name of the request in flight that it began, by which [`Limiter::end_request`] ends it. Also of one that has
    /// reserved nothing, and whose cost is counted so.
    pub name: Option<Box<str>>,
    /// The hits that it has reserved beside its own.
    pub reserved: Hits,
}

#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// Several descriptors have a limit. Each has its own line, and requests in two lines could wait for each other.
    #[error(
        "{0} descriptors of the request have a limit, and a request can wait for one only: send one \
         descriptor, whose rule may have several tiers, or do not wait"
    )]
    SeveralLimits(usize),
    /// It names nothing that could have a limit.
    #[error("entries must not be empty")]
    NoEntries,
    /// A decision at once is not possible, since the counters are not in this process's memory.
    #[error(
        "the counters are not in this process, so a decision has to wait for their store: acquire with a wait of zero"
    )]
    MustAsk,
}

struct AcquireCall<'a, 'r, C: ?Sized> {
    request: &'a Request<'r>,
    started: Timestamp,
    max_wait: Period,
    clock: &'a C,
}

/// What becomes of a request that may wait, at first.
enum Entrance<'a> {
    /// Nobody waits for what it matches.
    NoLine,
    /// Its counters are not in memory.
    Elsewhere,
    /// It must be decided anew: its wait may have ended meanwhile.
    Again,
    Waits(LinePlace<'a>),
    Decided(AcquireOutcome),
}

/// What a request may wait for. Tiers beside places are waited for first.
enum AwaitedLimit<'b, 'c> {
    Hits(&'b LimitCheck<'c>),
    Place,
}

struct LinePlace<'a> {
    lines: &'a dyn WaitingLines,
    ticket: Ticket,
    /// The receipt for counters that are not in memory: by the rules of now, which may be replaced until it is admitted.
    promised: Option<Receipt>,
}

/// A caller in a line. Gives its place up when it is dropped.
struct WaitingCaller<'a, C: Clock + ?Sized> {
    lines: &'a dyn WaitingLines,
    ticket: Option<Ticket>,
    clock: &'a C,
}

struct AcquireOutcome {
    /// By which it was decided. A reload may have replaced them meanwhile.
    loaded: Arc<LoadedRules>,
    key: CounterKey,
    acquired: Acquired,
    /// None if the line has decided.
    decision: Option<Decision>,
    at: Timestamp,
}

/// What became of a caller that other limits have admitted, and that asked for a place.
struct AwaitedPlace {
    decisions: PlaceDecisions,
    rejection: Option<Rejection>,
}

/// What was taken for a caller. It is given back if this is dropped with it.
struct Taken<'a, S: Store, C: Clock + ?Sized> {
    limiter: &'a Limiter<S>,
    clock: &'a C,
    receipt: Option<Receipt>,
}

impl<S: Store> Limiter<S> {
    /// Decides `request` as [`Limiter::decide`] does. If it would be rejected only for a while, it waits in the order
    /// of arrival, or is rejected at once if `max_wait` is too short. Dropping the future gives the place up.
    ///
    /// Requests without a limit, those in shadow mode, and those of rules for which nobody can wait (strict buckets,
    /// shared limits, limits of the request itself) are decided at once. Waits need [`Limiter::serve_waiters`], which a
    /// [`WaiterThread`](super::WaiterThread) calls.
    pub async fn acquire<T, C: Clock + ?Sized>(
        &self,
        request: &Request<'_>,
        max_wait: Period,
        clock: &C,
        encode: impl FnOnce(&Verdict<'_>, &Acquired) -> T,
    ) -> Result<T, AcquireError> {
        let started = clock.now();
        let encode = match self.acquire_fitting_limit(request, started, encode) {
            Ok(encoded) => return Ok(encoded),
            Err(encode) => encode,
        };
        let max_wait = self.asking.cut(max_wait);
        let call = AcquireCall { request, started, max_wait, clock };
        let mut now = started;
        let outcome = loop {
            let entrance = match self.enter(&call, now)? {
                // boxed to keep the future of all other requests small
                Entrance::Elsewhere => Box::pin(self.enter_elsewhere(&call)).await?,
                entrance => entrance,
            };
            match entrance {
                Entrance::NoLine => return self.acquire_at_once(request, started, now, encode).await,
                Entrance::Elsewhere | Entrance::Again => {}
                Entrance::Decided(outcome) => break outcome,
                Entrance::Waits(place) => {
                    if let Some(outcome) = self.wait(&call, place).await? {
                        break outcome;
                    }
                }
            }
            now = clock.now();
        };
        if outcome.acquired.rejection.is_none() && outcome.loaded.has_places {
            // boxed to keep the future of all other requests small
            return Box::pin(self.report_with_place(&call, outcome, encode)).await;
        }
        Ok(self.report(&call, outcome, None, encode).await)
    }

    async fn report_with_place<T, C: Clock + ?Sized>(
        &self,
        call: &AcquireCall<'_, '_, C>,
        mut outcome: AcquireOutcome,
        encode: impl FnOnce(&Verdict<'_>, &Acquired) -> T,
    ) -> Result<T, AcquireError> {
        let placed = self.wait_for_place(call, &mut outcome).await?;
        Ok(self.report(call, outcome, placed, encode).await)
    }

    /// Takes hits that fit now while nobody waits for the same counters, where one descriptor has nothing but a limit.
    /// Otherwise returns `encode`.
    #[inline]
    fn acquire_fitting_limit<T, E: FnOnce(&Verdict<'_>, &Acquired) -> T>(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        encode: E,
    ) -> Result<T, E> {
        if self.settings.modes.shadow {
            return Err(encode);
        }
        self.take_single_limit(request, true, now, encode, |encode, verdict, found| {
            let check = found.check(request.domain, &request.descriptors[0]);
            let receipt = check.map(|check| Receipt::new(&check, now));
            encode(verdict, &Acquired::admitted(receipt, now, now))
        })
    }

    fn enter<C: Clock + ?Sized>(
        &self,
        call: &AcquireCall<'_, '_, C>,
        now: Timestamp,
    ) -> Result<Entrance<'_>, AcquireError> {
        let loaded = self.current(call.request)?;
        let matched = Matched::new(&loaded.rules, call.request);
        let check = match self.line_of(call.request, &matched, call.left(now))? {
            None => return Ok(Entrance::NoLine),
            Some(AwaitedLimit::Hits(check)) => check,
            Some(AwaitedLimit::Place) => {
                let acquired = Acquired::admitted(None, call.started, now);
                return Ok(AcquireOutcome::of_line(&loaded, CounterKey::default(), acquired, now));
            }
        };
        let Some(memory) = self.store.lines_for(check) else { return Ok(Entrance::Elsewhere) };
        let acquired = match memory.enter(check, call.left(now), now) {
            Arrival::Waits(ticket) => return Ok(self.waits(memory, ticket, None, &loaded)),
            Arrival::Admitted => Acquired::admitted(Some(Receipt::new(check, now)), call.started, now),
            Arrival::Rejected(rejection) => Acquired::rejected(rejection, call.started, now),
        };
        Ok(AcquireOutcome::of_line(&loaded, check.key, acquired, now))
    }

    fn waits<'a>(
        &self,
        lines: &'a dyn WaitingLines,
        ticket: Ticket,
        promised: Option<Receipt>,
        loaded: &Arc<LoadedRules>,
    ) -> Entrance<'a> {
        // a reload may have missed the line
        if !self.is_current(loaded) {
            self.refresh_lines();
        }
        Entrance::Waits(LinePlace { lines, ticket, promised })
    }

    /// Asks the store, and puts the request into the line if it rejects or others wait.
    async fn enter_elsewhere<C: Clock + ?Sized>(
        &self,
        call: &AcquireCall<'_, '_, C>,
    ) -> Result<Entrance<'_>, AcquireError> {
        let loaded = self.current(call.request)?;
        let matched = Matched::new(&loaded.rules, call.request);
        let mut now = call.clock.now();
        let Some(AwaitedLimit::Hits(check)) = self.line_of(call.request, &matched, call.left(now))? else {
            return Ok(Entrance::Again);
        };
        let mut opening = Period::default();
        if self.may_be_taken(check) && !self.asking.has_line(check.key) {
            let (checks, scope) = (matched.enforced(), self.scope_of(&matched));
            let taken = self.store.take_with(checks, scope, now, TakeOptions::default()).await;
            let taken = taken.map_err(LimitError::from).inspect_err(|_| self.stats.redis_error.add(1))?;
            let (decision, sent) = (taken[0], std::mem::replace(&mut now, call.clock.now()));
            if !decision.over {
                return Ok(self.granted(check, decision, &loaded, [call.started, sent, now]).await);
            }
            opening = decision.reset;
        }
        let (estimate, rank) = (self.estimate(check, now), self.store.instance_rank(check));
        Ok(match self.asking.enter(check, call.left(now), (estimate, opening), rank, now) {
            Ok(ticket) => {
                let promised = Some(Receipt::of_store(check, now));
                self.waits(&*self.asking, ticket, promised, &loaded)
            }
            Err(rejection) => {
                let acquired = Acquired::rejected(rejection, call.started, now);
                AcquireOutcome::of_line(&loaded, check.key, acquired, now)
            }
        })
    }

    /// The store has taken the hits of `check`.
    async fn granted(
        &self,
        check: &LimitCheck<'_>,
        decision: Decision,
        loaded: &Arc<LoadedRules>,
        [started, sent, now]: [Timestamp; 3],
    ) -> Entrance<'static> {
        if has_ended(check.tiers(), sent, now) {
            // hits that were counted in a window that has ended must not be used in the next one; longer ones get them
            // back, before the next take
            if let Some(unused) = self.unused_of(check, sent, check.hits, now) {
                self.give_back_unused(check, unused, now).await;
            }
            return Entrance::Again;
        }
        let acquired = Acquired::admitted(Some(Receipt::of_store(check, sent)), started, now);
        let (loaded, key) = (Arc::clone(loaded), check.key);
        let decision = Some(decision);
        Entrance::Decided(AcquireOutcome { loaded, key, acquired, decision, at: now })
    }

    /// None if it must be decided anew.
    async fn wait<C: Clock + ?Sized>(
        &self,
        call: &AcquireCall<'_, '_, C>,
        LinePlace { lines, ticket, promised }: LinePlace<'_>,
    ) -> Result<Option<AcquireOutcome>, AcquireError> {
        let key = ticket.key;
        let answer = WaitingCaller { lines, ticket: Some(ticket), clock: call.clock }.await;
        let at = call.clock.now();
        let loaded = self.current(call.request)?;
        let acquired = match answer {
            Answer::AskAgain => return Ok(None),
            Answer::Rejected(rejection) => Acquired::rejected(rejection, call.started, at),
            Answer::Admitted(taken_at) => {
                let matched = Matched::new(&loaded.rules, call.request);
                let check = matched.checks.iter().find(|check| check.key == key);
                let receipt = check.map(|check| match promised {
                    Some(promised) => Receipt { taken_at, ..promised },
                    None => Receipt::new(check, taken_at),
                });
                Acquired::admitted(receipt, call.started, taken_at)
            }
        };
        Ok(Some(AcquireOutcome { loaded, key, acquired, decision: None, at }))
    }

    /// Rejected hits must not count, since they are taken later; and a mode that syncs may admit more than the limit.
    fn may_be_taken(&self, check: &LimitCheck<'_>) -> bool {
        let mode = check.rule.declared().and_then(|rule| self.store.shared_counts().mode_now(rule));
        let policy = check.over_limit_policy_in(Scope::Descriptor);
        policy == OverLimitPolicy::Ignore && !mode.is_some_and(Coordination::syncs)
    }

    /// None if nothing is known, or the counters follow other rules by now, since a reload has changed the tiers.
    pub(super) fn estimate(&self, check: &LimitCheck<'_>, now: Timestamp) -> Option<Estimate> {
        self.store.estimate(check, now).filter(|estimate| estimate.is_of(check.tiers()))
    }

    /// What is known of the counters, as a decision about no hits.
    fn look(&self, check: &LimitCheck<'_>, now: Timestamp) -> Decision {
        if let Some(memory) = self.store.lines_for(check) {
            return memory.look(check, Hits(0), now);
        }
        self.estimate(check, now).map_or(
            Decision::unknown(Period::default()),
            |Estimate { counters, at, part }| {
                let tiers = part.as_deref().unwrap_or(check.tiers());
                decision_from_store(tiers, &counters, OverLimitPolicy::Ignore, false, Hits(0), at)
            },
        )
    }

    /// Chooses the turns of lines by `seed` where instances have no ranks, so that a simulation can be repeated.
    pub fn with_turns_of(mut self, seed: u64) -> Self {
        if let Some(asking) = Arc::get_mut(&mut self.asking) {
            asking.set_seed(seed);
        }
        self
    }

    /// Makes the turns of all lines in memory that are due at `now`, and applies new rules to them before.
    pub fn serve_waiters(&self, now: Timestamp) {
        let Some(store) = self.store.memory() else { return };
        let [in_memory, _] = &self.lines_are_stale;
        if in_memory.swap(false, Ordering::AcqRel)
            && let Some(loaded) = &*self.loaded.load()
        {
            store.reload_lines(now, |names| self.waited_for(&loaded.rules, names, true));
        }
        store.serve_lines(now);
    }

    /// Has the lines whose counters are not in memory ask the store for hits, until `limiter` is dropped. Without it
    /// nobody is served there. For a runtime with timers; a [`WaiterThread`](super::WaiterThread) has one of its own.
    /// Sleeps for up to `longest`, or else a second, if nothing is due: a clock may be set.
    pub fn ask_store(
        limiter: &Arc<Self>,
        clock: Arc<dyn Clock>,
        longest: Option<Period>,
    ) -> impl Future<Output = ()> + Send + 'static + use<S> {
        super::asking::serve(Arc::downgrade(limiter), Arc::clone(&limiter.asking), clock, longest, None)
    }

    pub(super) fn reload_asking(&self, now: Timestamp) {
        let [_, asking] = &self.lines_are_stale;
        if asking.swap(false, Ordering::AcqRel)
            && let Some(loaded) = &*self.loaded.load()
        {
            self.asking.reload(now, |names| self.waited_for(&loaded.rules, names, false));
            self.asking.places.reload(now, |key, names| self.has_places_for(&loaded.rules, key, names));
        }
    }

    /// Rejects all callers that wait, and from now on those that would have to.
    pub fn close_waiters(&self, now: Timestamp) {
        if let Some(store) = self.store.memory() {
            store.close_lines(now);
        }
        self.asking.close(now);
    }

    /// Gives the hits of `receipt` back as [`Limiter::put_back`] does, and counts them, unless their rule denies this.
    pub fn give_back(&self, receipt: Receipt, now: Timestamp) {
        if !receipt.is_returnable {
            return;
        }
        if let Some((loaded, rule)) = self.loaded.load().as_deref().zip(receipt.rule)
            && let Some(rule) = loaded.rules.rule(rule)
        {
            loaded.stats[rule.index()]
                .add_rare(RareCounts { returned: receipt.hits.0, ..RareCounts::default() });
        }
        self.put_back(receipt, now);
    }

    /// Gives hits back while they count: to a window that is open, and to a bucket less what has flowed in since.
    pub fn put_back(&self, receipt: Receipt, now: Timestamp) {
        self.recorder().note_unnamed();
        let loaded = self.loaded.load();
        let rule = loaded.as_ref().and_then(|loaded| RuleRef::Compiled(loaded.rules.rules().first()?).id());
        let is_old = rule.is_none_or(|rule| receipt.is_older_than(rule));
        if let Some(names) = &receipt.names {
            let Some(loaded) = &*loaded else { return };
            let request = names.request(receipt.hits);
            let matched = Matched::new(&loaded.rules, &request);
            let is_same = |check: &&LimitCheck<'_>| waits(check) && receipt.is_of_counters_of(check);
            let Some(check) = matched.checks.first().filter(is_same) else { return };
            if is_old && check.tiers().iter().any(Tier::refills) {
                return;
            }
            if let Some(unused) = self.unused_of(check, receipt.taken_at, receipt.hits, now) {
                self.asking.give_back(check.key, Arc::clone(names), unused);
            }
        } else if let Some(store) = self.store.memory() {
            store.put_back(receipt, is_old, now);
        }
    }

    fn unused_of(
        &self,
        check: &LimitCheck<'_>,
        taken_at: Timestamp,
        hits: Hits,
        now: Timestamp,
    ) -> Option<Unused> {
        // on the clock of the store
        let at = self.store.estimate(check, now).map_or(now, |estimate| estimate.at);
        let taken_at = Timestamp::from_nanos(at.as_nanos().saturating_sub(now.since(taken_at).as_nanos()));
        unused(check.tiers(), taken_at, hits, at)
    }

    pub(super) async fn give_back_unused(
        &self,
        check: &LimitCheck<'_>,
        Unused { hits, span }: Unused,
        now: Timestamp,
    ) {
        let decision = Decision::unknown(Period::default());
        let reservation = Reservation { hits, until: span.until, decision, counted: span };
        // hits that cannot be given back stay counted
        let _ = self.store.release(check, reservation, hits, now).await;
    }

    /// Returns the number of callers that wait or have an answer to collect.
    pub fn waiters(&self) -> usize {
        self.asking.waiters()
    }

    pub(super) fn refresh_lines(&self) {
        for is_stale in &self.lines_are_stale {
            is_stale.store(true, Ordering::Release);
        }
        if let Some(store) = self.store.memory() {
            store.timers().ring();
        }
        self.asking.ring();
    }

    pub(super) fn current(&self, request: &Request<'_>) -> Result<Arc<LoadedRules>, LimitError> {
        validate(request)?;
        let loaded = self.loaded.load_full().ok_or(LimitError::NoRules)?;
        loaded.rules.check_patterns(request)?;
        Ok(loaded)
    }

    pub(super) fn is_current(&self, loaded: &Arc<LoadedRules>) -> bool {
        self.loaded.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, loaded))
    }

    /// None if the request must be decided at once.
    fn line_of<'b, 'c>(
        &self,
        request: &Request<'_>,
        matched: &'b Matched<'c>,
        max_wait: Period,
    ) -> Result<Option<AwaitedLimit<'b, 'c>>, AcquireError> {
        if max_wait == Period::default() || self.settings.modes.shadow {
            return Ok(None);
        }
        let is_limited = |i: &usize| {
            let mut places =
                matched.places.iter().filter(|(of, place)| of == i && place.ask == PlaceAsk::Take);
            let hits = matched.matches[*i].check().map_or(Hits(0), |check| matched.checks[check].hits);
            hits > Hits(0) || places.next().is_some()
        };
        let limited = (0..matched.matches.len()).filter(is_limited).count();
        if limited > 1 {
            return Err(AcquireError::SeveralLimits(limited));
        }
        let is_override = request.descriptors.iter().any(|descriptor| descriptor.limit.is_some());
        let waits_for_places = !is_override && awaited(matched, &self.settings.modes).is_some();
        if limited == 0 || !matched.places.is_empty() && !waits_for_places {
            return Ok(None);
        }
        Ok(match matched.enforced() {
            [] => Some(AwaitedLimit::Place),
            [check] if check.hits > Hits(0) && waits(check) => Some(AwaitedLimit::Hits(check)),
            _ => None,
        })
    }

    /// Takes the place of a request that its other limits have admitted, or waits for one. What they have counted is given
    /// back if it gets none.
    async fn wait_for_place<C: Clock + ?Sized>(
        &self,
        call: &AcquireCall<'_, '_, C>,
        outcome: &mut AcquireOutcome,
    ) -> Result<Option<AwaitedPlace>, AcquireError> {
        let lines = &self.asking.places;
        let mut taken = Taken { limiter: self, clock: call.clock, receipt: outcome.acquired.receipt.take() };
        let (name, decision, rejection) = loop {
            let now = call.clock.now();
            let loaded = self.current(call.request)?;
            outcome.loaded = Arc::clone(&loaded);
            let matched = Matched::new(&loaded.rules, call.request);
            let Some(check) = awaited(&matched, &self.settings.modes) else {
                // a reload has taken the limit away
                outcome.acquired.receipt = taken.receipt.take();
                return Ok(None);
            };
            let (key, most) = (check.key, check.limit.most);
            let refused = PlaceDecision { over: true, before: most, basis: Basis::Counters };
            if !lines.has_line(key) {
                let asked = self.take_place(&loaded, check, now).await.map_err(LimitError::from);
                let (name, decision) = asked.inspect_err(|_| self.stats.redis_error.add(1))?;
                if !decision.over {
                    break (Some(name), decision, None);
                }
                if most == 0 {
                    break (None, decision, Some(Rejection::Never));
                }
            }
            let ticket = match lines.enter(check, call.left(now), now) {
                Ok(ticket) => ticket,
                Err(rejection) => break (None, refused, Some(rejection)),
            };
            // a reload may have missed the line
            if !self.is_current(&loaded) {
                self.refresh_lines();
            }
            let position = ticket.position;
            match (WaitingCaller { lines, ticket: Some(ticket), clock: call.clock }).await {
                Answer::AskAgain => {}
                Answer::Rejected(rejection) => break (None, refused, Some(rejection)),
                Answer::Admitted(at) => {
                    if let Some(name) = lines.collect(key, position, at) {
                        // others wait, so that none is left
                        let decision =
                            PlaceDecision { over: false, before: most.saturating_sub(1), ..refused };
                        break (Some(name), decision, None);
                    }
                }
            }
        };
        if rejection.is_none() {
            outcome.acquired.receipt = taken.receipt.take();
        }
        outcome.at = call.clock.now();
        outcome.acquired.waited = outcome.at.since(call.started);
        let decisions = std::iter::once(Some(decision)).collect();
        let decisions = PlaceDecisions { name, reserved: Hits(0), decisions };
        Ok(Some(AwaitedPlace { decisions, rejection }))
    }

    async fn acquire_at_once<T>(
        &self,
        request: &Request<'_>,
        started: Timestamp,
        now: Timestamp,
        encode: impl FnOnce(&Verdict<'_>, &Acquired) -> T,
    ) -> Result<T, AcquireError> {
        let (receipt, is_never) = {
            let loaded = self.current(request)?;
            let matched = Matched::new(&loaded.rules, request);
            let only = match matched.enforced() {
                [check] if check.pool.is_none() && check.direction == Direction::Take => Some(check),
                _ => None,
            };
            let is_never = |check: &LimitCheck<'_>| check.hits.0 > capacity(check.tiers());
            let has_none = |(_, place): &(usize, PlaceCheck<'_>)| place.limit.most == 0;
            let is_never = only.is_some_and(is_never) || matched.places.iter().any(has_none);
            (only.map(|check| self.receipt(check, now)), is_never)
        };
        let options = TakeOptions { takes_names: true, ..TakeOptions::default() };
        let decided = self.decide_with(request, now, options, |verdict| {
            let waited = now.since(started);
            let acquired = if verdict.code == Code::Ok {
                // what shadow mode admits is not counted
                let is_counted = verdict.statuses.iter().all(|status| status.code == Code::Ok);
                let receipt = receipt.filter(|_| is_counted && !verdict.shadowed);
                Acquired::new(None, waited, receipt).with_name(request, verdict)
            } else {
                let retry_after = verdict.retry_after().unwrap_or_default();
                let rejection = if is_never { Rejection::Never } else { Rejection::Timeout { retry_after } };
                Acquired::new(Some(rejection), waited, None)
            };
            encode(verdict, &acquired)
        });
        Ok(decided.await?)
    }

    /// Each rule's line decides by itself, so no other rule rejects what is counted in a shadow.
    async fn decide_shadows(&self, matched: &Matched<'_>, now: Timestamp) -> Decisions {
        let shadows = matched.shadows();
        if shadows.is_empty() {
            return Decisions::new();
        }
        let taken = self.store.take_with(shadows, Scope::Descriptor, now, TakeOptions::default());
        let unknown = |_: &LimitCheck<'_>| Decision::unknown(Period::default());
        Box::pin(taken).await.unwrap_or_else(|_| shadows.iter().map(unknown).collect())
    }

    async fn report<T, C: Clock + ?Sized>(
        &self,
        call: &AcquireCall<'_, '_, C>,
        outcome: AcquireOutcome,
        placed: Option<AwaitedPlace>,
        encode: impl FnOnce(&Verdict<'_>, &Acquired) -> T,
    ) -> T {
        let AcquireOutcome { loaded, key, mut acquired, decision, at } = outcome;
        let matched = Matched::new(&loaded.rules, call.request);
        let decide = |check: &LimitCheck<'_>| {
            let looked = || self.look(check, at);
            match (decision, acquired.rejection) {
                (Some(decision), _) => decision,
                // the rules have changed, and another limit applies
                _ if check.key != key => looked(),
                (None, None) => {
                    let looked = looked();
                    Decision { before: looked.before.minus(check.hits), ..looked }
                }
                (None, Some(rejection)) => rejected(looked(), rejection),
            }
        };
        let mut decisions: Decisions = matched.enforced().iter().map(decide).collect();
        let mut taken = Taken { limiter: self, clock: call.clock, receipt: acquired.receipt.clone() };
        decisions.extend(self.decide_shadows(&matched, at).await);
        taken.receipt = None;
        if let Some(placed) = &placed {
            acquired.rejection = placed.rejection;
        }
        let placed = placed.as_ref().map(|placed| &placed.decisions);
        let encode = |verdict: &Verdict<'_>| encode(verdict, &acquired.with_name(call.request, verdict));
        self.conclude(&loaded, call.request, &matched, (&decisions, placed), at, encode)
    }
}

impl<S: Store> Limiter<S> {
    /// Like [`Limiter::acquire`] without a wait. Fails if a store has to be waited for.
    pub(super) fn acquire_now(
        &self,
        request: &Request<'_>,
        now: Timestamp,
    ) -> Result<Acquired, AcquireError> {
        let is_elsewhere = {
            let loaded = self.current(request)?;
            let matched = Matched::new(&loaded.rules, request);
            let is_elsewhere = |check: &LimitCheck<'_>| self.store.lines_for(check).is_none();
            matched.checks.iter().any(is_elsewhere)
                || matched.places.iter().any(|(_, place)| is_elsewhere(&place.as_limit_check()))
        };
        if is_elsewhere {
            return Err(AcquireError::MustAsk);
        }
        let acquired = self.acquire_at_once(request, now, now, |_, acquired| acquired.clone());
        at_once(acquired).unwrap_or(Err(AcquireError::MustAsk))
    }

    fn receipt(&self, check: &LimitCheck<'_>, taken_at: Timestamp) -> Receipt {
        match self.store.lines_for(check) {
            Some(_) => Receipt::new(check, taken_at),
            None => Receipt::of_store(check, taken_at),
        }
    }

    /// None if callers of `names` do not wait, or not where `is_in_memory` says.
    fn waited_for(
        &self,
        rules: &RuleSet,
        names: &Named,
        is_in_memory: bool,
    ) -> Option<(CounterKey, SharedTiers)> {
        let request = names.request(Hits(1));
        let matched = Matched::new(rules, &request);
        let is_there =
            |check: &&LimitCheck<'_>| waits(check) && self.store.lines_for(check).is_some() == is_in_memory;
        let check = matched.checks.first().filter(is_there)?;
        Some((check.key, check.shared_tiers()))
    }

    /// Whether callers of `names` may wait for places of `key`.
    fn has_places_for(&self, rules: &RuleSet, key: CounterKey, names: &Named) -> bool {
        let request = names.request(Hits(1));
        let matched = Matched::new(rules, &request);
        awaited(&matched, &self.settings.modes).is_some_and(|check| check.key == key && check.limit.most > 0)
    }
}

pub(super) fn waits(check: &LimitCheck<'_>) -> bool {
    let RuleRef::Compiled(rule) = &check.rule else { return false };
    rule.reserve().is_none()
        && check.pool.is_none()
        && check.direction == Direction::Take
        && !check.rule.shadow_mode()
        && !check.is_cost()
        && can_wait(check.tiers())
}

/// Returns whether a fixed window has ended between these instants, so that the next one could serve in time.
fn has_ended(tiers: &[Tier], from: Timestamp, to: Timestamp) -> bool {
    let has_ended =
        |tier: &Tier| tier.window_end(from).is_some_and(|end| end <= to) && to.since(from) < tier.period;
    tiers.iter().any(has_ended)
}

fn rejected(looked: Decision, rejection: Rejection) -> Decision {
    let reset = match rejection {
        Rejection::Timeout { retry_after } | Rejection::Full { retry_after } => retry_after,
        Rejection::Never | Rejection::Closed => looked.reset,
    };
    Decision { over: true, reset, ..looked }
}

// === impl AcquireCall ===

impl<C: ?Sized> AcquireCall<'_, '_, C> {
    fn left(&self, now: Timestamp) -> Period {
        self.started.after(self.max_wait).since(now)
    }
}

// === impl AcquireOutcome ===

impl AcquireOutcome {
    fn of_line(
        loaded: &Arc<LoadedRules>,
        key: CounterKey,
        acquired: Acquired,
        at: Timestamp,
    ) -> Entrance<'static> {
        Entrance::Decided(Self { loaded: Arc::clone(loaded), key, acquired, decision: None, at })
    }
}

// === impl Acquired ===

impl Acquired {
    pub(super) const fn new(rejection: Option<Rejection>, waited: Period, receipt: Option<Receipt>) -> Self {
        Self { rejection, waited, receipt, name: None, reserved: Hits(0) }
    }

    pub(super) fn admitted(receipt: Option<Receipt>, started: Timestamp, at: Timestamp) -> Self {
        Self::new(None, at.since(started), receipt)
    }

    fn rejected(rejection: Rejection, started: Timestamp, now: Timestamp) -> Self {
        Self::new(Some(rejection), now.since(started), None)
    }

    /// Has the name in `verdict`. Without one, those of its descriptors whose costs count have a name of no place.
    fn with_name(mut self, request: &Request<'_>, verdict: &Verdict<'_>) -> Self {
        if let Some(places) = &verdict.in_flight {
            (self.name, self.reserved) = (places.name.clone(), places.reserved);
        }
        if self.name.is_none() && self.rejection.is_none() {
            let meters = |status: &Status<'_>| {
                let rule = status.limit.and_then(|limit| limit.rule.compiled());
                status.code == Code::Ok && rule.is_some_and(|rule| rule.rule.meters())
            };
            let begun = request.descriptors.iter().zip(&verdict.statuses);
            let begun = begun.filter(|(begun, status)| request.hits_of(begun) <= Hits(1) && meters(status));
            let mut begun = begun.map(|(descriptor, _)| &*descriptor.entries).peekable();
            if begun.peek().is_some() {
                self.name = Some(RequestName::write(PlaceName::NONE, begun).into());
            }
        }
        self
    }
}

// === impl AcquireError ===

impl From<StoreError> for AcquireError {
    fn from(error: StoreError) -> Self {
        Self::Limit(error.into())
    }
}

// === impl Taken ===

impl<S: Store, C: Clock + ?Sized> Drop for Taken<'_, S, C> {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            self.limiter.put_back(receipt, self.clock.now());
        }
    }
}

// === impl WaitingCaller ===

impl<C: Clock + ?Sized> Future for WaitingCaller<'_, C> {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let Some(ticket) = &self.ticket else { return Poll::Ready(Answer::AskAgain) };
        let answer = self.lines.poll_place(ticket, context.waker());
        if answer.is_ready() {
            self.ticket = None;
        }
        answer
    }
}

impl<C: Clock + ?Sized> Drop for WaitingCaller<'_, C> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.lines.leave(ticket, self.clock.now());
        }
    }
}
