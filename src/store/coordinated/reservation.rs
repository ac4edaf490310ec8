//! Reserving hits in the shared store, and giving them back.

use std::sync::Arc;

use super::{
    Inner,
    fallback::{Told, Undecided},
};
use crate::{
    limit::{
        Algorithm, Hits, LimitCheck, OverLimitPolicy, Reservation, ReservationRequest, ReservedSpan,
        Timestamp, decision_from_store,
    },
    store::{
        StoreError,
        remote::{Command, Op, Remote, Reply},
    },
};

impl<R: Remote> Inner<R> {
    /// Reserves hits in the shared store, within the decision budget.
    pub(super) async fn reserve(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
    ) -> Result<Reservation, StoreError> {
        let (least, most) = (request.fit(request.least.max(Hits(1))), request.fit(Hits(u64::MAX)));
        let op = Op::Grant { least: least.0, want: most.0, hold: request.hold };
        // the hold and the rest of the window begin no earlier than this, so they end no earlier than is said
        let sent = self.clock.now();
        let (reply, store_now) = self.execute(check, op, self.store_clock.at(sent).now).await?;
        let mut until = sent.after(request.hold);
        for (tier, counter) in check.tiers().iter().zip(&reply.counters) {
            if tier.algorithm == Algorithm::FixedWindow {
                until = until.min(sent.after(counter.availability(tier, store_now).reset));
            }
        }
        let hits = Hits(reply.granted);
        let over = hits == Hits(0);
        let decided_hits = if over { least } else { hits };
        Ok(Reservation {
            hits,
            until,
            decision: decision_from_store(
                check.tiers(),
                &reply.counters,
                OverLimitPolicy::Ignore,
                over,
                decided_hits,
                store_now,
            ),
            counted: ReservedSpan { from: store_now, until: store_now.after(request.hold) },
        })
    }

    /// Gives `hits` that were reserved for `span` back to the shared store, within the decision budget.
    pub(super) async fn release(
        &self,
        check: &LimitCheck<'_>,
        span: ReservedSpan,
        hits: Hits,
    ) -> Result<(), StoreError> {
        let op = Op::Return { hits: hits.0, until: span.until };
        self.execute(check, op, span.from).await.map(drop)
    }

    /// Has the shared store carry out one operation on the counters of `check`, as of `at` on its clock.
    async fn execute(
        &self,
        check: &LimitCheck<'_>,
        op: Op,
        at: Timestamp,
    ) -> Result<(Reply, Timestamp), StoreError> {
        let unavailable = |why: &str| Err(StoreError::Unavailable(why.to_owned()));
        let target = self.with_counter(check, at, |counter| Arc::clone(&counter.target));
        if self.is_cut_off(&target, at) {
            return unavailable("it did not reply lately");
        }
        let node = self.node(Some(&target), at);
        let command = Command { target, at, op };
        match self.batcher.ask(node, command, self.settings.budget).await {
            Ok((reply, now)) if reply.counters.len() == check.tiers().len() => {
                self.with_counter(check, now, |counter| counter.heard(&reply, now));
                Ok((reply, now))
            }
            Ok(_) => unavailable("its reply has the wrong number of tiers"),
            Err(Undecided { told, late }) => {
                if let (Told::Perhaps, Op::Grant { want, .. }) = (told, op) {
                    self.metrics.unknown.add(want);
                }
                unavailable(if late {
                    "no reply within the decision budget"
                } else {
                    "it rejected the command"
                })
            }
        }
    }
}
