//! What is wrong with a user's files, and where.

use std::{fmt, sync::Arc};

use super::yaml::Position;
use crate::limit::Origin;

/// Errors that are told of one file. A file that is no rule file at all has one on every line; nobody reads past the
/// first few.
const MOST_ERRORS: usize = 100;

/// Something that must be put right before the files are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Where. The line is 0 if it is about the file as a whole.
    pub at: Origin,
    /// What is wrong, and what would be right: lower case, no full stop.
    pub message: String,
}

/// Something that is allowed, but is hardly meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigWarning {
    /// Where. The line is 0 if it is about the file as a whole.
    pub at: Origin,
    /// What is odd: lower case, no full stop.
    pub message: String,
}

/// Everything that is wrong with a user's files. Prints one error a line.
#[derive(Clone, Debug)]
pub struct ConfigErrors {
    /// At least one, by file and place.
    pub errors: Vec<ConfigError>,
    /// What is odd besides.
    pub warnings: Vec<ConfigWarning>,
}

/// Collects what there is to say about files.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) errors: Vec<ConfigError>,
    pub(super) warnings: Vec<ConfigWarning>,
}

/// Collects what there is to say about one file.
#[derive(Debug)]
pub(super) struct FileReport {
    file: Arc<str>,
    report: Report,
    untold: usize,
    first_untold: Position,
}

// === impl ConfigError ===

/// `file:line:column: message`.
impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", Place(&self.at), self.message)
    }
}

impl std::error::Error for ConfigError {}

// === impl ConfigWarning ===

/// `file:line:column: message`.
impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", Place(&self.at), self.message)
    }
}

/// An origin, without the line where it is not known.
pub(crate) struct Place<'a>(pub(crate) &'a Origin);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Origin { file, line, .. } = self.0;
        if *line == 0 { f.write_str(file) } else { self.0.fmt(f) }
    }
}

// === impl ConfigErrors ===

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.errors.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

// === impl Report ===

impl Report {
    pub(super) fn error(&mut self, at: Origin, message: String) {
        self.errors.push(ConfigError { at, message });
    }

    pub(super) fn warn(&mut self, at: Origin, message: String) {
        self.warnings.push(ConfigWarning { at, message });
    }

    /// Adds what `more` has to say, in the order of places. What an alias repeats is said once.
    pub(super) fn add(&mut self, mut more: Self) {
        let place = |at: &Origin| (at.line, at.column);
        more.errors.sort_by_key(|error| place(&error.at));
        more.errors.dedup();
        more.warnings.sort_by_key(|warning| place(&warning.at));
        more.warnings.dedup();
        self.errors.append(&mut more.errors);
        self.warnings.append(&mut more.warnings);
    }

    /// What was said if it is all right; else what is wrong.
    pub(super) fn verdict(self) -> Result<Vec<ConfigWarning>, ConfigErrors> {
        if self.errors.is_empty() {
            Ok(self.warnings)
        } else {
            Err(ConfigErrors { errors: self.errors, warnings: self.warnings })
        }
    }
}

// === impl FileReport ===

impl FileReport {
    pub(super) fn new(file: Arc<str>) -> Self {
        Self { file, report: Report::default(), untold: 0, first_untold: Position::default() }
    }

    /// The origin of what stands at `at`.
    pub(super) fn origin(&self, at: Position) -> Origin {
        Origin { file: Arc::clone(&self.file), line: at.line, column: at.column }
    }

    pub(super) fn error(&mut self, at: Position, message: impl Into<String>) {
        self.error_with(at, || message.into());
    }

    /// An error whose message is made only if it is told: for those of which a file may have millions.
    pub(super) fn error_with(&mut self, at: Position, message: impl FnOnce() -> String) {
        if self.report.errors.len() < MOST_ERRORS {
            self.report.error(self.origin(at), message());
        } else {
            if self.untold == 0 {
                self.first_untold = at;
            }
            self.untold += 1;
        }
    }

    pub(super) fn warn(&mut self, at: Position, message: impl Into<String>) {
        if self.report.warnings.len() < MOST_ERRORS {
            self.report.warn(self.origin(at), message.into());
        }
    }

    /// Hands what was said to `report`.
    pub(super) fn finish(self, report: &mut Report) {
        let first_untold = self.origin(self.first_untold);
        report.add(self.report);
        if self.untold > 0 {
            report
                .error(first_untold, format!("and {} more errors, of which this is the first", self.untold));
        }
    }
}
