//! What cannot be seen in one descriptor alone: duplicates, which are errors, and rules that are hardly meant so.

use std::collections::{HashMap, HashSet};

use super::error::{Place, Report};
use crate::limit::{Domain, Pattern, Rule, RuleNode, Values};

/// Wildcards of one key at one level that are compared with one another. The time grows with the square; past this,
/// nobody is told of a wildcard that comes too late.
const MOST_COMPARED: usize = 1_000;

/// Warns of what is allowed in `domain` but is hardly meant.
pub(super) fn warn(domain: &Domain, report: &mut Report) {
    let mut names = HashSet::new();
    each_rule(&domain.nodes, &mut |rule| names.extend(rule.name.as_deref()));
    each_rule(&domain.nodes, &mut |rule| {
        for name in rule.replaces.iter().filter(|name| !names.contains(&***name)) {
            let domain = &domain.name;
            let message = format!("it replaces '{name}', but no rule in the domain '{domain}' has that name");
            report.warn(rule.origin.clone(), message);
        }
    });
    unreachable(&domain.nodes, report);
}

fn each_rule<'n>(nodes: &'n [RuleNode], look: &mut impl FnMut(&'n Rule)) {
    for node in nodes {
        node.rule.iter().for_each(&mut *look);
        each_rule(&node.children, look);
    }
}

/// Warns of descriptors whose every value an earlier wildcard of the level takes.
fn unreachable(nodes: &[RuleNode], report: &mut Report) {
    // by key, each with the node that it is of
    let mut wildcards: HashMap<&str, Vec<(&Pattern, &RuleNode)>> = HashMap::new();
    for node in nodes {
        let of_key = wildcards.entry(&node.key).or_default();
        of_key.extend(node.values.patterns().filter(|pattern| pattern.is_wildcard()).map(|p| (p, node)));
    }
    for node in nodes {
        let wildcards = &wildcards[node.key.as_str()];
        if let Some((pattern, taker)) = taker(node, wildcards) {
            report.warn(
                node.origin.clone(),
                format!(
                    "this can never match: '{}' at {} comes first and takes every value that it takes",
                    pattern.text(),
                    Place(&taker.origin)
                ),
            );
        }
        unreachable(&node.children, report);
    }
}

/// The wildcard that takes the last of `node`'s values, if wildcards that are tried earlier take them all.
fn taker<'n>(
    node: &RuleNode,
    wildcards: &[(&'n Pattern, &'n RuleNode)],
) -> Option<(&'n Pattern, &'n RuleNode)> {
    let compared = &wildcards[..wildcards.len().min(MOST_COMPARED)];
    if node.values == Values::Any {
        // every wildcard is tried before the key alone, wherever it is declared
        return first_to_take("\0", compared);
    }
    // a literal is always found first
    if !node.values.patterns().all(Pattern::is_wildcard) {
        return None;
    }
    let own = compared.iter().position(|(_, other)| std::ptr::eq(*other, node))?;
    let takers: Option<Vec<_>> = node
        .values
        .patterns()
        .map(|p| first_to_take(&p.text().replace('*', "\0"), &compared[..own]))
        .collect();
    takers?.pop()
}

/// The first of `wildcards` that takes every value that a pattern takes, which is given with its stars replaced by NUL.
///
/// A wildcard does exactly if it takes that text: only its own stars can have taken the NUL, which nobody has in a
/// value, and they take anything in its place.
fn first_to_take<'n>(
    sample: &str,
    wildcards: &[(&'n Pattern, &'n RuleNode)],
) -> Option<(&'n Pattern, &'n RuleNode)> {
    wildcards.iter().copied().find(|(wildcard, _)| wildcard.matches(sample))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_takes_what_a_narrower_one_takes() {
        for (wildcard, other, takes) in [
            ("/api/*", "/api/v1/*", true),
            ("/api/v1/*", "/api/*", false),
            ("*", "*.pdf", true),
            ("*a*", "b*a", true),
            ("a*b*", "a*", false),
            ("a**", "a*", true),
            ("*", "*", true),
            ("a*", "*", false),
        ] {
            let node = |text| RuleNode {
                key: "k".into(),
                values: Values::One(Pattern::new(text)),
                share_threshold: false,
                value_to_metric: false,
                rule: None,
                children: Vec::new(),
                origin: Origin::default(),
            };
            let mut report = Report::default();
            unreachable(&[node(wildcard), node(other)], &mut report);
            assert_eq!(report.warnings.len(), usize::from(takes), "{wildcard} {other}");
        }
    }
}
