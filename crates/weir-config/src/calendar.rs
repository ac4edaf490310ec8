//! `per: calendar month` and its kin: what a rule says of a calendar, and the edges that the calendar has in its time zone.

use std::sync::Arc;

use jiff::{Span, civil::Date, tz::TimeZone};
use weir_limit::{
    AlgorithmKind, Calendar, CalendarUnit, CalendarWindows, Limit, Rule, RuleNode, Tier, Timestamp,
};
use weir_observe::spelling;

use super::{error::ConfigReport, fields::Fields, scalar::brief, schedule, yaml::YamlPosition, zone};

/// The windows whose edges are computed, before and after that of an instant: enough for a table, also where a zone leaves
/// out a day.
const AROUND: [i64; 2] = [5, 9];

const MONTHS: i64 = 12;

/// The day of the epoch, a Thursday, and the first Monday after it in days since then.
const EPOCH: Date = Date::constant(1970, 1, 1);
const MONDAY: i64 = 4;

/// Returns the unit that `per: calendar month` names; none if `text` is of another kind. The error says what would be right.
pub(super) fn unit(text: &str) -> Option<Result<CalendarUnit, String>> {
    let mut words = text.split_ascii_whitespace();
    let is_calendar = |word: &str| spelling::nearest(word, ["calendar"]).is_some();
    let first = words.next()?;
    let name = if is_calendar(first) { words.next().unwrap_or_default() } else { first };
    let named = CalendarUnit::ALL.into_iter().find(|unit| unit.name() == name);
    if let Some(unit) = named
        && text == unit.to_string()
    {
        return Some(Ok(unit));
    }
    let near = spelling::nearest(name, CalendarUnit::ALL.map(CalendarUnit::name));
    let hint = near.map(|name| format!("; did you mean 'calendar {name}'?")).unwrap_or_default();
    let wrong = || {
        format!("invalid period '{}'; write calendar day, week, month, quarter or year{hint}", brief(text))
    };
    (is_calendar(first) || named.is_some()).then(|| Err(wrong()))
}

/// Reads the keys beside `per`, which names `unit`. What cannot be beside it is reported.
pub(super) fn read(
    fields: &Fields<'_>,
    unit: CalendarUnit,
    kind: AlgorithmKind,
    per_at: YamlPosition,
    report: &mut ConfigReport,
) -> Option<Calendar> {
    let mut is_valid = true;
    let mut reject = |at, message: String| {
        report.error(at, message);
        is_valid = false;
    };
    if kind != AlgorithmKind::FixedWindow {
        let at = fields.get("algorithm").map_or(per_at, |field| field.at);
        reject(
            at,
            format!(
                "'algorithm: {}' cannot be combined with 'per: {unit}', which is a fixed window; write 'algorithm: \
                 fixed_window', or a period such as 'per: 30d'",
                kind.name()
            ),
        );
    }
    for key in ["smooth", "burst", "refill", "strict", "share"] {
        if let Some(field) = fields.get(key) {
            reject(
                field.key_at,
                format!(
                    "'{key}' cannot be combined with 'per: {unit}', whose requests are free from its first instant; remove \
                     '{key}', or write a period such as 'per: 30d'"
                ),
            );
        }
    }
    let calendar = starts(fields, unit, report);
    calendar.filter(|_| is_valid)
}

/// Reports `starts` beside a period that is no calendar's.
pub(super) fn reject_starts(fields: &Fields<'_>, report: &mut ConfigReport) {
    if let Some(field) = fields.get("starts") {
        report.error(field.key_at, without_calendar("starts"));
    }
}

/// Reports `timezone` in a rule without a calendar or a schedule; otherwise sets it where calendars have none.
pub(super) fn set_timezone(
    fields: &Fields<'_>,
    timezone: Option<&TimeZone>,
    limits: [Option<&mut Limit>; 2],
    report: &mut ConfigReport,
) {
    let Some(field) = fields.get("timezone") else { return };
    let mut calendars = 0;
    for limit in limits.into_iter().flatten() {
        calendars += limit.tiers().iter().filter(|tier| tier.calendar.is_some()).count();
        fill_in(limit, timezone);
    }
    if calendars == 0 && fields.get("schedule").is_none() {
        report.error(field.key_at, without_calendar("timezone"));
    }
}

/// Returns the first calendar of the tiers of `limits`.
pub(super) fn of_limits<'l>(limits: impl IntoIterator<Item = Option<&'l Limit>>) -> Option<&'l Calendar> {
    limits.into_iter().flatten().flat_map(Limit::tiers).find_map(Tier::calendar)
}

/// Says why instances do not split a limit with `calendar`.
pub(super) fn unsplit(calendar: &Calendar) -> String {
    format!(
        "instances cannot split 'per: {}', since a new one would wait for its part until the next window; write \
         'coordination: lease', which shares it in small parts",
        calendar.unit
    )
}

fn without_calendar(key: &str) -> String {
    format!(
        "'{key}' requires a window of the calendar; write 'requests: 100' and 'per: calendar month' (day, week, quarter or \
         year) in place of 'unit' or another period, or remove '{key}'"
    )
}

/// Sets the time zone of a file where the rules of its `nodes` name none.
pub(super) fn fill_in_nodes(nodes: &mut [RuleNode], timezone: &TimeZone) {
    for node in nodes {
        if let Some(rule) = &mut node.rule {
            fill_in_rule(rule, timezone);
        }
        fill_in_nodes(&mut node.children, timezone);
    }
}

pub(super) fn fill_in_rule(rule: &mut Rule, timezone: &TimeZone) {
    rule.change_variants(&|rule| {
        fill_in(&mut rule.limit, Some(timezone));
        rule.shadow.iter_mut().for_each(|shadow| fill_in(shadow, Some(timezone)));
    });
    schedule::fill_zone(rule, timezone);
}

fn fill_in(limit: &mut Limit, timezone: Option<&TimeZone>) {
    let Limit::Tiers { tiers, .. } = limit else { return };
    for windows in tiers.iter_mut().filter_map(|tier| tier.calendar.as_mut()) {
        if windows.calendar.timezone.is_none() {
            Arc::make_mut(windows).calendar.timezone = timezone.and_then(TimeZone::iana_name).map(Arc::from);
        }
    }
}

fn starts(fields: &Fields<'_>, unit: CalendarUnit, report: &mut ConfigReport) -> Option<Calendar> {
    if fields.get("starts").is_none() {
        return Some(Calendar::new(unit));
    }
    let field = fields.text("starts", report)?;
    let calendar = parse_starts(unit, field.value);
    if let Err(right) = &calendar {
        report.error(field.at, format!("invalid start '{}' of a {unit}; {right}", brief(field.value)));
    }
    calendar.ok()
}

/// Reads where the windows of `unit` begin, as it is spelled. The error says what would be right.
pub(super) fn parse_starts(unit: CalendarUnit, text: &str) -> Result<Calendar, &'static str> {
    let calendar = Calendar::new(unit);
    let number = |text: &str, most: u8| {
        let is_short = text.len() <= 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|number| is_short && (1..=most).contains(number))
    };
    match unit {
        CalendarUnit::Day => Err("it begins at midnight: remove 'starts'"),
        CalendarUnit::Week => {
            let day =
                schedule::weekday(text).ok().and_then(|day| u8::try_from(day.to_monday_one_offset()).ok());
            day.map(|day| Calendar { day, ..calendar }).ok_or("write a day such as mon or monday")
        }
        CalendarUnit::Month => {
            let right = "write a day from 1 to 31; a shorter month begins on its last day";
            number(text, 31).map(|day| Calendar { day, ..calendar }).ok_or(right)
        }
        CalendarUnit::Quarter | CalendarUnit::Year => {
            let date =
                text.split_once('-').and_then(|(month, day)| Some((number(month, 12)?, number(day, 31)?)));
            // the last day of a month of a leap year
            let exists = |(month, day): &(u8, u8)| {
                text.len() == 5 && i64::from(*day) <= last_day(24_000 + i64::from(*month) - 1)
            };
            let right = "write a month and a day such as 04-01 for 1 April";
            date.filter(exists).map(|(month, day)| Calendar { month, day, ..calendar }).ok_or(right)
        }
    }
}

/// Returns the windows of `calendar` around `at` in `zone`. The nominal ones far from the present.
pub(super) fn in_force(calendar: &Calendar, zone: &TimeZone, at: Timestamp) -> CalendarWindows {
    let windows =
        edges(calendar, zone, at).and_then(|edges| CalendarWindows::in_force(calendar.clone(), &edges, at));
    windows.unwrap_or_else(|| CalendarWindows::new(calendar.clone()))
}

/// Returns the edges around `at`, ascending and each once: the first instants whose local date is that one or a later one.
/// Those before 1970 are the epoch.
fn edges(calendar: &Calendar, zone: &TimeZone, at: Timestamp) -> Option<Vec<Timestamp>> {
    let present = window_of(calendar, zone::local(zone, at)?.date())?;
    let dates = (present - AROUND[0]..present + AROUND[1]).filter_map(|window| begin_of(calendar, window));
    let mut edges: Vec<Timestamp> = dates.filter_map(|date| zone::first(zone, date.at(0, 0, 0, 0))).collect();
    edges.dedup();
    Some(edges)
}

/// Returns the number of the window that has `date`: of months, quarters and years from the year 0, of others from 1970.
fn window_of(calendar: &Calendar, date: Date) -> Option<i64> {
    let days = EPOCH.duration_until(date).as_hours() / 24;
    Some(match steps(calendar) {
        CalendarSteps::Days { from, step } => (days - from).div_euclid(step),
        CalendarSteps::Months { from, step } => {
            let month = i64::from(date.year()) * MONTHS + i64::from(date.month()) - 1;
            let window = (month - from).div_euclid(step);
            if begin_of(calendar, window)? > date { window - 1 } else { window }
        }
    })
}

/// Returns the local date on which the window of that number begins.
fn begin_of(calendar: &Calendar, window: i64) -> Option<Date> {
    match steps(calendar) {
        CalendarSteps::Days { from, step } => {
            EPOCH.checked_add(Span::new().try_days(from + window * step).ok()?).ok()
        }
        CalendarSteps::Months { from, step } => {
            let month = from + window * step;
            let day = i64::from(calendar.day).min(last_day(month));
            let year = i16::try_from(month.div_euclid(MONTHS)).ok()?;
            Date::new(year, i8::try_from(month.rem_euclid(MONTHS) + 1).ok()?, i8::try_from(day).ok()?).ok()
        }
    }
}

/// How the dates on which windows begin follow each other.
enum CalendarSteps {
    /// In days since the epoch.
    Days { from: i64, step: i64 },
    /// In months of the year 0 and later ones.
    Months { from: i64, step: i64 },
}

fn steps(calendar: &Calendar) -> CalendarSteps {
    let months = |step| CalendarSteps::Months { from: (i64::from(calendar.month) - 1) % step, step };
    match calendar.unit {
        CalendarUnit::Day => CalendarSteps::Days { from: 0, step: 1 },
        CalendarUnit::Week => CalendarSteps::Days { from: MONDAY + i64::from(calendar.day) - 1, step: 7 },
        CalendarUnit::Month => months(1),
        CalendarUnit::Quarter => months(3),
        CalendarUnit::Year => months(MONTHS),
    }
}

/// Returns the days of the `month` since January of the year 0.
fn last_day(month: i64) -> i64 {
    let year = i16::try_from(month.div_euclid(MONTHS)).unwrap_or_default();
    let month = i8::try_from(month.rem_euclid(MONTHS) + 1).unwrap_or(1);
    Date::new(year, month, 1).map_or(28, |date| date.days_in_month().into())
}

#[cfg(test)]
mod tests;
