//! Warns of rules that are valid and have no effect: unreachable descriptors, and names that replace nothing.

use std::collections::{HashMap, HashSet};

use super::super::error::ConfigReport;
use weir_limit::{Domain, Pattern, Rule, RuleNode, Values};

/// Wildcards of one key and level. The time grows with the square of their number: later ones are not checked.
const MAX_COMPARED: usize = 1_000;

pub(crate) fn warn(domain: &Domain, report: &mut ConfigReport) {
    let mut names = HashSet::new();
    each_rule(&domain.nodes, &mut |rule| names.extend(rule.name.as_deref()));
    each_rule(&domain.nodes, &mut |rule| {
        for name in rule.replaces.iter().filter(|name| !names.contains(&***name)) {
            let domain = &domain.name;
            report.warn_at(rule.origin.clone(), || {
                format!("replaces '{name}', but no rule in domain '{domain}' has that name")
            });
        }
    });
    unreachable(&domain.nodes, report);
}

fn each_rule<'n>(nodes: &'n [RuleNode], visit: &mut impl FnMut(&'n Rule)) {
    for node in nodes {
        node.rule.iter().for_each(&mut *visit);
        each_rule(&node.children, visit);
    }
}

fn unreachable(nodes: &[RuleNode], report: &mut ConfigReport) {
    // by key, each with its node
    let mut wildcards: HashMap<&str, Vec<(&Pattern, &RuleNode)>> = HashMap::new();
    for node in nodes {
        let of_key = wildcards.entry(&node.key).or_default();
        of_key.extend(node.values.patterns().filter(|pattern| pattern.is_wildcard()).map(|p| (p, node)));
    }
    for node in nodes {
        let wildcards = &wildcards[node.key.as_str()];
        if let Some((pattern, earlier)) = shadowing(node, wildcards) {
            report.warn_at(node.origin.clone(), || {
                format!(
                    "this descriptor never matches: '{}' at {} is tried first and matches all of its values",
                    pattern.text(),
                    earlier.origin
                )
            });
        }
        unreachable(&node.children, report);
    }
}

/// The wildcard that matches the last of `node`'s values, if earlier wildcards match all of them.
fn shadowing<'n>(
    node: &RuleNode,
    wildcards: &[(&'n Pattern, &'n RuleNode)],
) -> Option<(&'n Pattern, &'n RuleNode)> {
    let compared = &wildcards[..wildcards.len().min(MAX_COMPARED)];
    if node.values == Values::Any {
        // every wildcard is tried before a descriptor without a value, even if declared later
        return first_to_cover("\0", compared);
    }
    // a literal is matched before every wildcard
    if !node.values.patterns().all(Pattern::is_wildcard) {
        return None;
    }
    let own = compared.iter().position(|(_, other)| std::ptr::eq(*other, node))?;
    let covering: Option<Vec<_>> = node
        .values
        .patterns()
        .map(|p| first_to_cover(&p.text().replace('*', "\0"), &compared[..own]))
        .collect();
    covering?.pop()
}

/// The first wildcard that matches every value of a pattern. `sample` is that pattern with NUL in place of each star.
/// Values hold no NUL: only a star of the wildcard can have matched one, and it matches any other text there.
fn first_to_cover<'n>(
    sample: &str,
    wildcards: &[(&'n Pattern, &'n RuleNode)],
) -> Option<(&'n Pattern, &'n RuleNode)> {
    wildcards.iter().copied().find(|(wildcard, _)| wildcard.matches(sample))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_shadows_narrower_later_ones() {
        for (wildcard, other, shadows) in [
            ("/api/*", "/api/v1/*", true),
            ("/api/v1/*", "/api/*", false),
            ("*", "*.pdf", true),
            ("*a*", "b*a", true),
            ("a*b*", "a*", false),
            ("a**", "a*", true),
            ("*", "*", true),
            ("a*", "*", false),
        ] {
            let node = |text| RuleNode::new("k", Values::One(Pattern::new(text)));
            let mut report = ConfigReport::of_load();
            unreachable(&[node(wildcard), node(other)], &mut report);
            let warnings = report.finish().expect("no errors");
            assert_eq!(warnings.len(), usize::from(shadows), "{wildcard} {other}");
        }
    }
}
