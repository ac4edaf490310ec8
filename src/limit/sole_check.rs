//! A request with one rule, which has nothing but a limit.

use super::{
    compiled_rule::CompiledRule,
    decision::Direction,
    descriptor::{Entry, Request},
    key::CounterKey,
    matched::{LimitCheck, RuleRef},
    matcher::RuleSet,
    rule::{Limit, Scope},
    tier::{OverLimitPolicy, Tier},
    units::Hits,
};

/// A request that takes hits of one descriptor, which matches a rule with nothing but a limit: most requests are such. It has
/// no lists, unlike [`Matched`](super::Matched), which is for all requests.
#[derive(Clone, Copy, Debug)]
pub struct SoleCheck<'a> {
    /// The rule.
    pub rule: &'a CompiledRule,
    /// The tiers of its limit.
    pub tiers: &'a [Tier],
    /// Whether rejected hits count, as the rule says.
    pub over_limit_policy: OverLimitPolicy,
    /// As [`LimitCheck::entries`].
    pub entries: &'a [Entry<'a>],
    /// Identifies the counter within this process.
    pub key: CounterKey,
    /// The number of hits.
    pub hits: Hits,
    /// What a rejection affects, as the domain says.
    pub scope: Scope,
}

// === impl SoleCheck ===

impl<'a> SoleCheck<'a> {
    /// Returns the check of `request`, if it has no other one, and what `on_match` returns for the [`CompiledRule::index`] of
    /// its rule. Calls `on_match` before it reads the rule, so that the caller can prefetch related data.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "so that the check is made where it is used")]
    #[must_use]
    pub fn of<T>(
        rules: &'a RuleSet,
        request: &'a Request<'_>,
        on_match: impl Fn(usize) -> T,
    ) -> Option<(Self, T)> {
        let [descriptor] = &*request.descriptors else { return None };
        if descriptor.limit.is_some() || descriptor.refund {
            return None;
        }
        let root = rules.root(request.domain)?;
        let entries = &*descriptor.entries;
        let (index, keys) = rules.find_below(root, entries)?;
        let related = on_match(index);
        let rule = &rules.rules()[index];
        let Limit::Tiers { tiers, over_limit_policy } = &rule.limit else { return None };
        if rule.has_extras() {
            return None;
        }
        let check = Self {
            rule,
            tiers,
            over_limit_policy: *over_limit_policy,
            entries,
            key: rule.counter_key(keys, entries).of_policy(*over_limit_policy),
            hits: request.hits_of(descriptor),
            scope: root.scope,
        };
        Some((check, related))
    }

    /// Returns the check as [`Matched`](super::Matched) would have it, of a request about `domain`.
    #[must_use]
    pub const fn in_domain(&self, domain: &'a str) -> LimitCheck<'a> {
        LimitCheck {
            rule: RuleRef::Compiled(self.rule),
            domain,
            entries: self.entries,
            key: self.key,
            pool: None,
            hits: self.hits,
            direction: Direction::Take,
        }
    }
}
