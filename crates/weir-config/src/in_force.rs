//! The rules as they are in force at an instant. What changes with time is decided here, and at each edge again: a decision
//! computes no time zone.

use weir_limit::{Domain, RuleNode, Timestamp};

/// Makes the declared `domains` those that are in force at `at`, by the store's clock. Returns when they change next.
pub fn put_in_force(domains: &mut [Domain], at: Timestamp) -> Option<Timestamp> {
    domains.iter_mut().filter_map(|domain| of_nodes(&mut domain.nodes, at)).min()
}

fn of_nodes(nodes: &mut [RuleNode], at: Timestamp) -> Option<Timestamp> {
    nodes.iter_mut().filter_map(|node| of_nodes(&mut node.children, at)).min()
}
