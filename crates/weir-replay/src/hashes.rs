//! The values that rules name, for recordings whose values are hashed.

use std::collections::BTreeSet;

use weir_limit::{CountBy, CounterKey, Domain, Entry, KeyHasher, RuleNode, Values};
use weir_recording::ValueKey;

/// The values that rules name literally, with their keys.
pub(crate) fn named_values(domains: &[Domain]) -> BTreeSet<(&str, &str)> {
    let mut values = BTreeSet::new();
    for domain in domains {
        domain.nodes.iter().for_each(|node| add_values(node, &mut values));
    }
    values
}

fn add_values<'a>(node: &'a RuleNode, values: &mut BTreeSet<(&'a str, &'a str)>) {
    let literal = node.values.patterns().filter(|pattern| !pattern.is_wildcard());
    values.extend(literal.map(|pattern| (&*node.key, pattern.text())));
    if let Values::Table(table) = &node.values {
        values.extend(table.values().map(|value| (&*node.key, value)));
    }
    node.children.iter().for_each(|child| add_values(child, values));
}

/// The values of hashes under `key`.
pub(crate) fn hashes<'a>(
    values: impl IntoIterator<Item = (&'a str, &'a str)>,
    key: &ValueKey,
) -> Vec<(String, &'a str)> {
    let of = |(name, value): (&str, &'a str)| (key.hashed(&Entry { key: name, value }), value);
    values.into_iter().map(of).collect()
}

/// The paths of rules that hashed values cannot be compared with: those of patterns, networks and, without a key, of values.
pub(crate) fn unjudged(domains: &[Domain], has_key: bool) -> Vec<String> {
    let mut unjudged = Vec::new();
    for domain in domains {
        domain.nodes.iter().for_each(|node| add_unjudged(node, &domain.name, has_key, false, &mut unjudged));
    }
    unjudged
}

fn add_unjudged(node: &RuleNode, above: &str, has_key: bool, is_above: bool, unjudged: &mut Vec<String>) {
    let mut patterns = node.values.patterns();
    let is_table = matches!(node.values, Values::Table(_));
    let is_unjudged = is_above
        || is_table && !has_key
        || node.values.networks().is_some()
        || node.count_by != CountBy::Values
        || patterns.any(|pattern| pattern.is_wildcard() || !has_key);
    let value = node.values.to_string();
    let path = match &node.plan {
        Some(plan) => format!("{above}.{}.{plan}", node.key),
        None if value.is_empty() => format!("{above}.{}", node.key),
        None => format!("{above}.{}_{value}", node.key),
    };
    if is_unjudged && node.rule.is_some() {
        unjudged.push(path.clone());
    }
    node.children.iter().for_each(|child| add_unjudged(child, &path, has_key, is_unjudged, unjudged));
}

/// The key of a descriptor with a number of its own.
pub(crate) fn key_of_number(number: u32) -> CounterKey {
    let digits = number.to_string();
    KeyHasher::with_secret([0, 0]).key("", &[Entry { key: "", value: &digits }], |_| None)
}
