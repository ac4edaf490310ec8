//! Requests whose rules have nothing but limits, as most requests are.

use smallvec::SmallVec;

use super::{
    compiled_rule::CompiledRule,
    decision::Direction,
    descriptor::{Descriptor, Entry, Request},
    key::CounterKey,
    matched::{LimitCheck, RuleRef},
    matcher::{Root, RuleSet},
    rule::{Limit, Scope},
    tier::{OverLimitPolicy, Tier},
    units::Hits,
};

/// What a descriptor that takes hits matches, if its rule has nothing but a limit. Has what its decision needs at hand,
/// unlike [`Matched`](super::Matched), which is for all requests.
#[derive(Debug)]
pub enum PlainMatch<'a, T> {
    /// No rule, or a rule without a limit.
    NoLimit,
    /// A rule that admits everything.
    Unlimited,
    /// A limit, and what the caller has found about the rule.
    Limited(PlainCheck<'a>, T),
}

/// The matches of a request, one for each descriptor.
pub type PlainMatches<'a, T> = SmallVec<[PlainMatch<'a, T>; 2]>;

/// Hits that are taken of one limit.
#[derive(Debug)]
pub struct PlainCheck<'a> {
    /// The rule, as verdicts have it.
    pub rule: RuleRef<'a>,
    /// The same rule.
    pub compiled: &'a CompiledRule,
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
}

// === impl PlainMatch ===

impl<'a, T> PlainMatch<'a, T> {
    /// None if that is not plain. `on_match` gets the [`CompiledRule::index`] before the rule is read, to prefetch.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "so that the check is made where it is used")]
    fn of(
        rules: &'a RuleSet,
        root: &Root,
        request: &Request<'_>,
        descriptor: &'a Descriptor<'_>,
        on_match: impl Fn(usize) -> T,
    ) -> Option<Self> {
        if descriptor.limit.is_some() || descriptor.refund {
            return None;
        }
        let entries = &*descriptor.entries;
        let Some((index, keys)) = rules.find_below(root, entries) else { return Some(Self::NoLimit) };
        let related = on_match(index);
        let compiled = &rules.rules()[index];
        if compiled.has_extras() {
            return None;
        }
        let Limit::Tiers { tiers, over_limit_policy } = &compiled.limit else { return Some(Self::Unlimited) };
        let check = PlainCheck {
            rule: RuleRef::Compiled(compiled),
            compiled,
            tiers,
            over_limit_policy: *over_limit_policy,
            entries,
            key: compiled.counter_key(keys, entries).of_policy(*over_limit_policy),
            hits: request.hits_of(descriptor),
        };
        Some(Self::Limited(check, related))
    }

    /// Returns the check, if there is one, as [`PlainCheck::in_domain`] does.
    #[must_use]
    pub fn in_domain(&self, domain: &'a str) -> Option<LimitCheck<'a>> {
        match self {
            Self::Limited(check, _) => Some(check.in_domain(domain)),
            Self::NoLimit | Self::Unlimited => None,
        }
    }

    /// Finds all `matches`, or returns false: a descriptor is not plain, or a rejection affects more than it.
    pub fn find(
        rules: &'a RuleSet,
        request: &'a Request<'_>,
        least: Scope,
        on_match: impl Fn(usize) -> T,
        matches: &mut PlainMatches<'a, T>,
    ) -> bool {
        let Some(root) = rules.root(request.domain) else { return false };
        if least.max(root.scope) != Scope::Descriptor {
            return false;
        }
        for descriptor in &request.descriptors {
            match Self::of(rules, root, request, descriptor, &on_match) {
                Some(found) => matches.push(found),
                None => return false,
            }
        }
        true
    }
}

// === impl PlainCheck ===

impl<'a> PlainCheck<'a> {
    /// Returns the sole check, if it is plain; what a rejection affects in its domain; and what `on_match` returns.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "so that the check is made where it is used")]
    #[must_use]
    pub fn sole<T>(
        rules: &'a RuleSet,
        request: &'a Request<'_>,
        on_match: impl Fn(usize) -> T,
    ) -> Option<(Self, Scope, T)> {
        let [descriptor] = &*request.descriptors else { return None };
        let root = rules.root(request.domain)?;
        match PlainMatch::of(rules, root, request, descriptor, on_match)? {
            PlainMatch::Limited(check, related) => Some((check, root.scope, related)),
            PlainMatch::NoLimit | PlainMatch::Unlimited => None,
        }
    }

    /// Returns the check as [`Matched`](super::Matched) would have it, of a request about `domain`.
    #[must_use]
    pub const fn in_domain(&self, domain: &'a str) -> LimitCheck<'a> {
        LimitCheck {
            rule: RuleRef::Compiled(self.compiled),
            domain,
            entries: self.entries,
            key: self.key,
            pool: None,
            hits: self.hits,
            direction: Direction::Take,
        }
    }
}
