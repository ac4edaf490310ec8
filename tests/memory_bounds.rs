//! The sum of weir's default bounds: it fits into the memory limit of the chart, and `docs/security.md` says what it is
//! made of.

use std::{collections::BTreeMap, fs};

use serde_json::Value;
use weir::settings::{Flags, Settings};
use weir_server::bounds::{CONNECTION, HANDSHAKE, MAX_HANDSHAKES, MAX_PAGES};
use weir_testing::repository;

/// The memory of the process with its rules, its threads, the names of stats and the queue of traces, in bytes.
const PROCESS: usize = 30 << 20;

/// The memory of a counter of a sliding window, which is the largest, with what the allocator adds
/// (`benches/counters.rs`).
const COUNTER: usize = 400;

/// The memory of a coordinated counter of a sliding window with unreported hits, without its name, with what the
/// allocator adds (`crates/weir-coordinate/tests/counter_size.rs`).
const COORDINATED_COUNTER: usize = 680;

/// The memory of a member of a pool with a name of 256 bytes, and the number of counters for each that there may be.
const MEMBER: usize = 500;
const COUNTERS_PER_MEMBER: usize = 20;

/// The memory of the sketches that find hot keys, with the names of the keys (`crates/weir-observe/src/hot_keys.rs`).
const HOT_KEYS: usize = 8_000_000;

fn read(path: &str) -> String {
    fs::read_to_string(repository(path)).expect("a file of this project")
}

/// Returns the bounds with what they take, in bytes.
fn bounds() -> [(&'static str, usize); 10] {
    let settings = Settings::resolve(&Flags::default(), &BTreeMap::new()).expect("the defaults are valid");
    let handshake = HANDSHAKE.saturating_sub(CONNECTION);
    [
        ("the process", PROCESS),
        ("counters in memory", settings.max_counters * COUNTER),
        ("hot keys", HOT_KEYS),
        ("members of pools", settings.max_counters / COUNTERS_PER_MEMBER * MEMBER),
        ("coordinated counters", settings.coordination.max_counters * COORDINATED_COUNTER),
        ("names of coordinated counters", settings.coordination.max_counter_bytes),
        ("open connections", settings.bounds.connections * CONNECTION),
        ("TLS handshakes under way", MAX_HANDSHAKES * handshake),
        (
            "unfinished requests and unread responses",
            settings.bounds.buffered + settings.bounds.unauthenticated_bytes(),
        ),
        // those that clients have not read, and what rendering one takes
        ("pages", 2 * MAX_PAGES),
    ]
}

fn mb(bytes: usize) -> usize {
    bytes.div_ceil(1_000_000)
}

#[test]
fn the_default_bounds_fit_into_the_memory_limit_of_the_chart() {
    let values = read("charts/weir/values.yaml");
    let values: Value = serde_saphyr::from_str(&values).expect("YAML");
    let limit = values.pointer("/resources/limits/memory").and_then(Value::as_str).expect("a limit");
    let gib: usize = limit.strip_suffix("Gi").and_then(|gib| gib.parse().ok()).expect("a limit in GiB");
    let sum: usize = bounds().iter().map(|(_, bytes)| bytes).sum();
    assert!(sum <= gib << 30, "{} MB of {limit}", mb(sum));
    // and the limit is no more than it has to be
    assert!(sum > (gib << 30) * 3 / 4, "{} MB of {limit}", mb(sum));
}

#[test]
fn the_documentation_has_the_same_sum() {
    let page = read("docs/security.md");
    let rows: Vec<(&str, &str)> = page
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.strip_suffix(" MB |")?.split(" | ");
            Some((cells.next()?, cells.last()?))
        })
        .collect();
    let bounds = bounds();
    let sum: usize = bounds.iter().map(|(_, bytes)| bytes).sum();
    for (name, bytes) in bounds.into_iter().chain([("**all**", sum)]) {
        let megabytes = mb(bytes).to_string();
        assert!(rows.contains(&(name, &megabytes)), "{name}: {megabytes} MB is not in the table: {rows:?}");
    }
}
