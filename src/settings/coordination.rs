//! Reads weir's variables for coordination, which apply to rules without settings of their own.

use std::{ops::RangeInclusive, process, time::Duration};

use weir_coordinate::CoordinationSettings;
use weir_limit::{Coordination, OnStoreFailure};

use super::{parse, reader::SettingReader};

/// A shorter budget ends before Redis can reply, and no caller waits for a longer one.
const BUDGET: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_mins(1);

/// The fewest bytes of names: more than the longest name of a message.
const MIN_COUNTER_BYTES: u64 = 16 << 20;

pub(super) fn coordination(read: &mut SettingReader<'_>, max_counters: usize) -> CoordinationSettings {
    let bytes = parse::bytes_from(MIN_COUNTER_BYTES, "268435456, 256MiB or 1GiB");
    CoordinationSettings {
        coordination: read
            .parsed("WEIR_COORDINATION", |text| Coordination::parse(text).ok_or(Coordination::NAMES)),
        sync_interval: read.parsed("WEIR_SYNC_INTERVAL", parse::positive_duration).into(),
        budget: read
            .parsed(
                "WEIR_DECISION_BUDGET",
                parse::duration_in(BUDGET, "a duration from 1ms to 1m, such as 15ms"),
            )
            .into(),
        on_store_failure: read.parsed("WEIR_ON_STORE_FAILURE", |text| {
            OnStoreFailure::parse(text).ok_or("local, allow or deny")
        }),
        local_cache: read.number::<i64>("LOCAL_CACHE_SIZE_IN_BYTES", "a number of bytes, 0 for no cache")
            != 0,
        max_counters,
        max_counter_bytes: read.parsed("WEIR_MAX_COUNTER_BYTES", bytes),
        instance: instance(read),
        ..CoordinationSettings::default()
    }
}

/// Host, process and start time, which no two instances share.
fn instance(read: &SettingReader<'_>) -> String {
    let host = read.unlisted("HOSTNAME").unwrap_or_else(|| "weir".into());
    let started = weir_store::clock::Clock::now(&weir_store::clock::SystemClock).as_nanos();
    format!("{host}-{}-{started:x}", process::id())
}
