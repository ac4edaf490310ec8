//! Settles counters that have some of their tiers in common, before the shared store decides about one of them.

use futures_util::future::join_all;
use tokio::time::{Instant, timeout};

use super::{
    budget::rest,
    delivery::{Delivery, Undecided},
    modes::CoordinationModes,
    table::{Waiting, counter_key},
};
use crate::{
    limit::{LimitCheck, Period},
    store::remote::{Remote, Target},
};

impl<R: Remote> CoordinationModes<R> {
    /// Has the store count what the counter of `check` and its siblings have counted, in the order in which they did. `target` is that of the
    /// counter. Returns what is left of `budget`, and what has to be kept until the decision is made.
    pub(super) async fn settle(
        &self,
        check: &LimitCheck<'_>,
        target: &Target,
        budget: Period,
    ) -> Result<(Period, Vec<Waiting>), Undecided> {
        let (begun, now) = (Instant::now(), self.client.time().now);
        let mut unsettled = self.table.unsettled(counter_key(check), target, now);
        unsettled.sort_by_key(|(oldest, _)| *oldest);
        // those that could leave at once precede the decision in the store, and the replies to them its own
        let settling = unsettled.iter().filter_map(|(_, key)| self.table.settle_counter(*key, now));
        let (precede, follow): (Vec<_>, Vec<_>) = settling.partition(|(_, precedes)| *precedes);
        let looks: Vec<_> =
            follow.into_iter().map(|(waiting, _)| self.table.outcome(waiting, budget)).collect();
        let late = Undecided { delivery: Delivery::NotApplied, late: true };
        timeout(budget.into(), join_all(looks)).await.map_err(|_| late)?;
        Ok((rest(budget, begun), precede.into_iter().map(|(waiting, _)| waiting).collect()))
    }
}
