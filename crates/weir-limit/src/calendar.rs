//! Windows that a calendar cuts: from one day, week, month, quarter or year of a time zone to the next. Whoever puts rules
//! into force computes their edges; a decision compares with them.

use std::{fmt, sync::Arc};

use super::units::{NANOS_PER_SECOND, Period, Timestamp};

/// The edges that a tier knows: those of two windows before the one in which they are computed, its own two, and later
/// ones, so that requests between an edge and the next computation are in the right window.
pub const CALENDAR_EDGES: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CalendarUnit {
    Day,
    Week,
    Month,
    Quarter,
    Year,
}

/// Where windows begin, as a rule says it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Calendar {
    pub unit: CalendarUnit,
    /// The name of the time zone in IANA's database. None for that of the rule's file, and UTC in a rule in force.
    pub timezone: Option<Arc<str>>,
    /// Where the first window of a year begins: 1 to 12. Of use for quarters and years.
    pub month: u8,
    /// The day of the month, 1 to 31, at most its last one; of a week, 1 for Monday to 7.
    pub day: u8,
}

/// A calendar, and its edges around the instant at which it was put in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalendarWindows {
    pub calendar: Calendar,
    /// Ascending. All zero before the calendar is in force.
    edges: [Timestamp; CALENDAR_EDGES],
}

/// The edge at which the window began in which a calendar was put in force.
const PRESENT: usize = 2;

// === impl CalendarUnit ===

impl CalendarUnit {
    pub const ALL: [Self; 5] = [Self::Day, Self::Week, Self::Month, Self::Quarter, Self::Year];

    /// Returns its name in the rule language.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Quarter => "quarter",
            Self::Year => "year",
        }
    }

    /// Returns what tells its counters apart in the keys of stores.
    pub const fn letter(self) -> char {
        match self {
            Self::Day => 'd',
            Self::Week => 'w',
            Self::Month => 'm',
            Self::Quarter => 'q',
            Self::Year => 'y',
        }
    }

    /// Returns the longest of its windows in a zone that keeps its time. In others one may be longer by hours.
    pub const fn period(self) -> Period {
        Period::from_secs(
            86_400
                * match self {
                    Self::Day => 1,
                    Self::Week => 7,
                    Self::Month => 31,
                    Self::Quarter => 92,
                    Self::Year => 366,
                },
        )
    }
}

// === impl Calendar ===

impl Calendar {
    /// Creates the calendar whose windows begin with Monday, the 1st, or 1 January.
    pub const fn new(unit: CalendarUnit) -> Self {
        Self { unit, timezone: None, month: 1, day: 1 }
    }

    pub fn timezone(&self) -> &str {
        self.timezone.as_deref().unwrap_or("UTC")
    }

    /// Returns where its windows begin as in the rule language; none for days.
    pub fn starts(&self) -> Option<String> {
        const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
        match self.unit {
            CalendarUnit::Day => None,
            CalendarUnit::Week => {
                DAYS.get(usize::from(self.day).wrapping_sub(1)).map(|day| (*day).to_owned())
            }
            CalendarUnit::Month => Some(self.day.to_string()),
            CalendarUnit::Quarter | CalendarUnit::Year => Some(format!("{:02}-{:02}", self.month, self.day)),
        }
    }
}

/// Formats the period as in the rule language: `calendar month`.
impl fmt::Display for CalendarUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "calendar {}", self.name())
    }
}

/// Formats the calendar, such as `calendar month from 15 in Europe/Berlin`.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.unit.fmt(f)?;
        if (self.month, self.day) != (1, 1) {
            write!(f, " from {}", self.starts().unwrap_or_default())?;
        }
        write!(f, " in {}", self.timezone())
    }
}

// === impl CalendarWindows ===

impl CalendarWindows {
    /// Creates the windows of a calendar that is not in force: each has the length of its unit.
    pub const fn new(calendar: Calendar) -> Self {
        Self { calendar, edges: [Timestamp::from_nanos(0); CALENDAR_EDGES] }
    }

    /// Creates the windows of a calendar that is put in force at `at`, by all of its edges of some time before and after
    /// that. None if they are too few.
    pub fn in_force(calendar: Calendar, edges: &[Timestamp], at: Timestamp) -> Option<Self> {
        let begun = edges.iter().filter(|edge| **edge <= at).count();
        let edges = edges.get(begun.checked_sub(PRESENT + 1)?..)?.first_chunk()?;
        Some(Self { calendar, edges: *edges })
    }

    /// Returns when the window began in which it was put in force, and when the next one begins. None before.
    pub fn present(&self) -> Option<(Timestamp, Timestamp)> {
        let (start, end) = (self.edges[PRESENT], self.edges[PRESENT + 1]);
        (start < end).then_some((start, end))
    }

    /// Returns the two edges that come next.
    pub const fn next_edges(&self) -> [Timestamp; 2] {
        [self.edges[PRESENT + 1], self.edges[PRESENT + 2]]
    }

    /// Returns when the window of `at` begins, and when the next one does. Before the edges that it knows, and after them,
    /// windows have the length of the unit.
    pub fn window(&self, at: Timestamp) -> (Timestamp, Timestamp) {
        let period = self.calendar.unit.period();
        match self.edges.iter().position(|edge| at < *edge) {
            Some(0) => (self.edges[0].before(period), self.edges[0]),
            Some(i) => (self.edges[i - 1], self.edges[i]),
            None => {
                let last = self.last();
                let start = last.after(period * (at.since(last).as_nanos() / period.as_nanos()));
                (start, start.after(period))
            }
        }
    }

    /// Returns whether a window of it can end at `end`. Others are those of another calendar.
    pub fn is_edge(&self, end: Timestamp) -> bool {
        let last = self.last();
        if end <= last {
            return self.edges.contains(&end);
        }
        let is_after = end.since(last).as_nanos().is_multiple_of(self.calendar.unit.period().as_nanos());
        is_after || end == Timestamp::from_nanos(u64::MAX)
    }

    /// Returns the first second of the window of `at`, which names it in the keys of stores.
    pub fn first_second(&self, at: Timestamp) -> u64 {
        self.window(at).0.as_nanos() / NANOS_PER_SECOND
    }

    const fn last(&self) -> Timestamp {
        self.edges[CALENDAR_EDGES - 1]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: u64 = 86_400;

    /// The days of a zone in which one has 25 hours.
    fn days() -> CalendarWindows {
        let edges: Vec<_> = (0..12)
            .map(|day| Timestamp::from_secs(1_000_000 + day * DAY + if day > 2 { 3_600 } else { 0 }))
            .collect();
        let at = Timestamp::from_secs(1_000_000 + 2 * DAY + 7);
        CalendarWindows::in_force(Calendar::new(CalendarUnit::Day), &edges, at).expect("enough edges")
    }

    #[test]
    fn windows_end_at_the_edges() {
        let days = days();
        let at = |seconds| Timestamp::from_secs(1_000_000 + seconds);
        for (instant, start, end) in [
            (at(0), at(0), at(DAY)),
            (at(DAY - 1), at(0), at(DAY)),
            (at(2 * DAY + 5), at(2 * DAY), at(3 * DAY + 3_600)),
            // one before those that are known, and one after them
            (Timestamp::from_secs(999_999), Timestamp::from_secs(1_000_000 - DAY), at(0)),
            (at(9 * DAY), at(8 * DAY + 3_600), at(9 * DAY + 3_600)),
        ] {
            assert_eq!(days.window(instant), (start, end));
        }
        assert!(!days.is_edge(at(3 * DAY)));
        assert_eq!(days.present(), Some((at(2 * DAY), at(3 * DAY + 3_600))));
        assert_eq!(days.next_edges(), [3, 4].map(|day| at(day * DAY + 3_600)));
    }

    proptest! {
        /// Otherwise a counter would forget its hits at once.
        #[test]
        fn every_window_ends_at_an_edge(at in any::<u64>(), in_force: bool) {
            let days = if in_force { days() } else { CalendarWindows::new(Calendar::new(CalendarUnit::Day)) };
            let (start, end) = days.window(Timestamp::from_nanos(at));
            prop_assert!(start <= Timestamp::from_nanos(at) && Timestamp::from_nanos(at) <= end);
            prop_assert!(days.is_edge(end));
        }
    }

    #[test]
    fn calendars_are_written_as_in_the_rule_language() {
        let calendar = Calendar::new(CalendarUnit::Month);
        assert_eq!(calendar.to_string(), "calendar month in UTC");
        let zone = Some("Europe/Berlin".into());
        assert_eq!(
            Calendar { day: 15, timezone: zone.clone(), ..calendar }.to_string(),
            "calendar month from 15 in Europe/Berlin"
        );
        let year = Calendar { month: 4, timezone: zone, ..Calendar::new(CalendarUnit::Year) };
        assert_eq!(year.to_string(), "calendar year from 04-01 in Europe/Berlin");
        assert_eq!(Calendar { day: 7, ..Calendar::new(CalendarUnit::Week) }.starts().as_deref(), Some("sun"));
    }
}
