//! Time zones of rules: names of IANA's database, which is built in.

use super::{error::ConfigReport, fields::Fields, scalar::brief};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use weir_observe::spelling;

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
    let database = TimeZoneDatabase::bundled();
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
