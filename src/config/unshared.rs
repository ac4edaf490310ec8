//! Warns of rules that a store which counts only single fixed windows, such as Memcached, cannot share between instances.

use std::fmt::Write as _;

use super::{error::ConfigWarning, load::Loaded};
use crate::limit::{Coordination, Limit, Rule, RuleNode};

/// The rules that are warned of one by one.
const MAX_WARNINGS: usize = 100;

/// Adds a warning for each rule of `loaded` that Memcached cannot share, so that every instance counts it by itself. `default`
/// is the coordination mode of rules that name none; a rule that is `local` is meant to be counted so.
pub fn warn_of_unshared(loaded: &mut Loaded, default: Coordination) {
    let mut unshared = Vec::new();
    for domain in &loaded.domains {
        find(&domain.nodes, default, &mut unshared);
    }
    let omitted = unshared.len().saturating_sub(MAX_WARNINGS);
    for (i, rule) in unshared.into_iter().take(MAX_WARNINGS).enumerate() {
        let mut message = if rule.sharing.is_some() {
            "Memcached cannot share this pool: of N instances, each has the N-th part".to_owned()
        } else if rule.limit.is_single_fixed_window() {
            "Memcached cannot share the limit in the shadow of this one, because it counts only single fixed \
             windows: each instance counts by itself what that would reject"
                .to_owned()
        } else {
            "Memcached cannot share this limit, because it counts only single fixed windows: each \
             instance admits the whole limit (coordination: local declares that)"
                .to_owned()
        };
        if i + 1 == MAX_WARNINGS && omitted > 0 {
            // writing to a string does not fail
            let _ = write!(message, "; and so {omitted} more rules");
        }
        loaded.warnings.push(ConfigWarning { at: rule.origin.clone(), message });
    }
    loaded
        .warnings
        .sort_by(|a, b| (&a.at.file, a.at.line, a.at.column).cmp(&(&b.at.file, b.at.line, b.at.column)));
}

fn find<'n>(nodes: &'n [RuleNode], default: Coordination, unshared: &mut Vec<&'n Rule>) {
    for node in nodes {
        let is_unshared = |rule: &&Rule| {
            let mode = rule.coordination.mode.unwrap_or(default);
            let is_counted = |limit: &Limit| limit.is_single_fixed_window();
            let all = is_counted(&rule.limit) && rule.shadow.as_ref().is_none_or(is_counted);
            mode != Coordination::Local && (rule.sharing.is_some() || !all)
        };
        unshared.extend(node.rule.as_ref().filter(is_unshared));
        find(&node.children, default, unshared);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

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
        warn_of_unshared(&mut loaded, default);
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
}
