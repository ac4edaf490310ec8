//! The rules as they are in force at an instant. What changes with time is decided here, and at each edge again: a decision
//! computes no time zone.

use jiff::tz::TimeZone;

use super::schedule;
use weir_limit::{Domain, RuleNode, Timestamp};

/// Makes the declared `domains` those that are in force at `at`, by the store's clock. Returns when they change next.
pub fn put_in_force(domains: &mut [Domain], at: Timestamp) -> Option<Timestamp> {
    domains.iter_mut().filter_map(|domain| of_nodes(&mut domain.nodes, at)).min()
}

/// Gives the limits below `nodes` that name no zone this one.
pub(super) fn fill_zone(nodes: &mut [RuleNode], zone: &TimeZone) {
    for node in nodes {
        node.rule.iter_mut().for_each(|rule| schedule::fill_zone(rule, zone));
        fill_zone(&mut node.children, zone);
    }
}

fn of_nodes(nodes: &mut [RuleNode], at: Timestamp) -> Option<Timestamp> {
    let of_node = |node: &mut RuleNode| {
        let own = node.rule.as_mut().and_then(|rule| schedule::put_in_force(rule, at));
        own.into_iter().chain(of_nodes(&mut node.children, at)).min()
    };
    nodes.iter_mut().filter_map(of_node).min()
}
