//! Makes decisions by `on_store_failure` when the store has not replied within the budget, or is unavailable.

use super::{Coordinated, counter::LocalCounter, delivery::Delivery};
use crate::{
    limit::{
        Basis, Decision, Direction, Hits, LimitCheck, OnStoreFailure, Reservation, ReservationRequest,
        Timestamp, capacity,
    },
    store::remote::Remote,
};

impl<R: Remote> Coordinated<R> {
    /// Admitted hits are reported later, unless `delivery` is unknown: no hit may count twice.
    pub(super) fn decide_without_store(
        &self,
        check: &LimitCheck<'_>,
        delivery: Delivery,
        now: Timestamp,
    ) -> Decision {
        if delivery == Delivery::Unknown {
            self.client.metrics.hits.delivery_unknown.add(check.hits.0);
        }
        self.table
            .with_counter(check, now, |counter| self.decide_on_without_store(counter, check, delivery, now))
    }

    pub(super) fn decide_on_without_store(
        &self,
        counter: &mut LocalCounter,
        check: &LimitCheck<'_>,
        delivery: Delivery,
        now: Timestamp,
    ) -> Decision {
        self.client.metrics.decisions.fallback.add(1);
        let policy = self.client.failure_policy(check);
        let (direction, hits) = (check.direction, check.hits);
        let reported = counter.reports(delivery);
        let decision = match (direction, policy) {
            (Direction::GiveBack, _) | (Direction::Take, OnStoreFailure::Local) => {
                counter.count_fallback(direction, hits, reported, now)
            }
            (Direction::Take, OnStoreFailure::Allow) => counter.admit(hits, reported, now),
            (Direction::Take, OnStoreFailure::Deny) => Decision {
                over: true,
                remaining: 0,
                reset: OnStoreFailure::DENY_RETRY,
                ..counter.look(Hits(0), now)
            },
        };
        if !decision.over && hits > Hits(0) {
            counter.note_answer(delivery, hits, now);
        }
        decision.by_fallback()
    }

    /// `at` is when `check` was admitted. Hits of unknown delivery were not reported, and are given back here only.
    pub(super) fn undo_without_store(&self, check: &LimitCheck<'_>, delivery: Delivery, at: Timestamp) {
        self.table.with_counter(check, at, |counter| {
            let reported = counter.reports(delivery);
            counter.count_fallback(Direction::GiveBack, check.hits, reported, at);
            counter.note_answer(delivery, Hits(0), at);
        });
    }

    /// Hits of unknown delivery are not reported, nor given back when they are released.
    pub(super) fn reserve_without_store(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        delivery: Delivery,
        now: Timestamp,
    ) -> Reservation {
        self.client.metrics.decisions.fallback.add(1);
        let at = self.client.time_at(now).now;
        let policy = self.client.failure_policy(check);
        self.table.with_counter(check, at, |counter| {
            let hits = match policy {
                OnStoreFailure::Local => counter.fit_fallback(request, at),
                OnStoreFailure::Allow => request.fit(Hits(u64::MAX)),
                OnStoreFailure::Deny => Hits(0),
            };
            // what arrives later is given back
            let reported = delivery != Delivery::Unknown;
            match policy {
                _ if hits == Hits(0) => {}
                OnStoreFailure::Allow => drop(counter.admit(hits, reported, at)),
                _ => drop(counter.count_fallback(Direction::Take, hits, reported, at)),
            }
            if !reported {
                let most = request.fit(Hits(u64::MAX)).0.min(capacity(&counter.target.tiers));
                self.client.metrics.hits.delivery_unknown.add(most);
            }
            if hits > Hits(0) && !reported {
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
