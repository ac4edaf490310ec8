//! Schedules: which limit applies when, by a slow model of the clocks; and what is wrong.

use jiff::{Span, ToSpan as _, civil::DateTime, tz::TimeZoneDatabase};
use weir_config::{Loaded, put_in_force, time};
use weir_limit::{Limit, Rule, Timestamp};

/// With transitions of an hour, of half an hour, of a whole day, at midnight, of two hours, and in Ramadan.
const ZONES: [(&str, &str); 10] = [
    ("Europe/Berlin", "2027-03-28"),
    ("Europe/Berlin", "2027-10-31"),
    ("America/New_York", "2027-11-07"),
    ("Australia/Lord_Howe", "2027-04-04"),
    ("Australia/Lord_Howe", "2027-10-03"),
    ("Pacific/Apia", "2011-12-30"),
    ("Africa/Cairo", "2027-04-30"),
    ("Africa/Cairo", "2027-10-29"),
    ("Antarctica/Troll", "2027-03-28"),
    ("Africa/Casablanca", "2025-02-23"),
];

const MINUTE: u64 = 60;

fn text(schedule: &str) -> String {
    format!(
        "domain: d\ntimezone: Europe/Berlin\ndescriptors:\n- key: k\n  rate_limit:\n    name: all\n    schedule:\n{schedule}"
    )
}

fn load(schedule: &str) -> Loaded {
    let text = text(schedule);
    weir_config::parse("f.yaml", &text).unwrap_or_else(|errors| panic!("{text}\n{errors}"))
}

fn at(text: &str) -> Timestamp {
    time(text, Some("Europe/Berlin")).expect("a time")
}

/// The rule in force at that time, and when it changes.
fn in_force(loaded: &Loaded, now: Timestamp) -> (Rule, Option<Timestamp>) {
    let mut domains = loaded.domains.clone();
    let until = put_in_force(&mut domains, now);
    let rule = domains.remove(0).nodes.remove(0).rule.expect("a rule");
    assert_eq!(rule.until, until);
    assert_eq!(rule.name.as_deref(), Some("all"));
    (rule, until)
}

/// The requests of the limit at that time, 0 without one.
fn requests(loaded: &Loaded, now: Timestamp) -> u32 {
    in_force(loaded, now).0.tiers().first().map_or(0, |tier| tier.requests)
}

#[test]
fn the_first_limit_that_is_active_applies() {
    let loaded = load(
        "    - {requests: 7, per: 1m, active: {dates: [2027-12-24, 12-31..01-01]}}\n\
         \x20   - {requests: 100, per: 1m, active: {days: mon-fri, from: \"08:00\", to: \"18:00\"}}\n\
         \x20   - {unlimited: true, active: {days: [sat, sun]}}\n\
         \x20   - {requests: 1000, per: 1m}\n",
    );
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    for (now, most, until) in [
        ("2027-12-23T18:00", 1000, "2027-12-24T00:00"),
        ("2027-12-24T12:00", 7, "2027-12-25T00:00"),
        // a Saturday
        ("2027-12-25T12:00", 0, "2027-12-27T00:00"),
        ("2027-12-27T07:59:59", 1000, "2027-12-27T08:00"),
        ("2027-12-27T08:00", 100, "2027-12-27T18:00"),
        ("2027-12-31T08:00", 7, "2028-01-02T00:00"),
        ("2028-01-02T00:00", 0, "2028-01-03T00:00"),
    ] {
        let (_, found) = in_force(&loaded, at(now));
        assert_eq!((requests(&loaded, at(now)), found), (most, Some(at(until))), "{now}");
    }
    // what is in force is made of what is declared, whenever
    let mut domains = loaded.domains.clone();
    for (now, most) in [("2027-12-24T12:00", 7), ("2027-12-27T08:00", 100), ("2027-12-24T12:00", 7)] {
        put_in_force(&mut domains, at(now));
        let rule = domains[0].nodes[0].rule.as_ref().expect("a rule");
        assert_eq!(rule.tiers()[0].requests, most);
    }
}

#[test]
fn each_limit_is_a_whole_one() {
    let loaded = load(
        "    - {tiers: [{requests: 5, per: 1s}, {requests: 50, per: 1h}], active: {days: fri-mon, from: \"22:00\", to: \"06:00\"}}\n\
         \x20   - {requests: 9, per: 1m, algorithm: token_bucket, burst: 4, shadow: {requests: 5, per: 1m}, active: {days: monday}}\n",
    );
    let (rule, until) = in_force(&loaded, at("2027-06-07T05:00"));
    assert_eq!((rule.tiers().len(), until), (2, Some(at("2027-06-07T06:00"))), "the night of Sunday");
    let (rule, _) = in_force(&loaded, at("2027-06-07T06:00"));
    assert!(rule.tiers()[0].refills() && rule.shadow.is_some());
    let (rule, until) = in_force(&loaded, at("2027-06-08T12:00"));
    assert_eq!((&rule.limit, until), (&Limit::Unlimited, Some(at("2027-06-11T22:00"))));
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].starts_with("f.yaml:7:5: there is no limit while none of these is active"),
        "{warnings:?}"
    );
}

#[test]
fn a_leap_day_comes_every_four_years() {
    let loaded = load("    - {requests: 1, per: 1m, active: {dates: 02-29}}\n    - {requests: 2, per: 1m}\n");
    let mut now = at("2095-01-01T00:00");
    for edge in ["2096-02-29T00:00", "2096-03-01T00:00", "2104-02-29T00:00", "2104-03-01T00:00"] {
        let (_, until) = in_force(&loaded, now);
        assert_eq!(until, Some(at(edge)));
        now = at(edge);
    }
    let loaded =
        load("    - {requests: 1, per: 1m, active: {dates: 2027-12-24}}\n    - {requests: 2, per: 1m}\n");
    assert_eq!(in_force(&loaded, at("2028-01-01T00:00")).1, None);
}

/// Steps by minutes through four days around transitions.
#[test]
fn edges_are_those_of_the_clocks_also_where_they_are_set() {
    let times = ["00:00-24:00", "02:30-03:15", "23:15-00:45", "02:00-02:30", "01:45-01:45"];
    // the system's may know other transitions
    let database = TimeZoneDatabase::bundled();
    for (zone, day) in ZONES {
        let zone_of = database.get(zone).expect("a zone");
        let day: DateTime = day.parse().expect("a day");
        let begins = |days: i32| {
            let at = (day + Span::new().days(days))
                .to_zoned_datetime(zone_of.clone())
                .expect("a time")
                .timestamp();
            u64::try_from(at.as_second()).expect("after 1970") / MINUTE
        };
        let clocks: Vec<(u64, DateTime)> = (begins(-4)..begins(6))
            .map(|minute| {
                let at = jiff::Timestamp::from_second(i64::try_from(minute * MINUTE).expect("small"))
                    .expect("a time");
                (minute, zone_of.to_datetime(at))
            })
            .collect();
        for times in times {
            let (from, to) = times.split_once('-').expect("two times");
            let loaded = load(&format!(
                "    - {{requests: 1, per: 1m, active: {{timezone: {zone}, from: \"{from}\", to: \"{to}\"}}}}\n    - {{requests: 2, per: 1m}}\n"
            ));
            let spans: Vec<(u64, u64)> =
                (-3..4).map(|days| model(&clocks, day + days.days(), from, to)).collect();
            let (first, last) = (begins(-2), begins(3));
            let mut expected_until = None;
            for minute in (first..last).rev() {
                let is_active = |minute: u64| spans.iter().any(|(from, to)| *from <= minute && minute < *to);
                let most = if is_active(minute) { 1 } else { 2 };
                if is_active(minute) != is_active(minute + 1) {
                    expected_until = Some(Timestamp::from_secs((minute + 1) * MINUTE));
                }
                // each minute around edges, and some others
                let is_near = (minute..minute + 3).any(|minute| is_active(minute) != is_active(minute - 1));
                if !is_near && !minute.is_multiple_of(97) {
                    continue;
                }
                let (rule, until) = in_force(&loaded, Timestamp::from_secs(minute * MINUTE));
                let shown = &clocks[usize::try_from(minute - clocks[0].0).expect("small")].1;
                assert_eq!(rule.tiers()[0].requests, most, "{zone} {times} at {shown}");
                if expected_until.is_some() {
                    assert_eq!(until, expected_until, "{zone} {times} at {shown}");
                }
            }
        }
    }
}

/// The minutes from the first at which the clocks show that time of the day or a later one, to the last at which they show
/// the end; if they never do, to the first after that.
fn model(clocks: &[(u64, DateTime)], day: DateTime, from: &str, to: &str) -> (u64, u64) {
    let minutes = |text: &str| {
        let (hours, minutes) = text.split_once(':').expect("a time");
        hours.parse::<i32>().expect("hours") * 60 + minutes.parse::<i32>().expect("minutes")
    };
    let (from, to) = (minutes(from), minutes(to));
    let ends = day + if to <= from { (to + 24 * 60).minutes() } else { to.minutes() };
    let begins = day + from.minutes();
    let first = clocks.iter().find(|(_, shown)| *shown >= begins).expect("it comes").0;
    let shown_last = clocks.iter().rev().find(|(_, shown)| *shown == ends);
    let last = shown_last.or_else(|| clocks.iter().find(|(_, shown)| *shown > ends)).expect("it comes").0;
    (first, last)
}

#[test]
fn what_is_wrong_is_an_error_at_its_place() {
    for (entry, place, message) in [
        (
            "active: {days: mon-fry}",
            "mon-fry",
            "unknown day 'fry'; write mon, tue, wed, thu, fri, sat or sun, such as mon-fri",
        ),
        ("active: {days: []}", "[]", "'days' must not be empty"),
        (
            "active: {from: \"8:00\"}",
            "\"8:00",
            "invalid time '8:00'; write hours and minutes from \"00:00\" to \"24:00\"",
        ),
        ("active: {to: \"24:01\"}", "\"24:01", "invalid time '24:01'"),
        ("active: {from: \"24:00\"}", "\"24:00", "'from' is before the end of the day"),
        ("active: {dates: 02-30}", "02-30", "invalid date '02-30'; write 2027-12-24, 12-24 for each year"),
        ("active: {dates: [2027-12-24..01-01]}", "2027-12-24..", "write both dates with a year, or none"),
        ("active: {dates: 2027-12-24..2027-12-23}", "2027-12-24..", "the last date is before the first"),
        ("active: {dates: 12-24, days: sun}", "dates:", "'dates' cannot be combined with 'days'"),
        (
            "active: {timezone: Europe/Berlinn}",
            "Europe/Berlinn",
            "unknown timezone 'Europe/Berlinn'; write a name of IANA's database, such as Europe/Berlin; did you mean 'Europe/Berlin'?",
        ),
        ("active: {timezone: CEST}", "CEST", "unknown timezone 'CEST'"),
        ("active: {day: sun}", "day:", "unknown key 'day': did you mean 'days'?"),
        ("active: always", "always", "'active' must be a mapping"),
        ("name: other", "name:", "unknown key 'name'"),
    ] {
        let line = format!("    - {{requests: 1, per: 1m, {entry}}}");
        let column = line.find(place).expect("the place") + 1;
        let text = text(&format!("{line}\n    - {{requests: 2, per: 1m}}\n"));
        let errors = weir_config::parse("f.yaml", &text).expect_err("it is wrong").errors;
        let found: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let is_it =
            |found: &String| found.starts_with(&format!("f.yaml:8:{column}: ")) && found.contains(message);
        assert!(found.iter().any(is_it), "{entry}: {found:?}");
    }
    let beside = "domain: d\ndescriptors:\n- key: k\n  rate_limit:\n    requests: 5\n    schedule: []\n";
    let errors = weir_config::parse("f.yaml", beside).expect_err("it is wrong").to_string();
    for message in [
        "f.yaml:5:5: 'requests' cannot be combined with 'schedule'",
        "f.yaml:6:15: 'schedule' must not be empty",
    ] {
        assert!(errors.contains(message), "{errors}");
    }
    let never = load(
        "    - {requests: 1, per: 1m}\n    - {requests: 2, per: 1m, active: {days: sun}}\n    - {requests: 3, per: 1m}\n",
    );
    assert!(
        never.warnings.iter().any(|found| found.message.contains("never applies")),
        "{:?}",
        never.warnings
    );
}

#[test]
fn times_are_read_in_the_zone_of_a_rule_or_with_an_offset() {
    for (text, zone, expected) in [
        ("2027-03-28T02:30", Some("Europe/Berlin"), "2027-03-28T01:00:00Z"),
        ("2027-10-31T02:30", Some("Europe/Berlin"), "2027-10-31T00:30:00Z"),
        ("2027-10-31T02:30", None, "2027-10-31T02:30:00Z"),
        ("2027-10-31", Some("Europe/Berlin"), "2027-10-30T22:00:00Z"),
        ("2027-10-31T02:30+05:00", Some("Europe/Berlin"), "2027-10-30T21:30:00Z"),
    ] {
        assert_eq!(time(text, zone), time(expected, None), "{text}");
    }
    assert!(
        time("tomorrow", None)
            .expect_err("it is no time")
            .starts_with("invalid time 'tomorrow'; write 2027-03-28T02:30")
    );
}

#[test]
fn a_range_that_ends_with_29_february_comes_each_year() {
    let loaded = load(
        "    - {requests: 1, per: 1m, active: {dates: [02-20..02-29, 2020-01-01..2026-12-31]}}\n    - {requests: 2, per: 1m}\n",
    );
    for (now, most, until) in [
        ("2025-06-01T00:00", 1, "2027-01-01T00:00"),
        ("2027-02-25T00:00", 1, "2027-03-01T00:00"),
        ("2028-02-25T00:00", 1, "2028-03-01T00:00"),
        ("2028-03-01T00:00", 2, "2029-02-20T00:00"),
    ] {
        let (_, found) = in_force(&loaded, at(now));
        assert_eq!((requests(&loaded, at(now)), found), (most, Some(at(until))), "{now}");
    }
}

/// A request that began under one limit ends under the next.
#[test]
fn limits_of_a_schedule_keep_places_all_or_none() {
    for (first, last, is_right) in [
        ("in_flight: 2", "in_flight: 3", true),
        ("in_flight: 2", "unlimited: true", false),
        ("requests: 5, per: 1m, reserve: 1", "requests: 5, per: 1m", false),
    ] {
        let text = text(&format!("    - {{{first}, active: {{days: sun}}}}\n    - {{{last}}}\n"));
        let loaded = weir_config::parse("f.yaml", &text);
        assert_eq!(loaded.is_ok(), is_right, "{text}");
        if let Err(errors) = loaded {
            assert!(
                errors.to_string().starts_with("f.yaml:7:5: all limits of a schedule have 'in_flight'"),
                "{errors}"
            );
        }
    }
}

#[test]
fn an_empty_text_removes_no_limit() {
    for (rate_limit, key) in [
        ("requests: 1, per: ''", "per"),
        ("requests: 1, per: 1m, algorithm: ''", "algorithm"),
        ("requests: 1, per: calendar month, timezone: ''", "timezone"),
    ] {
        let text = format!("domain: d\ndescriptors:\n- key: k\n  rate_limit: {{{rate_limit}}}\n");
        let errors = weir_config::parse("f.yaml", &text).expect_err("it is empty").to_string();
        assert!(errors.contains(&format!("'{key}' must not be empty")), "{errors}");
    }
}
