//! Finds descriptors that repeat a key and value of their level, which is an error.

use std::collections::HashMap;

use super::error::DisplayOrigin;
use crate::limit::{Origin, Pattern, RuleNode, Values};

/// Reports every descriptor of `nodes`, or below, whose key and value an earlier descriptor of its level has. `path` is the
/// composite key of the level above.
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
                        DisplayOrigin(first)
                    ),
                );
            }
        }
        if !node.children.is_empty() {
            self::report(&format!("{path}.{}", name(node)), &node.children, report);
        }
    }
}

/// Returns the values that `node` declares; an empty one stands for any value.
fn texts(node: &RuleNode) -> impl Iterator<Item = &str> {
    let any = (node.values == Values::Any).then_some("");
    any.into_iter().chain(node.values.patterns().map(Pattern::text))
}

fn name(node: &RuleNode) -> String {
    match &node.values {
        Values::Any => node.key.clone(),
        values => format!("{}_{values}", node.key),
    }
}
