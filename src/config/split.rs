//! Limits that instances split: `coordination: split`; `instances`, by which a rule says their number itself; and `split: by_demand`.

use std::num::{NonZeroU16, NonZeroU32};

use super::{
    error::FileReport,
    fields::{Field, Fields},
    scalar::brief,
    yaml::Position,
};
use crate::limit::{
    Algorithm, Coordination, Limit, Period, Refill, RuleCoordination, Tier,
    part::{self, Place},
};

/// The longest time that instances which start beside others wait for their part without a warning.
const LONG: Period = Period::from_secs(60);

/// Checks a limit that instances split, and divides it if the rule says their number. Its `shadow` is divided as well.
pub(super) fn apply(
    fields: &Fields<'_>,
    limit: Option<&mut Limit>,
    shadow: Option<&mut Limit>,
    is_shared: bool,
    coordination: &mut RuleCoordination,
    report: &mut FileReport,
) {
    let number = number(fields, report);
    let follows_demand = follows_demand(fields, report);
    let Some(mode) = fields.get("coordination").filter(|_| coordination.mode == Some(Coordination::Split))
    else {
        for key in ["instances", "split"] {
            if let Some(field) = fields.get(key) {
                report.error(
                    field.key_at,
                    format!("'{key}' requires 'coordination: split'; add that, or remove '{key}'"),
                );
            }
        }
        return;
    };
    if is_shared {
        report.error(
            mode.value.at,
            "the members of a limit that is shared are not split between instances; remove 'share', or choose \
             another coordination",
        );
        return;
    }
    let Some(limit) = limit else { return };
    if let Some(at) = follows_demand {
        if fields.get("instances").is_some() {
            report.error(at, "'split: by_demand' needs the heartbeats of a shared store; remove 'instances'");
            return;
        }
        if let Err(right) = can_follow_demand(limit) {
            report.error(at, format!("'split: by_demand' needs {right}"));
            return;
        }
        coordination.follows_demand = true;
    }
    match number {
        Some(number) => {
            warn_of_parts(limit, number, report);
            coordination.mode = Some(Coordination::Local);
            coordination.split_between = Some(number.value);
            divide(limit, number.value);
            if let Some(shadow) = shadow {
                divide(shadow, number.value);
            }
        }
        None if fields.get("instances").is_none() => warn_of_any_number(limit, mode.value.at, report),
        // its value is invalid
        None => {}
    }
}

fn number(fields: &Fields<'_>, report: &mut FileReport) -> Option<Field<NonZeroU16>> {
    let field = fields.count("instances", 1, report)?;
    let number = u16::try_from(field.value).ok().and_then(NonZeroU16::new);
    if number.is_none() {
        report.error(field.at, format!("'instances' must be at most {}", u16::MAX));
    }
    Some(Field { at: field.at, key_at: field.key_at, value: number? })
}

/// Returns the place of the value of `split` if it says that parts follow demand.
fn follows_demand(fields: &Fields<'_>, report: &mut FileReport) -> Option<Position> {
    let field = fields.text("split", report)?;
    match field.value {
        "by_demand" => return Some(field.at),
        "even" => {}
        unknown => {
            report.error(field.at, format!("unknown split '{}'; write even or by_demand", brief(unknown)))
        }
    }
    None
}

/// Checks that parts of `limit` can follow demand; the error says what would be right.
fn can_follow_demand(limit: &Limit) -> Result<(), String> {
    let [tier] = limit.tiers() else { return Err("a limit of one tier".into()) };
    let is_window = matches!(tier.algorithm, Algorithm::FixedWindow | Algorithm::SmoothWindow { .. });
    if !is_window {
        return Err("fixed windows, since parts move from window to window; remove 'algorithm'".into());
    }
    if tier.period > LONG || !tier.period.as_nanos().is_multiple_of(1_000_000) {
        return Err(format!(
            "a period of at most {LONG}, in whole milliseconds, since parts move from window to window"
        ));
    }
    Ok(())
}

/// Divides `limit` between `instances` whose ranks are not known: what is left over belongs to none.
fn divide(limit: &mut Limit, instances: NonZeroU16) {
    let place = Place::unranked(instances.into());
    if let Limit::Tiers { tiers, .. } = limit {
        for tier in tiers {
            *tier = place.of_tier(tier);
        }
    }
}

/// Warns of a limit that is small, or whose parts wait for long, whatever the number of instances is.
fn warn_of_any_number(limit: &Limit, at: Position, report: &mut FileReport) {
    let least = Coordination::COARSE_BELOW;
    if limit.tiers().iter().any(|tier| u64::from(tier.capacity()) < 2 * least) {
        report.warn(
            at,
            format!(
                "two instances have fewer than {least} hits each of this limit, so that much of it stays unused: choose \
                 'coordination: lease'"
            ),
        );
    }
    let longest = limit.tiers().iter().map(|tier| part::memory(tier, NonZeroU32::MIN)).max();
    if let Some(longest) = longest.filter(|longest| *longest > LONG) {
        report.warn(
            at,
            format!(
                "an instance that starts later than the first ones has no part of this limit for up to {longest}, until \
                 what others had is over: choose 'coordination: lease'"
            ),
        );
    }
}

/// Warns of parts of a `limit` of `number` instances that admit too little.
fn warn_of_parts(limit: &Limit, number: Field<NonZeroU16>, report: &mut FileReport) {
    let Field { at, value: instances, .. } = number;
    let count = u32::from(instances.get());
    for tier in limit.tiers() {
        let part = Place::unranked(instances.into()).of_tier(tier);
        let capacity = tier.capacity();
        if is_nothing(&part) {
            report.warn(
                at,
                format!("{tier}: less than one for each of {instances} instances, so that none is admitted"),
            );
        } else if matches!(tier.algorithm, Algorithm::TokenBucket(_)) && capacity < count {
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
    use crate::{
        config::parse,
        limit::{Coordination, Rule},
    };

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
    fn parts_may_follow_demand() {
        let (rule, warnings) = rule_of("requests: 40, per: 1m, coordination: split, split: by_demand");
        assert!(warnings.is_empty() && rule.coordination.follows_demand, "{warnings:?}");
        let (rule, _) = rule_of("requests: 40, per: 1m, smooth: true, coordination: split, split: by_demand");
        assert!(rule.coordination.follows_demand);
        let (rule, _) = rule_of("requests: 40, per: 1m, coordination: split, split: even");
        assert!(!rule.coordination.follows_demand);
        let says = |limit: &str, text: &str| {
            let errors = errors_of(limit);
            assert!(errors.contains(text), "{limit}: {errors}");
        };
        says(
            "split: by_demand, requests: 40, per: 1m",
            "split.yaml:4:19: 'split' requires 'coordination: split'",
        );
        let rest = "coordination: split, requests: 40";
        says(
            &format!("split: by_need, per: 1m, {rest}"),
            "split.yaml:4:26: unknown split 'by_need'; write even or by_demand",
        );
        says(
            &format!("split: by_demand, per: 61s, {rest}"),
            "split.yaml:4:26: 'split: by_demand' needs a period of at most 1m",
        );
        says(&format!("split: by_demand, per: 1m, algorithm: sliding_window, {rest}"), "needs fixed windows");
        says(&format!("split: by_demand, per: 1m, instances: 3, {rest}"), "remove 'instances'");
        says(
            "split: by_demand, coordination: split, tiers: [{requests: 40, per: 1s}, {requests: 400, per: 1m}]",
            "needs a limit of one tier",
        );
        says("unlimited: true, split: by_demand", "should not specify 'split' when unlimited");
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
        assert!(large.contains("split.yaml:4:75: 'instances' must be at most 65535"), "{large}");
        let none = errors_of("requests: 100, per: 1s, coordination: split, instances: 0");
        assert!(none.contains("split.yaml:4:75: "), "{none}");
        let unlimited = errors_of("unlimited: true, instances: 4");
        assert!(unlimited.contains("should not specify 'instances' when unlimited"), "{unlimited}");
    }
}
