//! Finds descriptors that repeat a key and value of their level, which is an error.

use std::collections::HashMap;

use super::error::Place;
use crate::limit::{Origin, Pattern, RuleNode, Values};

/// Reports every descriptor of `nodes`, or below, that says again for which key and value it is. `path` is the way to
/// them.
pub(super) fn report(path: &str, nodes: &[RuleNode], report: &mut impl FnMut(&Origin, String)) {
    let mut seen: HashMap<(&str, &str), &Origin> = HashMap::with_capacity(nodes.len());
    for node in nodes {
        for value in texts(node) {
            if let Some(first) = seen.insert((&node.key, value), &node.origin) {
                let step = if value.is_empty() { node.key.clone() } else { format!("{}_{value}", node.key) };
                report(
                    &node.origin,
                    format!(
                        "duplicate descriptor composite key '{path}.{step}'; the first is at {}",
                        Place(first)
                    ),
                );
            }
        }
        if !node.children.is_empty() {
            self::report(&format!("{path}.{}", name(node)), &node.children, report);
        }
    }
}

/// The texts that `node` is found by; one that is empty for the key alone.
fn texts(node: &RuleNode) -> impl Iterator<Item = &str> {
    let alone = (node.values == Values::Any).then_some("");
    alone.into_iter().chain(node.values.patterns().map(Pattern::text))
}

fn name(node: &RuleNode) -> String {
    match &node.values {
        Values::Any => node.key.clone(),
        values => format!("{}_{values}", node.key),
    }
}
