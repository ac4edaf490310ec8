//! Which database of time zones cuts the windows of calendars, as a metric.

use weir_observe::{Metric, Source};

pub(super) struct TimezoneDatabaseInfo;

impl Source for TimezoneDatabaseInfo {
    fn metrics(&self) -> Vec<Metric> {
        let database = weir_config::timezone_source();
        let help = "The version and the place of the time zones of calendars.";
        let info = Metric::gauge("weir.timezone_database_info", help, 1);
        vec![info.label("version", database.version).label("source", database.source)]
    }
}
