//! Tests windows of the calendar: what a rule says, its errors, and when rules change.

use weir_config::{check_shared, parse, put_in_force, warn_unkept};
use weir_limit::{
    CalendarUnit, Capabilities, Coordination, Domain, Limit, Period, Rule, SharedStore, Tier, Timestamp,
};

use crate::messages::rate_limit;

const MEMCACHED: SharedStore =
    SharedStore { name: "Memcached", system: "memcached", capabilities: Capabilities::SingleFixedWindow };

/// Noon on 1 December 2026, UTC.
const NOON: Timestamp = Timestamp::from_secs(1_796_126_400);

/// Returns the domains of a file with these lines.
#[track_caller]
fn domains(text: &str) -> Vec<Domain> {
    parse("f.yaml", text).unwrap_or_else(|errors| panic!("{text}\n{errors}")).domains
}

fn rule(domain: &Domain, i: usize) -> &Rule {
    domain.nodes[i].rule.as_ref().expect("a rule")
}

fn tier(rule: &Rule) -> &Tier {
    &rule.tiers()[0]
}

/// Returns the seconds at which the present window of the first rule begins and ends, if it is in force at `at`.
#[track_caller]
fn present(lines: &str, at: Timestamp) -> (u64, u64) {
    let mut domains = domains(&rate_limit(lines));
    let edge = put_in_force(&mut domains, at);
    let (start, end) = tier(rule(&domains[0], 0)).window(at);
    assert_eq!(edge, Some(end));
    (start.as_nanos() / 1_000_000_000, end.as_nanos() / 1_000_000_000)
}

#[test]
fn a_window_begins_where_the_calendar_says() {
    for (lines, start, end) in [
        ("per: calendar day", 1_796_083_200, 1_796_169_600),
        // 1 December is a Tuesday
        ("per: calendar week", 1_795_996_800, 1_796_601_600),
        ("per: calendar week\nstarts: Sunday", 1_795_910_400, 1_796_515_200),
        ("per: calendar month", 1_796_083_200, 1_798_761_600),
        ("per: calendar month\nstarts: 08", 1_794_096_000, 1_796_688_000),
        ("per: calendar month\nstarts: 31", 1_795_996_800, 1_798_675_200),
        ("per: calendar quarter", 1_790_812_800, 1_798_761_600),
        ("per: calendar year\nstarts: 04-01", 1_775_001_600, 1_806_537_600),
        ("per: calendar day\ntimezone: Europe/Berlin", 1_796_079_600, 1_796_166_000),
        ("per: calendar day\ntimezone: Etc/GMT-2", 1_796_076_000, 1_796_162_400),
    ] {
        assert_eq!(present(&format!("requests: 5\n{lines}"), NOON), (start, end), "{lines}");
    }
    // the day of summer in Berlin has 23 hours
    let (start, end) = present(
        "requests: 5\nper: calendar day\ntimezone: Europe/Berlin",
        Timestamp::from_secs(1_806_192_000),
    );
    assert_eq!(end - start, 23 * 3_600);
}

#[test]
fn a_week_of_seven_days_is_no_calendar() {
    let domains = domains(&rate_limit("requests: 5\nper: 1w"));
    let week = tier(rule(&domains[0], 0));
    assert_eq!((week.period, week.calendar()), (Period::from_secs(7 * 86_400), None));
}

#[test]
fn the_zone_of_a_file_is_that_of_its_rules_that_name_none() {
    let text = |timezone: &str, key: &str| {
        format!(
            "domain: d\n{timezone}descriptors:\n- key: {key}\n  rate_limit: {{requests: 5, per: calendar day}}\n- key: {key}2\n  \
             rate_limit: {{requests: 5, per: calendar day, timezone: asia/tokyo, shadow: {{requests: 3, per: calendar \
             month}}}}\n"
        )
    };
    let dir = tempfile::tempdir().expect("a directory");
    for (name, zone) in [("a", "timezone: Europe/Berlin\n"), ("b", ""), ("c", "timezone: America/New_York\n")]
    {
        std::fs::write(dir.path().join(format!("{name}.yaml")), text(zone, name)).expect("a file");
    }
    let options = weir_config::Options { merge_domains: true, ..weir_config::Options::default() };
    let loaded = weir_config::load(dir.path(), &options).expect("valid files");
    let domain = &loaded.domains[0];
    assert_eq!(zones(domain, [0, 2, 4], |rule| &rule.limit), ["Europe/Berlin", "UTC", "America/New_York"]);
    assert_eq!(zones(domain, [1, 3, 5], |rule| &rule.limit), ["Asia/Tokyo"; 3]);
    assert_eq!(zones(domain, [1, 3, 5], |rule| rule.shadow.as_ref().expect("a shadow")), ["Asia/Tokyo"; 3]);
}

/// Returns the zones of the first tiers of a limit of each rule.
fn zones(domain: &Domain, rules: [usize; 3], limit: fn(&Rule) -> &Limit) -> [String; 3] {
    rules.map(|i| limit(rule(domain, i)).tiers()[0].calendar().expect("a calendar").timezone().to_owned())
}

#[test]
fn rules_change_at_the_first_edge_of_all() {
    let text = "domain: d\ndescriptors:\n- key: a\n  rate_limit: {requests: 5, per: 1m}\n  descriptors:\n  - key: b\n    \
                rate_limit: {requests: 5, per: calendar month}\n- key: c\n  rate_limit:\n    tiers:\n    - {requests: 1, per: \
                1s}\n    - {requests: 5, per: calendar week}\n";
    let mut all = domains(text);
    let (week, month) = (Timestamp::from_secs(1_796_601_600), Timestamp::from_secs(1_798_761_600));
    assert_eq!(put_in_force(&mut all, NOON), Some(week));
    let before = rule(&all[0], 1).limit.clone();
    // nothing changes between edges, so that counters keep their limits
    assert_eq!(put_in_force(&mut all, week.before(Period::from_nanos(1))), Some(week));
    assert_eq!(rule(&all[0], 1).limit, before);
    assert_eq!(put_in_force(&mut all, week), Some(Timestamp::from_secs(1_797_206_400)));
    assert_ne!(rule(&all[0], 1).limit, before);
    assert_eq!(put_in_force(&mut all, month.before(Period::from_secs(60))), Some(month));
    assert_eq!(put_in_force(&mut domains(&rate_limit("requests: 5\nper: 1d")), NOON), None);
}

#[test]
fn what_cannot_be_beside_a_calendar_is_an_error_that_says_what_to_write() {
    for (lines, finding) in [
        (
            "requests: 5\nper: calendar fortnight",
            "f.yaml:6:12: invalid period 'calendar fortnight'; write calendar day",
        ),
        (
            "requests: 5\nper: calender month",
            "f.yaml:6:12: invalid period 'calender month'; write calendar day",
        ),
        ("requests: 5\nper: month", "did you mean 'calendar month'?"),
        ("requests: 5\nper: 1x", "or calendar month"),
        (
            "requests: 5\nper: calendar month\nalgorithm: sliding_window",
            "f.yaml:7:18: 'algorithm: sliding_window' cannot",
        ),
        ("requests: 5\nper: calendar month\nalgorithm: token_bucket", "write 'algorithm: fixed_window'"),
        ("requests: 5\nper: calendar month\nsmooth: true", "f.yaml:7:7: 'smooth' cannot be combined"),
        ("requests: 5\nper: calendar month\nburst: 3", "'burst' cannot be combined"),
        ("requests: 5\nper: calendar month\nshare: {}", "'share' cannot be combined"),
        (
            "requests: 5\nper: calendar month\nstarts: 32",
            "f.yaml:7:15: invalid start '32' of a calendar month",
        ),
        ("requests: 5\nper: calendar week\nstarts: 1", "write a day such as mon or monday"),
        ("requests: 5\nper: calendar day\nstarts: 1", "remove 'starts'"),
        ("requests: 5\nper: calendar year\nstarts: 02-30", "write a month and a day such as 04-01"),
        ("requests: 5\nper: calendar year\nstarts: 4-1", "write a month and a day such as 04-01"),
        ("requests: 5\nper: calendar day\ntimezone: Europe/Berln", "did you mean 'Europe/Berlin'?"),
        ("requests: 5\nper: calendar day\ntimezone: berlin", "did you mean 'Europe/Berlin'?"),
        (
            "requests: 5\nper: calendar day\ntimezone: Etc/Unknown",
            "f.yaml:7:17: unknown timezone 'Etc/Unknown'",
        ),
        ("requests: 5\nper: calendar day\ntimezone: +02:00", "f.yaml:7:17: unknown timezone '+02:00'"),
        (
            "requests: 5\nper: 1d\ntimezone: Europe/Berlin",
            "f.yaml:7:7: 'timezone' requires a window of the calendar",
        ),
        (
            "unit: day\nrequests_per_unit: 5\ntimezone: Europe/Berlin",
            "write 'requests: 100' and 'per: calendar month'",
        ),
        ("requests: 5\nper: 1d\nstarts: 3", "'starts' requires a window of the calendar"),
        ("unit: month\nrequests_per_unit: 5\nstarts: 3", "'starts' requires a window of the calendar"),
        (
            "tiers:\n- {requests: 5, per: calendar month}\n- {requests: 9, per: calendar month, starts: 3}",
            "f.yaml:7:9: another tier of this rule is 'per: calendar month' too; keep the one with fewer 'requests'",
        ),
        (
            "requests: 5\nper: calendar month\ncoordination: split",
            "f.yaml:7:21: instances cannot split 'per: calendar month'",
        ),
    ] {
        let errors = parse("f.yaml", &rate_limit(lines)).expect_err(lines).to_string();
        assert!(errors.contains(finding), "{lines}\n{errors}");
    }
}

#[test]
fn as_one_tier_beside_others_a_calendar_has_costs_too() {
    let text = rate_limit(
        "reserve: 2\ntiers:\n- {requests: 5, per: 1m}\n- {requests: 100, per: calendar month, starts: 15}",
    );
    let domains = domains(&text);
    let rule = rule(&domains[0], 0);
    let units: Vec<_> =
        rule.tiers().iter().map(|tier| tier.calendar().map(|calendar| calendar.unit)).collect();
    assert_eq!(units, [None, Some(CalendarUnit::Month)]);
    assert_eq!(rule.tiers()[1].to_string(), "100 requests per calendar month from 15 in UTC");
    assert!(rule.meters());
}

#[test]
fn stores_that_cannot_keep_a_calendar_say_so() {
    let of = |lines: &str| parse("f.yaml", &rate_limit(lines)).expect("valid");
    let single = "requests: 5\nper: calendar month";
    let tiers = "tiers:\n- {requests: 5, per: 1m}\n- {requests: 100, per: calendar month}";
    let error = |lines, store, mode| check_shared(of(lines), store, mode).expect_err("an error").to_string();
    assert!(
        check_shared(of(single), MEMCACHED, Coordination::Auto)
            .is_ok_and(|loaded| loaded.warnings.is_empty())
    );
    assert!(
        error(tiers, MEMCACHED, Coordination::Auto)
            .contains("Memcached shares 'per: calendar month' only as the only tier")
    );
    assert!(check_shared(of(tiers), SharedStore::REDIS, Coordination::Auto).is_ok());
    assert!(error(single, SharedStore::REDIS, Coordination::Split).contains("instances cannot split"));
    let warnings = warn_unkept(of(single)).warnings;
    let [warning] = &*warnings else { panic!("{warnings:?}") };
    assert!(
        warning
            .to_string()
            .starts_with("f.yaml:4:5: a restart forgets what was used of 'per: calendar month'")
    );
    assert!(warn_unkept(of("requests: 5\nper: 1d")).warnings.is_empty());
}

#[test]
fn long_windows_of_any_values_are_noted() {
    let warnings = |unit: &str, value: &str| {
        let text = format!(
            "domain: d\ndescriptors:\n- key: k\n{value}  rate_limit: {{requests: 5, per: calendar {unit}}}\n"
        );
        parse("f.yaml", &text).expect("valid").warnings.len()
    };
    assert_eq!(["day", "week", "month", "quarter", "year"].map(|unit| warnings(unit, "")), [0, 0, 0, 1, 1]);
    assert_eq!(warnings("year", "  value: acme\n"), 0);
}

/// Whichever limit has it.
#[test]
fn limits_of_schedules_are_warned_of_too() {
    let first = "schedule:\n- {requests: 1, per: 1m, active: {days: mon}}\n";
    let of = |last: &str| parse("f.yaml", &rate_limit(&format!("{first}- {last}"))).expect("valid");
    let year = warn_unkept(of("{requests: 5, per: calendar year}"));
    assert!(year.warnings.iter().any(|warning| warning.message.contains("a restart forgets")));
    assert!(warn_unkept(of("{requests: 5, per: 1d}")).warnings.is_empty());
    let any = "domain: d\ndescriptors:\n- key: k\n  rate_limit:\n    schedule:\n    - {requests: 1, per: 1m, active: {days: \
               mon}}\n    - {requests: 5, per: calendar year}\n";
    let [warning] = &*parse("f.yaml", any).expect("valid").warnings else { panic!("one warning") };
    assert!(warning.message.contains("each value of 'k' is a counter"), "{warning}");
    let block = any
        .replace("key: k", "key: k\n  match: cidr\n  values: [10.0.0.0/8]")
        .replace("requests: 1,", "requests: 0,");
    let [warning] = &*parse("f.yaml", &block).expect("valid").warnings else { panic!("one warning") };
    assert!(warning.message.contains("this list rejects addresses"), "{warning}");
}

#[test]
fn a_directory_without_time_zones_is_an_error_and_the_built_in_ones_stay() {
    let dir = tempfile::tempdir().expect("a directory");
    for path in [dir.path().to_owned(), dir.path().join("missing")] {
        let error = weir_config::use_timezones_of(&path).expect_err("it has none");
        assert!(error.contains("has no time zones"), "{error}");
    }
    let source = weir_config::timezone_source();
    assert_eq!(source.source, "built-in");
    assert!(source.version.starts_with("20"), "{source:?}");
}
