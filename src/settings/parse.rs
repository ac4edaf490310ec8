//! Parses values. Numbers, durations and booleans have Go's syntax, as in envoyproxy/ratelimit.

use std::{net::IpAddr, ops::RangeInclusive, time::Duration};

use super::resolve::ListenAddress;

/// Such as `1h30m`, `500ms`, `1.5s` or `0`. The error describes a valid one.
pub(crate) fn duration(text: &str) -> Result<Duration, &'static str> {
    const EXPECTED: &str = "a duration such as 500ms, 10s, 1m, 1h30m or 24h; 0 needs no unit";
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut nanos: u64 = 0;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| c != '.' && !c.is_ascii_digit()).ok_or(EXPECTED)?;
        let (number, after) = rest.split_at(number_end);
        let unit_end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let part = number_of_units(number, unit_nanos(unit).ok_or(EXPECTED)?).ok_or(EXPECTED)?;
        nanos = nanos.checked_add(part).ok_or("a duration of at most 292 years")?;
        rest = after;
    }
    if text.is_empty() || text == "+" { Err(EXPECTED) } else { Ok(Duration::from_nanos(nanos)) }
}

/// A negative duration is none.
pub(super) fn signed_duration(text: &str) -> Result<Option<Duration>, &'static str> {
    match text.strip_prefix('-').filter(|rest| !rest.starts_with('+')) {
        Some(rest) => duration(rest).map(|time| time.is_zero().then_some(time)),
        None => duration(text).map(Some),
    }
}

pub(super) fn positive_duration(text: &str) -> Result<Duration, &'static str> {
    let time = duration(text)?;
    if time.is_zero() { Err("a duration above 0, such as 100ms or 10s") } else { Ok(time) }
}

/// `expected` describes a duration in `range`.
pub(super) fn duration_in(
    range: RangeInclusive<Duration>,
    expected: &'static str,
) -> impl Fn(&str) -> Result<Duration, &'static str> {
    move |text| Some(duration(text)?).filter(|time| range.contains(time)).ok_or(expected)
}

pub(super) fn count_to(most: usize, what: &str) -> impl Fn(&str) -> Result<usize, String> {
    move |text| {
        let count = integer(text).filter(|count| (1..=most).contains(count));
        count.ok_or_else(|| format!("a number of {what}, from 1 to {most}"))
    }
}

/// One of `choices`, regardless of case.
pub(super) fn choice<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    let choice = choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    choice.map(|(_, value)| *value).ok_or_else(|| {
        let names = choices.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        names.rsplit_once(", ").map_or(names.clone(), |(others, last)| format!("{others} or {last}"))
    })
}

fn unit_nanos(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        // U+00B5 and U+03BC look alike, and Go accepts both
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60 * 1_000_000_000,
        "h" => 3_600 * 1_000_000_000,
        _ => return None,
    })
}

/// `unit` is in nanoseconds. Rounds down.
fn number_of_units(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u64>().ok() };
    // the result is rounded down to nanoseconds, so the first nine digits suffice
    let fraction = fraction.get(..9).unwrap_or(fraction);
    let denominator = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let part = u128::from(digits(fraction)?) * u128::from(unit) / denominator;
    digits(whole)?.checked_mul(unit)?.checked_add(u64::try_from(part).ok()?)
}

/// As Go's `strconv.ParseInt` with base 0: `-5`, `1_000`, `0x3e8`, `0o1750`, `01750` or `0b11`.
pub(super) fn integer<T: TryFrom<i128>>(text: &str) -> Option<T> {
    let (is_negative, unsigned) = match text.strip_prefix('-') {
        Some(unsigned) => (true, unsigned),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (radix, digits) = radix(unsigned);
    // an underscore stands between digits, and the prefix of a base counts as one
    let groups = if radix == 10 { digits } else { digits.strip_prefix('_').unwrap_or(digits) };
    let is_group = |group: &str| !group.is_empty() && group.chars().all(|char| char.is_digit(radix));
    if !groups.split('_').all(is_group) {
        return None;
    }
    let number = i128::from(u64::from_str_radix(&groups.replace('_', ""), radix).ok()?);
    T::try_from(if is_negative { -number } else { number }).ok()
}

fn radix(unsigned: &str) -> (u32, &str) {
    let Some(after_zero) = unsigned.strip_prefix('0').filter(|rest| !rest.is_empty()) else {
        return (10, unsigned);
    };
    let bases = [(['x', 'X'], 16), (['o', 'O'], 8), (['b', 'B'], 2)];
    let prefixed = |(letters, radix)| after_zero.strip_prefix(letters).map(|digits| (radix, digits));
    bases.into_iter().find_map(prefixed).unwrap_or((8, after_zero))
}

/// Such as `1048576`, `1024KiB` or `1MiB`.
pub(super) fn bytes(text: &str) -> Option<u64> {
    // first, since `0x1B` is a number
    if let Some(bytes) = integer(text) {
        return Some(bytes);
    }
    let units = [("KiB", 1_u64 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("B", 1)];
    let (number, unit) = units.into_iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    integer::<u64>(number)?.checked_mul(unit)
}

/// `example` is such a size.
pub(super) fn bytes_from<T: TryFrom<u64>>(least: u64, example: &str) -> impl Fn(&str) -> Result<T, String> {
    move |text| {
        let bytes = bytes(text).filter(|bytes| *bytes >= least);
        bytes
            .and_then(|bytes| T::try_from(bytes).ok())
            .ok_or_else(|| format!("a size of at least {}MiB, such as {example}", least >> 20))
    }
}

/// As Go's `strconv.ParseBool` does.
pub(super) fn bool(text: &str) -> Result<bool, &'static str> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err("true or false (or 1, t, T, TRUE, True, 0, f, F, FALSE, False)"),
    }
}

/// `k1:v1,k2:v2`.
pub(super) fn pairs(text: &str) -> Result<Vec<(String, String)>, &'static str> {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once(':')?;
        (!name.is_empty()).then(|| (name.trim().to_owned(), value.trim().to_owned()))
    };
    let pairs = text.split(',').filter(|text| !text.trim().is_empty()).map(pair);
    pairs.collect::<Option<_>>().ok_or("pairs such as env:prod,region:eu")
}

pub(super) fn host(text: &str) -> Option<IpAddr> {
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    if text == "localhost" { Some(IpAddr::from([127, 0, 0, 1])) } else { inner.unwrap_or(text).parse().ok() }
}

/// `host:port`, where an empty host means all interfaces, as in Go.
pub(super) fn address(text: &str) -> Option<ListenAddress> {
    let (interface, port) = text.rsplit_once(':')?;
    let host = if interface.is_empty() { Some(IpAddr::from([0, 0, 0, 0])) } else { host(interface) };
    Some(ListenAddress { host: host?, port: port.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_gos_syntax() {
        for (text, nanos) in [
            ("0", 0),
            ("0s", 0),
            ("500ms", 500_000_000),
            ("1h30m", 5_400_000_000_000),
            ("24h", 86_400_000_000_000),
            ("1.5s", 1_500_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("+3s", 3_000_000_000),
            ("150us", 150_000),
            ("150\u{b5}s", 150_000),
            ("1m1ns", 60_000_000_001),
            ("0.1234567891s", 123_456_789),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn invalid_durations_are_rejected() {
        for text in
            ["", "+", "5", "1d", "s", ".s", "1..5s", "1.2.3s", "-1s", "1h 30m", "ten", "1e3s", "99999999999h"]
        {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn booleans_have_gos_syntax() {
        for text in ["1", "t", "T", "TRUE", "true", "True"] {
            assert_eq!(bool(text), Ok(true));
        }
        for text in ["0", "f", "F", "FALSE", "false", "False"] {
            assert_eq!(bool(text), Ok(false));
        }
        assert!(["yes", "on", "", "tRUE", "2"].into_iter().all(|text| bool(text).is_err()));
    }

    #[test]
    fn numbers_have_gos_syntax() {
        for (text, number) in [
            ("0", 0),
            ("+7", 7),
            ("-7", -7),
            ("1_000_000", 1_000_000),
            ("0x100000", 1 << 20),
            ("0X_fF", 255),
            ("0o17", 15),
            ("017", 15),
            ("0_17", 15),
            ("-0b1", -1),
            ("00", 0),
        ] {
            assert_eq!(integer(text), Some(number), "{text}");
        }
        for text in [
            "",
            "+",
            "-",
            "+-1",
            "--1",
            "0x",
            "0x_",
            "08",
            "0b2",
            "1e3",
            "1.0",
            " 1",
            "_1",
            "1_",
            "1__0",
            "0_",
            "0x+1",
            "99999999999999999999",
        ] {
            assert_eq!(integer::<i64>(text), None, "{text}");
        }
        assert_eq!(
            (integer::<u16>("65536"), integer::<u16>("-1"), integer("0xffff")),
            (None, None, Some(65_535_u16))
        );
    }

    #[test]
    fn a_negative_duration_is_none() {
        let second = Duration::from_secs(1);
        for (text, expected) in [("1s", Some(second)), ("-1s", None), ("-0", Some(Duration::ZERO))] {
            assert_eq!(signed_duration(text), Ok(expected), "{text}");
        }
        assert!(["-", "-+1s", "--1s", "-5"].into_iter().all(|text| signed_duration(text).is_err()));
    }

    #[test]
    fn sizes_have_binary_units() {
        let valid = [
            ("0", 0),
            ("1048576", 1 << 20),
            ("7B", 7),
            ("0x7B", 0x7b),
            ("1_0KiB", 10 << 10),
            ("3KiB", 3 << 10),
            ("64MiB", 64 << 20),
            ("2GiB", 2 << 30),
        ];
        for (text, size) in valid {
            assert_eq!(bytes(text), Some(size), "{text}");
        }
        for text in
            ["", "MiB", "1MB", "1 MiB", "-1", "1.5GiB", "99999999999999999999", "18446744073709551615KiB"]
        {
            assert_eq!(bytes(text), None, "{text}");
        }
    }

    #[test]
    fn pairs_keep_their_order() {
        let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
        assert_eq!(pairs("env:prod, at:a:b,"), Ok(vec![pair("env", "prod"), pair("at", "a:b")]));
        assert!(pairs("env").is_err() && pairs(":x").is_err());
    }
}
