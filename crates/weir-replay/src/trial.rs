//! Rules that are no files: their errors and warnings, and what they would have decided. Opens no file.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use weir_config::{ConfigErrors, Document, DocumentContent, Finding, Options, load_documents};
use weir_recording::Recording;

use super::{
    compare::{ReplayInput, compare},
    comparison::Comparison,
    exact::ReplaySettings,
};

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    pub errors: Vec<Finding>,
    pub warnings: Vec<Finding>,
    /// None if there are errors, or no recording.
    pub comparison: Option<Comparison>,
    /// Why there is no comparison.
    pub note: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrialError {
    #[error("the files have more than 16 MiB together")]
    TooLarge,
    #[error("it takes longer than 30 s: try a shorter recording")]
    TooSlow,
}

// === impl Trial ===

impl Trial {
    /// The most bytes of all files and their names.
    pub const MAX_BYTES: usize = 16 << 20;

    /// The longest time of a trial.
    pub const MAX_TIME: Duration = Duration::from_secs(30);

    /// As `GET /v1/openapi.json` describes it.
    pub fn json(&self) -> Value {
        let message = |severity: &str, Finding { at, message }: &Finding| {
            json!({
                "severity": severity, "file": &*at.file, "line": at.line, "column": at.column, "message": message,
            })
        };
        let errors = self.errors.iter().map(|found| message("error", found));
        let warnings = self.warnings.iter().map(|found| message("warning", found));
        json!({
            "ok": self.errors.is_empty(),
            "messages": errors.chain(warnings).collect::<Vec<_>>(),
            "comparison": self.comparison.as_ref().map(Comparison::json),
            "note": self.note,
        })
    }
}

/// Checks the rule files of these names and texts, and compares what they would have decided with `recording`. Takes
/// [`Trial::MAX_TIME`] at most, on a thread where that delays nobody.
pub fn try_rules(
    files: BTreeMap<String, String>,
    options: &Options,
    recording: Option<Recording>,
    settings: &ReplaySettings,
) -> Result<Trial, TrialError> {
    let bytes: usize = files.iter().map(|(name, text)| name.len() + text.len()).sum();
    if bytes > Trial::MAX_BYTES {
        return Err(TrialError::TooLarge);
    }
    let begun = Instant::now();
    let document = |(name, text)| Document { name, content: DocumentContent::Yaml(text) };
    let loaded = match load_documents(files.into_iter().map(document).collect(), options) {
        Ok(loaded) => loaded,
        Err(ConfigErrors { errors, warnings }) => {
            let note = Some("The files have errors, so there is nothing to compare.");
            return Ok(Trial { errors, warnings, comparison: None, note });
        }
    };
    let Some(recording) = recording else {
        let note = Some("There is no recording to compare with: start one.");
        return Ok(Trial { warnings: loaded.warnings, note, ..Trial::default() });
    };
    let recordings = [recording];
    let input = ReplayInput {
        recordings: &recordings,
        new: &loaded.domains,
        old: None,
        settings: settings.clone(),
        key: None,
        unknown: Vec::new(),
    };
    let in_time = |_| {
        if begun.elapsed() < Trial::MAX_TIME { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let comparison = compare(&input, in_time).ok_or(TrialError::TooSlow)?;
    Ok(Trial { warnings: loaded.warnings, comparison: Some(comparison), ..Trial::default() })
}
