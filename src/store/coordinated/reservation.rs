//! Reservations: hits that a caller takes in advance from the shared store, and releases if it does not use them.

use tokio::time::Instant;

use super::{
    counter::{Asks, Tried},
    delivery::{Delivery, Undecided},
    modes::CoordinationModes,
    table::Waiting,
};
use crate::{
    limit::{
        Algorithm, Coordination, Hits, LimitCheck, Period, Reservation, ReservationRequest, ReservedSpan,
        Timestamp,
    },
    store::remote::{Remote, Target},
};

impl<R: Remote> CoordinationModes<R> {
    /// Reserves hits of `target`, the one of `check`, within the `budget`. `now` is on this instance's clock. If the
    /// store cannot grant hits, they are reserved from the local estimate, with the bound of `interval`.
    pub(super) async fn reserve_in_store(
        &self,
        check: &LimitCheck<'_>,
        target: &Target,
        request: ReservationRequest,
        budget: Period,
        now: Timestamp,
    ) -> Result<Reservation, Undecided> {
        if !self.client.supports(target, Coordination::Lease) {
            let (instances, at) = (self.client.instances(), self.client.time_at(now).now);
            return Ok(self.table.with_counter(check, at, |counter| {
                let hits = counter.reserve(instances, request, at);
                counter.local_reservation(hits, request, at, now)
            }));
        }
        let at = self.client.time_at(now).now;
        let want = request.fit(Hits(u64::MAX));
        let asks = Asks::Reserve(request);
        let is_own = check.rule.id().is_none();
        let ask = |key, counter: &mut _| Waiting::ask((key, counter), is_own, want, asks);
        let waiting = self.table.with_counter_of(check, at, ask);
        let failed = Undecided { delivery: Delivery::NotApplied, late: false };
        let outcome = self.table.outcome(waiting.ok_or(failed)?, Instant::now() + budget.into()).await;
        let Tried { decision, at: store_now, reserved: hits } = outcome.unwrap_or(Err(failed))?;
        // the store reserved the hits no earlier than `now`, so they may be used at least until then
        let fixed = target.tiers.iter().filter(|tier| tier.algorithm == Algorithm::FixedWindow);
        let ends = fixed.map(|tier| now.after(store_now.window_end(tier.period).since(store_now)));
        let until = ends.fold(now.after(request.hold), Timestamp::min);
        let counted =
            ReservedSpan { from: store_now, until: store_now.after(request.hold), is_reported: true };
        Ok(Reservation { hits, until, decision, counted })
    }

    /// Gives back `hits` that were reserved for `span`. They are sent with the next flush, after all hits that were
    /// counted here before, so a release does not wait and an outage does not lose it.
    pub(super) fn release_in_store(
        &self,
        check: &LimitCheck<'_>,
        span: ReservedSpan,
        hits: Hits,
        now: Timestamp,
    ) {
        self.table.with_counter(check, now, |counter| {
            let can_grant = self.client.supports(&counter.target, Coordination::Lease);
            counter.release(span, hits, can_grant, now);
        });
    }
}
