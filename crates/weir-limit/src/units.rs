//! The quantities of limits, each with its own type so that they cannot be confused.

use std::{
    fmt,
    ops::{Add, Div, Mul},
    time::Duration,
};

pub const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// An instant: nanoseconds since the Unix epoch, from 1970 to 2554. All arithmetic saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

/// A length of time in nanoseconds, up to 584 years. Zero is a valid length, but not a valid period of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period(u64);

/// A number of hits. All arithmetic saturates, so a full counter does not wrap around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hits(pub u64);

/// The units of time in the YAML of envoyproxy/ratelimit and in Envoy's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    Second,
    Minute,
    Hour,
    /// 86,400 seconds, from midnight UTC.
    Day,
    /// Seven days, counted from the epoch (a Thursday).
    Week,
    /// 30 days, counted from the epoch: not a calendar month.
    Month,
    /// 365 days, counted from the epoch: not a calendar year.
    Year,
}

// === impl Timestamp ===

impl Timestamp {
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(NANOS_PER_SECOND))
    }

    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    pub const fn after(self, period: Period) -> Self {
        Self(self.0.saturating_add(period.0))
    }

    /// Returns the time from `earlier` to this instant; zero if `earlier` is later, since clocks may step back.
    pub const fn since(self, earlier: Self) -> Period {
        Period(self.0.saturating_sub(earlier.0))
    }

    /// Returns the instant `period` before this one, the epoch at the earliest.
    pub const fn before(self, period: Period) -> Self {
        Self(self.0.saturating_sub(period.0))
    }

    /// Returns the instant so many nanoseconds later, or before if negative.
    pub const fn shifted(self, nanos: i64) -> Self {
        Self(self.0.saturating_add_signed(nanos))
    }

    /// Returns the start of the epoch-aligned window of length `period` that contains this instant. Panics if `period`
    /// is zero, which no tier has.
    pub const fn window_start(self, period: Period) -> Self {
        Self(self.0 - self.0 % period.0)
    }

    /// Returns the end of the epoch-aligned window of length `period` that contains this instant, and is later. Panics
    /// if `period` is zero, which no tier has.
    pub const fn window_end(self, period: Period) -> Self {
        Self((self.0 - self.0 % period.0).saturating_add(period.0))
    }
}

// === impl Period ===

impl Period {
    /// The longest period, 584 years. It also stands for never.
    pub const MAX: Self = Self(u64::MAX);

    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(NANOS_PER_SECOND))
    }

    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the length in whole seconds, rounded up: a wait reported in seconds must not end early.
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(NANOS_PER_SECOND)
    }
}

impl Add for Period {
    type Output = Self;

    /// At most the longest length, as for the product.
    fn add(self, more: Self) -> Self {
        Self(self.0.saturating_add(more.0))
    }
}

impl Mul<u64> for Period {
    type Output = Self;

    fn mul(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }
}

impl Div<u64> for Period {
    type Output = Self;

    /// Panics if there are no `parts`.
    fn div(self, parts: u64) -> Self {
        Self(self.0 / parts)
    }
}

impl From<Period> for Duration {
    fn from(period: Period) -> Self {
        Self::from_nanos(period.0)
    }
}

/// At most the longest length.
impl From<Duration> for Period {
    fn from(time: Duration) -> Self {
        Self(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Formats the length as in the rule language, in the largest of `d h m s ms us ns` that divides it: `90s`, `7d`.
impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SUFFIXES: [(u64, &str); 7] = [
            (86_400 * NANOS_PER_SECOND, "d"),
            (3_600 * NANOS_PER_SECOND, "h"),
            (60 * NANOS_PER_SECOND, "m"),
            (NANOS_PER_SECOND, "s"),
            (1_000_000, "ms"),
            (1_000, "us"),
            (1, "ns"),
        ];
        let (size, suffix) = SUFFIXES
            .into_iter()
            .find(|(size, _)| self.0 != 0 && self.0.is_multiple_of(*size))
            .unwrap_or((1, "ns"));
        write!(f, "{}{suffix}", self.0 / size)
    }
}

// === impl Hits ===

impl Hits {
    pub const fn plus(self, more: Self) -> Self {
        Self(self.0.saturating_add(more.0))
    }

    /// Returns the difference, at least zero.
    pub const fn minus(self, less: Self) -> Self {
        Self(self.0.saturating_sub(less.0))
    }
}

// === impl Unit ===

impl Unit {
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    pub const fn period(self) -> Period {
        Period::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        })
    }

    pub fn of(period: Period) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.period() == period)
    }

    /// Returns the unit of that name, in upper or lower case, as in the YAML of envoyproxy/ratelimit.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// Returns its name in capitals, as Envoy's API spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "SECOND",
            Self::Minute => "MINUTE",
            Self::Hour => "HOUR",
            Self::Day => "DAY",
            Self::Week => "WEEK",
            Self::Month => "MONTH",
            Self::Year => "YEAR",
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_aligned_to_the_epoch() {
        let minute = Unit::Minute.period();
        assert_eq!(Timestamp::from_secs(0).window_end(minute), Timestamp::from_secs(60));
        assert_eq!(Timestamp::from_secs(59).window_end(minute), Timestamp::from_secs(60));
        assert_eq!(Timestamp::from_secs(60).window_end(minute), Timestamp::from_secs(120));
    }

    #[test]
    fn a_week_begins_on_thursday_like_the_epoch() {
        let thursday = Timestamp::from_secs(7 * 86_400);
        assert_eq!(thursday.window_end(Unit::Week.period()), Timestamp::from_secs(14 * 86_400));
    }

    #[test]
    fn periods_print_as_in_the_rule_language() {
        for (nanos, text) in [
            (90 * NANOS_PER_SECOND, "90s"),
            (7 * 86_400 * NANOS_PER_SECOND, "7d"),
            (500_000_000, "500ms"),
            (60 * NANOS_PER_SECOND, "1m"),
            (0, "0ns"),
        ] {
            assert_eq!(Period::from_nanos(nanos).to_string(), text);
        }
    }

    /// A counter in the keys of envoyproxy/ratelimit must have the same windows there.
    #[test]
    fn units_have_the_lengths_of_envoyproxy_ratelimit() {
        let seconds = Unit::ALL.map(|unit| unit.period().as_nanos() / NANOS_PER_SECOND);
        assert_eq!(seconds, [1, 60, 3_600, 86_400, 604_800, 2_592_000, 31_536_000]);
        let names = ["SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "YEAR"];
        assert_eq!(Unit::ALL.map(Unit::name), names);
    }

    #[test]
    fn units_are_found_by_name_in_any_case_and_by_period() {
        assert_eq!(Unit::parse("mInUtE"), Some(Unit::Minute));
        assert_eq!(Unit::parse("fortnight"), None);
        for unit in Unit::ALL {
            assert_eq!(Unit::of(unit.period()), Some(unit));
        }
        assert_eq!(Unit::of(Period::from_secs(120)), None);
    }

    #[test]
    fn seconds_round_up() {
        assert_eq!(Period::from_millis(1).as_secs_ceil(), 1);
        assert_eq!(Period::from_secs(2).as_secs_ceil(), 2);
    }
}
