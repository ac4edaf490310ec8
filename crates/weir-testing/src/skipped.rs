//! Tells of tests that are skipped. Cargo counts them as passed, and hides what a passed test prints.

use std::{env, fs::OpenOptions, io::Write as _};

/// Names the file with a line for each skipped test, of which `make test` tells in its last line.
pub const VARIABLE: &str = "WEIR_SKIPPED_TESTS";

/// Tells that this test does not test `what`, for the reason `why`.
pub fn skipped(what: &str, why: &str) {
    eprintln!("skipped {what}: {why}");
    if let Some(file) = env::var_os(VARIABLE) {
        let file = OpenOptions::new().create(true).append(true).open(file);
        // one write, so that lines of two tests do not mix
        let line = format!("{what}\t{why}\n");
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("a line of the file");
    }
}
