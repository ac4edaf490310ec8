//! Why a descriptor matches a rule, or none, in sentences: for `weir explain` and the admin API.

use weir_limit::{Candidate, Entry, Explanation, Fit, Outcome, PassedOver};

/// What a look-up tries for `entry`.
pub fn candidate(entry: &Entry<'_>, candidate: Candidate<'_>) -> String {
    let Entry { key, value } = entry;
    match candidate {
        Candidate::Literal => format!("key {key}, value {value}"),
        Candidate::Table(file, None) => format!("key {key}, a value of {file}"),
        Candidate::Table(file, Some(line)) => format!("key {key}, value {value} of {file}:{line}"),
        Candidate::OtherOfTable(file) => format!("key {key}, the default for values that {file} lacks"),
        Candidate::Networks(_, Some(network)) => format!("key {key}, network {network}"),
        Candidate::Networks(networks, None) => format!("key {key}, networks ({networks})"),
        Candidate::Wildcard(pattern) => format!("key {key}, value {pattern}"),
        Candidate::KeyOnly => format!("key {key}, any value"),
    }
}

/// Why no rule applies to a descriptor of so many `entries`. None if one does.
pub fn no_rule(entries: usize, explanation: &Explanation<'_>) -> Option<String> {
    Some(match &explanation.outcome {
        Outcome::Rule(_) => return None,
        Outcome::UnknownDomain(domains) if domains.is_empty() => "no rule: no rules are declared".to_owned(),
        Outcome::UnknownDomain(domains) => {
            format!("no rule: unknown domain; the domains are {}", domains.join(", "))
        }
        Outcome::NoEntries => "no rule: a descriptor without entries matches nothing".to_owned(),
        Outcome::NoMatch => format!("no rule: nothing matches entry {}", explanation.steps.len()),
        Outcome::TooManyEntries { depth, limited } => {
            let there = if *limited { "; the limit there applies to descriptors that end there" } else { "" };
            format!("no rule: the rules end at entry {depth} of {entries}{there}")
        }
        Outcome::NoLimit { origin, below: false } => {
            format!("no limit: {origin} has no rate_limit, so matching requests are admitted")
        }
        Outcome::NoLimit { origin, below: true } => format!(
            "no limit: the {entries} entries end at {origin}, which has no rate_limit; its nested rules need more entries"
        ),
    })
}

/// Why the rule is not reached.
pub fn passed_over(PassedOver { rule, fit, chosen, entry }: &PassedOver<'_>) -> String {
    let fit = match fit {
        Fit::Whole => "so write the nested rules below that one, too".to_owned(),
        Fit::Longer => "and the rule there is for more entries".to_owned(),
        Fit::Shorter(depth) => format!("and the rule there is for descriptors that end at entry {depth}"),
    };
    format!(
        "passed over: rule {} at {}, because {chosen} is tried first for {entry}; weir does not go back, {fit}",
        rule.path, rule.rule.origin
    )
}
