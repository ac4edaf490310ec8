//! The text that names a counter to an operator.

use std::fmt::Write as _;

use weir_limit::LimitCheck;
use weir_observe::text::shortened;

/// The longest text, in characters. A value may have megabytes.
const MAX_TEXT: usize = 200;

/// Stands for a value that is not shown.
pub const MASK: &str = "***";

/// Returns the entries of `check` as `key=value,key=value`. Without `values`, each is `***` unless a pattern stands for
/// it, and the end is a number by which the counter is recognized while the process runs.
pub fn key_text(check: &LimitCheck<'_>, values: bool) -> String {
    let mut text = String::new();
    for (i, entry) in check.entries.iter().enumerate() {
        let value = match check.shared(i) {
            Some(pattern) => pattern,
            None if values => entry.value,
            None => MASK,
        };
        let separator = if i > 0 { "," } else { "" };
        // writing to a string cannot fail
        let _ = write!(text, "{separator}{}={}", shortened(entry.key, MAX_TEXT), shortened(value, MAX_TEXT));
    }
    let mut text = shortened(&text, MAX_TEXT).into_owned();
    if !values {
        let _ = write!(text, " #{:08x}", counter_number(check.key.hash()));
    }
    text
}

/// The number of a counter whose key has this `hash`, by which people recognize it while the process runs.
pub const fn counter_number(hash: u64) -> u32 {
    (hash >> 32) as u32
}
