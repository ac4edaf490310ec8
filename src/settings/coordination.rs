//! Reads weir's variables for coordination, which apply to rules without settings of their own.

use std::{ops::RangeInclusive, process, time::Duration};

use weir_limit::{Coordination, OnStoreFailure, Period};

use super::{parse, reader::SettingReader};

/// A shorter budget ends before Redis can reply, and no caller waits for a longer one.
const BUDGET: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_mins(1);

/// The fewest bytes of names: more than the longest name of a message.
const MIN_COUNTER_BYTES: u64 = 16 << 20;

pub(super) fn coordination(
    read: &mut SettingReader<'_>,
    max_counters: usize,
) -> weir_coordinate::CoordinationSettings {
    let defaults = weir_coordinate::CoordinationSettings::default();
    let sync_interval = read.parsed("WEIR_SYNC_INTERVAL", defaults.sync_interval, |text| {
        let interval = parse::duration(text)?;
        if interval.is_zero() { Err("a duration above 0, such as 100ms") } else { Ok(nanoseconds(interval)) }
    });
    let budget = read.parsed("WEIR_DECISION_BUDGET", defaults.budget, |text| {
        let budget = parse::duration(text)?;
        let valid = BUDGET.contains(&budget).then(|| nanoseconds(budget));
        valid.ok_or("a duration from 1ms to 1m, such as 15ms")
    });
    weir_coordinate::CoordinationSettings {
        coordination: read.parsed("WEIR_COORDINATION", defaults.coordination, |text| {
            Coordination::parse(text).ok_or(Coordination::NAMES)
        }),
        sync_interval,
        budget,
        on_store_failure: read.parsed("WEIR_ON_STORE_FAILURE", defaults.on_store_failure, |text| {
            OnStoreFailure::parse(text).ok_or("local, allow or deny")
        }),
        local_cache: read.number("LOCAL_CACHE_SIZE_IN_BYTES", 0_i64, "a number of bytes, 0 for no cache")
            != 0,
        max_counters,
        max_counter_bytes: read.parsed("WEIR_MAX_COUNTER_BYTES", defaults.max_counter_bytes, |text| {
            let bytes = parse::bytes(text).filter(|bytes| *bytes >= MIN_COUNTER_BYTES);
            let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
            bytes.ok_or("a size of at least 16MiB, such as 268435456, 256MiB or 1GiB")
        }),
        instance: instance(read),
        ..defaults
    }
}

/// Host, process and start time, which no two instances share.
fn instance(read: &mut SettingReader<'_>) -> String {
    let host = read.text("HOSTNAME", "weir");
    let started = weir_store::clock::Clock::now(&weir_store::clock::SystemClock).as_nanos();
    format!("{host}-{}-{started:x}", process::id())
}

fn nanoseconds(duration: Duration) -> Period {
    Period::from_nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}
