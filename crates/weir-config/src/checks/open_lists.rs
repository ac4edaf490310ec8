//! Warns of lists of networks that reject, where values that are no addresses pass.

use super::super::error::ConfigReport;
use weir_limit::{Domain, Rule, RuleNode, Values};

pub(crate) fn warn(domain: &Domain, report: &mut ConfigReport) {
    level(&domain.nodes, report);
}

fn level(nodes: &[RuleNode], report: &mut ConfigReport) {
    let has_rest = |key: &str| {
        nodes.iter().any(|node| node.key == key && node.values == Values::Any && node.rule.is_some())
    };
    for node in nodes {
        let rejecting =
            node.rule.as_ref().filter(|rule| node.values.networks().is_some() && rejects_all(rule));
        if let Some(rule) = rejecting.filter(|_| !has_rest(&node.key)) {
            let key = &node.key;
            report.warn_at(rule.origin.clone(), || {
                format!(
                    "this list rejects addresses, and any other text in '{key}' passes, such as an address with a port; \
                     write a descriptor of '{key}' without values, too, with the limit of all others"
                )
            });
        }
        level(&node.children, report);
    }
}

fn rejects_all(rule: &Rule) -> bool {
    rule.variants().any(|rule| !rule.shadow_mode && rule.tiers().iter().any(|tier| tier.requests == 0))
}
