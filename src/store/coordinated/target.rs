//! The store's target for a check.

use crate::{
    limit::{LimitCheck, OverLimitPolicy, Tier},
    store::{
        path::{path_of, shortened},
        remote::Target,
    },
};

impl Target {
    pub(super) fn of(check: &LimitCheck<'_>) -> Self {
        let (path, over_limit_policy) = (path_of(check), check.over_limit_policy());
        let path = match over_limit_policy {
            // the key in the store is made of all of it
            OverLimitPolicy::Count if !check.rule.is_shadow() => path,
            OverLimitPolicy::Count | OverLimitPolicy::Ignore => shortened(path),
        };
        Self { path, tiers: check.shared_tiers(), over_limit_policy }
    }

    /// Returns whether they have a counter in common in the store.
    pub(super) fn shares_counters(&self, other: &Self) -> bool {
        let is_of_other = |tier: &Tier| other.tiers.iter().any(|its| its.shares_counter(tier));
        self.path == other.path && !self.counts_rejected() && self.tiers.iter().any(is_of_other)
    }

    /// `check` must have the same key.
    pub(super) fn is_of(&self, check: &LimitCheck<'_>) -> bool {
        *self.tiers == *check.tiers() && self.over_limit_policy == check.over_limit_policy()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{
        Descriptor, Domain, Entry, KeyHasher, Limit, Matched, Pattern, Period, Request, Rule, RuleNode,
        RuleSet, Values,
    };

    fn name(rules: &RuleSet, value: &str) -> String {
        let entries = [Entry { key: "k", value }];
        let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
        let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits: 1 };
        Target::of(&Matched::new(rules, &request).checks[0]).path.to_string()
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
}
