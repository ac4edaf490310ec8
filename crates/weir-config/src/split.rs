//! Limits that instances split: `coordination: split`; and `instances`, by which a rule says their number itself.

use std::num::{NonZeroU16, NonZeroU32};

use super::{
    calendar,
    error::ConfigReport,
    fields::{Field, Fields},
    scalar::{Meaning, Scalar, brief},
    yaml::YamlPosition,
};
use weir_limit::{Coordination, Limit, Origin, Period, Refill, RuleCoordination, RuleNode, Tier, part};

/// The longest that instances which start beside others wait for their part without a warning.
const LONG: Period = Period::from_secs(60);

enum InstancesKey {
    Number(NonZeroU16),
    /// The DNS name whose addresses are counted.
    OfName(Box<str>),
}

/// Divides the limit and its `shadow` if the rule says a number of instances. Returns the DNS name if it says that.
pub(super) fn apply(
    fields: &Fields<'_>,
    limit: Option<&mut Limit>,
    shadow: Option<&mut Limit>,
    is_shared: bool,
    coordination: &mut RuleCoordination,
    report: &mut ConfigReport,
) -> Option<Box<str>> {
    let instances = instances(fields, report);
    let Some(mode) = fields.get("coordination").filter(|_| coordination.mode == Some(Coordination::Split))
    else {
        if let Some(field) = fields.get("instances") {
            report.error(
                field.key_at,
                "'instances' requires 'coordination: split'; add that, or remove 'instances'",
            );
        }
        return None;
    };
    if is_shared {
        report.error(
            mode.value.at,
            "the members of a limit that is shared are not split between instances; remove 'share', or choose \
             another coordination",
        );
        return None;
    }
    let limit = limit?;
    if let Some(calendar) = calendar::of_limits([Some(&*limit), shadow.as_deref()]) {
        report.error(mode.value.at, calendar::unsplit(calendar));
        return None;
    }
    match instances {
        Some(Field { value: InstancesKey::Number(number), at, .. }) => {
            warn_of_parts(limit, number, at, report);
            coordination.mode = Some(Coordination::Local);
            coordination.split_between = Some(number);
            divide(limit, number);
            if let Some(shadow) = shadow {
                divide(shadow, number);
            }
        }
        Some(Field { value: InstancesKey::OfName(name), at, .. }) => {
            if let Some(message) = of_two(limit) {
                report.warn(at, message);
            }
            coordination.mode = Some(Coordination::Local);
            return Some(name);
        }
        None if fields.get("instances").is_none() => {
            for message in of_any_number(limit) {
                report.warn(mode.value.at, message);
            }
        }
        // its value is invalid
        None => {}
    }
    None
}

/// Divides the limits of `nodes` whose rules take the number of instances from DNS, by the `number` of each name.
pub fn divide_by_names(nodes: &mut [RuleNode], number: &impl Fn(&str) -> NonZeroU16) {
    for node in nodes {
        if let Some(rule) = &mut node.rule
            && let Some(name) = &rule.instances_of
        {
            let number = number(name);
            rule.change_variants(&|rule| {
                rule.coordination.split_between = Some(number);
                divide(&mut rule.limit, number);
                if let Some(shadow) = &mut rule.shadow {
                    divide(shadow, number);
                }
            });
        }
        divide_by_names(&mut node.children, number);
    }
}

/// Returns the DNS names from which rules below `nodes` take the number of instances, and where.
pub fn names_of_instances(nodes: &[RuleNode]) -> Vec<(Box<str>, Origin)> {
    let rules = nodes.iter().filter_map(|node| node.rule.as_ref());
    let own = rules.filter_map(|rule| Some((rule.instances_of.clone()?, rule.origin.clone())));
    own.chain(nodes.iter().flat_map(|node| names_of_instances(&node.children))).collect()
}

fn instances(fields: &Fields<'_>, report: &mut ConfigReport) -> Option<Field<InstancesKey>> {
    let field = fields.get("instances")?;
    let text = field.value.scalar().filter(|scalar| scalar.meaning() == Meaning::Text).map(Scalar::text);
    if let Some(text) = text {
        let name = text.strip_prefix("dns://").filter(|name| is_name(name));
        if name.is_none() {
            let text = brief(text);
            report.error(
                field.at,
                format!(
                    "'instances' must be a number, or dns:// and a name such as dns://weir.shop, not '{text}'"
                ),
            );
        }
        return Some(Field { at: field.at, key_at: field.key_at, value: InstancesKey::OfName(name?.into()) });
    }
    let field = fields.count("instances", 1..=u16::MAX.into(), report)?;
    let number = u16::try_from(field.value).ok().and_then(NonZeroU16::new)?;
    Some(Field { at: field.at, key_at: field.key_at, value: InstancesKey::Number(number) })
}

/// Whether it is a DNS name (RFC 1035).
fn is_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    name.len() <= 253 && name.split('.').all(is_label)
}

/// Ranks are not known: what is left over belongs to no instance.
fn divide(limit: &mut Limit, instances: NonZeroU16) {
    if let Limit::Tiers { tiers, .. } = limit {
        for tier in tiers {
            *tier = part::of_tier(tier, instances.into());
        }
    }
}

/// A warning if two instances have too little of `limit`.
fn of_two(limit: &Limit) -> Option<String> {
    let least = Coordination::COARSE_BELOW;
    let is_small = limit.tiers().iter().any(|tier| u64::from(tier.capacity()) < 2 * least);
    is_small.then(|| {
        format!(
            "two instances have fewer than {least} hits each of this limit, so that much of it stays unused: choose \
             'coordination: lease'"
        )
    })
}

/// Warnings if `limit` is small, or its parts wait for long, whatever the number of instances.
pub(super) fn of_any_number(limit: &Limit) -> impl Iterator<Item = String> {
    let longest = limit.tiers().iter().map(|tier| part::memory(tier, NonZeroU32::MIN)).max();
    let late = longest.filter(|longest| *longest > LONG).map(|longest| {
        format!(
            "an instance that starts has no part of this limit for up to {longest}, until what others had is over: \
             choose 'coordination: lease'"
        )
    });
    of_two(limit).into_iter().chain(late)
}

fn warn_of_parts(limit: &Limit, instances: NonZeroU16, at: YamlPosition, report: &mut ConfigReport) {
    let count = u32::from(instances.get());
    for tier in limit.tiers() {
        let part = part::of_tier(tier, instances.into());
        let capacity = tier.capacity();
        if is_nothing(&part) {
            report.warn(
                at,
                format!("{tier}: less than one for each of {instances} instances, so that none is admitted"),
            );
        } else if tier.refills() && capacity < count {
            report.warn(
                at,
                format!(
                    "the burst of {capacity} is below the number of instances: each holds one token, {count} in all"
                ),
            );
        } else if u64::from(capacity) < Coordination::COARSE_BELOW * u64::from(count) {
            let least = Coordination::COARSE_BELOW;
            report.warn(
                at,
                format!(
                    "{instances} instances have fewer than {least} hits each of {tier}, so that much of it stays unused"
                ),
            );
        }
    }
}

fn is_nothing(part: &Tier) -> bool {
    part.capacity() == 0 || (part.requests == 0 && part.bucket().refill == Refill::Step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;
    use weir_limit::{Rule, Values};

    fn rule_of(limit: &str) -> (Rule, Vec<String>) {
        let text = format!("domain: d\ndescriptors:\n  - key: k\n    rate_limit: {{ {limit} }}\n");
        let loaded = parse("split.yaml", &text).expect("the rules are valid");
        let warnings = loaded.warnings.iter().map(ToString::to_string).collect();
        (loaded.domains[0].nodes[0].rule.clone().expect("it has a rule"), warnings)
    }

    fn errors_of(limit: &str) -> String {
        let text = format!("domain: d\ndescriptors:\n  - key: k\n    rate_limit: {{ {limit} }}\n");
        parse("split.yaml", &text).expect_err("it is invalid").to_string()
    }

    #[test]
    fn a_number_of_instances_divides_the_limit_and_its_shadow() {
        let (rule, warnings) = rule_of(
            "requests: 1001, per: 1s, coordination: split, instances: 4, shadow: { requests: 400, per: 1s }",
        );
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!(rule.coordination.mode, Some(Coordination::Local));
        assert_eq!(rule.coordination.split_between.map(u16::from), Some(4));
        assert_eq!(rule.tiers()[0].to_string(), "250 requests per 1s");
        assert_eq!(rule.shadow.expect("a shadow").tiers()[0].to_string(), "100 requests per 1s");
        let (rule, _) = rule_of(
            "requests: 10, per: 1m, algorithm: token_bucket, burst: 100, coordination: split, instances: 3",
        );
        assert_eq!(rule.tiers()[0].to_string(), "10 requests per 3m, token bucket with a burst of 33");
    }

    #[test]
    fn without_a_number_the_limit_stays() {
        let (rule, warnings) = rule_of("requests: 40, per: 1m, coordination: split");
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!(rule.coordination.mode, Some(Coordination::Split));
        assert_eq!(rule.tiers()[0].requests, 40);
    }

    #[test]
    fn parts_that_admit_too_little_are_warned_of_at_their_place() {
        let at_mode = |limit: &str, text: &str| {
            let (_, warnings) = rule_of(&format!("coordination: split, {limit}"));
            let is_there = warnings.len() == 1
                && warnings[0].starts_with("split.yaml:4:33:")
                && warnings[0].contains(text);
            assert!(is_there, "{limit}: {warnings:?}");
        };
        at_mode("requests: 39, per: 1m", "fewer than 20 hits each");
        at_mode("requests: 40, per: 61s", "has no part of this limit for up to 61s");
        // the time in which it fills, and a token more
        at_mode("requests: 1, per: 1s, algorithm: token_bucket, burst: 60", "for up to 61s");
        let at_number = |limit: &str, text: &str| {
            let (_, warnings) = rule_of(&format!("instances: 4, coordination: split, {limit}"));
            let is_there = warnings.len() == 1
                && warnings[0].starts_with("split.yaml:4:30:")
                && warnings[0].contains(text);
            assert!(is_there, "{limit}: {warnings:?}");
        };
        at_number("requests: 79, per: 1h", "4 instances have fewer than 20 hits each of 79 requests per 1h");
        at_number("requests: 3, per: 1h", "less than one for each of 4 instances");
        at_number(
            "requests: 9, per: 1s, algorithm: token_bucket, burst: 3",
            "burst of 3 is below the number",
        );
        at_number(
            "requests: 3, per: 1s, algorithm: token_bucket, burst: 90, refill: step",
            "less than one for each of 4 instances",
        );
    }

    #[test]
    fn the_number_of_instances_may_be_that_of_a_name() {
        let text = "requests: 1001, per: 1s, coordination: split, instances: dns://weir.shop, \
                    shadow: { requests: 400, per: 1s }";
        let (rule, warnings) = rule_of(text);
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!(rule.instances_of.as_deref(), Some("weir.shop"));
        assert_eq!(
            (rule.coordination.mode, rule.coordination.split_between),
            (Some(Coordination::Local), None)
        );
        assert_eq!(rule.tiers()[0].requests, 1_001);
        let mut inner = RuleNode::new("k", Values::Any);
        inner.rule = Some(rule);
        let mut nodes = vec![RuleNode { children: vec![inner], ..RuleNode::new("k", Values::Any) }];
        assert_eq!(&*names_of_instances(&nodes)[0].0, "weir.shop");
        divide_by_names(&mut nodes, &|name| {
            NonZeroU16::new(u16::try_from(name.len()).expect("short") - 5).expect("4")
        });
        let rule = nodes[0].children[0].rule.clone().expect("it is there");
        assert_eq!(rule.coordination.split_between.map(u16::from), Some(4));
        assert_eq!(
            (rule.tiers()[0].requests, rule.shadow.expect("a shadow").tiers()[0].requests),
            (250, 100)
        );
        for name in ["weir", "dns:/weir", "dns://", "dns://a..b", "dns://a b", "dns://weir:53"] {
            let error =
                errors_of(&format!("instances: '{name}', requests: 100, per: 1s, coordination: split"));
            assert!(error.contains("split.yaml:4:30: 'instances' must be a number, or dns://"), "{error}");
        }
        let (_, warnings) = rule_of("instances: dns://a, requests: 39, per: 1s, coordination: split");
        assert!(
            warnings[0].contains("split.yaml:4:30") && warnings[0].contains("fewer than 20"),
            "{warnings:?}"
        );
    }

    #[test]
    fn what_cannot_be_split_is_an_error_at_its_place() {
        let requires = errors_of("requests: 100, per: 1s, instances: 4");
        assert!(
            requires.contains("split.yaml:4:43: 'instances' requires 'coordination: split'"),
            "{requires}"
        );
        let shared = errors_of("requests: 100, per: 1s, share: {}, coordination: split");
        assert!(shared.contains("split.yaml:4:68: the members of a limit that is shared"), "{shared}");
        let large = errors_of("requests: 100, per: 1s, coordination: split, instances: 65536");
        assert!(large.contains("'instances' must be a whole number from 1 to 65535, not '65536'"), "{large}");
        let none = errors_of("requests: 100, per: 1s, coordination: split, instances: 0");
        assert!(none.contains("split.yaml:4:75: "), "{none}");
        let unlimited = errors_of("unlimited: true, instances: 4");
        assert!(unlimited.contains("should not specify 'instances' when unlimited"), "{unlimited}");
    }
}
