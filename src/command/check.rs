//! `weir check`: checks rule files.

use std::{
    fmt,
    io::{self, Write},
};

use clap::ValueEnum;
use serde_json::{Value, json};
use weir_config::{ConfigErrors, Finding, Loaded};
use weir_limit::{Origin, RuleNode};

use super::lines::{write_json, write_line};

#[derive(Clone, Copy, Debug, Default)]
pub struct CheckOptions {
    pub deny_warnings: bool,
    pub format: CheckFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CheckFormat {
    /// A line for each error and warning, and a summary.
    #[default]
    Text,
    /// One JSON object.
    Json,
}

struct CheckCounts {
    files: usize,
    domains: usize,
    rules: usize,
}

/// Writes what was found and a summary, which in text begins with `source`. Returns whether there are no errors.
pub fn check(
    source: impl fmt::Display,
    loaded: Result<Loaded, ConfigErrors>,
    options: CheckOptions,
    out: &mut impl Write,
) -> io::Result<bool> {
    let (counts, found) = match loaded {
        Ok(loaded) => {
            let counts = CheckCounts {
                files: loaded.files,
                domains: loaded.domains.len(),
                rules: loaded.domains.iter().map(|domain| rules(&domain.nodes)).sum(),
            };
            (Some(counts), ConfigErrors { errors: Vec::new(), warnings: loaded.warnings })
        }
        Err(found) => (None, found),
    };
    let found = if options.deny_warnings { deny_warnings(found) } else { found };
    match options.format {
        CheckFormat::Text => write_text(source, counts.as_ref(), &found, out)?,
        CheckFormat::Json => write_json(out, &as_json(counts.as_ref(), &found).to_string())?,
    }
    Ok(found.errors.is_empty())
}

fn deny_warnings(found: ConfigErrors) -> ConfigErrors {
    let mut errors = [found.errors, found.warnings].concat();
    errors.sort_by(|a, b| place(&a.at).cmp(&place(&b.at)));
    ConfigErrors { errors, warnings: Vec::new() }
}

fn place(at: &Origin) -> (&str, u32, u32) {
    (&at.file, at.line, at.column)
}

fn write_text(
    source: impl fmt::Display,
    counts: Option<&CheckCounts>,
    found: &ConfigErrors,
    out: &mut impl Write,
) -> io::Result<()> {
    write_findings(&found.errors, &found.warnings, out)?;
    let warnings = count(found.warnings.len(), "warning");
    match counts {
        Some(CheckCounts { files, domains, rules }) if found.errors.is_empty() => write_line!(
            out,
            "{source}: ok: {}, {}, {}, {warnings}",
            count(*files, "file"),
            count(*domains, "domain"),
            count(*rules, "rule"),
        ),
        _ => {
            let errors = count(found.errors.len(), "error");
            write_line!(out, "{source}: not ok: {errors}, {warnings}")
        }
    }
}

/// Invalid rules are not counted: their counts are null.
fn as_json(counts: Option<&CheckCounts>, found: &ConfigErrors) -> Value {
    let finding = |Finding { at, message }: &Finding| json!({ "file": &*at.file, "line": at.line, "column": at.column, "message": message });
    let errors: Vec<_> = found.errors.iter().map(finding).collect();
    let warnings: Vec<_> = found.warnings.iter().map(finding).collect();
    json!({
        "ok": errors.is_empty(),
        "files": counts.map(|counts| counts.files),
        "domains": counts.map(|counts| counts.domains),
        "rules": counts.map(|counts| counts.rules),
        "errors": errors,
        "warnings": warnings,
    })
}

/// Writes the findings in the format of compilers.
pub(super) fn write_findings(
    errors: &[Finding],
    warnings: &[Finding],
    out: &mut impl Write,
) -> io::Result<()> {
    for Finding { at, message } in errors {
        write_line!(out, "{at}: error: {message}")?;
    }
    for Finding { at, message } in warnings {
        write_line!(out, "{at}: warning: {message}")?;
    }
    Ok(())
}

fn rules(nodes: &[RuleNode]) -> usize {
    nodes.iter().map(|node| usize::from(node.rule.is_some()) + rules(&node.children)).sum()
}

pub(super) fn count<N: fmt::Display + Copy + PartialEq + From<u8>>(n: N, noun: &str) -> String {
    format!("{n} {noun}{}", if n == N::from(1) { "" } else { "s" })
}
