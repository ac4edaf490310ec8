//! Times and durations as the API has them.

use serde_json::{Value, json};
use weir_limit::{NANOS_PER_SECOND, Period, Timestamp};

const DAY: u64 = 86_400;

/// Days from 0000-03-01 to the epoch, and those of 400 years.
const TO_EPOCH: u64 = 719_468;
const ERA: u64 = 146_097;

/// RFC 3339 in UTC, with milliseconds.
pub(in crate::http) fn text(at: Timestamp) -> String {
    let (seconds, millis) = (at.as_nanos() / NANOS_PER_SECOND, at.as_nanos() % NANOS_PER_SECOND / 1_000_000);
    let (year, month, day) = date(seconds / DAY);
    let (hour, minute, second) = (seconds % DAY / 3_600, seconds % 3_600 / 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// The Gregorian date so many `days` after the epoch. Years begin in March here, so that a leap day ends one.
const fn date(days: u64) -> (u64, u64, u64) {
    let days = days + TO_EPOCH;
    let of_era = days % ERA;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / (ERA - 1)) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // 153 days are the five months from March, and again from August
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let year = days / ERA * 400 + year_of_era;
    if month < 10 { (year, month + 3, day) } else { (year + 1, month - 9, day) }
}

/// Seconds, to the microsecond.
#[expect(clippy::cast_precision_loss, reason = "a duration to look at")]
pub(super) fn seconds(period: Period) -> Value {
    json!((period.as_nanos() / 1_000) as f64 / 1e6)
}

#[cfg(test)]
mod tests {
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
