//! What a shared store counts: the tiers of one rule for one list of entries.

use weir_limit::{LimitCheck, OverLimitPolicy, SharedTiers, Tier};

use crate::path::{Sha256, path_of, shortened};

/// The tiers of one rule for one list of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The domain, keys and values, such as `shop|tenant=acme`; where values share a counter, `~` and their pattern
    /// replace `=` and the value. No two lists of entries have the same path. A long one is a hash, unless the key of
    /// envoyproxy/ratelimit is made of it. The store adds its prefix, and a suffix for the tier and the window.
    pub path: Box<str>,
    pub tiers: SharedTiers,
    /// [`OverLimitPolicy::Count`]: a rule with the key and the count of envoyproxy/ratelimit, to share a store with it.
    pub over_limit_policy: OverLimitPolicy,
}

// === impl Target ===

impl Target {
    pub fn of(check: &LimitCheck<'_>, sha256: Sha256) -> Self {
        let (path, over_limit_policy) = (path_of(check), check.over_limit_policy());
        let path = match over_limit_policy {
            // the key in the store is made of all of it
            OverLimitPolicy::Count if !check.rule.is_shadow() => path,
            OverLimitPolicy::Count | OverLimitPolicy::Ignore => shortened(path, sha256),
        };
        Self { path, tiers: check.shared_tiers(), over_limit_policy }
    }

    pub fn shares_counters(&self, other: &Self) -> bool {
        let is_of_other = |tier: &Tier| other.tiers.iter().any(|its| its.shares_counter(tier));
        let have_own_keys = self.counts_rejected() || other.counts_rejected();
        self.path == other.path && !have_own_keys && self.tiers.iter().any(is_of_other)
    }

    /// Returns whether it is that of `check`, which must have the same key.
    pub fn is_of(&self, check: &LimitCheck<'_>) -> bool {
        *self.tiers == *check.tiers() && self.over_limit_policy == check.over_limit_policy()
    }

    pub fn counts_rejected(&self) -> bool {
        self.over_limit_policy == OverLimitPolicy::Count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_limit::{
        Descriptor, Domain, Entry, KeyHasher, Limit, Matched, Pattern, Period, Request, Rule, RuleNode,
        RuleSet, Values,
    };

    fn name(rules: &RuleSet, value: &str) -> String {
        let entries = [Entry { key: "k", value }];
        let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
        let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits: 1 };
        Target::of(&Matched::new(rules, &request).checks[0], |_| [0; 32]).path.to_string()
    }

    #[test]
    fn values_that_share_a_limit_have_one_name_in_the_store() {
        for shares in [true, false] {
            let node = RuleNode {
                rule: Some(Rule::new(Limit::fixed_window(1, Period::from_secs(1)))),
                share_threshold: shares,
                ..RuleNode::new("k", Values::One(Pattern::new("a*")))
            };
            let domain = Domain::new("d", vec![node]);
            let rules = RuleSet::new(&[domain], KeyHasher::random());
            assert_eq!(name(&rules, "a1") == name(&rules, "a2"), shares);
        }
    }

    /// Its counts are in keys of their own.
    #[test]
    fn a_target_in_the_format_of_envoyproxy_ratelimit_shares_no_counter() {
        use OverLimitPolicy::{Count, Ignore};
        let tier = Tier::fixed_window(1, Period::from_secs(60));
        let target = |over_limit_policy| Target {
            path: "d|k=v".into(),
            tiers: [tier.clone()].into(),
            over_limit_policy,
        };
        for (one, other, shares) in
            [(Ignore, Ignore, true), (Ignore, Count, false), (Count, Ignore, false), (Count, Count, false)]
        {
            assert_eq!(target(one).shares_counters(&target(other)), shares, "{one:?} {other:?}");
        }
    }
}
