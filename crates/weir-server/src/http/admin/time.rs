//! Times and durations as the API has them.

use serde_json::{Value, json};
use weir_limit::Period;

/// RFC 3339 in UTC, with milliseconds.
pub(in crate::http) use weir_replay::format_time as text;

/// Seconds, to the microsecond.
#[expect(clippy::cast_precision_loss, reason = "a duration to look at")]
pub(super) fn seconds(period: Period) -> Value {
    json!((period.as_nanos() / 1_000) as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use weir_limit::Timestamp;

    use super::*;

    #[test]
    fn times_are_gregorian() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_799, "2000-02-29T23:59:59.000Z"),
            (1_709_164_800, "2024-02-29T00:00:00.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (1_234_567_890, "2009-02-13T23:31:30.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(text(Timestamp::from_secs(seconds)), expected);
        }
        assert_eq!(text(Timestamp::from_millis(1_234_567_890_123)), "2009-02-13T23:31:30.123Z");
    }

    #[test]
    fn durations_are_in_seconds() {
        assert_eq!(seconds(Period::from_millis(1_500)), json!(1.5));
        assert_eq!(seconds(Period::from_secs(60)), json!(60.0));
    }
}
