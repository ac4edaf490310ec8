//! A limit's parameters: the requests that a period admits, and the algorithm that applies the period.

use std::{fmt, ops::Deref, slice, sync::Arc};

use smallvec::SmallVec;

use super::{
    algorithm::{Algorithm, Bucket, Refill},
    calendar::{Calendar, CalendarWindows},
    units::{Period, Timestamp, Unit},
};

/// One limit: `requests` in each `period`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// 0 to 2^32-1; 0 admits nothing.
    pub requests: u32,
    /// Longer than zero. That of a calendar's [unit](super::CalendarUnit::period), if it has one.
    pub period: Period,
    pub algorithm: Algorithm,
    /// The calendar that cuts its windows, which are fixed ones. None: they are aligned to the epoch.
    pub calendar: Option<Arc<CalendarWindows>>,
}

/// The tiers of one limit. Most limits have one, which is stored inline.
pub type Tiers = SmallVec<[Tier; 1]>;

/// At least one tier, in an allocation that the limit shares with its counters: they hold eight bytes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedTiers(Arc<Tiers>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverLimitPolicy {
    /// Rejected hits count, as in envoyproxy/ratelimit. For rules in its syntax, which have one tier.
    Count,
    /// Rejected hits do not count: a request takes nothing from any tier unless all of them admit it.
    Ignore,
}

/// Returns the most hits that all of `tiers` admit at once: the smallest of their capacities; 0 if there are none.
pub fn capacity(tiers: &[Tier]) -> u64 {
    tiers.iter().map(|tier| u64::from(tier.capacity())).min().unwrap_or_default()
}

// === impl Tier ===

impl Tier {
    /// Returns how much longer than its unit a window of a calendar can be, where clocks are put back.
    const CALENDAR_SLACK: Period = Period::from_secs(86_400);

    pub const fn new(requests: u32, period: Period, algorithm: Algorithm) -> Self {
        Self { requests, period, algorithm, calendar: None }
    }

    pub const fn fixed_window(requests: u32, period: Period) -> Self {
        Self::new(requests, period, Algorithm::FixedWindow)
    }

    pub const fn sliding_window(requests: u32, period: Period) -> Self {
        Self::new(requests, period, Algorithm::SlidingWindow)
    }

    pub const fn token_bucket(requests: u32, period: Period, bucket: Bucket) -> Self {
        Self::new(requests, period, Algorithm::TokenBucket(bucket))
    }

    pub fn of_calendar(requests: u32, windows: CalendarWindows) -> Self {
        let window = Self::fixed_window(requests, windows.calendar.unit.period());
        Self { calendar: Some(Arc::new(windows)), ..window }
    }

    pub const fn has_windows(&self) -> bool {
        self.algorithm.kind().has_windows()
    }

    pub const fn refills(&self) -> bool {
        self.algorithm.kind().refills()
    }

    /// Returns the calendar that cuts its windows.
    pub fn calendar(&self) -> Option<&Calendar> {
        self.calendar.as_deref().map(|windows| &windows.calendar)
    }

    /// Returns when the fixed window of `at` begins, and when the next one does.
    #[inline]
    pub fn window(&self, at: Timestamp) -> (Timestamp, Timestamp) {
        match &self.calendar {
            None => {
                let start = at.window_start(self.period);
                (start, start.after(self.period))
            }
            Some(windows) => windows.window(at),
        }
    }

    /// Returns when the window of `at` ends; none if it has none.
    #[inline]
    pub fn window_end(&self, at: Timestamp) -> Option<Timestamp> {
        self.has_windows().then(|| self.window(at).1)
    }

    /// Returns whether both instants are in one window, or it has none.
    #[inline]
    pub fn is_one_window(&self, at: Timestamp, other: Timestamp) -> bool {
        if !self.has_windows() {
            return true;
        }
        let (start, end) = self.window(at);
        start <= other && other < end
    }

    /// Returns whether a window of it can end at `end`: its calendar may have been another one.
    #[inline]
    pub(crate) fn can_end_at(&self, end: Timestamp) -> bool {
        self.calendar.as_ref().is_none_or(|windows| windows.is_edge(end))
    }

    /// Returns the length of the present window of a calendar; without one, the period.
    pub fn length(&self) -> Period {
        let present = self.calendar.as_ref().and_then(|windows| windows.present());
        present.map_or(self.period, |(start, end)| end.since(start))
    }

    /// Returns the period as in the rule language: `90s`, `calendar month`.
    pub fn per(&self) -> String {
        self.calendar().map_or_else(|| self.refill_period().to_string(), |calendar| calendar.unit.to_string())
    }

    pub fn with_limits(&self, requests: u32, burst: u32) -> Self {
        let algorithm = self.algorithm.with_bucket(Bucket { burst, ..self.bucket() });
        Self { requests, algorithm, ..self.clone() }
    }

    /// Returns the most hits that the tier admits at once: the burst of a bucket, the limit of a window.
    pub const fn capacity(&self) -> u32 {
        self.bucket().burst
    }

    /// Returns the bucket that spreads the hits of this window over it, `burst` of them at once.
    pub const fn pace(&self, burst: u32) -> Self {
        Self::token_bucket(self.requests, self.period, Bucket::of(burst))
    }

    /// Returns the time in which `requests` tokens flow into a bucket; for other algorithms, the period.
    pub const fn refill_period(&self) -> Period {
        match self.bucket().refill {
            Refill::Part(periods) => {
                Period::from_nanos(self.period.as_nanos().saturating_mul(periods.get() as u64))
            }
            _ => self.period,
        }
    }

    /// Returns the longest wait without reservations and clock steps: a period, or until a bucket in debt is full.
    pub const fn longest_wait(&self) -> Period {
        if self.calendar.is_some() {
            return Period::from_nanos(self.period.as_nanos() + Self::CALENDAR_SLACK.as_nanos());
        }
        if !self.refills() {
            return self.period;
        }
        if self.requests == 0 {
            return Period::MAX;
        }
        // in steps it takes no longer than this
        let refills = (2 * self.capacity() as u64).div_ceil(self.requests as u64);
        Period::from_nanos(self.refill_period().as_nanos().saturating_mul(refills))
    }

    /// Returns whether both use the same counter of a key: the same kind of algorithm and period, the same unit of a
    /// calendar, or both any pace.
    pub fn shares_counter(&self, other: &Self) -> bool {
        let paces = (self.has_any_pace(), other.has_any_pace());
        if paces.0 || paces.1 {
            return paces.0 && paces.1;
        }
        self.period == other.period
            && self.algorithm.kind() == other.algorithm.kind()
            && self.calendar.is_some() == other.calendar.is_some()
    }

    /// Returns whether its counter is a bucket of [any pace](Refill::AnyPace).
    pub const fn has_any_pace(&self) -> bool {
        matches!(self.bucket().refill, Refill::AnyPace)
    }

    /// Returns the unit to report, if the period is exactly one unit. Of a calendar, a day or a week if the present window
    /// has its length: readers take a month for 30 days.
    pub fn unit(&self) -> Option<Unit> {
        if self.calendar.is_none() {
            return Unit::of(self.refill_period());
        }
        Unit::of(self.length()).filter(|unit| matches!(unit, Unit::Day | Unit::Week))
    }
}

// === impl SharedTiers ===

impl Deref for SharedTiers {
    type Target = [Tier];

    fn deref(&self) -> &[Tier] {
        &self.0
    }
}

impl<T: IntoIterator<Item = Tier>> From<T> for SharedTiers {
    fn from(tiers: T) -> Self {
        tiers.into_iter().collect()
    }
}

impl FromIterator<Tier> for SharedTiers {
    fn from_iter<I: IntoIterator<Item = Tier>>(tiers: I) -> Self {
        Self(Arc::new(tiers.into_iter().collect()))
    }
}

impl<'a> IntoIterator for &'a SharedTiers {
    type Item = &'a Tier;
    type IntoIter = slice::Iter<'a, Tier>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// Formats the tier, such as `1000 requests per 10s, sliding window`.
impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requests = self.requests;
        write!(f, "{requests} request{} per ", if requests == 1 { "" } else { "s" })?;
        match self.calendar() {
            Some(calendar) => calendar.fmt(f)?,
            None => self.refill_period().fmt(f)?,
        }
        if !self.has_windows() {
            write!(f, ", {}", self.algorithm.kind().name().replace('_', " "))?;
        }
        if self.refills() {
            let Bucket { burst, refill, strict } = self.bucket();
            write!(f, " with a burst of {burst}")?;
            f.write_str(if refill == Refill::Step { ", refilled in steps" } else { "" })?;
            f.write_str(if strict { ", strict" } else { "" })?;
        }
        Ok(())
    }
}
