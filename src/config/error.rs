//! Errors and warnings about rule files, with their places.

use std::{fmt, sync::Arc};

use super::yaml::Position;
use crate::limit::Origin;

/// The number of errors and of warnings that are reported for one file. A file without rules has an error on every line,
/// and the first few suffice.
const MAX_FINDINGS: usize = 100;

/// An error in a rule file, which keeps all files from being used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The place; line 0 stands for the whole file.
    pub at: Origin,
    /// The error and the valid content, in lower case, without a full stop.
    pub message: String,
}

/// Valid content of a rule file that is probably a mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigWarning {
    /// The place; line 0 stands for the whole file.
    pub at: Origin,
    /// The probable mistake, in lower case, without a full stop.
    pub message: String,
}

/// All errors and warnings of rejected rule files. Prints one error per line.
#[derive(Clone, Debug)]
pub struct ConfigErrors {
    /// The errors, at least one, by file and place.
    pub errors: Vec<ConfigError>,
    /// The warnings, by file and place.
    pub warnings: Vec<ConfigWarning>,
}

/// Collects the errors and warnings of all files.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) errors: Vec<ConfigError>,
    pub(super) warnings: Vec<ConfigWarning>,
}

/// Collects the errors and warnings of one file.
#[derive(Debug)]
pub(super) struct FileReport {
    file: Arc<str>,
    report: Report,
    /// The number of errors past the limit, and the place of the first.
    omitted: usize,
    first_omitted: Position,
}

// === impl ConfigError ===

/// `file:line:column: message`.
impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", DisplayOrigin(&self.at), self.message)
    }
}

impl std::error::Error for ConfigError {}

// === impl ConfigWarning ===

/// `file:line:column: message`.
impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", DisplayOrigin(&self.at), self.message)
    }
}

/// Prints an origin; only the file if the line is 0.
pub(crate) struct DisplayOrigin<'a>(pub(crate) &'a Origin);

impl fmt::Display for DisplayOrigin<'_> {
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

    /// Adds the findings of `more` in the order of their places. Findings that an alias repeats are added once.
    pub(super) fn add(&mut self, mut more: Self) {
        let place = |at: &Origin| (at.line, at.column);
        more.errors.sort_by_key(|error| place(&error.at));
        more.errors.dedup();
        more.warnings.sort_by_key(|warning| place(&warning.at));
        more.warnings.dedup();
        self.errors.append(&mut more.errors);
        self.warnings.append(&mut more.warnings);
    }

    /// Returns the warnings, or all findings if there is an error.
    pub(super) fn finish(self) -> Result<Vec<ConfigWarning>, ConfigErrors> {
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
        Self { file, report: Report::default(), omitted: 0, first_omitted: Position::default() }
    }

    /// Returns the origin of the position `at`.
    pub(super) fn origin(&self, at: Position) -> Origin {
        Origin { file: Arc::clone(&self.file), line: at.line, column: at.column }
    }

    pub(super) fn error(&mut self, at: Position, message: impl Into<String>) {
        self.error_with(at, || message.into());
    }

    /// Adds an error whose message is built only if it is reported, since a file may have millions of errors.
    pub(super) fn error_with(&mut self, at: Position, message: impl FnOnce() -> String) {
        if self.report.errors.len() < MAX_FINDINGS {
            self.report.error(self.origin(at), message());
        } else {
            if self.omitted == 0 {
                self.first_omitted = at;
            }
            self.omitted += 1;
        }
    }

    pub(super) fn warn(&mut self, at: Position, message: impl Into<String>) {
        self.warn_with(at, || message.into());
    }

    /// Adds a warning whose message is built only if it is reported.
    pub(super) fn warn_with(&mut self, at: Position, message: impl FnOnce() -> String) {
        if self.report.warnings.len() < MAX_FINDINGS {
            self.report.warn(self.origin(at), message());
        }
    }

    /// Moves all findings to `report`.
    pub(super) fn finish(self, report: &mut Report) {
        let first_omitted = self.origin(self.first_omitted);
        report.add(self.report);
        if self.omitted > 0 {
            report.error(first_omitted, format!("and {} more errors, starting here", self.omitted));
        }
    }
}
