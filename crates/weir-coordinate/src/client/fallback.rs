//! Makes decisions by `on_store_failure` when the store has not replied within the budget, or is unavailable.

use super::StoreClient;
use crate::{
    counter::{LocalCounter, TryVerdict},
    link::Delivery,
};
use weir_limit::{
    Decision, Direction, Hits, LimitCheck, OnStoreFailure, Reservation, ReservationRequest, Timestamp,
    capacity,
};
use weir_store::remote::Remote;

impl<R: Remote> StoreClient<R> {
    /// Admitted hits are reported later, unless `delivery` is unknown: no hit may count twice.
    pub(crate) fn decide_without_store(
        &self,
        counter: &mut LocalCounter,
        check: &LimitCheck<'_>,
        delivery: Delivery,
        now: Timestamp,
    ) -> TryVerdict {
        let (metrics, hits) = (&self.metrics, check.hits);
        metrics.decisions.fallback.add(1);
        if check.direction == Direction::GiveBack && delivery != Delivery::NotApplied {
            return TryVerdict::new(counter.look(Hits(0), now).by_fallback(), now);
        }
        if delivery == Delivery::Unknown {
            metrics.hits.delivery_unknown.add(hits.0);
        }
        let reported = counter.reports(delivery);
        let decision = match (check.direction, self.failure_policy(check)) {
            (Direction::Take, OnStoreFailure::Allow) => counter.admit(hits, reported, now),
            (Direction::Take, OnStoreFailure::Deny) => {
                let looked = counter.look(Hits(0), now);
                Decision { over: true, remaining: 0, reset: OnStoreFailure::DENY_RETRY, ..looked }
            }
            (direction, _) => counter.count_fallback(direction, hits, reported, now),
        };
        if !decision.over && hits > Hits(0) {
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
        let fitting = match self.failure_policy(check) {
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
            self.metrics.hits.delivery_unknown.add(granted.saturating_sub(hits.0));
        }
        let hits = if decision.over { Hits(0) } else { hits };
        let mut reservation = counter.local_reservation(hits, request, at, now);
        reservation.counted.is_reported = is_reported;
        Reservation { decision, ..reservation }
    }
}
