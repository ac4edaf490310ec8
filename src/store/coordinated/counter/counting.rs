//! Counts hits in the local estimate, with and without the store, and makes and releases reservations.

use super::{
    LocalCounter,
    records::{HeldLease, PendingDelta},
    tiers::{all_ended, fits, look, negative, positive, remaining},
};
use crate::limit::{
    Algorithm, Decision, Direction, Hits, OverLimitPolicy, Period, Reservation, ReservationRequest,
    ReservedSpan, Tier, Timestamp, algorithm::CounterState, decide, decision_from_store,
};

impl LocalCounter {
    /// Decides by the estimate. Hits that are counted become pending.
    pub(in super::super) fn count(
        &mut self,
        direction: Direction,
        policy: OverLimitPolicy,
        hits: Hits,
        now: Timestamp,
    ) -> Decision {
        let decision = decide(&self.target.tiers, &mut self.estimate, policy, direction, hits, now);
        if direction == Direction::GiveBack {
            self.pend_given_back(hits, now);
        } else if !decision.over {
            self.add_pending(positive(hits.0), now);
        } else if policy == OverLimitPolicy::Count {
            self.push_pending(PendingDelta { rejected: hits.0, ..PendingDelta::of(positive(hits.0), now) });
        } else if self.is_rejected_by_strict_bucket(hits, now) {
            self.push_pending(PendingDelta { rejected_at: now, ..PendingDelta::of(0, now) });
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

    fn pend_given_back(&mut self, hits: Hits, now: Timestamp) {
        if hits == Hits(0) {
            return;
        }
        let mut delta = PendingDelta::of(negative(hits.0), now);
        let counts = |lease: &&HeldLease| !all_ended(&self.target.tiers, lease.granted_at, now);
        // the store counts unspent leased hits too, which must stay
        delta.change.floor = self.leases().iter().filter(counts).map(HeldLease::left).sum();
        self.push_pending(delta);
    }

    /// Gives back hits that were counted at `at` for a request which was then rejected.
    pub(in super::super) fn uncount(&mut self, hits: Hits, at: Timestamp) {
        self.return_unused(PendingDelta::unused(hits.0, at, at), at);
    }

    /// The hits are available here at once, in tiers that still count them.
    pub(super) fn return_unused(&mut self, delta: PendingDelta, now: Timestamp) {
        self.states_mut().for_each(|(tier, state)| delta.apply(tier, state, now));
        self.push_pending(delta);
    }

    /// Decides as if every instance received the same hits. Not `reported`: the store may have counted them already.
    pub(in super::super) fn count_fallback(
        &mut self,
        direction: Direction,
        hits: Hits,
        reported: bool,
        now: Timestamp,
    ) -> Decision {
        let (instances, policy) = (u64::from(self.plan.instances), OverLimitPolicy::Ignore);
        if instances <= 1 {
            // its estimate also has what was counted after an earlier decision of this kind, here
            self.rare.fallback = None;
            return if reported {
                self.count(direction, policy, hits, now)
            } else {
                decide(&self.target.tiers, &mut self.estimate, policy, direction, hits, now)
            };
        }
        let states = self.rare.fallback.get_or_insert_with(|| Box::new(self.estimate.clone()));
        let all = Hits(hits.0.saturating_mul(instances));
        let decision = decide(&self.target.tiers, states, policy, direction, all, now);
        if direction == Direction::GiveBack || !decision.over {
            self.count_admitted(direction, hits, reported, now);
        }
        let remaining = u64::from(decision.remaining) / instances;
        Decision { remaining: u32::try_from(remaining).unwrap_or(u32::MAX), ..decision }
    }

    /// Counts leased hits that were used without the store. They count once, since they are of this instance alone.
    pub(in super::super) fn note_in_fallback(&mut self, hits: Hits, now: Timestamp) {
        if let Some(states) = &mut self.rare.fallback {
            for (tier, state) in self.target.tiers.iter().zip(states.iter_mut()) {
                state.take(tier, now, hits);
            }
        }
    }

    /// Counts `hits` that are admitted without a decision. Returns the status before.
    pub(in super::super) fn admit(&mut self, hits: Hits, reported: bool, now: Timestamp) -> Decision {
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
            }
        }
        match direction {
            _ if !reported => {}
            Direction::Take => self.push_pending(PendingDelta::of(positive(hits.0), now)),
            Direction::GiveBack => self.pend_given_back(hits, now),
        }
    }

    /// The estimate, by tier.
    pub(super) fn states_mut(&mut self) -> impl Iterator<Item = (&Tier, &mut CounterState)> {
        self.target.tiers.iter().zip(self.estimate.iter_mut())
    }

    pub(in super::super) fn look(&self, hits: Hits, now: Timestamp) -> Decision {
        look(&self.target.tiers, &self.estimate, hits, now)
    }

    pub(in super::super) fn fits(&self, hits: Hits, now: Timestamp) -> bool {
        fits(&self.target.tiers, &self.estimate, hits, now)
    }

    pub(in super::super) fn remaining(&self, now: Timestamp) -> u64 {
        remaining(&self.target.tiers, &self.estimate, now)
    }

    /// Returns the hits that `request` receives as if every instance made the same request. Counts nothing.
    pub(in super::super) fn fit_fallback(&self, request: ReservationRequest, now: Timestamp) -> Hits {
        let fallback = self.rare.fallback.as_deref().filter(|_| !self.is_alone());
        let states = fallback.unwrap_or(&self.estimate);
        let instances = u64::from(self.plan.instances.max(1));
        request.fit(Hits(remaining(&self.target.tiers, states, now) / instances))
    }

    /// Reserves hits by the estimate, for a store that cannot grant any.
    pub(in super::super) fn reserve(&mut self, request: ReservationRequest, now: Timestamp) -> Hits {
        let hits = request.fit(Hits(self.remaining(now)));
        let decision = self.count(Direction::Take, OverLimitPolicy::Ignore, hits, now);
        if decision.over { Hits(0) } else { hits }
    }

    /// It ends with its hold or the first window. `at` is `now` on the store's clock.
    pub(in super::super) fn local_reservation(
        &self,
        hits: Hits,
        request: ReservationRequest,
        at: Timestamp,
        now: Timestamp,
    ) -> Reservation {
        let (tiers, policy, over) = (&self.target.tiers, OverLimitPolicy::Ignore, hits == Hits(0));
        let decided = if over { request.least.max(Hits(1)) } else { hits };
        let decision = decision_from_store(tiers, &self.estimate, policy, over, decided, at);
        let windows = tiers.iter().filter(|tier| tier.algorithm == Algorithm::FixedWindow);
        let rests = windows.map(|tier| at.window_end(tier.period).since(at));
        let time = rests.fold(request.hold, Period::min);
        let counted = ReservedSpan { from: at, until: at.after(time), is_reported: true };
        Reservation { hits, until: now.after(time), decision, counted }
    }

    pub(in super::super) fn release(&mut self, span: ReservedSpan, hits: Hits, now: Timestamp) {
        let unused = |hits| PendingDelta::unused(hits, span.from, span.until);
        if let Some(states) = &mut self.rare.fallback {
            let all = unused(hits.0.saturating_mul(self.plan.instances.into()));
            let states = self.target.tiers.iter().zip(states.iter_mut());
            states.for_each(|(tier, state)| all.apply(tier, state, now));
        }
        // otherwise a reply may have replaced the estimate that has counted them
        if span.is_reported && !all_ended(&self.target.tiers, span.from, now) {
            self.return_unused(unused(hits.0), now);
        }
    }
}
