//! Warns of nested rules that a more specific descriptor hides: matching does not go back to the more general one.

use std::collections::HashMap;

use super::super::error::ConfigReport;
use weir_limit::{Domain, Origin, Rule, RuleNode, Values};

/// The time grows with the product of specific and nested descriptors; those after that many are not checked.
const MAX_STEPS: usize = 1_000_000;

/// A descriptor without a limit or nested descriptors is the documented way to make an exception: no warning.
pub(crate) fn warn(domain: &Domain, report: &mut ConfigReport) {
    level(&domain.nodes, report, &mut { MAX_STEPS });
}

fn level(nodes: &[RuleNode], report: &mut ConfigReport, steps: &mut usize) {
    let general: HashMap<&str, &RuleNode> = nodes
        .iter()
        .filter(|node| node.values == Values::Any && !node.children.is_empty())
        .map(|node| (node.key.as_str(), node))
        .collect();
    for node in nodes {
        if node.values != Values::Any
            && restricts(node)
            && let Some(general) = general.get(node.key.as_str())
            && let Some(rule) = first_hidden(&general.children, &node.children, steps)
        {
            report.warn_at(node.origin.clone(), || {
                let name = format!("{}={}", node.key, node.values);
                format!(
                    "this descriptor hides the rule at {} from {name}: it is tried before '{}' at {}, and matching does \
                     not go back; write the nested descriptor here, too, without a rate_limit if {name} has none",
                    rule,
                    general.key,
                    general.origin,
                )
            });
        }
        level(&node.children, report, steps);
    }
}

fn restricts(node: &RuleNode) -> bool {
    !node.children.is_empty() || node.rule.as_ref().is_some_and(Rule::may_limit)
}

/// The first limit below `general` whose keys nothing below `specific` has.
fn first_hidden<'n>(general: &'n [RuleNode], specific: &[RuleNode], steps: &mut usize) -> Option<&'n Origin> {
    for node in general {
        *steps = steps.checked_sub(1 + specific.len())?;
        let mut of_key = specific.iter().filter(|other| other.key == node.key).peekable();
        let hidden = if of_key.peek().is_none() {
            first_rule(node, steps)
        } else {
            // whoever declares other values of the key has thought of it, and may mean to leave the rest out
            let covering = of_key.find(|other| other.values == Values::Any || other.values == node.values);
            covering.and_then(|covering| first_hidden(&node.children, &covering.children, steps))
        };
        if hidden.is_some() {
            return hidden;
        }
    }
    None
}

fn first_rule<'n>(node: &'n RuleNode, steps: &mut usize) -> Option<&'n Origin> {
    *steps = steps.checked_sub(1)?;
    let limited = node.rule.as_ref().filter(|rule| rule.may_limit());
    limited
        .map(|rule| &rule.origin)
        .or_else(|| node.children.iter().find_map(|child| first_rule(child, steps)))
}
