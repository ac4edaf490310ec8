//! How long a decision waits for the disk.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use weir_observe::DecisionRecord;
use weir_store::TakeOptions;

/// The time until which a decision waits for the disk, however often, and what records its waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget<'a> {
    until: Option<Instant>,
    record: Option<&'a DecisionRecord>,
}

// === impl Budget ===

impl<'a> Budget<'a> {
    /// `budget` is `WEIR_DECISION_BUDGET`; the wait is shorter if the caller's is.
    pub(super) fn begin(budget: Duration, options: &TakeOptions<'a>) -> Self {
        let longest = options.wait.map_or(budget, |caller| caller.min(budget));
        let until = if longest.is_zero() { None } else { Instant::now().checked_add(longest) };
        Self { until, record: options.record }
    }

    /// None if `what` takes too long or fails. It reads or writes `counters`.
    pub(super) async fn wait<T>(&self, counters: usize, what: impl Future<Output = Option<T>>) -> Option<T> {
        let until = self.until?;
        let begun = self.record.map(|record| (record, std::time::Instant::now()));
        let outcome = timeout_at(until, what).await;
        if let Some((record, begun)) = begun {
            let error = match &outcome {
                Ok(Some(_)) => None,
                Ok(None) => Some("the disk failed"),
                Err(_) => Some("no reply within WEIR_DECISION_BUDGET or the timeout of the caller"),
            };
            record.add_commands(u32::try_from(counters).unwrap_or(u32::MAX));
            record.add_wait(begun, error);
        }
        outcome.ok().flatten()
    }

    pub(super) fn record_fallback(&self) {
        if let Some(record) = self.record {
            record.set_fallback();
        }
    }
}
