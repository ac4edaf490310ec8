//! Reads the bounds on what clients can make weir hold or wait for.

use std::{ops::RangeInclusive, time::Duration};

use weir_limit::Period;
use weir_server::bounds::{Bounds, MAX_MESSAGE, RequestBounds};
use weir_store::WaitBounds;

use super::{parse, reader::SettingReader};

/// A larger number of connections, descriptors or entries is a typing error.
const COUNT: RangeInclusive<usize> = 1..=1_000_000;

/// The fewest bytes that hold the largest message while it is decided.
const MIN_BUFFERED: u64 = 4 * MAX_MESSAGE as u64;

/// A shorter time rejects clients on slow networks, and no client needs a longer one.
const TIME: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_hours(1);

const WAIT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_hours(1);

pub(super) fn bounds(read: &mut SettingReader<'_>) -> Bounds {
    let defaults = Bounds::default();
    Bounds {
        connections: count(read, "WEIR_MAX_CONNECTIONS", defaults.connections, "connections"),
        buffered: read.parsed("WEIR_MAX_BUFFERED_BYTES", defaults.buffered, |text| {
            let bytes = parse::bytes(text).filter(|bytes| *bytes >= MIN_BUFFERED);
            let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
            bytes.ok_or("a size of at least 16MiB, such as 100663296, 96MiB or 1GiB")
        }),
        arrival: time(read, "WEIR_REQUEST_TIMEOUT", defaults.arrival),
        sending: time(read, "WEIR_SEND_TIMEOUT", defaults.sending),
        request: RequestBounds {
            descriptors: count(read, "WEIR_MAX_DESCRIPTORS", defaults.request.descriptors, "descriptors"),
            entries: count(read, "WEIR_MAX_ENTRIES", defaults.request.entries, "entries"),
        },
    }
}

pub(super) fn waits(read: &mut SettingReader<'_>) -> WaitBounds {
    let defaults = WaitBounds::default();
    WaitBounds {
        total: count(read, "WEIR_MAX_WAITERS", defaults.total, "callers"),
        per_key: count(read, "WEIR_MAX_WAITERS_PER_KEY", defaults.per_key, "callers"),
        longest: read.parsed("WEIR_MAX_WAIT", defaults.longest, |text| {
            let wait = parse::duration(text)?;
            if !WAIT.contains(&wait) {
                return Err("a duration from 1ms to 1h, such as 60s");
            }
            Ok(Period::from_nanos(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)))
        }),
    }
}

fn count(read: &mut SettingReader<'_>, variable: &str, default: usize, what: &str) -> usize {
    read.parsed(variable, default, |text| {
        let count = parse::integer(text).filter(|count| COUNT.contains(count));
        count.ok_or_else(|| format!("a number of {what}, from 1 to 1000000"))
    })
}

fn time(read: &mut SettingReader<'_>, variable: &str, default: Duration) -> Duration {
    read.parsed(variable, default, |text| {
        let time = parse::duration(text)?;
        if TIME.contains(&time) { Ok(time) } else { Err("a duration from 100ms to 1h, such as 30s") }
    })
}
