//! Matches that are nothing but a limit, as most are.

use super::{
    compiled_rule::CompiledRule,
    decision::Direction,
    descriptor::{Descriptor, Request},
    key::CounterKey,
    matched::{LimitCheck, RuleRef},
    matcher::{Root, RuleSet},
    tier::{OverLimitPolicy, Tier},
    units::Hits,
};

/// What a descriptor matches that takes hits, if no other descriptor can change that. Has what its decision needs at
/// hand, unlike [`Matched`](super::Matched), which is for all requests.
#[derive(Debug)]
pub enum LimitMatch<'a, T> {
    /// No rule, or a rule without a limit.
    NoLimit,
    Unlimited,
    /// A limit, and what the caller has found about the rule.
    Limited(MatchedLimit<'a>, T),
}

#[derive(Debug)]
pub struct MatchedLimit<'a> {
    pub rule: &'a CompiledRule,
    pub tiers: &'a [Tier],
    pub over_limit_policy: OverLimitPolicy,
    pub key: CounterKey,
    pub hits: Hits,
}

// === impl LimitMatch ===

impl<'a, T> LimitMatch<'a, T> {
    /// None if the match of `descriptor` is more than a limit. `on_match` gets the [`CompiledRule::index`] before the rule
    /// is read, to prefetch by it.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "so that the match is made where it is used")]
    pub fn of(
        (rules, root): (&'a RuleSet, &Root),
        request: &Request<'_>,
        descriptor: &Descriptor<'_>,
        on_match: impl FnOnce(usize) -> T,
    ) -> Option<Self> {
        if descriptor.limit.is_some() || descriptor.refund {
            return None;
        }
        let entries = &*descriptor.entries;
        let Some((index, keys)) = rules.find_below(root, entries) else { return Some(Self::NoLimit) };
        let related = on_match(index);
        let rule = &rules.rules()[index];
        if rule.has_extras() {
            return None;
        }
        let (tiers, over_limit_policy) = (rule.tiers(), rule.over_limit_policy);
        if tiers.is_empty() {
            return Some(Self::Unlimited);
        }
        let limit = MatchedLimit {
            rule,
            tiers,
            over_limit_policy,
            key: rule.counter_key(keys, entries).of_policy(over_limit_policy),
            hits: request.hits_of(descriptor),
        };
        Some(Self::Limited(limit, related))
    }

    /// The check as [`Matched`](super::Matched) has it, if there is a limit.
    pub fn check(&self, domain: &'a str, descriptor: &'a Descriptor<'_>) -> Option<LimitCheck<'a>> {
        let Self::Limited(limit, _) = self else { return None };
        Some(LimitCheck {
            rule: RuleRef::Compiled(limit.rule),
            domain,
            entries: &descriptor.entries,
            key: limit.key,
            pool: None,
            hits: limit.hits,
            direction: Direction::Take,
            settles: false,
        })
    }
}
