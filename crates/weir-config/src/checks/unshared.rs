//! Finds rules that instances cannot share in their store, which may count only single fixed windows.

use std::fmt::Write as _;

use super::super::{
    calendar,
    error::{ConfigErrors, ConfigReport, Finding},
    load::Loaded,
    split,
};
use weir_limit::{Capabilities, Coordination, Limit, Rule, RuleNode, SharedStore};

const MAX_WARNINGS: usize = 100;

/// Checks that instances can share the rules of `loaded` in `store`, and warns of those that it cannot share: every
/// instance counts them by itself. `default` is the coordination mode of rules that name none. Fails if rules are
/// smooth, and the store counts only windows, which have no pace, or if a window of the calendar is split, or not shared.
pub fn check_shared(
    mut loaded: Loaded,
    store: SharedStore,
    default: Coordination,
) -> Result<Loaded, ConfigErrors> {
    let (mut shared, mut split) = (Vec::new(), Vec::new());
    let mut report = ConfigReport::of_load();
    for domain in &loaded.domains {
        find(&domain.nodes, default, &mut shared, &mut split);
        check_places(&domain.nodes, store, default, &mut report);
    }
    let is_counted = |limit: &Limit| store.capabilities.count(limit.tiers());
    let is_no_window = |limit: &Limit| limit.is_smooth() && !is_counted(limit);
    for rule in shared.iter().filter(|rule| [&rule.limit].into_iter().chain(&rule.shadow).any(is_no_window)) {
        report.error_at(rule.origin.clone(), || {
            format!(
                "{} cannot share a limit with 'smooth: true', since it counts windows only; add 'coordination: split', \
                 which divides the limit between the instances, or 'coordination: local', with this instance's part of \
                 the limit, or remove 'smooth'",
                store.name
            )
        });
    }
    let calendar_of = |rule: &Rule| calendar::of_limits([Some(&rule.limit), rule.shadow.as_ref()]).cloned();
    for (rule, calendar) in split.iter().filter_map(|rule| Some((rule, calendar_of(rule)?))) {
        report.error_at(rule.origin.clone(), || calendar::unsplit(&calendar));
    }
    for rule in &shared {
        let limits = [&rule.limit].into_iter().chain(&rule.shadow).filter(|limit| !is_counted(limit));
        if let Some(calendar) = calendar::of_limits(limits.map(Some)) {
            report.error_at(rule.origin.clone(), || {
                format!(
                    "{} shares 'per: {}' only as the only tier, since it counts single windows; write the other tiers in a \
                     rule of their own, or 'coordination: local'",
                    store.name, calendar.unit
                )
            });
        }
    }
    if report.has_errors() {
        for Finding { at, message } in loaded.warnings {
            report.warn_at(at, || message);
        }
        return report.finish().map(|warnings| Loaded { warnings, ..loaded });
    }
    // without a rate there is nothing to share
    shared.retain(|rule| rule.limit != Limit::Unlimited);
    shared.retain(|rule| !store.shares(rule) || rule.shadow.as_ref().is_some_and(|limit| !is_counted(limit)));
    let mut warnings = warnings(store, &shared);
    warnings.extend(report.finish()?);
    warnings.extend(
        split
            .into_iter()
            .filter(|rule| rule.limit != Limit::Unlimited)
            .take(MAX_WARNINGS)
            .flat_map(warnings_of_parts),
    );
    loaded.warnings.extend(warnings);
    loaded
        .warnings
        .sort_by(|a, b| (&a.at.file, a.at.line, a.at.column).cmp(&(&b.at.file, b.at.line, b.at.column)));
    Ok(loaded)
}

/// A mode that keeps no places, and that the rule does not name itself, is `auto`.
fn check_places(nodes: &[RuleNode], store: SharedStore, default: Coordination, report: &mut ConfigReport) {
    for node in nodes {
        for rule in node.rule.iter().flat_map(Rule::variants).filter(|rule| rule.in_flight.is_some()) {
            if rule.coordination.mode.unwrap_or(default) == Coordination::Local {
                report.warn_at(rule.origin.clone(), || {
                    format!(
                        "each instance admits the whole limit of 'in_flight', and a request must end at the instance \
                         that admitted it; without 'coordination: local', {} counts for all of them",
                        store.name
                    )
                });
            } else if store.capabilities != Capabilities::All {
                report.error_at(rule.origin.clone(), || {
                    format!("{} keeps no places; write 'coordination: local', or use Redis", store.name)
                });
            }
        }
        let reserves = |rule: &&Rule| {
            rule.in_flight.is_none()
                && rule.places().is_some()
                && rule.coordination.mode.unwrap_or(default).is_coordinated()
                && store.capabilities != Capabilities::All
        };
        for rule in node.rule.iter().flat_map(Rule::variants).filter(reserves) {
            report.error_at(rule.origin.clone(), || {
                format!(
                    "{} keeps no places, and so no reserved hits; write 'reserve: 0', or use Redis",
                    store.name
                )
            });
        }
        check_places(&node.children, store, default, report);
    }
}

fn warnings(store: SharedStore, unshared: &[&Rule]) -> Vec<Finding> {
    let (mut warnings, name) = (Vec::new(), store.name);
    let omitted = unshared.len().saturating_sub(MAX_WARNINGS);
    for (i, rule) in unshared.iter().take(MAX_WARNINGS).enumerate() {
        let mut message = if rule.sharing.is_some() {
            format!("{name} cannot share this pool: of N instances, each has the N-th part")
        } else if store.shares(rule) {
            format!(
                "{name} cannot share the limit in the shadow of this one, because it counts only single fixed \
                 windows: each instance counts by itself what that would reject"
            )
        } else {
            format!(
                "{name} cannot share this limit, because it counts only single fixed windows: each instance admits \
                 the whole limit (coordination: local declares that)"
            )
        };
        if i + 1 == MAX_WARNINGS && omitted > 0 {
            // writing to a string does not fail
            let _ = write!(message, "; and so {omitted} more rules");
        }
        warnings.push(Finding { at: rule.origin.clone(), message });
    }
    warnings
}

/// For a rule that is split by default: one that says so itself has these warnings already.
fn warnings_of_parts(rule: &Rule) -> Vec<Finding> {
    let of_size = split::of_any_number(&rule.limit)
        .filter(|_| rule.coordination.mode.is_none() && rule.in_flight.is_none());
    of_size.map(|message| Finding { at: rule.origin.clone(), message }).collect()
}

fn find<'n>(
    nodes: &'n [RuleNode],
    default: Coordination,
    shared: &mut Vec<&'n Rule>,
    split: &mut Vec<&'n Rule>,
) {
    for node in nodes {
        for rule in node.rule.iter().flat_map(Rule::variants) {
            let mode = rule.coordination.mode.unwrap_or(default);
            let mode = if rule.sharing.is_some() { mode.of_pool() } else { mode };
            if mode.is_coordinated() {
                shared.push(rule);
            } else if mode == Coordination::Split {
                split.push(rule);
            }
        }
        find(&node.children, default, shared, split);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    const MEMCACHED: SharedStore =
        SharedStore { name: "Memcached", system: "memcached", capabilities: Capabilities::SingleFixedWindow };

    fn warnings(default: Coordination) -> Vec<String> {
        let text = "\
domain: shop
descriptors:
  - key: fixed
    rate_limit: { requests_per_unit: 5, unit: minute }
  - key: sliding
    rate_limit: { requests: 5, per: 1m, algorithm: sliding_window }
    descriptors:
      - key: two
        rate_limit:
          tiers:
            - { requests: 5, per: 1m }
            - { requests: 50, per: 1h }
  - key: own
    rate_limit: { requests: 5, per: 1m, algorithm: sliding_window, coordination: local }
  - key: shared
    rate_limit: { requests: 5, per: 1m, algorithm: token_bucket, coordination: strict }
  - key: free
    rate_limit: { unlimited: true }
  - key: pool
    rate_limit: { requests: 5, per: 1m, share: {} }
  - key: shadow
    rate_limit: { requests: 5, per: 1m, shadow: { requests: 5, per: 1m, algorithm: token_bucket } }
  - key: fixed_shadow
    rate_limit: { requests: 5, per: 1m, shadow: { requests: 3, per: 1h } }
";
        let mut loaded = parse("shop.yaml", text).expect("the rules are valid");
        loaded.warnings.clear();
        let loaded = check_shared(loaded, MEMCACHED, default).expect("nothing is smooth");
        loaded.warnings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rules_that_memcached_cannot_share_are_named_with_their_place() {
        let found = warnings(Coordination::Auto);
        let places: Vec<&str> = found.iter().filter_map(|warning| warning.split(':').nth(1)).collect();
        assert_eq!(places, ["6", "9", "16", "20", "22"], "{found:?}");
        assert!(found[3].contains("each has the N-th part"), "{found:?}");
        assert!(found[4].contains("counts by itself what that would reject"), "{found:?}");
        assert!(found[..3].iter().all(|warning| warning.contains("each instance admits the whole limit")));
    }

    #[test]
    fn rules_that_are_local_are_meant_to_be() {
        let found = warnings(Coordination::Local);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("shop.yaml:16:"), "{found:?}");
    }

    #[test]
    fn rules_that_are_split_by_default_are_warned_of_as_others() {
        let text = "\
domain: shop
descriptors:
  - key: small
    rate_limit: { requests: 5, per: 1h }
  - key: large
    rate_limit: { requests: 400, per: 1s }
  - key: other
    rate_limit: { requests: 5, per: 1h, coordination: lease }
";
        for (default, places) in [(Coordination::Split, &["4", "4"][..]), (Coordination::Auto, &[])] {
            let loaded = parse("shop.yaml", text).expect("the rules are valid");
            assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
            let warnings =
                check_shared(loaded, SharedStore::REDIS, default).expect("nothing is smooth").warnings;
            let lines: Vec<String> = warnings.iter().map(|warning| warning.at.line.to_string()).collect();
            assert_eq!(lines, places, "{default:?}: {warnings:?}");
        }
    }

    #[test]
    fn smooth_rules_must_be_local_over_memcached() {
        let text = "\
domain: shop
descriptors:
  - key: smooth
    rate_limit: { requests: 5, per: 1m, smooth: true }
  - key: own
    rate_limit: { requests: 5, per: 1m, smooth: true, coordination: local }
  - key: sliding
    rate_limit: { requests: 5, per: 1m, algorithm: sliding_window, smooth: true }
";
        let checked = |store, default| {
            check_shared(parse("shop.yaml", text).expect("the rules are valid"), store, default)
        };
        let errors = checked(MEMCACHED, Coordination::Auto).expect_err("one is smooth").errors;
        let [error] = &*errors else { panic!("{errors:?}") };
        let message = error.to_string();
        assert!(message.starts_with("shop.yaml:4:"), "{message}");
        assert!(message.contains("cannot share a limit with 'smooth: true'"), "{message}");
        assert!(checked(MEMCACHED, Coordination::Local).is_ok());
        assert!(checked(SharedStore::REDIS, Coordination::Auto).is_ok());
        let shadow = "domain: shop\ndescriptors:\n  - key: both\n    rate_limit: { requests: 5, per: 1m, smooth: true, \
                      shadow: { requests: 3, per: 1m } }\n";
        let loaded = parse("shop.yaml", shadow).expect("the rules are valid");
        let warnings =
            check_shared(loaded, SharedStore::REDIS, Coordination::Auto).expect("Redis can").warnings;
        assert!(warnings.is_empty(), "{warnings:?}");
    }
}
