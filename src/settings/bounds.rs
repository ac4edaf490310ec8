use std::{ops::RangeInclusive, time::Duration};

use weir_server::bounds::{Bounds, MAX_MESSAGE, RequestBounds};
use weir_store::WaitBounds;

use super::{parse, reader::SettingReader};

/// A larger number of connections, descriptors or entries is a typing error.
const MAX_COUNT: usize = 1_000_000;

/// The fewest bytes that hold the largest message while it is decided.
const MIN_BUFFERED: u64 = 4 * MAX_MESSAGE as u64;

/// A shorter time rejects clients on slow networks, and no client needs a longer one.
const TIME: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_hours(1);

const WAIT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_hours(1);

pub(super) fn bounds(read: &mut SettingReader<'_>) -> Bounds {
    Bounds {
        connections: count(read, "WEIR_MAX_CONNECTIONS", "connections"),
        buffered: read
            .parsed("WEIR_MAX_BUFFERED_BYTES", parse::bytes_from(MIN_BUFFERED, "100663296, 96MiB or 1GiB")),
        arrival: time(read, "WEIR_REQUEST_TIMEOUT"),
        sending: time(read, "WEIR_SEND_TIMEOUT"),
        request: RequestBounds {
            descriptors: count(read, "WEIR_MAX_DESCRIPTORS", "descriptors"),
            entries: count(read, "WEIR_MAX_ENTRIES", "entries"),
        },
    }
}

pub(super) fn waits(read: &mut SettingReader<'_>) -> WaitBounds {
    WaitBounds {
        total: count(read, "WEIR_MAX_WAITERS", "callers"),
        per_key: count(read, "WEIR_MAX_WAITERS_PER_KEY", "callers"),
        longest: read
            .parsed("WEIR_MAX_WAIT", parse::duration_in(WAIT, "a duration from 1ms to 1h, such as 60s"))
            .into(),
    }
}

fn count(read: &mut SettingReader<'_>, variable: &str, what: &str) -> usize {
    read.parsed(variable, parse::count_to(MAX_COUNT, what))
}

fn time(read: &mut SettingReader<'_>, variable: &str) -> Duration {
    read.parsed(variable, parse::duration_in(TIME, "a duration from 100ms to 1h, such as 30s"))
}
