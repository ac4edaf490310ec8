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

/// The same for a table, most of whose lines may be wrong alike.
const MAX_FINDINGS_OF_TABLE: usize = 10;

const MAX_FINDINGS_OF_LOAD: usize = 1_000;

/// Bytes of the texts of errors, and of warnings. The last text may exceed it.
const MAX_TEXT_OF_LOAD: usize = 256 << 10;

const MAX_MESSAGE: usize = 2_000;

/// An error in a rule file, which keeps all files from being used; or valid content that is probably a mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The place; line 0 stands for the whole file.
    pub at: Origin,
    /// What is wrong and what would be right, in lower case, without a full stop.
    pub message: String,
}

/// All errors and warnings of rejected rule files. Prints one error per line.
#[derive(Clone, Debug)]
pub struct ConfigErrors {
    /// The errors, at least one, by file and place.
    pub errors: Vec<Finding>,
    pub warnings: Vec<Finding>,
}

/// Collects the findings of one file, or of all files of a load.
#[derive(Debug)]
pub(super) struct ConfigReport {
    file: Arc<str>,
    errors: Findings,
    warnings: Findings,
}

#[derive(Debug)]
struct Findings {
    max: usize,
    reported: Vec<Finding>,
    /// The bytes of the texts.
    text: usize,
    omitted: usize,
    first_omitted: Option<Origin>,
}

// === impl Finding ===

/// `file:line:column: message`, on one line.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaped(f), "{}: {}", self.at, self.message)
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

// === impl ConfigReport ===

impl ConfigReport {
    pub(super) fn of_file(name: &str) -> Self {
        let findings = || Findings::new(MAX_FINDINGS);
        Self { file: name.into(), errors: findings(), warnings: findings() }
    }

    pub(super) fn of_table(name: &Arc<str>) -> Self {
        let findings = || Findings::new(MAX_FINDINGS_OF_TABLE);
        Self { file: Arc::clone(name), errors: findings(), warnings: findings() }
    }

    pub(super) fn of_load() -> Self {
        let findings = || Findings::new(MAX_FINDINGS_OF_LOAD);
        Self { file: "".into(), errors: findings(), warnings: findings() }
    }

    pub(super) fn origin(&self, at: YamlPosition) -> Origin {
        Origin { file: Arc::clone(&self.file), line: at.line, column: at.column }
    }

    /// The place of the whole file.
    pub(super) fn whole(&self) -> Origin {
        self.origin(YamlPosition::default())
    }

    pub(super) fn error(&mut self, at: YamlPosition, message: impl Into<String>) {
        self.error_with(at, || message.into());
    }

    /// `message` is called only if it is reported, since a load may have millions of errors.
    pub(super) fn error_with(&mut self, at: YamlPosition, message: impl FnOnce() -> String) {
        self.errors.add(self.origin(at), message);
    }

    pub(super) fn error_at(&mut self, at: Origin, message: impl FnOnce() -> String) {
        self.errors.add(at, message);
    }

    pub(super) fn warn(&mut self, at: YamlPosition, message: impl Into<String>) {
        self.warn_with(at, || message.into());
    }

    pub(super) fn warn_with(&mut self, at: YamlPosition, message: impl FnOnce() -> String) {
        self.warnings.add(self.origin(at), message);
    }

    pub(super) fn warn_at(&mut self, at: Origin, message: impl FnOnce() -> String) {
        self.warnings.add(at, message);
    }

    /// None if `document` has a fault, whose error begins with `start`.
    pub(super) fn root_of(&mut self, document: YamlDocument, start: &str) -> Option<Rc<YamlNode>> {
        for warning in document.warnings {
            self.warn(warning.at, warning.message);
        }
        let report = |fault: YamlFault| self.error(fault.at, format!("{start}: {}", fault.message));
        document.root.map_err(report).ok()
    }

    /// Takes back what was found in `file`.
    pub(super) fn forget(&mut self, file: &str) {
        for findings in [&mut self.errors, &mut self.warnings] {
            findings.reported.retain(|finding| *finding.at.file != *file);
        }
    }

    pub(super) fn has_errors(&self) -> bool {
        !self.errors.reported.is_empty()
    }

    /// The number of warnings that are left out is not told.
    pub(super) fn add(&mut self, file: Self) {
        for Finding { at, message } in file.errors.finish("errors") {
            self.errors.add(at, || message);
        }
        for Finding { at, message } in (Findings { first_omitted: None, ..file.warnings }).finish("warnings")
        {
            self.warnings.add(at, || message);
        }
    }

    /// The warnings, or all findings if there is an error, by file and place. A last one tells how many are left out.
    pub(super) fn finish(self) -> Result<Vec<Finding>, ConfigErrors> {
        let (errors, warnings) = (self.errors.finish("errors"), self.warnings.finish("warnings"));
        if errors.is_empty() { Ok(warnings) } else { Err(ConfigErrors { errors, warnings }) }
    }
}

// === impl Findings ===

impl Findings {
    fn new(max: usize) -> Self {
        Self { max, reported: Vec::new(), text: 0, omitted: 0, first_omitted: None }
    }

    fn add(&mut self, at: Origin, message: impl FnOnce() -> String) {
        if self.reported.len() >= self.max || self.text > MAX_TEXT_OF_LOAD {
            self.omitted += 1;
            self.first_omitted.get_or_insert(at);
            return;
        }
        let message = shortened(&message(), MAX_MESSAGE).into_owned();
        self.text += at.file.len() + message.len();
        self.reported.push(Finding { at, message });
    }

    /// Those that an alias repeats are there once.
    fn finish(mut self, what: &str) -> Vec<Finding> {
        self.reported.sort_by_cached_key(|Finding { at, .. }| (Arc::clone(&at.file), at.line, at.column));
        self.reported.dedup();
        if let Some(at) = self.first_omitted {
            let message = format!("and {} more {what}, starting here", self.omitted);
            self.reported.push(Finding { at, message });
        }
        self.reported
    }
}
