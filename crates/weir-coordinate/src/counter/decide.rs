//! Decides by what a mode answers, and carries it out; counts hits in the estimate, with and without the store.

use smallvec::SmallVec;

use super::{
    LocalCounter, all_ended, fits,
    ledger::{Lease, PendingDelta},
    longest_pause, negative, positive, remaining,
    traffic::{Try, TryKind, TryVerdict},
};
use crate::client::Link;
use weir_limit::{
    Basis, Coordination, Decision, Direction, Hits, LimitCheck, OverLimitPolicy, Period, Reservation,
    ReservationRequest, ReservedSpan, Scope, Tier, Timestamp, algorithm::CounterState, decide,
    decision_from_store, look,
};
use weir_store::{Decisions, wakeup::Wakeups};

/// What a decision asks of a counter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecisionRequest {
    pub(crate) direction: Direction,
    /// Those to look for, if none are taken.
    pub(crate) hits: Hits,
    pub(crate) policy: OverLimitPolicy,
    /// Whether they count even where the store need not hear of a rejection.
    pub(crate) is_cost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PolicyAnswer {
    /// The estimate decides. Admitted hits are reported.
    Count,
    /// The leases cover the hits.
    Spend,
    Reject(Denial),
    /// The store decides.
    Wait(TryKind),
}

/// Why hits are rejected without the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Denial {
    Estimate,
    /// The store has too few for all instances.
    Pause,
    /// The store has denied all until later.
    Cached,
}

/// How a decision was made without the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Counted,
    /// From a lease.
    Spent,
    /// By what the store's earlier replies have told.
    Denied,
}

/// Returns the reservation of `hits`, which ends with its hold or the first window. `at` is when they were counted, on
/// the store's clock, and `now` no later on the caller's.
pub(crate) fn reservation(
    tiers: &[Tier],
    hits: Hits,
    decision: Decision,
    hold: Period,
    (at, now): (Timestamp, Timestamp),
) -> Reservation {
    let rests = tiers.iter().filter_map(|tier| tier.window_end(at)).map(|end| end.since(at));
    let counted = ReservedSpan { from: at, until: at.after(hold), is_reported: true };
    Reservation { hits, until: now.after(rests.fold(hold, Period::min)), decision, counted }
}

// === impl DecisionRequest ===

impl DecisionRequest {
    pub(crate) fn of(check: &LimitCheck<'_>, scope: Scope) -> Self {
        let least = Hits(u64::from(check.direction == Direction::Look));
        Self {
            direction: check.direction,
            hits: check.hits.max(least),
            policy: check.over_limit_policy_in(scope),
            is_cost: check.is_cost(),
        }
    }

    fn takes_none(&self) -> bool {
        self.hits == Hits(0) || self.direction == Direction::Look
    }
}

// === impl LocalCounter ===

impl LocalCounter {
    /// What `mode` says of `ask`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    fn answer(&self, mode: Coordination, ask: &DecisionRequest, link: &Link) -> PolicyAnswer {
        let now = link.time.now;
        match mode {
            Coordination::Lease | Coordination::Strict if ask.direction == Direction::GiveBack => {
                PolicyAnswer::Count
            }
            Coordination::Lease | Coordination::Strict if ask.takes_none() => {
                PolicyAnswer::Wait(TryKind::Look)
            }
            // whether or not it fits, it counts in the store before it is answered
            Coordination::Lease | Coordination::Strict
                if ask.is_cost && (self.ledger.leased() < ask.hits.0 || !self.fits(ask.hits, now)) =>
            {
                PolicyAnswer::Wait(TryKind::Take(ask.policy))
            }
            // an estimate that may have what the store holds for this instance rejects nothing
            Coordination::Lease if !self.fits(ask.hits, now) && self.traffic.is_overtaken() => {
                PolicyAnswer::Wait(TryKind::Lease(ask.policy))
            }
            Coordination::Lease if !self.fits(ask.hits, now) => PolicyAnswer::Reject(Denial::Estimate),
            Coordination::Lease if self.ledger.leased() >= ask.hits.0 => PolicyAnswer::Spend,
            Coordination::Lease if self.is_denied(now) => PolicyAnswer::Reject(Denial::Pause),
            Coordination::Lease => PolicyAnswer::Wait(TryKind::Lease(ask.policy)),
            Coordination::Strict if link.local_cache && self.is_cached(now) => {
                PolicyAnswer::Reject(Denial::Cached)
            }
            Coordination::Strict => PolicyAnswer::Wait(TryKind::Take(ask.policy)),
            Coordination::Auto | Coordination::Interval | Coordination::Local | Coordination::Split => {
                PolicyAnswer::Count
            }
        }
    }

    /// Some hits may have been given back since the denial. A strict bucket has to notice every try.
    fn is_cached(&self, now: Timestamp) -> bool {
        let is_strict = self.target.tiers.iter().any(|tier| tier.bucket().strict);
        self.is_denied(now) && !is_strict && !self.fits(Hits(1), now)
    }

    /// The error is what to ask the store; none if it `is_away`, and no lease covers the hits.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs a hundred instructions")]
    pub(crate) fn decide(
        &mut self,
        mode: Coordination,
        ask: &DecisionRequest,
        link: &Link,
        is_away: bool,
    ) -> Result<(Decision, How), Option<TryKind>> {
        let now = link.time.now;
        let &DecisionRequest { direction, hits, policy, .. } = ask;
        if direction == Direction::Take && !mode.asks_always() && hits > Hits(0) {
            // more hits than fit are rejected, and predict no need
            self.record_demand(hits, now);
        }
        match self.answer(mode, ask, link) {
            PolicyAnswer::Spend => {
                let decision = self.spend(policy, hits, now);
                // the next lease has to arrive before this one is used up
                if !is_away && self.runs_low(link.round_trip * 2, now) {
                    self.traffic.open().wants_lease = true;
                }
                Ok((decision, How::Spent))
            }
            _ if is_away => Err(None),
            PolicyAnswer::Count => {
                let decision = self.count(direction, policy, hits, now);
                // the reply to a report of counted hits has the store's count
                if mode.syncs() {
                    if ask.takes_none() {
                        self.refresh(self.plan.schedule.interval(), now);
                    } else if decision.over && ask.is_cost && !self.is_alone() {
                        // others do not know yet that a cost has used up the rest
                        self.refresh(Period::default(), now);
                    } else if decision.over {
                        self.look_for_returned(now);
                    }
                }
                Ok((decision, How::Counted))
            }
            PolicyAnswer::Reject(denial) => Ok((self.reject(denial, ask, link), How::Denied)),
            PolicyAnswer::Wait(asks) => Err(Some(asks)),
        }
    }

    /// Returns the tries of `asks` if one command has to decide them: hits given back are only for the takers beside
    /// them, or `strict` counts `all_or_none`. None if leases cover the hits.
    pub(crate) fn tries_together(
        &mut self,
        mode: Coordination,
        asks: &[DecisionRequest],
        all_or_none: bool,
        now: Timestamp,
    ) -> Option<SmallVec<[(Hits, TryKind); 2]>> {
        let gives_back = |ask: &DecisionRequest| ask.direction == Direction::GiveBack;
        let taken = || asks.iter().filter(|ask| ask.direction == Direction::Take);
        let is_asked = mode.asks_always()
            || mode.leases() && {
                let all = taken().fold(Hits(0), |all, ask| all.plus(ask.hits));
                all_or_none
                    || asks.iter().any(|ask| !gives_back(ask) && ask.takes_none())
                    || all > Hits(self.ledger.leased())
            };
        if !is_asked || !(all_or_none && mode.asks_always() || asks.iter().any(gives_back)) {
            return None;
        }
        let tries = asks.iter().map(|&DecisionRequest { direction, hits, policy, .. }| {
            let asks = match direction {
                _ if hits == Hits(0) => TryKind::Look,
                Direction::Look => TryKind::Look,
                Direction::GiveBack => TryKind::GiveBack(now),
                Direction::Take => TryKind::Take(policy),
            };
            if !mode.asks_always() && matches!(asks, TryKind::Take(_)) {
                self.record_demand(hits, now);
            }
            (hits, asks)
        });
        Some(tries.collect())
    }

    /// Decides `asks` by the estimate, without counting anything. None if all are admitted.
    pub(crate) fn reject_together(&self, asks: &[DecisionRequest], now: Timestamp) -> Option<Decisions> {
        let tiers = &self.target.tiers;
        let mut states = self.estimate.clone();
        let decide = |ask: &DecisionRequest| {
            let decision = decide(tiers, &mut states, OverLimitPolicy::Ignore, ask.direction, ask.hits, now);
            // hits that are given back reject no others
            Decision { over: decision.over && ask.direction != Direction::GiveBack, ..decision }
        };
        let mut decisions: Decisions = asks.iter().map(decide).collect();
        if !decisions.iter().any(|decision| decision.over) {
            return None;
        }
        for decision in decisions.iter_mut().filter(|decision| !decision.over) {
            *decision = self.look(Hits(0), now);
        }
        Some(decisions)
    }

    /// `hits` must fit, and the leases must have as many.
    pub(super) fn spend(&mut self, policy: OverLimitPolicy, hits: Hits, now: Timestamp) -> Decision {
        let decision = decide(&self.target.tiers, &mut self.estimate, policy, Direction::Take, hits, now);
        self.ledger.spend(hits.0);
        if let Some(states) = &mut self.fallback {
            // once, since they are of this instance alone
            let states = self.target.tiers.iter().zip(states.iter_mut());
            states.for_each(|(tier, state)| state.take(tier, now, hits));
        }
        decision
    }

    fn reject(&mut self, denial: Denial, ask: &DecisionRequest, link: &Link) -> Decision {
        let now = link.time.now;
        let decision = match denial {
            Denial::Cached => {
                // counts no hits
                let policy = OverLimitPolicy::Ignore;
                let decision = self.count(Direction::Take, policy, ask.hits, now);
                self.deny_while_empty(now);
                // another instance may give back what it took for a request that it then rejected
                self.look_for_returned(now);
                return Decision { basis: Basis::LocalCache, ..decision };
            }
            Denial::Estimate => self.count(Direction::Take, ask.policy, ask.hits, now),
            // until there is enough for every instance
            Denial::Pause => {
                let policy = OverLimitPolicy::Ignore;
                decision_from_store(&self.target.tiers, &self.estimate, policy, true, ask.hits, now)
            }
        };
        let decision = self.until_pause_ends(decision, now);
        if self.ends_pause(now) {
            self.traffic.open().wants_lease = true;
        }
        if !self.is_denied(now) {
            self.look_for_returned(now);
        }
        decision
    }

    /// A rejection lasts until the end of the pause: a retry time before the next call would be wrong.
    pub(super) fn until_pause_ends(&self, decision: Decision, now: Timestamp) -> Decision {
        if !decision.over {
            return decision;
        }
        // the clock may have stepped back since the pause began
        let pause = self.plan.denied_until.since(now).min(longest_pause(&self.target.tiers));
        Decision { reset: decision.reset.max(pause), ..decision }
    }

    pub(super) fn deny_while_empty(&mut self, now: Timestamp) {
        self.plan.denied_until = now.after(self.wait_for(1, now));
    }

    /// Returns the time until `hits` fit, if no others are taken.
    pub(super) fn wait_for(&self, hits: u64, now: Timestamp) -> Period {
        let waits = self.estimate.iter().zip(&*self.target.tiers);
        waits.map(|(state, tier)| state.wait(tier, now, Hits(hits))).max().unwrap_or_default()
    }

    pub(super) fn is_denied(&self, now: Timestamp) -> bool {
        now < self.plan.denied_until
    }

    /// Decides by the estimate. Hits that are counted become pending.
    pub(crate) fn count(
        &mut self,
        direction: Direction,
        policy: OverLimitPolicy,
        hits: Hits,
        now: Timestamp,
    ) -> Decision {
        let decision = decide(&self.target.tiers, &mut self.estimate, policy, direction, hits, now);
        if direction == Direction::GiveBack {
            self.pend_given_back(hits, now);
        } else if direction == Direction::Look {
            return decision;
        } else if !decision.over {
            self.ledger.add_hits(positive(hits.0), &self.target.tiers, now);
        } else if policy == OverLimitPolicy::Count {
            self.pend(PendingDelta { rejected: hits.0, ..PendingDelta::of(positive(hits.0), now) });
        } else if self.is_rejected_by_strict_bucket(hits, now) {
            self.pend(PendingDelta { rejected_at: now, ..PendingDelta::of(0, now) });
        }
        if decision.over {
            self.return_useless(now);
        }
        decision
    }

    /// A strict bucket notices a try that it rejects itself, not one that only another tier rejects.
    fn is_rejected_by_strict_bucket(&self, hits: Hits, now: Timestamp) -> bool {
        let mut tiers = self.target.tiers.iter().zip(self.estimate.iter());
        tiers.any(|(tier, state)| tier.bucket().strict && !state.probe(tier, now, hits).fits)
    }

    /// The estimate must have the hits of `delta` already.
    pub(super) fn pend(&mut self, delta: PendingDelta) {
        self.ledger.add(delta, &self.target.tiers);
    }

    fn pend_given_back(&mut self, hits: Hits, now: Timestamp) {
        if hits == Hits(0) {
            return;
        }
        let mut delta = PendingDelta::of(negative(hits.0), now);
        let counts = |lease: &&Lease| !all_ended(&self.target.tiers, lease.granted_at, now);
        // the store counts unspent leased hits too, which must stay
        delta.change.floor = self.ledger.leases().iter().filter(counts).map(|lease| lease.left).sum();
        self.pend(delta);
    }

    /// Counts what a try gives back that was not sent.
    pub(crate) fn count_return(&mut self, hits: Hits, asks: TryKind) {
        if let TryKind::GiveBack(at) = asks {
            self.count(Direction::GiveBack, OverLimitPolicy::Ignore, hits, at);
        }
    }

    /// Gives back hits that were counted at `at` for a request which was then rejected.
    pub(crate) fn uncount(&mut self, hits: Hits, at: Timestamp) {
        self.return_unused(PendingDelta::unused(hits.0, at, at), at);
    }

    /// The hits are available here at once, in tiers that still count them.
    fn return_unused(&mut self, delta: PendingDelta, now: Timestamp) {
        delta.apply_to_all(&self.target.tiers, &mut self.estimate, now);
        self.pend(delta);
    }

    /// Decides as if every instance received the same hits. Not `reported`: the store may have counted them already.
    pub(crate) fn count_fallback(
        &mut self,
        direction: Direction,
        policy: OverLimitPolicy,
        hits: Hits,
        reported: bool,
        now: Timestamp,
    ) -> Decision {
        let instances = u64::from(self.plan.instances);
        if instances <= 1 {
            // its estimate also has what was counted after an earlier decision of this kind, here
            self.fallback = None;
            return if reported {
                self.count(direction, policy, hits, now)
            } else {
                decide(&self.target.tiers, &mut self.estimate, policy, direction, hits, now)
            };
        }
        let states = self.fallback.get_or_insert_with(|| Box::new(self.estimate.clone()));
        let all = Hits(hits.0.saturating_mul(instances));
        let decision = decide(&self.target.tiers, states, policy, direction, all, now);
        if direction == Direction::GiveBack || !decision.over || policy == OverLimitPolicy::Count {
            self.count_admitted(direction, hits, reported, now);
        }
        let remaining = u64::from(decision.remaining) / instances;
        Decision { remaining: u32::try_from(remaining).unwrap_or(u32::MAX), ..decision }
    }

    /// Counts `hits` that are admitted without a decision. Returns the status before.
    pub(crate) fn admit(&mut self, hits: Hits, reported: bool, now: Timestamp) -> Decision {
        let (tiers, policy) = (&self.target.tiers, OverLimitPolicy::Ignore);
        let decision = decision_from_store(tiers, &self.estimate, policy, false, Hits(0), now);
        self.count_admitted(Direction::Take, hits, reported, now);
        decision
    }

    /// The estimate has to include `hits` that it has not decided: the store may reply before they are reported.
    fn count_admitted(&mut self, direction: Direction, hits: Hits, reported: bool, now: Timestamp) {
        for (tier, state) in self.states_mut() {
            match direction {
                Direction::Take => state.take(tier, now, hits),
                Direction::GiveBack => state.give_back(tier, now, hits),
                Direction::Look => {}
            }
        }
        match direction {
            Direction::Look => {}
            _ if !reported => {}
            Direction::Take => self.pend(PendingDelta::of(positive(hits.0), now)),
            Direction::GiveBack => self.pend_given_back(hits, now),
        }
    }

    /// The estimate, by tier.
    pub(super) fn states_mut(&mut self) -> impl Iterator<Item = (&Tier, &mut CounterState)> {
        self.target.tiers.iter().zip(self.estimate.iter_mut())
    }

    pub(crate) fn look(&self, hits: Hits, now: Timestamp) -> Decision {
        look(&self.target.tiers, &self.estimate, hits, now)
    }

    pub(crate) fn fits(&self, hits: Hits, now: Timestamp) -> bool {
        fits(&self.target.tiers, &self.estimate, hits, now)
    }

    pub(crate) fn remaining(&self, now: Timestamp) -> u64 {
        remaining(&self.target.tiers, &self.estimate, now)
    }

    /// Returns the hits that `request` receives as if every instance made the same request. Counts nothing.
    pub(crate) fn fit_fallback(&self, request: ReservationRequest, now: Timestamp) -> Hits {
        let fallback = self.fallback.as_deref().filter(|_| !self.is_alone());
        let states = fallback.unwrap_or(&self.estimate);
        let instances = u64::from(self.plan.instances.max(1));
        request.fit(Hits(remaining(&self.target.tiers, states, now) / instances))
    }

    /// Reserves hits by the estimate, for a store that cannot grant any.
    pub(crate) fn reserve(&mut self, request: ReservationRequest, now: Timestamp) -> Hits {
        let hits = request.fit(Hits(self.remaining(now)));
        let decision = self.count(Direction::Take, OverLimitPolicy::Ignore, hits, now);
        if decision.over { Hits(0) } else { hits }
    }

    /// `at` is `now` on the store's clock.
    pub(crate) fn local_reservation(
        &self,
        hits: Hits,
        request: ReservationRequest,
        at: Timestamp,
        now: Timestamp,
    ) -> Reservation {
        let (tiers, policy, over) = (&self.target.tiers, OverLimitPolicy::Ignore, hits == Hits(0));
        let decided = if over { request.least.max(Hits(1)) } else { hits };
        let decision = decision_from_store(tiers, &self.estimate, policy, over, decided, at);
        reservation(tiers, hits, decision, request.hold, (at, now))
    }

    pub(crate) fn release(&mut self, span: ReservedSpan, hits: Hits, now: Timestamp) {
        let unused = |hits| PendingDelta::unused(hits, span.from, span.until);
        if let Some(states) = &mut self.fallback {
            let all = unused(hits.0.saturating_mul(self.plan.instances.into()));
            all.apply_to_all(&self.target.tiers, states, now);
        }
        // otherwise a reply may have replaced the estimate that has counted them
        if span.is_reported && !all_ended(&self.target.tiers, span.from, now) {
            self.return_unused(unused(hits.0), now);
        }
    }

    /// Hits of a caller who waits no longer.
    pub(crate) fn give_back_reserved(&mut self, request: ReservationRequest, verdict: TryVerdict) {
        let until = verdict.at.after(request.hold);
        let span = ReservedSpan { from: verdict.at, until, is_reported: true };
        self.release(span, verdict.reserved, verdict.at);
    }

    /// Decides `asked` from the leases. Returns it if they do not cover it.
    pub(super) fn decide_from_leases(&mut self, asked: Try, link: &Link, woken: &mut Wakeups) -> Option<Try> {
        let now = link.time.now;
        let TryKind::Lease(policy) = asked.kind else { return Some(asked) };
        let is_covered = policy != OverLimitPolicy::Count
            && asked.is_awaited()
            && self.serves(&asked.target)
            && self.ledger.leased() >= asked.hits.0
            && self.fits(asked.hits, now);
        if !is_covered {
            return Some(asked);
        }
        let decision = self.spend(policy, asked.hits, now);
        asked.succeed(TryVerdict::new(decision, now), woken);
        None
    }

    /// The estimate, which is exact, decides instead: the store's state counts some hits for too long, and leased ones.
    pub(super) fn decide_better(&mut self, asked: &Try, verdict: &mut TryVerdict, now: Timestamp) {
        let policy = OverLimitPolicy::Ignore;
        let is_taking = asked.kind == TryKind::Take(policy) || asked.kind == TryKind::Lease(policy);
        let is_alone = asked.group.is_none_or(|group| !group.all_or_none);
        if is_taking
            && is_alone
            && asked.is_awaited()
            && self.serves(&asked.target)
            && self.fits(asked.hits, now)
        {
            verdict.decision = self.count(Direction::Take, policy, asked.hits, now);
        }
    }
}
