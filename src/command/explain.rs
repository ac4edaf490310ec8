//! `weir explain`: shows which rules the descriptors of a request match, why other rules do not match, and what a
//! rejection of each would do.

use std::{
    io::{self, Write},
    sync::Arc,
};

use weir_config::{ConfigErrors, Loaded, RuleDescription, explained, put_in_force, time};
use weir_limit::{
    Candidate, CompiledRule, Descriptor, DescriptorMatch, Domain, Entry, Explanation, IpNetwork, KeyHasher,
    Lookup, Matched, Outcome, OverLimitPolicy, Request, RequestName, Rule, RuleSet, Scope, SharedCounts,
    Step, Tier, Timestamp,
    share::{Anonymous, OTHER},
};
use weir_limiter::did_you_mean;

use super::{check::write_findings, error::CommandResult, lines::write_line};

const MOST_PATTERNS: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Explained {
    /// Every descriptor matches a rule, or a descriptor that is declared without a limit.
    Match,
    /// A descriptor matches nothing.
    NoMatch,
    InvalidRules,
}

/// A request to explain, and the service that would receive it.
#[derive(Clone, Copy, Debug)]
pub struct ExplainedRequest<'a> {
    pub domain: &'a str,
    pub descriptors: &'a [Vec<(String, String)>],
    /// What a rejection affects at least, in every domain.
    pub scope: Scope,
    pub shared: SharedCounts,
    /// The time to explain, as the user writes it; now if none.
    pub at: Option<&'a str>,
    pub now: Timestamp,
}

/// Writes the steps that match the descriptors of `request` against the rules to `out`, or the errors of the rules.
pub fn explain(
    loaded: Result<Loaded, ConfigErrors>,
    request: &ExplainedRequest<'_>,
    out: &mut impl Write,
) -> CommandResult<Explained> {
    let mut loaded = match loaded {
        Ok(loaded) => loaded,
        Err(found) => {
            write_findings(&found.errors, &[], out)?;
            return Ok(Explained::InvalidRules);
        }
    };
    let at = match request.at {
        Some(at) => time(at, zone_of(&loaded.domains, request).as_deref())?,
        None => request.now,
    };
    put_in_force(&mut loaded.domains, at);
    let rules = RuleSet::new(&loaded.domains, KeyHasher::random());
    let scope = request.scope.max(rules.scope_of(request.domain).unwrap_or_default());
    let descriptors = request
        .descriptors
        .iter()
        .map(|entries| Descriptor { entries: borrowed(entries).collect(), ..Descriptor::default() });
    let asked = Request { domain: request.domain, descriptors: descriptors.collect(), hits: 1 };
    let matched = Matched::new(&rules, &asked);
    let mut explained = Explained::Match;
    write_line!(out, "domain {}", request.domain)?;
    for (i, Descriptor { entries, .. }) in asked.descriptors.iter().enumerate() {
        if asked.descriptors.len() > 1 {
            writeln!(out, "\ndescriptor {}", i + 1)?;
        }
        let explanation = rules.explain(request.domain, entries);
        for (i, step) in explanation.steps.iter().enumerate() {
            write_step(i + 1, step, out)?;
        }
        writeln!(out)?;
        if matches!(matched.matches[i], DescriptorMatch::Running) {
            let last = entries.last().map(|entry| entry.value).unwrap_or_default();
            let what = match entries.len() {
                _ if RequestName::read(last).is_none() => "no request has such a name: nothing ends",
                1 => "names a running request: all of it ends",
                _ => "names a running request: its place of the rule above ends",
            };
            writeln!(out, "{what}, whatever the hits, and the answer is OK")?;
        } else if let Outcome::Rule(compiled) = explanation.outcome {
            let description = RuleDescription { compiled, scope, shared: request.shared };
            description.lines().iter().try_for_each(|line| write_line!(out, "{line}"))?;
            if entries.len() > compiled.levels.len() {
                writeln!(out, "  a check: counts and holds nothing")?;
            }
            write_pool(request.domain, compiled, &explanation.steps, out)?;
            if let Some((number, by)) = replacing(&rules, &asked, compiled)
                && matches!(matched.matches[i], DescriptorMatch::NoLimit)
            {
                write_line!(
                    out,
                    "  replaced by {} of descriptor {number}: this descriptor counts nothing",
                    by.path
                )?;
            }
        } else {
            write_no_rule(request.domain, entries.len(), &explanation, out)?;
            if let Some(name) = did_you_mean(&rules, request.domain, entries) {
                write_line!(out, "did you mean `{name}`?")?;
            }
        }
        if !matches!(explanation.outcome, Outcome::Rule(_) | Outcome::NoLimit { below: false, .. }) {
            explained = Explained::NoMatch;
        }
    }
    if asked.descriptors.len() > 1 {
        write_rejections(&matched, scope, out)?;
    }
    Ok(explained)
}

/// The zone of the first schedule or calendar that a descriptor matches.
fn zone_of(domains: &[Domain], request: &ExplainedRequest<'_>) -> Option<Arc<str>> {
    let rules = RuleSet::new(domains, KeyHasher::random());
    request.descriptors.iter().find_map(|entries| {
        let entries: Vec<_> = borrowed(entries).collect();
        let Lookup::Rule(rule) = rules.find(request.domain, &entries) else { return None };
        let limits = rule.rule.schedule.iter().flat_map(|schedule| &schedule.limits);
        let of_schedule = limits.clone().find_map(|limit| limit.active.as_ref()?.zone.clone());
        let tiers = rule.rule.variants().flat_map(Rule::tiers);
        of_schedule
            .or_else(|| tiers.filter_map(Tier::calendar).find_map(|calendar| calendar.timezone.clone()))
    })
}

fn borrowed(entries: &[(String, String)]) -> impl Iterator<Item = Entry<'_>> {
    entries.iter().map(|(key, value)| Entry { key, value })
}

fn write_step(number: usize, step: &Step<'_>, out: &mut impl Write) -> io::Result<()> {
    write_line!(out, "{number}. {}", step.entry)?;
    let mut patterns = 0;
    for attempt in &step.attempts {
        let candidate = explained::candidate(&step.entry, attempt.candidate);
        match attempt.origin {
            Some(origin) => {
                write_more(&mut patterns, out)?;
                write_line!(out, "   > {candidate}: matches, {origin}")?;
            }
            None if matches!(attempt.candidate, Candidate::Wildcard(_)) => {
                patterns += 1;
                if patterns <= MOST_PATTERNS {
                    write_line!(out, "     {candidate}: does not match")?;
                }
            }
            None if matches!(attempt.candidate, Candidate::Networks(..)) => {
                let is_address = IpNetwork::of_value(step.entry.value).is_some();
                let why = if is_address { "" } else { ", since it is no address" };
                write_line!(out, "     {candidate}: do not hold the value{why}")?;
            }
            None => {
                write_more(&mut patterns, out)?;
                let is_table = matches!(attempt.candidate, Candidate::Table(..));
                let why = if is_table { "it is not there" } else { "not declared" };
                write_line!(out, "     {candidate}: {why}")?;
            }
        }
    }
    write_more(&mut patterns, out)
}

/// Says how many of the `patterns` that do not match were not listed, and resets their number.
fn write_more(patterns: &mut usize, out: &mut impl Write) -> io::Result<()> {
    match std::mem::take(patterns).saturating_sub(MOST_PATTERNS) {
        0 => Ok(()),
        1 => writeln!(out, "     1 more pattern does not match"),
        more => writeln!(out, "     {more} more patterns do not match"),
    }
}

fn write_no_rule(
    domain: &str,
    entries: usize,
    explanation: &Explanation<'_>,
    out: &mut impl Write,
) -> io::Result<()> {
    match &explanation.outcome {
        Outcome::UnknownDomain(domains) if !domains.is_empty() => {
            write_line!(out, "no rule: unknown domain '{domain}'; the domains are {}", domains.join(", "))?;
        }
        outcome => {
            if let Some(why) = explained::no_rule(entries, explanation) {
                write_line!(out, "{why}")?;
            }
            if matches!(outcome, Outcome::NoMatch) {
                write_alternatives(&explanation.steps, out)?;
            }
        }
    }
    let Some(passed_over) = &explanation.passed_over else { return Ok(()) };
    write_line!(out, "{}", explained::passed_over(passed_over))
}

fn write_alternatives(steps: &[Step<'_>], out: &mut impl Write) -> io::Result<()> {
    let Some(Step { alternatives, alternatives_total, .. }) = steps.last() else {
        return Ok(());
    };
    if alternatives.is_empty() {
        return Ok(());
    }
    writeln!(out, "declared there:")?;
    for alternative in alternatives {
        write_line!(out, "  {alternative}")?;
    }
    match alternatives_total - alternatives.len() {
        0 => Ok(()),
        more => writeln!(out, "  and {more} more"),
    }
}

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
    write_line!(out, "  pool: {pool}, of which each {key} has a share")?;
    match (value, sharing.anonymous) {
        ("", Anonymous::Deny) => {
            return writeln!(out, "  member: none, since the value is empty: rejected");
        }
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
        return write_line!(out, "  member: {value}, with a weight of {weight}");
    }
    let places = sharing.max_members - 1;
    write_line!(out, "  member: {value}, or {OTHER} if {places} others have a place")
}

fn replacing<'a>(
    rules: &'a RuleSet,
    request: &Request<'_>,
    replaced: &CompiledRule,
) -> Option<(usize, &'a CompiledRule)> {
    let name = replaced.rule.name.as_ref()?;
    (1..).zip(&request.descriptors).find_map(|(number, descriptor)| {
        match rules.find(request.domain, &descriptor.entries) {
            Lookup::Rule(by) if by.rule.replaces.contains(name) => Some((number, by)),
            _ => None,
        }
    })
}

fn write_rejections(matched: &Matched<'_>, scope: Scope, out: &mut impl Write) -> io::Result<()> {
    // the descriptors with a limit, by their number
    let limited: Vec<_> = (1_usize..)
        .zip(&matched.matches)
        .filter_map(|(number, descriptor)| match descriptor {
            DescriptorMatch::Limited(check) => Some((number, &matched.checks[*check])),
            DescriptorMatch::NoLimit | DescriptorMatch::Unlimited(_) | DescriptorMatch::Running => None,
        })
        .collect();
    writeln!(out)?;
    for (number, check) in &limited {
        let over = format!("if descriptor {number} is over its limit");
        if scope == Scope::Request && !check.is_cost() {
            writeln!(out, "{over}: nothing counts the request (all or nothing)")?;
            continue;
        }
        let counts = check.over_limit_policy_in(scope) == OverLimitPolicy::Count;
        let itself = if counts { "it counts the request" } else { "it does not count the request" };
        let others: Vec<String> = limited
            .iter()
            .filter(|(other, _)| other != number)
            .map(|(other, check)| format!("descriptor {other} ({})", check.rule.label()))
            .collect();
        let beside = match &*others {
            [] => String::new(),
            [other] => format!(", and {other} counts it if it admits it"),
            others => format!(", and {} count it if they admit it", others.join(" and ")),
        };
        write_line!(out, "{over}: {itself}{beside}")?;
    }
    if scope == Scope::Descriptor && limited.len() > 1 {
        writeln!(out, "(`all_or_nothing: true` beside `domain` lets such a request count nowhere)")?;
    }
    Ok(())
}
