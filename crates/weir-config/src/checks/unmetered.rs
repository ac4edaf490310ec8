//! Warns of rules that lose the costs of requests which a rule beside them counts.

use std::collections::HashMap;

use super::super::error::ConfigReport;
use weir_limit::{Domain, Limit, Origin, OverLimitPolicy, Rule, RuleNode};

pub(crate) fn warn(domain: &Domain, report: &mut ConfigReport) {
    level(&domain.nodes, domain, report);
}

/// Descriptors of one key receive the same requests, each those of its values.
fn level(nodes: &[RuleNode], domain: &Domain, report: &mut ConfigReport) {
    let with_rule = || {
        nodes.iter().flat_map(|node| node.rule.iter().flat_map(Rule::variants).map(move |rule| (node, rule)))
    };
    let metered: HashMap<&str, &Origin> = with_rule()
        .filter(|(_, rule)| rule.meters())
        .map(|(node, rule)| (node.key.as_str(), &rule.origin))
        .collect();
    for (node, rule) in with_rule().filter(|(_, rule)| loses_costs(rule, domain)) {
        if let Some(metered) = metered.get(node.key.as_str()) {
            report.warn_at(rule.origin.clone(), || {
                format!(
                    "a cost above the rest of this limit is rejected and does not count, unlike that of '{}' at {metered}; \
                     write 'reserve: 0' here, too",
                    node.key
                )
            });
        }
    }
    for node in nodes {
        level(&node.children, domain, report);
    }
}

fn loses_costs(rule: &Rule, domain: &Domain) -> bool {
    let policy = domain.scope.policy_of(rule.limit.over_limit_policy());
    !rule.meters() && rule.limit != Limit::Unlimited && policy == OverLimitPolicy::Ignore
}

#[cfg(test)]
mod tests {
    use crate::parse;

    #[test]
    fn a_rule_beside_one_that_counts_costs_must_count_them_too() {
        let text = |rest: &str, scope: &str| {
            format!(
                "domain: llm\n{scope}descriptors:\n- {{key: tenant, rate_limit: {{requests: 9, per: 1m, reserve: 0}}}}\n\
                 - {{key: tenant, value: acme, rate_limit: {{{rest}}}}}\n\
                 - {{key: other, rate_limit: {{requests: 9, per: 1m}}}}\n"
            )
        };
        let together = "all_or_nothing: true\n";
        for (rest, scope, warns) in [
            ("requests: 9, per: 1m", "", true),
            ("requests: 9, per: 1m, reserve: 0", "", false),
            ("unit: minute, requests_per_unit: 9", "", false),
            ("unit: minute, requests_per_unit: 9", together, true),
            ("unlimited: true", together, false),
        ] {
            let warnings = parse("rules.yaml", &text(rest, scope)).expect("valid rules").warnings;
            let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
            let metered = if scope.is_empty() { 3 } else { 4 };
            let expected = format!(
                "rules.yaml:{}:30: a cost above the rest of this limit is rejected and does not count, unlike that of \
                 'tenant' at rules.yaml:{metered}:17; write 'reserve: 0' here, too",
                metered + 1
            );
            assert_eq!(warnings, if warns { vec![expected] } else { vec![] }, "{rest} {scope}");
        }
    }
}
