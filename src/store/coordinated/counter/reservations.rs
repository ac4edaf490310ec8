//! Reservations in a local counter: makes them while the store is unavailable, and releases them at any time.

use super::{
    LocalCounter,
    records::PendingDelta,
    tiers::{all_ended, remaining},
};
use crate::limit::{
    Algorithm, Direction, Hits, OverLimitPolicy, Period, Reservation, ReservationRequest, ReservedSpan,
    Timestamp, decision_from_store,
};

impl LocalCounter {
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
