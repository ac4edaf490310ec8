//! What the coordination tells of itself.

use crate::observe::stats::Counter;

/// Everything that is counted.
#[derive(Debug, Default)]
pub struct CoordinationMetrics {
    /// Decisions that were made by this instance's own count: `local` and `interval`.
    pub local: Counter,
    /// Decisions that were made from a lease, without asking.
    pub leased: Counter,
    /// Decisions that were answered from what the store had told before: denied until some instant.
    pub denied: Counter,
    /// Decisions that waited for the store.
    pub waited: Counter,
    /// Decisions that were made without the store, since it did not answer.
    pub fallback: Counter,
    /// Calls of the store, each a batch.
    pub calls: Counter,
    /// Commands in all those batches.
    pub commands: Counter,
    /// Calls that failed, or did not come back in time.
    pub failures: Counter,
    /// Hits that the store was never told of, since their window had ended by then.
    pub uncounted: Counter,
    /// Hits of which nobody knows whether the store counted them, or granted them: the connection broke, or there was no
    /// answer in time.
    pub unknown: Counter,
    /// Granted hits that nobody used before they ended.
    pub stranded: Counter,
    /// Hits above limits of windows that this instance admitted, as was seen when it told them.
    pub overshoot: Counter,
    /// CounterTable that were forgotten with what they owed, since there were too many.
    pub forgotten: Counter,
}
