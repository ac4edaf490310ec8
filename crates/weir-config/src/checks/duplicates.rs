//! Finds descriptors that repeat a key and value of their level, which is an error.

use std::{collections::HashMap, sync::Arc};

use weir_limit::{ListedNetwork, NetworkList, Origin, Pattern, RuleNode, Values};

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
    }
    networks(path, nodes, report);
    for node in nodes {
        if !node.children.is_empty() {
            path.push(name(node));
            walk(path, &node.children, report);
            path.pop();
        }
    }
}

/// Reports the networks that a key has twice on a level.
fn networks(path: &[String], nodes: &[RuleNode], report: &mut impl FnMut(&Origin, &dyn Fn() -> String)) {
    let listed = nodes.iter().filter_map(|node| Some((&*node.key, node.values.networks()?)));
    let mut all: Vec<(&str, &ListedNetwork, &NetworkList)> = listed
        .flat_map(|(key, list)| list.networks().iter().map(move |listed| (key, listed, &**list)))
        .collect();
    // stable: of networks that are the same, the first one stays the first
    all.sort_by_key(|(key, listed, _)| (*key, listed.network));
    let origin = |listed: &ListedNetwork, list: &NetworkList| Origin {
        file: Arc::clone(list.file()),
        line: listed.line,
        column: listed.column,
    };
    for same in all.chunk_by(|a, b| (a.0, a.1.network) == (b.0, b.1.network)) {
        let [(key, first, list), others @ ..] = same else { continue };
        for (_, other, of) in others {
            report(&origin(other, of), &|| {
                let (path, network, first) = (path.join("."), other.network, origin(first, list));
                format!("duplicate network {network} of '{path}.{key}'; the first is at {first}")
            });
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
