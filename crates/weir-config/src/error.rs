//! Errors and warnings about rule files, with their places.

use std::{
    fmt::{self, Write as _},
    rc::Rc,
    sync::Arc,
};

use super::yaml::{YamlDocument, YamlFault, YamlNode, YamlPosition};
use weir_limit::Origin;
use weir_observe::text::{Escaped, shortened};

/// The errors, and the warnings, that are reported for one file. A file without rules has an error on every line.
const MAX_FINDINGS: usize = 100;

const MAX_FINDINGS_OF_LOAD: usize = 1_000;

/// Bytes of the texts of errors, and of warnings. The last text may exceed it.
const MAX_TEXT_OF_LOAD: usize = 256 << 10;

const MAX_MESSAGE: usize = 2_000;

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

#[derive(Debug, Default)]
pub(super) struct ErrorReport {
    errors: Findings,
    warnings: Findings,
}

#[derive(Debug, Default)]
struct Findings {
    reported: Vec<(Origin, String)>,
    /// The bytes of the texts.
    text: usize,
    omitted: usize,
    first_omitted: Option<Origin>,
}

#[derive(Debug)]
pub(super) struct FileReport {
    file: Arc<str>,
    errors: Findings,
    warnings: Findings,
}

// === impl ConfigError ===

/// `file:line:column: message`, on one line.
impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaped(f), "{}: {}", DisplayOrigin(&self.at), self.message)
    }
}

impl std::error::Error for ConfigError {}

// === impl ConfigWarning ===

impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaped(f), "{}: {}", DisplayOrigin(&self.at), self.message)
    }
}

/// Only the file if the line is 0.
pub struct DisplayOrigin<'a>(pub &'a Origin);

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

// === impl ErrorReport ===

impl ErrorReport {
    pub(super) fn error(&mut self, at: Origin, message: String) {
        self.error_with(at, || message);
    }

    /// `message` is called only if it is reported, since a load may have millions of errors.
    pub(super) fn error_with(&mut self, at: Origin, message: impl FnOnce() -> String) {
        self.errors.add(MAX_FINDINGS_OF_LOAD, at, message);
    }

    pub(super) fn warn(&mut self, at: Origin, message: String) {
        self.warn_with(at, || message);
    }

    pub(super) fn warn_with(&mut self, at: Origin, message: impl FnOnce() -> String) {
        self.warnings.add(MAX_FINDINGS_OF_LOAD, at, message);
    }

    pub(super) fn has_errors(&self) -> bool {
        !self.errors.reported.is_empty()
    }

    /// The warnings, or all findings if there is an error, by file and place. A last one tells how many are left out.
    pub(super) fn finish(self) -> Result<Vec<ConfigWarning>, ConfigErrors> {
        let (errors, warnings) = (self.errors.finish("errors"), self.warnings.finish("warnings"));
        let warnings: Vec<_> =
            warnings.into_iter().map(|(at, message)| ConfigWarning { at, message }).collect();
        if errors.is_empty() {
            Ok(warnings)
        } else {
            let errors = errors.into_iter().map(|(at, message)| ConfigError { at, message }).collect();
            Err(ConfigErrors { errors, warnings })
        }
    }
}

// === impl Findings ===

impl Findings {
    fn add(&mut self, max: usize, at: Origin, message: impl FnOnce() -> String) {
        if self.reported.len() >= max || self.text > MAX_TEXT_OF_LOAD {
            self.omitted += 1;
            self.first_omitted.get_or_insert(at);
            return;
        }
        let mut message = message();
        if message.len() > MAX_MESSAGE {
            message = shortened(&message, MAX_MESSAGE).into_owned();
        }
        self.text += at.file.len() + message.len();
        self.reported.push((at, message));
    }

    /// Appends in the order of places. Findings that an alias repeats are added once.
    fn append(&mut self, mut more: Self, what: &str) {
        more.reported.sort_by_key(|(at, _)| (at.line, at.column));
        more.reported.dedup();
        for (at, message) in more.reported {
            self.add(MAX_FINDINGS_OF_LOAD, at, || message);
        }
        if let Some(at) = more.first_omitted {
            self.add(MAX_FINDINGS_OF_LOAD, at, || omitted(more.omitted, what));
        }
    }

    fn finish(mut self, what: &str) -> Vec<(Origin, String)> {
        self.reported.sort_by_cached_key(|(at, _)| (Arc::clone(&at.file), at.line, at.column));
        if let Some(at) = self.first_omitted {
            self.reported.push((at, omitted(self.omitted, what)));
        }
        self.reported
    }
}

fn omitted(count: usize, what: &str) -> String {
    format!("and {count} more {what}, starting here")
}

// === impl FileReport ===

impl FileReport {
    pub(super) fn new(file: Arc<str>) -> Self {
        Self { file, errors: Findings::default(), warnings: Findings::default() }
    }

    pub(super) fn origin(&self, at: YamlPosition) -> Origin {
        Origin { file: Arc::clone(&self.file), line: at.line, column: at.column }
    }

    pub(super) fn error(&mut self, at: YamlPosition, message: impl Into<String>) {
        self.error_with(at, || message.into());
    }

    pub(super) fn error_with(&mut self, at: YamlPosition, message: impl FnOnce() -> String) {
        self.errors.add(MAX_FINDINGS, self.origin(at), message);
    }

    /// None if `document` has a fault, whose error begins with `start`.
    pub(super) fn root_of(&mut self, document: YamlDocument, start: &str) -> Option<Rc<YamlNode>> {
        for warning in document.warnings {
            self.warn(warning.at, warning.message);
        }
        let report = |fault: YamlFault| self.error(fault.at, format!("{start}: {}", fault.message));
        document.root.map_err(report).ok()
    }

    pub(super) fn warn(&mut self, at: YamlPosition, message: impl Into<String>) {
        self.warn_with(at, || message.into());
    }

    pub(super) fn warn_with(&mut self, at: YamlPosition, message: impl FnOnce() -> String) {
        self.warnings.add(MAX_FINDINGS, self.origin(at), message);
    }

    /// The number of warnings that are left out is not told.
    pub(super) fn finish(self, report: &mut ErrorReport) {
        report.errors.append(self.errors, "errors");
        report.warnings.append(Findings { first_omitted: None, ..self.warnings }, "warnings");
    }
}
