//! Reservations: hits that a caller takes in advance from the shared store, and releases if it does not use them.

use std::sync::Arc;

use super::{
    client::StoreClient,
    delivery::{Delivery, Undecided},
    table::{CounterTable, PlacedCommand},
};
use crate::{
    limit::{
        Algorithm, Coordination, Hits, LimitCheck, OverLimitPolicy, Period, Reservation, ReservationRequest,
        ReservedSpan, Timestamp, decision_from_store,
    },
    store::remote::{Op, Remote, Target},
};

/// Reserves hits in the shared store.
pub(super) struct Reservations<R> {
    table: Arc<CounterTable<R>>,
    client: Arc<StoreClient<R>>,
}

// === impl Reservations ===

impl<R: Remote> Reservations<R> {
    pub(super) fn new((table, client): (Arc<CounterTable<R>>, Arc<StoreClient<R>>)) -> Self {
        Self { table, client }
    }

    /// Reserves hits of `target`, the one of `check`, within the `budget`. `now` is on this instance's clock. If the store
    /// cannot grant hits, they are reserved from the local estimate, with the bound of `interval`.
    pub(super) async fn reserve(
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
        let (least, want) = (request.fit(request.least.max(Hits(1))), request.fit(Hits(u64::MAX)));
        let op = Op::Grant { report: None, least: least.0, want: want.0, hold: request.hold };
        let at = self.client.time_at(now).now;
        let PlacedCommand { target, place, queued } = self.table.queue_command(check, at, op);
        let (reply, store_now) = self.client.receive(queued, budget).await.inspect_err(|undecided| {
            if undecided.delivery == Delivery::Unknown {
                self.table.metrics.delivery_unknown.add(want.0);
            }
        })?;
        if reply.counters.len() != target.tiers.len() {
            return Err(Undecided { delivery: Delivery::Unknown, late: false });
        }
        self.table.with_counter(check, store_now, |counter| counter.apply_reply(&reply, place, store_now));
        // the store reserved the hits no earlier than `now`, so they may be used at least until then
        let mut until = now.after(request.hold);
        for (tier, state) in target.tiers.iter().zip(&reply.counters) {
            if tier.algorithm == Algorithm::FixedWindow {
                until = until.min(now.after(state.availability(tier, store_now).reset));
            }
        }
        let hits = Hits(reply.granted);
        let over = hits == Hits(0);
        let decided = if over { least } else { hits };
        let decision = decision_from_store(
            &target.tiers,
            &reply.counters,
            OverLimitPolicy::Ignore,
            over,
            decided,
            store_now,
        );
        let counted =
            ReservedSpan { from: store_now, until: store_now.after(request.hold), is_reported: true };
        Ok(Reservation { hits, until, decision, counted })
    }

    /// Gives back `hits` that were reserved for `span`. They are sent with the next flush, after all hits that were counted
    /// here before, so a release does not wait and an outage does not lose it.
    pub(super) fn release(&self, check: &LimitCheck<'_>, span: ReservedSpan, hits: Hits, now: Timestamp) {
        self.table.with_counter(check, now, |counter| {
            let can_grant = self.client.supports(&counter.target, Coordination::Lease);
            counter.release(span, hits, can_grant, now);
        });
    }
}
