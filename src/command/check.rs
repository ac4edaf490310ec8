//! `weir check`: checks rule files.

use std::{
    fmt,
    io::{self, Write},
};

use crate::{
    config::{ConfigError, ConfigErrors, ConfigWarning, DisplayOrigin, Loaded},
    limit::RuleNode,
};

/// Writes the errors and warnings of `loaded` to `out`, a line each, and a summary that
/// begins with the name of the `source`. Returns whether there are no errors.
///
/// # Errors
///
/// Errors of writing to `out`.
pub fn check(
    source: impl fmt::Display,
    loaded: Result<Loaded, ConfigErrors>,
    out: &mut impl Write,
) -> io::Result<bool> {
    match loaded {
        Ok(loaded) => {
            write_findings(&[], &loaded.warnings, out)?;
            let rules: usize = loaded.domains.iter().map(|domain| rules(&domain.nodes)).sum();
            let (files, domains) = (loaded.files, loaded.domains.len());
            writeln!(
                out,
                "{source}: ok: {}, {}, {}, {}",
                count(files, "file"),
                count(domains, "domain"),
                count(rules, "rule"),
                count(loaded.warnings.len(), "warning"),
            )?;
            Ok(true)
        }
        Err(found) => {
            write_findings(&found.errors, &found.warnings, out)?;
            let (errors, warnings) = (found.errors.len(), found.warnings.len());
            writeln!(out, "{source}: not ok: {}, {}", count(errors, "error"), count(warnings, "warning"))?;
            Ok(false)
        }
    }
}

/// Writes the `errors`, then the `warnings`, a line each in the format of compilers.
pub(super) fn write_findings(
    errors: &[ConfigError],
    warnings: &[ConfigWarning],
    out: &mut impl Write,
) -> io::Result<()> {
    for ConfigError { at, message } in errors {
        writeln!(out, "{}: error: {message}", DisplayOrigin(at))?;
    }
    for ConfigWarning { at, message } in warnings {
        writeln!(out, "{}: warning: {message}", DisplayOrigin(at))?;
    }
    Ok(())
}

fn rules(nodes: &[RuleNode]) -> usize {
    nodes.iter().map(|node| usize::from(node.rule.is_some()) + rules(&node.children)).sum()
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
