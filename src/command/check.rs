//! `weir check`: are these rule files right?

use std::{
    io::{self, Write},
    path::Path,
};

use crate::{
    config::{self, ConfigError, ConfigWarning, Options},
    limit::RuleNode,
};

/// Reads the rules below `dir` and writes to `out` everything that is wrong or odd, a line each, and what there is at
/// the end. Whether nothing is wrong.
///
/// # Errors
///
/// Those of `out`.
pub fn check(dir: &Path, options: &Options, out: &mut impl Write) -> io::Result<bool> {
    match config::load(dir, options) {
        Ok(loaded) => {
            tell(&[], &loaded.warnings, out)?;
            let rules: usize = loaded.domains.iter().map(|domain| rules(&domain.nodes)).sum();
            let (files, domains) = (loaded.files, loaded.domains.len());
            writeln!(
                out,
                "{}: ok: {}, {}, {}, {}",
                dir.display(),
                count(files, "file"),
                count(domains, "domain"),
                count(rules, "rule"),
                count(loaded.warnings.len(), "warning"),
            )?;
            Ok(true)
        }
        Err(found) => {
            tell(&found.errors, &found.warnings, out)?;
            let (errors, warnings) = (found.errors.len(), found.warnings.len());
            writeln!(
                out,
                "{}: not ok: {}, {}",
                dir.display(),
                count(errors, "error"),
                count(warnings, "warning")
            )?;
            Ok(false)
        }
    }
}

/// Writes the `errors`, and then the `warnings`, a line each, as compilers do.
pub(super) fn tell(
    errors: &[ConfigError],
    warnings: &[ConfigWarning],
    out: &mut impl Write,
) -> io::Result<()> {
    for ConfigError { at, message } in errors {
        writeln!(out, "{}: error: {message}", config::Place(at))?;
    }
    for ConfigWarning { at, message } in warnings {
        writeln!(out, "{}: warning: {message}", config::Place(at))?;
    }
    Ok(())
}

fn rules(nodes: &[RuleNode]) -> usize {
    nodes.iter().map(|node| usize::from(node.rule.is_some()) + rules(&node.children)).sum()
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
