//! Makes decisions by `on_store_failure` when the store has not replied within the budget, or is unavailable.

use super::{Coordinated, counter::LocalCounter, delivery::Delivery, modes::Made};
use crate::{
    limit::{
        Basis, Decision, Direction, Hits, LimitCheck, OnStoreFailure, Reservation, ReservationRequest,
        Timestamp, capacity,
    },
    store::remote::Remote,
};

/// Returns `looked` as `deny` rejects it.
pub(super) const fn denied(looked: Decision) -> Decision {
    Decision { over: true, remaining: 0, reset: OnStoreFailure::DENY_RETRY, ..looked }
}

impl<R: Remote> Coordinated<R> {
    /// Admitted hits are reported later, unless `delivery` is unknown: no hit may count twice.
    pub(super) fn decide_without_store(
        &self,
        counter: &mut LocalCounter,
        check: &LimitCheck<'_>,
        delivery: Delivery,
        now: Timestamp,
    ) -> Made {
        let (metrics, hits) = (&self.client.metrics, check.hits);
        metrics.decisions.fallback.add(1);
        if check.direction == Direction::GiveBack && delivery != Delivery::NotApplied {
            return Made::new(counter.look(Hits(0), now).by_fallback(), now);
        }
        if delivery == Delivery::Unknown {
            metrics.hits.delivery_unknown.add(hits.0);
        }
        let reported = counter.reports(delivery);
        let decision = match (check.direction, self.client.failure_policy(check)) {
            (Direction::Take, OnStoreFailure::Allow) => counter.admit(hits, reported, now),
            (Direction::Take, OnStoreFailure::Deny) => denied(counter.look(Hits(0), now)),
            (direction, _) => counter.count_fallback(direction, hits, reported, now),
        };
        if !decision.over && hits > Hits(0) {
            counter.note_answer(delivery, hits, now);
        }
        Made { fallback: Some(delivery), ..Made::new(decision.by_fallback(), now) }
    }

    /// Hits of unknown delivery are not reported, nor given back when they are released.
    pub(super) fn reserve_without_store(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        delivery: Delivery,
        now: Timestamp,
    ) -> Reservation {
        let metrics = &self.client.metrics;
        metrics.decisions.fallback.add(1);
        let at = self.client.time_at(now).now;
        self.table.with_counter(check, at, |counter| {
            // what arrives later is given back
            let reported = delivery != Delivery::Unknown;
            let most = request.fit(Hits(u64::MAX));
            let hits = match self.client.failure_policy(check) {
                OnStoreFailure::Deny => Hits(0),
                OnStoreFailure::Allow => {
                    counter.admit(most, reported, at);
                    most
                }
                OnStoreFailure::Local => {
                    let hits = counter.fit_fallback(request, at);
                    if hits > Hits(0) {
                        counter.count_fallback(Direction::Take, hits, reported, at);
                    }
                    hits
                }
            };
            if !reported {
                metrics.hits.delivery_unknown.add(most.0.min(capacity(&counter.target.tiers)));
                counter.note_answer(delivery, hits, at);
            }
            let mut reservation = counter.local_reservation(hits, request, at, now);
            reservation.decision.basis = Basis::Fallback;
            if hits == Hits(0) {
                reservation.decision.reset = reservation.decision.reset.max(OnStoreFailure::DENY_RETRY);
            }
            reservation.counted.is_reported = reported;
            reservation
        })
    }
}
