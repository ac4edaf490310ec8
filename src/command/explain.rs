//! `weir explain`: shows which rule a descriptor matches, and why other rules do not match.

use std::io::{self, Write};

use super::check::write_findings;
use crate::{
    config::{ConfigErrors, DisplayOrigin, Loaded, is_single_fixed_window},
    limit::{
        Candidate, CompiledRule, Coordination, Entry, KeyHasher, Limit, Outcome, OverLimitPolicy, Rule,
        RuleSet, Step, Tier,
        share::{Anonymous, OTHER},
    },
};

/// The result of an explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Explained {
    /// A rule matches, or a descriptor that is declared without a limit.
    Match,
    /// Nothing matches.
    NoMatch,
    /// The rules are invalid.
    InvalidRules,
}

/// The store through which instances share their counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedStore {
    /// Redis.
    Redis,
    /// Memcached, which has no leases and counts only single fixed windows.
    Memcached,
}

/// Writes the steps that match a descriptor of these `entries` against the rules of `domain` to `out`, or the errors of the
/// rules. The rule is shown with its coordination mode in `store`.
///
/// # Errors
///
/// Errors of writing to `out`.
pub fn explain(
    loaded: Result<Loaded, ConfigErrors>,
    domain: &str,
    entries: &[(String, String)],
    store: SharedStore,
    out: &mut impl Write,
) -> io::Result<Explained> {
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(found) => {
            write_findings(&found.errors, &[], out)?;
            return Ok(Explained::InvalidRules);
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
    write_outcome(domain, entries.len(), &explanation.steps, &explanation.outcome, store, out)?;
    Ok(match explanation.outcome {
        Outcome::Rule(_) | Outcome::NoLimit { below: false, .. } => Explained::Match,
        _ => Explained::NoMatch,
    })
}

fn write_step(number: usize, step: &Step<'_>, out: &mut impl Write) -> io::Result<()> {
    let Entry { key, value } = step.entry;
    writeln!(out, "{number}. {}", step.entry)?;
    for attempt in &step.attempts {
        let candidate = match attempt.candidate {
            Candidate::Literal => format!("key {key}, value {value}"),
            Candidate::Wildcard(pattern) => format!("key {key}, value {pattern}"),
            Candidate::KeyOnly => format!("key {key}, any value"),
        };
        match attempt.origin {
            Some(origin) => writeln!(out, "   > {candidate}: matches, {}", DisplayOrigin(origin))?,
            None if matches!(attempt.candidate, Candidate::Wildcard(_)) => {
                writeln!(out, "     {candidate}: does not match")?;
            }
            None => writeln!(out, "     {candidate}: not declared")?,
        }
    }
    Ok(())
}

fn write_outcome(
    domain: &str,
    entries: usize,
    steps: &[Step<'_>],
    outcome: &Outcome<'_>,
    store: SharedStore,
    out: &mut impl Write,
) -> io::Result<()> {
    match outcome {
        Outcome::Rule(compiled) => {
            write_rule(compiled, store, out)?;
            write_pool(domain, compiled, steps, out)
        }
        Outcome::UnknownDomain(domains) if domains.is_empty() => {
            writeln!(out, "no rule: no rules are declared")
        }
        Outcome::UnknownDomain(domains) => {
            writeln!(out, "no rule: unknown domain '{domain}'; the domains are {}", domains.join(", "))
        }
        Outcome::NoEntries => writeln!(out, "no rule: a descriptor without entries matches nothing"),
        Outcome::NoMatch => {
            writeln!(out, "no rule: nothing matches entry {}", steps.len())?;
            let Some(Step { alternatives, alternatives_total, .. }) = steps.last() else {
                return Ok(());
            };
            if alternatives.is_empty() {
                return Ok(());
            }
            writeln!(out, "declared there:")?;
            for alternative in alternatives {
                writeln!(out, "  {alternative}")?;
            }
            match alternatives_total - alternatives.len() {
                0 => Ok(()),
                more => writeln!(out, "  and {more} more"),
            }
        }
        Outcome::TooManyEntries { depth, limited } => {
            write!(out, "no rule: the rules end at entry {depth} of {entries}")?;
            if *limited {
                write!(out, "; the limit there applies to descriptors that end there")?;
            }
            writeln!(out)
        }
        Outcome::NoLimit { origin, below: false } => {
            writeln!(
                out,
                "no limit: {} has no rate_limit, so matching requests are admitted",
                DisplayOrigin(origin)
            )
        }
        Outcome::NoLimit { origin, below: true } => writeln!(
            out,
            "no limit: the {entries} entries end at {}, which has no rate_limit; its nested rules need more entries",
            DisplayOrigin(origin)
        ),
    }
}

/// Writes the pool of a rule that shares its limit, and the member that the descriptor is.
fn write_pool(
    domain: &str,
    compiled: &CompiledRule,
    steps: &[Step<'_>],
    out: &mut impl Write,
) -> io::Result<()> {
    let (Some(sharing), Some((last, others))) = (&compiled.rule.sharing, steps.split_last()) else {
        return Ok(());
    };
    let Entry { key, value } = last.entry;
    let pool: Vec<String> = others.iter().map(|step| step.entry.to_string()).collect();
    let pool = [&[domain.to_owned()], pool.as_slice(), &[format!("{key}=*")]].concat().join(" ");
    writeln!(out, "  pool: {pool}, of which each {key} has a share")?;
    match (value, sharing.anonymous) {
        ("", Anonymous::Deny) => return writeln!(out, "  member: none, since the value is empty: rejected"),
        ("", Anonymous::Allow) => {
            return writeln!(
                out,
                "  member: none, since the value is empty: admitted, and not counted in the pool"
            );
        }
        _ => {}
    }
    let weight = sharing.weight(value);
    if sharing.weights.contains_key(value) {
        return writeln!(out, "  member: {value}, with a weight of {weight}");
    }
    let places = sharing.max_members - 1;
    writeln!(out, "  member: {value}, or {OTHER} if {places} others have a place")
}

fn write_rule(compiled: &CompiledRule, store: SharedStore, out: &mut impl Write) -> io::Result<()> {
    let rule = &compiled.rule;
    writeln!(out, "rule {}", compiled.path)?;
    writeln!(out, "  declared at {}", DisplayOrigin(&rule.origin))?;
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
                writeln!(out, "  rejected requests do not count")?;
            }
            write_coordination(rule, tiers, store, out)?;
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

/// Writes how the rule is coordinated among instances that share `store`.
fn write_coordination(
    rule: &Rule,
    tiers: &[Tier],
    store: SharedStore,
    out: &mut impl Write,
) -> io::Result<()> {
    if rule.sharing.is_some() && store == SharedStore::Memcached {
        return writeln!(out, "  with Memcached: of N instances, each has the N-th part of the pool");
    }
    if rule.sharing.is_some() && matches!(rule.coordination.mode, None | Some(Coordination::Auto)) {
        let condition =
            if rule.coordination.mode.is_none() { "if WEIR_COORDINATION is auto" } else { "auto" };
        return writeln!(out, "  with Redis: {} ({condition})", Coordination::Lease.name());
    }
    let (name, exact) = match store {
        SharedStore::Redis => ("Redis", Coordination::Lease.name()),
        SharedStore::Memcached if is_single_fixed_window(&rule.limit) => {
            ("Memcached", Coordination::Strict.name())
        }
        SharedStore::Memcached => {
            return writeln!(out, "  with Memcached: local, since it counts only single fixed windows");
        }
    };
    let capacity = tiers.iter().map(|tier| u64::from(tier.capacity())).min().unwrap_or_default();
    let most = capacity / Coordination::EXACT_BELOW;
    let plural = if most == 1 { "" } else { "s" };
    let auto = match most {
        0 => exact.to_owned(),
        _ => format!("interval with up to {most} instance{plural}, {exact} with more"),
    };
    match rule.coordination.mode {
        Some(Coordination::Auto) => writeln!(out, "  with {name}: {auto} (auto)"),
        Some(Coordination::Lease) => writeln!(out, "  with {name}: {exact}"),
        Some(mode) => writeln!(out, "  with {name}: {}", mode.name()),
        None => writeln!(out, "  with {name}: {auto} (if WEIR_COORDINATION is auto)"),
    }
}
