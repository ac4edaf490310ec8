//! Reservations: hits that a caller takes in advance from the shared store, and releases if it does not use them.

use tokio::time::Instant;

use super::{
    Coordinated,
    counter::{Asks, Tried},
    delivery::Undecided,
    table::Waiting,
};
use crate::{
    limit::{
        Algorithm, Coordination, Hits, LimitCheck, Period, Reservation, ReservationRequest, ReservedSpan,
        Timestamp,
    },
    store::{
        StoreError,
        remote::{Remote, Target},
    },
};

impl<R: Remote> Coordinated<R> {
    pub(super) async fn reserve_within(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        budget: Period,
        now: Timestamp,
    ) -> Result<Reservation, StoreError> {
        if let Some(member) = self.pool_member(check) {
            return Ok(Box::pin(self.reserve_shared(&member, request, now)).await);
        }
        let at = self.client.time_at(now).now;
        match self.mode(check, at) {
            Coordination::Local => return Ok(self.memory.reserve_now(check, request, now)),
            Coordination::Split => return Ok(self.split.reserve(&self.memory, check, request, now)),
            _ => {}
        }
        let target = self.table.target(check, at);
        let reserved = if self.client.is_unavailable_for(&target, at) {
            Err(Undecided::NOT_ASKED)
        } else {
            self.reserve_in_store(check, &target, request, budget, now).await
        };
        Ok(reserved
            .unwrap_or_else(|undecided| self.reserve_without_store(check, request, undecided.delivery, now)))
    }

    /// Reserves by the estimate, as exact as `interval`, if the store cannot. `now` is on this instance's clock.
    async fn reserve_in_store(
        &self,
        check: &LimitCheck<'_>,
        target: &Target,
        request: ReservationRequest,
        budget: Period,
        now: Timestamp,
    ) -> Result<Reservation, Undecided> {
        if !self.client.supports(target, Coordination::Lease) {
            let at = self.client.time_at(now).now;
            return Ok(self.table.with_counter(check, at, |counter| {
                let hits = counter.reserve(request, at);
                counter.local_reservation(hits, request, at, now)
            }));
        }
        let at = self.client.time_at(now).now;
        let want = request.fit(Hits(u64::MAX));
        let asks = Asks::Reserve(request);
        let is_own = check.rule.id().is_none();
        let ask = |key, counter: &mut _| Waiting::ask((key, counter), is_own, want, asks);
        let waiting = self.table.with_counter_of(check, at, ask);
        let failed = Undecided::NOT_ASKED;
        let outcome = self.table.outcome(waiting.ok_or(failed)?, Instant::now() + budget.into(), true).await;
        let Tried { decision, at: store_now, reserved: hits, .. } = outcome.unwrap_or(Err(failed))?;
        // the store reserved the hits no earlier than `now`, so they may be used at least until then
        let fixed = target.tiers.iter().filter(|tier| tier.algorithm == Algorithm::FixedWindow);
        let ends = fixed.map(|tier| now.after(store_now.window_end(tier.period).since(store_now)));
        let until = ends.fold(now.after(request.hold), Timestamp::min);
        let counted =
            ReservedSpan { from: store_now, until: store_now.after(request.hold), is_reported: true };
        Ok(Reservation { hits, until, decision, counted })
    }
}
