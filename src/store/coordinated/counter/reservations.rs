//! Reservations in a local counter: makes them while the store is unavailable, and releases them at any time.

use super::{
    LocalCounter,
    records::PendingDelta,
    tiers::{has_ended, negative},
};
use crate::limit::{
    Algorithm, Direction, Hits, OverLimitPolicy, Period, Reservation, ReservationRequest, ReservedSpan, Tier,
    Timestamp, decision_from_store,
};

impl LocalCounter {
    /// Returns the hits that `request` receives as if every instance made the same request. Counts nothing.
    pub(in super::super) fn fit_fallback(&self, request: ReservationRequest, now: Timestamp) -> Hits {
        let instances = u64::from(self.plan.instances);
        let fallback = self.rare.more().and_then(|more| more.fallback.as_deref());
        let states = fallback.filter(|_| instances > 1).unwrap_or(&self.estimate);
        let left = states.iter().zip(&self.target.tiers);
        let left = left.map(|(state, tier)| u64::from(state.availability(tier, now).remaining)).min();
        request.fit(Hits(left.unwrap_or_default() / instances.max(1)))
    }

    fn reservation_time(&self, hold: Period, now: Timestamp) -> Period {
        let windows = self.target.tiers.iter().filter(|tier| tier.algorithm == Algorithm::FixedWindow);
        windows.map(|tier| now.window_end(tier.period).since(now)).fold(hold, Period::min)
    }

    /// Reserves hits by the estimate, for a store that cannot grant any.
    pub(in super::super) fn reserve(&mut self, request: ReservationRequest, now: Timestamp) -> Hits {
        let hits = request.fit(Hits(self.remaining(now)));
        let decision = self.count(Direction::Take, OverLimitPolicy::Ignore, hits, now);
        if decision.over { Hits(0) } else { hits }
    }

    pub(in super::super) fn local_reservation(
        &self,
        hits: Hits,
        request: ReservationRequest,
        at: Timestamp,
        now: Timestamp,
    ) -> Reservation {
        let over = hits == Hits(0);
        let policy = OverLimitPolicy::Ignore;
        let decided = if over { request.least.max(Hits(1)) } else { hits };
        let decision = decision_from_store(&self.target.tiers, &self.estimate, policy, over, decided, at);
        let time = self.reservation_time(request.hold, at);
        let counted = ReservedSpan { from: at, until: at.after(time), is_reported: true };
        Reservation { hits, until: now.after(time), decision, counted }
    }

    /// The hits are available here at once. `can_grant`: whether the store supports grants and their return.
    pub(in super::super) fn release(
        &mut self,
        span: ReservedSpan,
        hits: Hits,
        can_grant: bool,
        now: Timestamp,
    ) {
        if let Some(states) = self.rare.more_mut().and_then(|more| more.fallback.as_mut()) {
            let all = Hits(hits.0.saturating_mul(u64::from(self.plan.instances)));
            let states = self.target.tiers.iter().zip(states.iter_mut());
            for (tier, state) in states.filter(|(tier, _)| !has_ended(tier, span.from, now)) {
                state.give_back(tier, now, all);
            }
        }
        if !span.is_reported {
            // a reply may have replaced the estimate that has counted them
            return;
        }
        let states = self.target.tiers.iter().zip(self.estimate.iter_mut());
        for (tier, state) in states.filter(|(tier, _)| !has_ended(tier, span.from, now)) {
            if can_grant {
                state.release(tier, now, span.until, hits);
            } else {
                state.give_back(tier, span.from, hits);
            }
        }
        let tiers = &self.target.tiers;
        let has_ended = |tier: &Tier| match tier.algorithm {
            Algorithm::FixedWindow => has_ended(tier, span.from, now),
            _ => has_ended(tier, span.until, now),
        };
        if tiers.iter().all(has_ended) {
            // it would take back hits of others
            return;
        }
        self.push_pending(if can_grant {
            PendingDelta { unused: hits.0, unused_until: span.until, ..PendingDelta::of(0, span.from) }
        } else {
            PendingDelta::of(negative(hits.0), span.from)
        });
    }
}
