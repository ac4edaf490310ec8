//! Finds rules that nothing can match, since entries of their key name running requests.

use super::super::error::ConfigReport;
use weir_limit::{Domain, IN_FLIGHT, Rule, RuleNode};

const MESSAGE: &str =
    "the entry 'in_flight' names a request: no rule below one with 'in_flight' or 'reserve' can match it";

const MESSAGE_OF_FIRST: &str =
    "the entry 'in_flight' names a request: no rule begins with it in a domain with 'in_flight' or 'reserve'";

pub(crate) fn check(domain: &Domain, report: &mut ConfigReport) {
    let message = has_limit(&domain.nodes).then_some(MESSAGE_OF_FIRST);
    level(&domain.nodes, message, report);
}

fn has_limit(nodes: &[RuleNode]) -> bool {
    nodes.iter().any(|node| is_limit(node.rule.as_ref()) || has_limit(&node.children))
}

fn is_limit(rule: Option<&Rule>) -> bool {
    rule.is_some_and(|rule| rule.variants().any(|rule| rule.in_flight.is_some() || rule.meters()))
}

/// `message` says why no rule of this level can have the key, if none can.
fn level(nodes: &[RuleNode], message: Option<&'static str>, report: &mut ConfigReport) {
    for node in nodes {
        let is_limit = is_limit(node.rule.as_ref());
        // a rule of the key itself would take its requests for names
        let message = message.or(is_limit.then_some(MESSAGE)).filter(|_| node.key == IN_FLIGHT);
        if let Some(message) = message {
            report.error_at(node.origin.clone(), || message.to_owned());
        }
        level(&node.children, is_limit.then_some(MESSAGE), report);
    }
}
