//! Times of access logs, and of sentences: RFC 3339.

use weir_limit::{NANOS_PER_SECOND, Timestamp};

const DAY: u64 = 86_400;

/// Reads a time such as `2026-11-30T09:00:00.123+01:00`; none if it is another text, or before 1970.
pub(crate) fn parse_time(text: &str) -> Option<Timestamp> {
    let (date, rest) = text.split_at_checked(10)?;
    let (year, month, day) = match date.as_bytes() {
        [.., b'-', _, _, b'-', _, _] => (number(&date[..4])?, number(&date[5..7])?, number(&date[8..])?),
        _ => return None,
    };
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let (time, rest) = rest.split_at_checked(8)?;
    let (hour, minute, second) = match time.as_bytes() {
        [_, _, b':', _, _, b':', _, _] => (number(&time[..2])?, number(&time[3..5])?, number(&time[6..])?),
        _ => return None,
    };
    let (nanos, zone) = match rest.strip_prefix('.') {
        Some(rest) => {
            let end = rest.find(|c: char| !c.is_ascii_digit())?;
            (nanos(&rest[..end])?, &rest[end..])
        }
        None => (0, rest),
    };
    let is_valid =
        (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second <= 60;
    let seconds = days(year, month, day).checked_mul(DAY)? + hour * 3_600 + minute * 60 + second;
    let seconds = seconds.checked_add_signed(-offset(zone)?)?;
    let nanos = seconds.checked_mul(NANOS_PER_SECOND)?.checked_add(nanos)?;
    (is_valid && year >= 1970).then(|| Timestamp::from_nanos(nanos))
}

/// Formats a time with milliseconds.
pub fn format_time(at: Timestamp) -> String {
    let millis = at.as_nanos() / 1_000_000;
    let (seconds, millis) = (millis / 1_000, millis % 1_000);
    let (year, month, day) = date(seconds / DAY);
    let (hour, minute, second) = (seconds % DAY / 3_600, seconds % 3_600 / 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

fn number(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// Of a fraction of a second; digits beyond the ninth do not count.
fn nanos(digits: &str) -> Option<u64> {
    let digits = &digits[..digits.len().min(9)];
    let exponent = u32::try_from(9 - digits.len()).ok()?;
    Some(number(digits)? * 10_u64.pow(exponent))
}

/// In seconds.
fn offset(zone: &str) -> Option<i64> {
    let (sign, zone) = match zone.as_bytes() {
        b"Z" | b"z" => return Some(0),
        [b'+', ..] => (1, &zone[1..]),
        [b'-', ..] => (-1, zone.get(1..)?),
        _ => return None,
    };
    let (hours, minutes) = match zone.split_once(':') {
        Some((hours, minutes)) => (hours, minutes),
        None => zone.split_at_checked(2)?,
    };
    let seconds = number(hours)? * 3_600 + number(minutes)? * 60;
    Some(sign * i64::try_from(seconds).ok().filter(|seconds| *seconds <= 86_400)?)
}

/// The days from 1970 to a date of the Gregorian calendar. A year begins in March, so that a leap day is its last one.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year.saturating_sub(1) } else { year };
    let month = (month + 9) % 12;
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    days.saturating_sub(719_469)
}

fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + 400 * era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_written() {
        for (text, seconds, nanos) in [
            ("1970-01-01T00:00:00Z", 0, 0),
            ("2000-02-29T23:59:59Z", 951_868_799, 0),
            ("2026-11-30T16:45:36.123Z", 1_796_057_136, 123_000_000),
            ("2026-11-30t17:45:36.1234567899+01:00", 1_796_057_136, 123_456_789),
            ("2026-11-30 08:45:36-0800", 1_796_057_136, 0),
        ] {
            let expected = Timestamp::from_nanos(seconds * NANOS_PER_SECOND + nanos);
            assert_eq!(parse_time(text), Some(expected), "{text}");
        }
        for text in
            ["", "2026", "2026-11-30", "2026-11-30T16:45:36", "2026-13-01T00:00:00Z", "1969-12-31T23:59:59Z"]
        {
            assert_eq!(parse_time(text), None, "{text}");
        }
        for day in (0..60_000).step_by(13) {
            let at = Timestamp::from_millis(day * DAY * 1_000 + 45_296_789);
            assert_eq!(parse_time(&format_time(at)), Some(at));
        }
    }
}
