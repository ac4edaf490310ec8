//! The log of rejections: a line for each that is reported, within a bound.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::log::bounded;
use weir_limit::{Basis, Coordination, NANOS_PER_SECOND, Timestamp};
use weir_limiter::{Rejection, RejectionLog, key_text};

/// The most lines of a minute if only samples are logged, however many rules reject.
const MOST_SAMPLES: u64 = 100;

#[derive(Debug)]
pub struct RejectionLogger {
    /// `WEIR_LOG_VALUES`: whether the values of descriptors are in the lines.
    values: bool,
    most: u64,
    /// The current minute in the high half, and its rejections in the low half.
    minute: AtomicU64,
}

// === impl RejectionLogger ===

impl RejectionLogger {
    /// Returns a log of all rejections that are reported, or of samples.
    pub const fn new(values: bool, is_sampled: bool) -> Self {
        let most = if is_sampled { MOST_SAMPLES } else { u64::MAX };
        Self { values, most, minute: AtomicU64::new(0) }
    }

    /// Returns the number of rejections reported in the minute of `at`, this one included.
    fn count(&self, at: Timestamp) -> u64 {
        let minute = at.as_nanos() / (60 * NANOS_PER_SECOND);
        let next = |state: u64| if state >> 32 == minute { state + 1 } else { minute << 32 | 1 };
        let before =
            self.minute.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |state| Some(next(state)));
        next(before.unwrap_or_default()) & u64::from(u32::MAX)
    }
}

impl RejectionLog for RejectionLogger {
    #[cold]
    fn rejected(&self, Rejection { check, decision, in_flight, at, mode }: &Rejection<'_>) {
        let count = self.count(*at);
        if count > self.most {
            if count == self.most + 1 {
                tracing::warn!(
                    "more than {} rules reject requests; others of this minute are not logged",
                    self.most
                );
            }
            return;
        }
        let compiled = check.rule.compiled();
        let rule = compiled.map_or_else(|| "a limit of the request".to_owned(), |rule| rule.path.to_string());
        let (domain, rule, descriptor) =
            (bounded(check.domain), bounded(&rule), key_text(check, self.values));
        let limit = match in_flight {
            Some(most) => format!("{most} in flight"),
            None => check.tiers()[decision.tier].to_string(),
        };
        let reason = if decision.basis == Basis::Fallback { "store" } else { "limit" };
        let mode = mode.map_or("default", Coordination::name);
        // to a tenth: nobody waits for a number of nanoseconds
        let is_closed = check.rule.is_closed() && in_flight.is_none();
        let retry_after =
            if is_closed { "never".to_owned() } else { format!("{:.1?}", Duration::from(decision.reset)) };
        tracing::warn!(
            %domain, %rule, %descriptor, hits = check.hits.0, %limit, %retry_after, %mode, %reason,
            "rejected"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_are_counted_in_the_minutes_of_their_decisions() {
        let log = RejectionLogger::new(false, true);
        let at = |second: u64| log.count(Timestamp::from_secs(60_000 + second));
        assert_eq!((at(0), at(59), at(60), at(61)), (1, 2, 1, 2));
        assert_eq!(log.most, MOST_SAMPLES);
    }
}
