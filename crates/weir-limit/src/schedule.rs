//! Limits that change with time, as declared. Which of them applies is decided when rules are put in force: this crate knows
//! no time zones.

use std::sync::Arc;

use super::rule::Rule;

/// The limits of a rule, of which the first that is active applies. Not empty.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub limits: Vec<ScheduledRule>,
}

/// One limit of a schedule, as a whole rule.
#[derive(Clone, Debug)]
pub struct ScheduledRule {
    /// When it is active; always if none.
    pub active: Option<ActiveTime>,
    /// Its [`Rule::schedule`] is none.
    pub rule: Rule,
}

/// Some time of some days, by the clocks of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveTime {
    pub days: ActiveDays,
    /// Minutes since the midnight that begins the day, 0 to 1,439: the first that is active.
    pub from: u16,
    /// Minutes, 0 to 1,440: the first that is not. At or before [`Self::from`], they are of the next day.
    pub to: u16,
    /// A name of IANA's database; UTC if none.
    pub zone: Option<Arc<str>>,
}

impl ActiveTime {
    /// Returns whether it has all of each of its days.
    pub const fn is_all_day(&self) -> bool {
        self.from == 0 && self.to == 24 * 60
    }

    /// Returns whether there is no time at which it is not active.
    pub const fn is_always(&self) -> bool {
        self.is_all_day() && matches!(self.days, ActiveDays::OfWeek(0x7f))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActiveDays {
    /// Monday is bit 0.
    OfWeek(u8),
    Dates(Vec<DateRange>),
}

/// The days from the first to the last, both included. If the last has a year, so has the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DateRange {
    pub first: DayOfYear,
    pub last: DayOfYear,
}

/// A date of one year, or of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DayOfYear {
    pub year: Option<i16>,
    /// 1 to 12.
    pub month: i8,
    /// 1 to 31.
    pub day: i8,
}
