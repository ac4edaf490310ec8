//! The text that names a counter to an operator.

use std::fmt::Write as _;

use weir_limit::{CounterValue, LimitCheck};
use weir_observe::text::shortened;

/// The longest text, in characters. A value may have megabytes.
const MAX_TEXT: usize = 200;

/// Stands for a value that is not shown.
pub const MASK: &str = "***";

/// Returns the entries of `check` as `key=value,key=value`. Without `values`, each is `***` unless a pattern or a
/// network of the rule stands for it, and the end is a number by which the counter is recognized while the process runs.
pub fn key_text(check: &LimitCheck<'_>, values: bool) -> String {
    let mut text = String::new();
    for (i, entry) in check.entries.iter().enumerate() {
        let value = shown_value(check, i, values);
        let separator = if i > 0 { "," } else { "" };
        // writing to a string cannot fail
        let _ = write!(text, "{separator}{}={}", shortened(entry.key, MAX_TEXT), shortened(&value, MAX_TEXT));
    }
    let mut text = shortened(&text, MAX_TEXT).into_owned();
    if !values {
        let _ = write!(text, " #{:08x}", counter_number(check.key.hash()));
    }
    text
}

/// What `check` counts entry `i` by, masked if that is a value of the caller and `values` are not shown.
pub(super) fn shown_value<'c>(check: &'c LimitCheck<'_>, i: usize, values: bool) -> CounterValue<'c> {
    match check.value(i) {
        CounterValue::Own(_) if !values => CounterValue::Own(MASK.into()),
        value => value,
    }
}

/// The number of a counter whose key has this `hash`, by which people recognize it while the process runs.
pub const fn counter_number(hash: u64) -> u32 {
    (hash >> 32) as u32
}
