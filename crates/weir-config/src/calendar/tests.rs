//! Edges against a slow model, which walks through the local time of a zone.

use jiff::tz::TimeZoneDatabase;

use super::*;

const QUARTER: i64 = 900;
const DAY: i64 = 86_400;

/// 2000 to 2100, in seconds since the epoch.
const FROM: i64 = 946_684_800;
const TO: i64 = 4_102_444_800;

/// Clocks that are put forward by half an hour, a day that was left out, changes at midnight and a minute after it, changes
/// around Ramadan, changes of two hours, and of three in autumn.
const ALWAYS: [&str; 12] = [
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Antarctica/Troll",
    "Antarctica/Casey",
    "America/St_Johns",
    "America/Havana",
    "Asia/Beirut",
    "Asia/Kathmandu",
    "Europe/Berlin",
    "UTC",
];

/// What a slow walk finds: the days since the epoch, each with the first instant at which the local date was it or later.
struct Walk {
    days: Vec<(i64, i64)>,
    transitions: Vec<i64>,
}

// === impl Walk ===

impl Walk {
    /// Steps by quarters of an hour, and by minutes for a day around each transition.
    fn new(zone: &TimeZone, from: i64, to: i64) -> Self {
        let offset = |at: i64| {
            let at = jiff::Timestamp::from_second(at).expect("an instant");
            i64::from(zone.to_offset(at).seconds())
        };
        let offsets: Vec<i64> = (from..to).step_by(900).map(offset).collect();
        let quarters = || (from..to).step_by(900).zip(&offsets);
        let changes = quarters().skip(1).zip(&offsets).filter(|((_, after), before)| after != before);
        let transitions: Vec<i64> = changes.map(|((at, _), _)| at).collect();
        let mut days: Vec<(i64, i64)> = Vec::new();
        let mut see = |at: i64, offset: i64| {
            let day = (at + offset).div_euclid(DAY);
            if days.last().is_none_or(|(last, _)| day > *last) {
                days.push((day, at));
            }
        };
        let mut near = transitions.iter().peekable();
        for (at, offset_then) in quarters() {
            while near.next_if(|transition| **transition + DAY / 2 < at).is_some() {}
            see(at, *offset_then);
            if near.peek().is_some_and(|transition| at >= **transition - DAY / 2) {
                (at..at + QUARTER).step_by(60).for_each(|at| see(at, offset(at)));
            }
        }
        // the walk begins within a day
        days.remove(0);
        Self { days, transitions }
    }

    /// Returns the instants at which windows begin, of which a date says whether it is the first.
    fn edges(&self, begins: impl Fn(Date) -> bool) -> Vec<i64> {
        let (first, last) = (self.days[0].0, self.days[self.days.len() - 1].0);
        let begun =
            (first..=last).filter(|day| begins(EPOCH.checked_add(Span::new().days(*day)).expect("a date")));
        let mut edges: Vec<i64> =
            begun.map(|day| self.days[self.days.partition_point(|(other, _)| *other < day)].1).collect();
        edges.dedup();
        edges
    }

    fn check(&self, name: &str, zone: &TimeZone) {
        let calendar = |unit, starts: &str| match starts {
            "" => Calendar::new(unit),
            starts => parse_starts(unit, starts).expect("valid"),
        };
        let mut all = vec![calendar(CalendarUnit::Day, "")];
        all.extend(schedule::DAYS.map(|day| calendar(CalendarUnit::Week, &day[..3])));
        all.extend(
            ["", "1", "2", "15", "28", "29", "30", "31"].map(|day| calendar(CalendarUnit::Month, day)),
        );
        for starts in ["", "01-31", "02-29", "03-31", "04-01", "05-30", "09-15", "12-31"] {
            all.extend([CalendarUnit::Quarter, CalendarUnit::Year].map(|unit| calendar(unit, starts)));
        }
        for calendar in all {
            let edges = self.edges(|date| begins(&calendar, date));
            for (i, around) in (0..).zip(edges.windows(8)) {
                // of days, those around transitions and some others
                let is_near = || self.transitions.iter().any(|at| (around[0]..around[7]).contains(at));
                if calendar.unit == CalendarUnit::Day && i % 17 != 0 && !is_near() {
                    continue;
                }
                let edge = |i: usize| Timestamp::from_secs(around[i].unsigned_abs());
                let last = edge(3).before(weir_limit::Period::from_nanos(1));
                for at in [edge(2), last] {
                    let windows = in_force(&calendar, zone, at);
                    assert_eq!(windows.present(), Some((edge(2), edge(3))), "{name}: {calendar} at {at:?}");
                    for i in 0..7 {
                        assert_eq!(
                            windows.window(edge(i)),
                            (edge(i), edge(i + 1)),
                            "{name}: {calendar} at {at:?}"
                        );
                    }
                }
            }
        }
    }
}

/// Says whether a window begins on `date`, as the rule language says it.
fn begins(calendar: &Calendar, date: Date) -> bool {
    let (month, day) = (date.month().unsigned_abs(), date.day().unsigned_abs());
    let is_day = day == calendar.day.min(date.days_in_month().unsigned_abs());
    match calendar.unit {
        CalendarUnit::Day => true,
        CalendarUnit::Week => date.weekday().to_monday_one_offset().unsigned_abs() == calendar.day,
        CalendarUnit::Month => is_day,
        CalendarUnit::Quarter => is_day && month % 3 == calendar.month % 3,
        CalendarUnit::Year => is_day && month == calendar.month,
    }
}

/// `WEIR_ALL_ZONES` tries every zone, in minutes.
#[test]
fn edges_are_those_of_a_slow_walk_through_local_time() {
    let database = TimeZoneDatabase::bundled();
    let names: Vec<String> = database.available().map(|name| name.to_string()).collect();
    let is_all = std::env::var_os("WEIR_ALL_ZONES").is_some();
    let sampled = names.iter().map(String::as_str).step_by(if is_all { 1 } else { 60 });
    for (i, name) in (0..).zip(ALWAYS.into_iter().chain(sampled)) {
        let zone = database.get(name).expect("a zone");
        // half of what follows 2000, where most zones still change, and another decade for each zone
        let decades = [
            (FROM, FROM + 4_500 * DAY),
            (FROM + 4_000 * DAY * (i % 8 + 1), FROM + 4_000 * DAY * (i % 8 + 2)),
        ];
        for (from, to) in if is_all { vec![(FROM, TO)] } else { decades.to_vec() } {
            Walk::new(&zone, from, to).check(name, &zone);
        }
    }
}

#[test]
fn a_day_that_a_zone_leaves_out_has_no_window() {
    let zone = TimeZoneDatabase::bundled().get("Pacific/Apia").expect("a zone");
    // 29 December 2011, after which came the 31st
    let at = Timestamp::from_secs(1_325_200_000);
    let (start, end) = in_force(&Calendar::new(CalendarUnit::Day), &zone, at).present().expect("in force");
    assert_eq!(end, Timestamp::from_secs(1_325_239_200));
    assert_eq!(end.since(start), weir_limit::Period::from_secs(86_400));
}

#[test]
fn far_from_the_present_windows_have_the_length_of_their_unit() {
    for at in [Timestamp::default(), Timestamp::from_nanos(u64::MAX)] {
        for unit in CalendarUnit::ALL {
            let windows = in_force(&Calendar::new(unit), &TimeZone::UTC, at);
            let (start, end) = windows.window(at);
            assert!(start <= at && at <= end, "{unit} at {at:?}");
        }
    }
}
