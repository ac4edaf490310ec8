//! `weir explain`: which rule would a descriptor match, and why not another?

use std::io::{self, Write};

use super::check::write_findings;
use crate::{
    config::{ConfigErrors, Loaded, Place},
    limit::{CompiledRule, Entry, KeyHasher, Limit, Outcome, OverLimitPolicy, RuleSet, Step, What},
};

/// Writes to `out` how a descriptor of these `entries` is matched against the rules of `domain`. Returns whether the rules
/// could be loaded; if not, writes their errors.
///
/// # Errors
///
/// Those of `out`.
pub fn explain(
    loaded: Result<Loaded, ConfigErrors>,
    domain: &str,
    entries: &[(String, String)],
    out: &mut impl Write,
) -> io::Result<bool> {
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(found) => {
            write_findings(&found.errors, &[], out)?;
            return Ok(false);
        }
    };
    let rules = RuleSet::new(&loaded.domains, KeyHasher::random());
    let entries: Vec<Entry<'_>> = entries.iter().map(|(key, value)| Entry { key, value }).collect();
    let explanation = rules.explain(domain, &entries);
    writeln!(out, "domain {domain}")?;
    for (i, step) in explanation.steps.iter().enumerate() {
        write_step(i + 1, step, out)?;
    }
    writeln!(out)?;
    write_outcome(domain, entries.len(), &explanation.steps, &explanation.outcome, out)?;
    Ok(true)
}

fn write_step(number: usize, step: &Step<'_>, out: &mut impl Write) -> io::Result<()> {
    let Entry { key, value } = step.entry;
    writeln!(out, "{number}. {}", step.entry)?;
    for tried in &step.tried {
        let what = match tried.what {
            What::Literal => format!("key {key}, value {value}"),
            What::Wildcard(pattern) => format!("key {key}, value {pattern}"),
            What::KeyAlone => format!("key {key}, any value"),
        };
        match tried.origin {
            Some(origin) => writeln!(out, "   > {what}: taken, {}", Place(origin))?,
            None if matches!(tried.what, What::Wildcard(_)) => writeln!(out, "     {what}: does not match")?,
            None => writeln!(out, "     {what}: not there")?,
        }
    }
    Ok(())
}

fn write_outcome(
    domain: &str,
    entries: usize,
    steps: &[Step<'_>],
    outcome: &Outcome<'_>,
    out: &mut impl Write,
) -> io::Result<()> {
    match outcome {
        Outcome::Rule(placed) => write_rule(placed, out),
        Outcome::UnknownDomain(domains) if domains.is_empty() => {
            writeln!(out, "no rule: there are no rules at all")
        }
        Outcome::UnknownDomain(domains) => {
            writeln!(out, "no rule: there is no domain '{domain}'; there are {}", domains.join(", "))
        }
        Outcome::NoEntries => writeln!(out, "no rule: a descriptor without entries matches nothing"),
        Outcome::NoMatch => {
            writeln!(out, "no rule: nothing matches entry {}", steps.len())?;
            let Some(Step { others, others_in_all, .. }) = steps.last() else {
                return Ok(());
            };
            if others.is_empty() {
                return Ok(());
            }
            writeln!(out, "there is instead:")?;
            for other in others {
                writeln!(out, "  {other}")?;
            }
            match others_in_all - others.len() {
                0 => Ok(()),
                more => writeln!(out, "  and {more} more"),
            }
        }
        Outcome::TooManyEntries { depth, limited } => {
            write!(out, "no rule: the rules end at entry {depth} of {entries}")?;
            if *limited {
                write!(out, "; the limit there is for descriptors that end there")?;
            }
            writeln!(out)
        }
        Outcome::NoLimit { origin, below: false } => {
            writeln!(out, "no limit: {} has no rate_limit, so what it matches passes freely", Place(origin))
        }
        Outcome::NoLimit { origin, below: true } => writeln!(
            out,
            "no limit: the {entries} entries end at {}, which has no rate_limit of its own; its rules want more entries",
            Place(origin)
        ),
    }
}

fn write_rule(placed: &CompiledRule, out: &mut impl Write) -> io::Result<()> {
    let rule = &placed.rule;
    writeln!(out, "rule {}", placed.path)?;
    writeln!(out, "  declared at {}", Place(&rule.origin))?;
    match &rule.limit {
        Limit::Unlimited => writeln!(out, "  unlimited")?,
        Limit::Tiers { tiers, over_limit_policy } => {
            if tiers.len() > 1 {
                writeln!(out, "  {} tiers, all of which a request must pass:", tiers.len())?;
            }
            let indent = if tiers.len() > 1 { "    " } else { "  " };
            for tier in tiers {
                writeln!(out, "{indent}{tier}")?;
            }
            if *over_limit_policy == OverLimitPolicy::Ignore {
                writeln!(out, "  requests that are rejected do not count")?;
            }
        }
    }
    if let Some(name) = &rule.name {
        writeln!(out, "  name: {name}")?;
    }
    if !rule.replaces.is_empty() {
        writeln!(out, "  replaces: {}", rule.replaces.join(", "))?;
    }
    for (mode, is_on) in [("shadow_mode", rule.shadow_mode), ("quota_mode", rule.quota_mode)] {
        if is_on {
            writeln!(out, "  {mode}")?;
        }
    }
    Ok(())
}
