//! How long a caller waits for its limit, as text.

use std::time::Duration;

use weir_limit::{NANOS_PER_SECOND, Period};

/// The units of durations, with their lengths in nanoseconds. Longer names first, since shorter ones end them.
const UNITS: [(&str, u64); 6] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", NANOS_PER_SECOND),
    ("m", 60 * NANOS_PER_SECOND),
    ("h", 3_600 * NANOS_PER_SECOND),
];

/// Such as `200ms` or `1.5s`, with up to nine decimals. Rounds up to nanoseconds; very long ones are 584 years.
pub(super) fn parse(text: &str) -> Option<Period> {
    let (number, unit) = UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))?;
    let (whole, decimals) =
        number.split_once('.').map_or((number, None), |(whole, rest)| (whole, Some(rest)));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || decimals.is_some_and(|decimals| !digits(decimals) || decimals.len() > 9) {
        return None;
    }
    let whole: u64 = whole.parse().unwrap_or(u64::MAX);
    let decimals = decimals.unwrap_or("0");
    let scale = 10_u64.pow(u32::try_from(decimals.len()).ok()?);
    let fraction: u128 = decimals.parse().ok()?;
    let fraction = (fraction * u128::from(unit)).div_ceil(u128::from(scale));
    let fraction = u64::try_from(fraction).unwrap_or(u64::MAX);
    Some(Period::from_nanos(whole.saturating_mul(unit).saturating_add(fraction)))
}

/// Written in seconds, as protobuf's JSON mapping has them: `0.153s`, `2s`.
pub(super) fn duration(period: Period) -> prost_types::Duration {
    Duration::from(period).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_and_formatted() {
        let millis = |millis| Some(Period::from_millis(millis));
        for (text, expected) in [
            ("200ms", millis(200)),
            ("0s", millis(0)),
            ("1.5s", millis(1_500)),
            ("0.153s", millis(153)),
            ("2m", millis(120_000)),
            ("1h", millis(3_600_000)),
            ("7us", Some(Period::from_nanos(7_000))),
            ("1.5ns", Some(Period::from_nanos(2))),
            ("99999999999999999999h", Some(Period::MAX)),
            ("0.0000000001s", None),
            ("-1s", None),
            ("1", None),
            ("s", None),
            (".5s", None),
            ("1.s", None),
            ("1 s", None),
            ("1.5.5s", None),
            ("", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
        for (nanos, text) in
            [(0, "0s"), (153_000_000, "0.153s"), (2_000_000_001, "2.000000001s"), (1_500, "0.000001500s")]
        {
            let shown = duration(Period::from_nanos(nanos)).to_string();
            assert_eq!(parse(&shown), Some(Period::from_nanos(nanos)));
            assert_eq!(
                shown.trim_end_matches('s').parse::<f64>().ok(),
                text.trim_end_matches('s').parse().ok()
            );
        }
    }
}
