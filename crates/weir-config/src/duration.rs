use weir_limit::{Period, Unit};

/// Bounds the life of a counter and the wait for a retry.
pub(super) const LONGEST: Period = Unit::Year.period();

/// Describes a valid duration, for messages about an invalid one.
pub const RIGHT: &str =
    "write a whole number and ms, s, m, h, d or w, from 1ms to 365d, such as 500ms, 10s, 1m, 1h, 7d or 1w";

/// None if `text` has another form, is zero, or exceeds a year.
pub fn parse(text: &str) -> Option<Period> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, suffix) = text.split_at(digits);
    let millis: u64 = match suffix {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "w" => 604_800_000,
        _ => return None,
    };
    let period = Period::from_millis(number.parse::<u64>().ok()?.checked_mul(millis)?);
    (Period::default() < period && period <= LONGEST).then_some(period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_with_a_unit_is_a_duration() {
        for (text, millis) in [
            ("1ms", 1),
            ("500ms", 500),
            ("10s", 10_000),
            ("90m", 5_400_000),
            ("1h", 3_600_000),
            ("365d", 31_536_000_000),
            ("1w", 604_800_000),
            ("52w", 31_449_600_000),
        ] {
            assert_eq!(parse(text), Some(Period::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn any_other_text_is_rejected() {
        for text in [
            "",
            "10",
            "s",
            "0s",
            "-1s",
            "1.5s",
            "1h30m",
            "10 s",
            "10S",
            "366d",
            "53w",
            "1us",
            "99999999999999999999d",
            "1y",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
