//! Schedules: reads the limits of a rule that change with time, and finds the one that applies.
//!
//! A local time that does not exist is the first instant after the gap. Of two equal ones `from` is the first, and `to` the
//! second.

use std::sync::Arc;

use super::{
    error::ConfigReport,
    fields::Fields,
    keys::KeyLevel,
    rate_limit,
    scalar::{Scalar, brief},
    yaml::{Value, YamlNode, YamlPosition},
    zone,
};
use jiff::{
    Span,
    civil::{Date, DateTime, Weekday},
    tz::TimeZone,
};
use weir_limit::{
    ActiveDays, ActiveTime, DateRange, DayOfYear, Limit, Rule, Schedule, ScheduledRule, Timestamp,
};
use weir_observe::spelling;

/// Limits of one schedule, and dates of one limit.
const MAX_LIMITS: usize = 64;
const MAX_DATES: usize = 400;

const MINUTES_OF_DAY: u16 = 24 * 60;

pub(super) const DAYS: [&str; 7] =
    ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
const EVERY_DAY: u8 = 0x7f;

/// Days after which the same weekday has come again, also where a zone has left one out.
const DAYS_AHEAD: i64 = 16;

/// Years after which 29 February has come again.
const YEARS_AHEAD: i16 = 8;

/// The edges at which nothing changes, such as midnights, that are passed over at once.
const MAX_EDGES: usize = 100;

/// Reads `schedule`, which is there. The rule has its first limit.
pub(super) fn read(fields: &Fields<'_>, report: &mut ConfigReport) -> Option<Rule> {
    for key in KeyLevel::Scheduled.keys() {
        if let Some(field) = fields.get(key) {
            let message =
                format!("'{key}' cannot be combined with 'schedule'; move it into an entry of 'schedule'");
            report.error(field.key_at, message);
        }
    }
    let zone = zone::read(fields, report);
    let list = fields.get("schedule")?;
    let mut limits = Vec::new();
    let mut always: Option<YamlPosition> = None;
    let mut is_valid = true;
    for node in fields.maps("schedule", report) {
        let Some(entry) = Fields::new(node, KeyLevel::Scheduled, "an entry of 'schedule'", report) else {
            is_valid = false;
            continue;
        };
        if let Some(always) = always.replace(node.at) {
            let message = "this limit never applies, since the one before it is always active";
            report.warn(if entry.get("active").is_none() { node.at } else { always }, message);
        }
        let active = match entry.get("active") {
            None => None,
            Some(field) => {
                always = None;
                let active = active(field.value, zone.as_ref(), report);
                is_valid &= active.is_some();
                let active = active.filter(|active| !active.is_always());
                if active.is_none() {
                    always = Some(node.at);
                }
                active
            }
        };
        match rate_limit::read_limit(&entry, fields, node.at, report) {
            Some(rule) => {
                let rule = Rule { origin: report.origin(node.at), ..rule };
                limits.push(ScheduledRule { active, rule });
            }
            None => is_valid = false,
        }
    }
    if limits.len() > MAX_LIMITS {
        report.error(
            list.at,
            format!("a schedule has at most {MAX_LIMITS} limits, and this one has {}", limits.len()),
        );
        return None;
    }
    let keeps_places = |limit: &&ScheduledRule| limit.rule.places().is_some();
    let with_places = limits.iter().filter(keeps_places).count();
    let has_rest = limits.last().is_some_and(|last| last.active.is_none());
    if is_valid && with_places > 0 && (with_places < limits.len() || !has_rest) {
        report.error(
            list.key_at,
            "all limits of a schedule have 'in_flight', or 'reserve', or none has: a request that began under one must end \
             under the next; add it to each, and a last limit without 'active'",
        );
        return None;
    }
    if limits.is_empty() && is_valid && matches!(list.value.value, Value::List(_)) {
        let right = "write at least one limit, such as '- {requests: 100, per: 1m, active: {days: mon-fri}}'";
        report.error(list.at, format!("'schedule' must not be empty; {right}"));
    }
    if is_valid && limits.last().is_some_and(|last| last.active.is_some()) {
        report.warn(
            list.key_at,
            "there is no limit while none of these is active; add a last one without 'active', or 'unlimited: true' if \
             that is intended",
        );
    }
    let first = limits.first().filter(|_| is_valid)?.rule.clone();
    Some(Rule { schedule: Some(Arc::new(Schedule { limits })), ..first })
}

/// Gives the limits of `rule` that name no zone this one.
pub(super) fn fill_zone(rule: &mut Rule, zone: &TimeZone) {
    let Some(schedule) = &mut rule.schedule else { return };
    for active in Arc::make_mut(schedule).limits.iter_mut().filter_map(|limit| limit.active.as_mut()) {
        active.zone.get_or_insert_with(|| zone::name_of(zone));
    }
}

/// Gives `rule` the limit that is active at `at`. Without one it admits everything. Returns when it changes.
pub(super) fn put_in_force(rule: &mut Rule, at: Timestamp) -> Option<Timestamp> {
    let schedule = Arc::clone(rule.schedule.as_ref()?);
    let until = next_change(&schedule, at);
    let chosen = chosen(&schedule, at).map(|index| schedule.limits[index].rule.clone());
    let (name, replaces) = (rule.name.clone(), rule.replaces.clone());
    let none = || Rule { name, replaces, ..Rule::new(Limit::Unlimited) };
    let Rule { shadow_mode, quota_mode, detailed_metric, metadata, origin, .. } = rule.clone();
    let chosen = chosen.unwrap_or_else(none);
    *rule = Rule {
        shadow_mode,
        quota_mode,
        detailed_metric,
        metadata,
        origin,
        schedule: Some(schedule),
        until,
        ..chosen
    };
    until
}

/// Returns the index of the limit that applies at `at`.
fn chosen(schedule: &Schedule, at: Timestamp) -> Option<usize> {
    let is_active = |active: &ActiveTime| spans(active, at).iter().any(|(from, to)| *from <= at && at < *to);
    schedule.limits.iter().position(|limit| limit.active.as_ref().is_none_or(is_active))
}

/// Returns when another limit applies than at `at`. None if it never does.
fn next_change(schedule: &Schedule, at: Timestamp) -> Option<Timestamp> {
    let now = chosen(schedule, at);
    let actives = || schedule.limits.iter().filter_map(|limit| limit.active.as_ref());
    let mut edge = at;
    for _ in 0..MAX_EDGES {
        let edges = actives().flat_map(|active| spans(active, edge)).flat_map(|(from, to)| [from, to]);
        edge = edges.filter(|next| *next > edge).min()?;
        if chosen(schedule, edge) != now {
            break;
        }
    }
    Some(edge)
}

/// Returns the times in which it is active, from some days before `at` to the next of them after `at`, at least.
fn spans(active: &ActiveTime, at: Timestamp) -> Vec<(Timestamp, Timestamp)> {
    let zone = active.zone.as_deref().map_or(TimeZone::UTC, zone::named);
    let Some(today) = zone::local(&zone, at).map(DateTime::date) else { return Vec::new() };
    let near = |days: i64| today.checked_add(Span::new().days(days)).ok();
    let (Some(first), Some(last)) = (near(-2), near(DAYS_AHEAD)) else { return Vec::new() };
    // the first and the last day of each time
    let days: Vec<(Date, Date)> = match &active.days {
        ActiveDays::OfWeek(days) => {
            let is_day = |day: &Date| days & (1 << day.weekday().to_monday_zero_offset()) != 0;
            days_from(first, last).filter(is_day).map(|day| (day, day)).collect()
        }
        ActiveDays::Dates(ranges) => {
            let times = ranges.iter().flat_map(|range| times_of(*range, first));
            if active.is_all_day() {
                times.collect()
            } else {
                let near = |(from, to): (Date, Date)| {
                    let later = Some(from).filter(|from| *from > last);
                    days_from(from.max(first), to.min(last)).chain(later)
                };
                times.flat_map(near).map(|day| (day, day)).collect()
            }
        }
    };
    let spans = days
        .into_iter()
        .filter_map(|(from, to)| Some((span(active, from, &zone)?.0, span(active, to, &zone)?.1)));
    spans.filter(|(from, to)| from < to).collect()
}

/// Returns the first and the last day of each time that `range` comes, from some days before `first` on. Where a year has no
/// 29 February, the range has the days around it.
fn times_of(range: DateRange, first: Date) -> Vec<(Date, Date)> {
    let years = match range.first.year {
        Some(year) => year..=year,
        None => first.year().saturating_sub(1)..=first.year().saturating_add(YEARS_AHEAD),
    };
    let wraps = range.last.year.is_none() && range.last < range.first;
    let times = years.filter_map(|year| {
        let from = date_or(range.first, year, |month| month.last_of_month().tomorrow().ok())?;
        let end = year.saturating_add(i16::from(wraps));
        Some((from, date_or(range.last, end, |month| Some(month.last_of_month()))?))
    });
    times.filter(|(from, to)| from <= to && *to >= first).collect()
}

/// The date in that year; if the month is shorter, what `instead` makes of its first day.
fn date_or(day: DayOfYear, year: i16, instead: impl Fn(Date) -> Option<Date>) -> Option<Date> {
    let year = day.year.unwrap_or(year);
    Date::new(year, day.month, day.day).ok().or_else(|| instead(Date::new(year, day.month, 1).ok()?))
}

fn days_from(first: Date, last: Date) -> impl Iterator<Item = Date> {
    first.series(Span::new().days(1)).take_while(move |day| *day <= last)
}

/// The time in which it is active that begins on `day`.
fn span(active: &ActiveTime, day: Date, zone: &TimeZone) -> Option<(Timestamp, Timestamp)> {
    let next = u16::from(active.to <= active.from) * MINUTES_OF_DAY;
    let at = |minutes: u16| {
        day.to_datetime(jiff::civil::Time::midnight()).checked_add(Span::new().minutes(minutes)).ok()
    };
    Some((zone::first(zone, at(active.from)?)?, zone::last(zone, at(active.to + next)?)?))
}

fn active(node: &YamlNode, zone: Option<&TimeZone>, report: &mut ConfigReport) -> Option<ActiveTime> {
    let fields = Fields::new(node, KeyLevel::Active, "'active'", report)?;
    let own = zone::read(&fields, report);
    let zone_is_valid = own.is_some() || fields.get("timezone").is_none();
    if let (Some(field), Some(_)) = (fields.get("dates"), fields.get("days")) {
        report
            .error(field.key_at, "'dates' cannot be combined with 'days'; write another entry for the dates");
        return None;
    }
    let days = if fields.get("dates").is_some() { dates(&fields, report) } else { days(&fields, report) };
    let from = minutes(&fields, "from", 0, report);
    let to = minutes(&fields, "to", MINUTES_OF_DAY, report);
    if let (Some(MINUTES_OF_DAY), Some(field)) = (from, fields.get("from")) {
        report.error(field.at, "'from' is before the end of the day; write \"00:00\", and the next day");
        return None;
    }
    let zone = own.as_ref().or(zone).map(zone::name_of);
    Some(ActiveTime { days: days?, from: from?, to: to?, zone }).filter(|_| zone_is_valid)
}

fn minutes(fields: &Fields<'_>, key: &str, absent: u16, report: &mut ConfigReport) -> Option<u16> {
    if fields.get(key).is_none() {
        return Some(absent);
    }
    let field = fields.text(key, report)?;
    let two = |text: &str| (text.len() == 2).then(|| digits(text)).flatten();
    let parsed = field.value.split_once(':').and_then(|(hours, minutes)| Some((two(hours)?, two(minutes)?)));
    let minutes = parsed.filter(|(_, minutes)| *minutes < 60).map(|(hours, minutes)| hours * 60 + minutes);
    let minutes = minutes.filter(|minutes| *minutes <= MINUTES_OF_DAY);
    if minutes.is_none() {
        let message = format!(
            "invalid time '{}'; write hours and minutes from \"00:00\" to \"24:00\"",
            brief(field.value)
        );
        report.error(field.at, message);
    }
    minutes
}

fn digits(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Reads one text or a list of texts.
fn texts<'n>(fields: &Fields<'n>, key: &str, report: &mut ConfigReport) -> Vec<(&'n str, YamlPosition)> {
    let Some(field) = fields.get(key) else { return Vec::new() };
    let items = match &field.value.value {
        Value::List(items) => items.iter().map(|item| &**item).collect(),
        _ => vec![field.value],
    };
    let mut texts = Vec::new();
    for item in items {
        match item.scalar().map(Scalar::text) {
            Some(text) if !text.is_empty() => texts.push((text, item.at)),
            _ => report
                .error(item.at, format!("'{key}' must be a text or a list of texts, not {}", item.kind())),
        }
    }
    if texts.is_empty() {
        report.error(field.at, format!("'{key}' must not be empty; leave it out if every day is meant"));
    }
    texts
}

fn days(fields: &Fields<'_>, report: &mut ConfigReport) -> Option<ActiveDays> {
    if fields.get("days").is_none() {
        return Some(ActiveDays::OfWeek(EVERY_DAY));
    }
    let (mut days, mut is_valid) = (0, true);
    for (text, at) in texts(fields, "days", report) {
        match range_of_days(text) {
            Ok(range) => days |= range,
            Err(message) => {
                report.error(at, message);
                is_valid = false;
            }
        }
    }
    (is_valid && days != 0).then_some(ActiveDays::OfWeek(days))
}

/// `mon`, `mon-fri` or `fri-mon`, which goes over the week's end.
fn range_of_days(text: &str) -> Result<u8, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (weekday(first.trim())?, weekday(last.trim())?);
    let (first, last) = (first.to_monday_zero_offset(), last.to_monday_zero_offset());
    let days = (0..7).filter(|day| {
        if first <= last { (first..=last).contains(day) } else { *day >= first || *day <= last }
    });
    Ok(days.map(|day| 1 << day).sum())
}

/// `mon` or `monday`, in any case.
pub(super) fn weekday(text: &str) -> Result<Weekday, String> {
    let lower = text.to_ascii_lowercase();
    let index = DAYS.iter().position(|day| *day == lower || day[..3] == lower);
    let day = index.and_then(|index| Weekday::from_monday_zero_offset(i8::try_from(index).ok()?).ok());
    day.ok_or_else(|| {
        let hint =
            spelling::nearest(text, DAYS).map(|day| format!("; did you mean '{day}'?")).unwrap_or_default();
        format!(
            "unknown day '{}'; write mon, tue, wed, thu, fri, sat or sun, such as mon-fri{hint}",
            brief(text)
        )
    })
}

fn dates(fields: &Fields<'_>, report: &mut ConfigReport) -> Option<ActiveDays> {
    let texts = texts(fields, "dates", report);
    if let Some((_, at)) = texts.get(MAX_DATES) {
        report.error(*at, format!("a limit has at most {MAX_DATES} dates"));
        return None;
    }
    let count = texts.len();
    let mut ranges = Vec::new();
    for (text, at) in texts {
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        match (date(first), date(last)) {
            (Some(first), Some(last)) if first.year.is_some() != last.year.is_some() => {
                report.error(at, "write both dates with a year, or none");
            }
            (Some(first), Some(last)) if first.year.is_some() && last < first => {
                report.error(at, "the last date is before the first; write the earlier one first");
            }
            (Some(first), Some(last)) => ranges.push(DateRange { first, last }),
            _ => {
                let right = "write 2027-12-24, 12-24 for each year, or a range such as 12-31..01-01";
                report.error(at, format!("invalid date '{}'; {right}", brief(text)));
            }
        }
    }
    (!ranges.is_empty() && ranges.len() == count).then_some(ActiveDays::Dates(ranges))
}

/// `2027-12-24`, or `12-24` of each year; `02-29` is one.
pub(super) fn date(text: &str) -> Option<DayOfYear> {
    let parts: Vec<&str> = text.split('-').collect();
    let (year, [month, day]) = match &parts[..] {
        [month, day] => (None, [month, day]),
        [year, month, day] if year.len() == 4 => (Some(i16::try_from(digits(year)?).ok()?), [month, day]),
        _ => return None,
    };
    let number = |text: &str| i8::try_from(digits(text).filter(|_| text.len() == 2)?).ok();
    let (month, day) = (number(month)?, number(day)?);
    // a leap year has each day
    Date::new(year.unwrap_or(2000), month, day).ok()?;
    Some(DayOfYear { year, month, day })
}
