//! Finds descriptors that repeat a key and value of their level, which is an error.

use std::collections::HashMap;

use weir_limit::{Origin, Pattern, RuleNode, Values};

/// `path` has the domain and the composite keys above. Messages are built on demand: there may be millions.
pub(crate) fn report(
    path: &[&str],
    nodes: &[RuleNode],
    report: &mut impl FnMut(&Origin, &dyn Fn() -> String),
) {
    let mut path = path.iter().map(|step| (*step).to_owned()).collect();
    walk(&mut path, nodes, report);
}

fn walk(path: &mut Vec<String>, nodes: &[RuleNode], report: &mut impl FnMut(&Origin, &dyn Fn() -> String)) {
    let mut seen: HashMap<(&str, &str), &Origin> = HashMap::with_capacity(nodes.len());
    for node in nodes {
        for value in texts(node) {
            if let Some(first) = seen.insert((&node.key, value), &node.origin) {
                report(&node.origin, &|| {
                    let separator = if value.is_empty() { "" } else { "_" };
                    let (path, key, first) = (path.join("."), &node.key, first);
                    format!(
                        "duplicate descriptor composite key '{path}.{key}{separator}{value}'; the first is at {first}"
                    )
                });
            }
        }
        if !node.children.is_empty() {
            path.push(name(node));
            walk(path, &node.children, report);
            path.pop();
        }
    }
}

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
