use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    compiled_rule::{CompiledRule, CounterValue, RuleId},
    coordination::Coordination,
    decision::Direction,
    descriptor::{Descriptor, Entry, Request},
    key::{CounterKey, ValueHasher},
    matcher::{Root, RuleSet},
    place::{CHECK, IN_FLIGHT, InFlight, PlaceAsk, PlaceCheck},
    rule::{GiveBack, Limit, Rule, Scope},
    runtime_limit::RuntimeLimit,
    share::Sharing,
    tier::{OverLimitPolicy, SharedTiers, Tier, Tiers},
    units::Hits,
};

/// The rules that the descriptors of one request match.
#[derive(Debug, Default)]
pub struct Matched<'a> {
    /// One for each descriptor, in the request's order.
    pub matches: SmallVec<[DescriptorMatch<'a>; 2]>,
    /// The limits to check, in the request's order, and after them those in the shadow of their rules.
    pub checks: SmallVec<[LimitCheck<'a>; 2]>,
    shadows: usize,
    /// The descriptors whose requests have places, each with its index in [`Matched::matches`].
    pub places: Vec<(usize, PlaceCheck<'a>)>,
    /// Whether a descriptor names a running request.
    pub has_ends: bool,
    pub unknown_domain: bool,
    /// What a rejection affects, as the domain says.
    pub scope: Scope,
    /// Whether callers may give hits back to limits that come with requests, as the domain says.
    give_back: GiveBack,
}

#[derive(Clone, Copy, Debug)]
pub enum DescriptorMatch<'a> {
    /// No rule, a rule without a limit, or a rule that another one replaces. The descriptor is admitted.
    NoLimit,
    Unlimited(&'a CompiledRule),
    /// A limit, checked by this element of [`Matched::checks`].
    Limited(usize),
    /// It names a running request, which was admitted before.
    Running,
}

/// Hits that a store checks against one rule.
#[derive(Debug)]
pub struct LimitCheck<'a> {
    pub rule: RuleRef<'a>,
    /// Names the counter in stores that use names, together with `entries` and [`LimitCheck::shared`].
    pub domain: &'a str,
    pub entries: &'a [Entry<'a>],
    pub key: CounterKey,
    /// Identifies the pool, if the values of the last entry share the first tier. Boxed, since few checks have one.
    pub pool: Option<Box<CounterKey>>,
    pub hits: Hits,
    pub direction: Direction,
    /// Whether hits that it takes are the cost of a request that was admitted before: they count above the limit, too.
    pub settles: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum RuleRef<'a> {
    Compiled(&'a CompiledRule),
    /// The tiers of a configured rule beside its pool.
    OwnTiers(&'a CompiledRule),
    /// The limit in the shadow of a configured rule: it is counted, and never rejects.
    Shadow(&'a CompiledRule),
    /// A limit that came with the request.
    Override(&'a RuntimeLimit),
    /// What this instance has of the limit of a rule or a request. Only within a store.
    Part(&'a OwnPart<'a>),
}

/// What this instance has of a limit that instances split.
#[derive(Debug)]
pub struct OwnPart<'a> {
    /// The limit. Not a part itself.
    pub of: RuleRef<'a>,
    /// The tiers of the part, one for each tier of the limit. Each uses the counter of that tier.
    pub tiers: Tiers,
}

// === impl Matched ===

impl<'a> Matched<'a> {
    /// Looks `request` up in `rules`, and drops the rules that others replace.
    pub fn new(rules: &'a RuleSet, request: &'a Request<'_>) -> Self {
        Self::with_prefetch(rules, request, |_| {})
    }

    /// Like [`Matched::new`]. `on_match` gets the [`CompiledRule::index`] before the rule is read, to prefetch by it.
    pub fn with_prefetch(rules: &'a RuleSet, request: &'a Request<'_>, on_match: impl Fn(usize)) -> Self {
        let mut matched = Self::default();
        let Some(root) = rules.root(request.domain) else {
            matched.unknown_domain = true;
            matched.matches.resize(request.descriptors.len(), DescriptorMatch::NoLimit);
            return matched;
        };
        (matched.scope, matched.give_back) = (root.scope, root.give_back);
        let (mut replaces, mut has_shadows) = (false, false);
        // pushed one by one: `collect` costs more than the rest of this
        for descriptor in &request.descriptors {
            let found = find(rules, root, request.domain, descriptor, &on_match);
            if let Some((RuleRef::Compiled(rule), _)) = &found
                && rule.has_extras()
            {
                replaces |= !rule.replaces().is_empty();
                has_shadows |= rule.shadow().is_some();
            }
            let descriptor_match = matched.match_of(request, descriptor, found);
            matched.matches.push(descriptor_match);
        }
        if replaces {
            matched.drop_replaced();
        }
        if has_shadows {
            matched.add_shadows();
        }
        matched
    }

    /// Returns the checks whose decisions the answer consists of.
    pub fn enforced(&self) -> &[LimitCheck<'a>] {
        &self.checks[..self.checks.len() - self.shadows]
    }

    pub const fn has_shadows(&self) -> bool {
        self.shadows > 0
    }

    /// Returns the checks in the shadow of rules, in the order of the rules.
    pub fn shadows(&self) -> &[LimitCheck<'a>] {
        &self.checks[self.checks.len() - self.shadows..]
    }

    fn match_of(
        &mut self,
        request: &'a Request<'_>,
        descriptor: &'a Descriptor<'_>,
        found: Option<(RuleRef<'a>, ValueHasher)>,
    ) -> DescriptorMatch<'a> {
        let mut entries = &*descriptor.entries;
        let Some((rule, keys)) = found else { return DescriptorMatch::NoLimit };
        let mut hits = request.hits_of(descriptor);
        let mut is_check = false;
        if let RuleRef::Compiled(rule) = &rule
            && rule.has_names()
        {
            match entries {
                [above @ .., last] if !above.is_empty() && (last.key, last.value) == (IN_FLIGHT, CHECK) => {
                    (entries, hits, is_check) = (above, Hits(0), true);
                }
                _ if is_of_running(entries) => {
                    self.has_ends = true;
                    return DescriptorMatch::Running;
                }
                _ => {}
            }
            if let Some(limit) = rule.places()
                && let Some(ask) = ask_of(rule, hits, is_check, descriptor.refund)
            {
                // what the request says replaces the number of places
                let own = descriptor.limit.as_deref().and_then(|own| own.tiers().first());
                let most = own.map_or(limit.most, |tier| tier.requests.min(InFlight::MAX));
                let limit = InFlight { most, ..limit };
                self.places
                    .push((self.matches.len(), rule.place((request.domain, entries), &keys, limit, ask)));
            }
        }
        let (key, pool) = match &rule {
            RuleRef::Compiled(rule) if rule.tiers().is_empty() => {
                return DescriptorMatch::Unlimited(rule);
            }
            RuleRef::Compiled(rule) | RuleRef::OwnTiers(rule) | RuleRef::Shadow(rule) => {
                (rule.counter_key(&keys, entries), rule.pool_key(&keys, entries).map(Box::new))
            }
            RuleRef::Override(_) | RuleRef::Part(_) => (keys.key(entries, |_| None).of_request(), None),
        };
        let only_looks = is_check || hits == Hits(0) && rule.meters();
        self.checks.push(LimitCheck {
            pool,
            key: key.of_policy(rule.over_limit_policy()),
            settles: hits > Hits(1) && rule.meters(),
            rule,
            domain: request.domain,
            entries,
            hits,
            direction: if only_looks { Direction::Look } else { Direction::Take },
        });
        if descriptor.refund {
            self.give_back_last();
        }
        DescriptorMatch::Limited(self.checks.len() - 1)
    }

    /// Nothing is given back if its rule denies that.
    #[cold]
    fn give_back_last(&mut self) {
        let Some(i) = self.checks.len().checked_sub(1) else { return };
        let is_denied = self.give_back_to(&self.checks[i]) == GiveBack::Deny;
        let check = &mut self.checks[i];
        check.direction = Direction::GiveBack;
        if is_denied {
            check.hits = Hits(0);
        }
    }

    pub fn give_back_to(&self, check: &LimitCheck<'_>) -> GiveBack {
        check.rule.give_back().unwrap_or(self.give_back)
    }

    #[cold]
    fn add_shadows(&mut self) {
        let shadows: SmallVec<[LimitCheck<'a>; 2]> =
            self.checks.iter().filter_map(LimitCheck::in_shadow).collect();
        self.shadows = shadows.len();
        self.checks.extend(shadows);
    }

    /// In any order. An unlimited rule can replace others but is never replaced: it counts nothing, if it has no places.
    #[cold]
    fn drop_replaced(&mut self) {
        let mut names: SmallVec<[Box<str>; 4]> = SmallVec::new();
        for descriptor in &self.matches {
            match descriptor {
                DescriptorMatch::NoLimit | DescriptorMatch::Running => {}
                DescriptorMatch::Unlimited(rule) => names.extend(rule.replaces().iter().cloned()),
                DescriptorMatch::Limited(check) => {
                    names.extend(self.checks[*check].rule.replaces().iter().cloned());
                }
            }
        }
        let is_named = |name: &str| names.iter().any(|replaced| **replaced == *name);
        let is_replaced = |check: &LimitCheck<'_>| check.rule.name().is_some_and(is_named);
        self.places.retain(|(i, place)| {
            let is_replaced = place.rule.name().is_some_and(is_named);
            if is_replaced && matches!(self.matches[*i], DescriptorMatch::Unlimited(_)) {
                self.matches[*i] = DescriptorMatch::NoLimit;
            }
            !is_replaced
        });
        let mut kept = 0;
        for descriptor in &mut self.matches {
            if let DescriptorMatch::Limited(check) = descriptor {
                if is_replaced(&self.checks[*check]) {
                    *descriptor = DescriptorMatch::NoLimit;
                } else {
                    *check = kept;
                    kept += 1;
                }
            }
        }
        self.checks.retain(|check| !is_replaced(check));
    }
}

fn find<'a>(
    rules: &'a RuleSet,
    root: &Root,
    domain: &str,
    descriptor: &'a Descriptor<'_>,
    on_match: impl Fn(usize),
) -> Option<(RuleRef<'a>, ValueHasher)> {
    if let Some(limit) = &descriptor.limit
        && !(root.has_names && keeps_rule(rules, root, &descriptor.entries))
    {
        let keys = descriptor.entries.iter().map(|entry| entry.key);
        return Some((RuleRef::Override(limit), rules.hasher.of_keys(domain, keys)));
    }
    let (index, keys) = rules.find_below(root, &descriptor.entries)?;
    on_match(index);
    Some((RuleRef::Compiled(&rules.rules()[index]), *keys))
}

/// Whether a limit that comes with a request replaces only the number of places, or nothing for a running one.
fn keeps_rule(rules: &RuleSet, root: &Root, entries: &[Entry<'_>]) -> bool {
    let found = rules.find_below(root, entries);
    found
        .map(|(index, _)| &rules.rules()[index])
        .is_some_and(|rule| rule.rule.in_flight.is_some() || rule.has_names() && is_of_running(entries))
}

/// What a descriptor asks of the places of `rule`, if anything. With a limit on requests in flight, those end by name, and
/// a cost without one leaves its place alone.
fn ask_of(rule: &CompiledRule, hits: Hits, is_check: bool, is_refund: bool) -> Option<PlaceAsk> {
    let is_limited = rule.rule.in_flight.is_some();
    match hits {
        _ if is_refund => is_limited.then_some(PlaceAsk::Nothing),
        _ if is_check => is_limited.then_some(PlaceAsk::Look),
        Hits(2..) if rule.meters() => (!is_limited).then_some(PlaceAsk::Close),
        Hits(0) if rule.reserve().is_none() => Some(PlaceAsk::Look),
        _ => Some(PlaceAsk::Take),
    }
}

/// Whether a descriptor that finds a rule whose requests have names is about a running one.
fn is_of_running(entries: &[Entry<'_>]) -> bool {
    entries.last().is_some_and(|entry| entry.key == IN_FLIGHT)
}

// === impl DescriptorMatch ===

impl DescriptorMatch<'_> {
    /// Returns the index of its check in [`Matched::checks`].
    pub const fn check(&self) -> Option<usize> {
        match self {
            Self::Limited(check) => Some(*check),
            Self::NoLimit | Self::Unlimited(_) | Self::Running => None,
        }
    }
}

// === impl LimitCheck ===

impl LimitCheck<'_> {
    pub fn rule_text(&self) -> String {
        match (self.rule.name(), self.rule.compiled()) {
            (Some(name), Some(rule)) => format!("{} ({name})", rule.path),
            (None, Some(rule)) => rule.path.to_string(),
            (_, None) => format!("{} override", self.domain),
        }
    }

    fn in_shadow(&self) -> Option<Self> {
        let RuleRef::Compiled(rule) = self.rule else { return None };
        let policy = rule.shadow()?.over_limit_policy();
        Some(Self {
            rule: RuleRef::Shadow(rule),
            key: self.key.of_shadow(self.over_limit_policy(), policy),
            pool: None,
            ..*self
        })
    }

    pub const fn of_part<'p>(&self, part: &'p OwnPart<'p>) -> LimitCheck<'p>
    where
        Self: 'p,
    {
        let check: &LimitCheck<'p> = self;
        LimitCheck { rule: RuleRef::Part(part), pool: None, ..*check }
    }

    pub fn copied(&self) -> LimitCheck<'_> {
        LimitCheck { pool: self.pool.clone(), ..*self }
    }

    /// Returns the tiers that must all admit it; at least one.
    #[inline]
    pub fn tiers(&self) -> &[Tier] {
        self.rule.tiers()
    }

    /// Returns the tiers for a counter that outlives the request: those of a rule are shared, not copied.
    pub fn shared_tiers(&self) -> SharedTiers {
        match &self.rule {
            RuleRef::Compiled(rule) => rule.shared_tiers.clone(),
            RuleRef::Shadow(rule) => rule.shadow_tiers.clone().unwrap_or_else(|| rule.shared_tiers.clone()),
            RuleRef::OwnTiers(_) | RuleRef::Override(_) | RuleRef::Part(_) => {
                self.tiers().iter().cloned().collect()
            }
        }
    }

    /// Returns the over-limit policy that the rule declares, which is a part of the counter's identity.
    #[inline]
    pub fn over_limit_policy(&self) -> OverLimitPolicy {
        self.rule.over_limit_policy()
    }

    /// Returns whether its hits count if they are rejected, and a rejection affects `scope`.
    #[inline]
    pub fn over_limit_policy_in(&self, scope: Scope) -> OverLimitPolicy {
        match self.rule.meters() {
            true if self.is_cost() => OverLimitPolicy::Count,
            true => OverLimitPolicy::Ignore,
            false => scope.policy_of(self.over_limit_policy()),
        }
    }

    /// Returns whether its hits are the cost of a request that was admitted before.
    pub fn is_cost(&self) -> bool {
        self.settles && self.direction == Direction::Take
    }

    /// Returns whether it is about a request that was admitted before: it counts, whatever becomes of other checks.
    pub fn stands(&self) -> bool {
        self.is_cost() || self.direction == Direction::GiveBack && self.rule.meters()
    }

    /// Returns the tiers in which each value of the last entry counts by itself: all, or those beside a pool.
    pub fn own_tiers(&self) -> &[Tier] {
        &self.tiers()[usize::from(self.pool.is_some())..]
    }

    pub fn of_own_tiers(&self, hits: Hits) -> Option<LimitCheck<'_>> {
        let RuleRef::Compiled(rule) = self.rule else { return None };
        let has_tiers = self.pool.is_some() && !self.own_tiers().is_empty();
        has_tiers.then_some(LimitCheck { rule: RuleRef::OwnTiers(rule), pool: None, hits, ..*self })
    }

    /// Returns how the values of the last entry share the first tier, if they do.
    pub fn sharing(&self) -> Option<&Arc<Sharing>> {
        match &self.rule {
            RuleRef::Compiled(rule) => rule.sharing(),
            RuleRef::OwnTiers(_) | RuleRef::Shadow(_) | RuleRef::Override(_) | RuleRef::Part(_) => None,
        }
    }

    /// Returns whether its limit is in the shadow of that of `other`, about the same hits.
    pub fn is_in_shadow_of(&self, other: &LimitCheck<'_>) -> bool {
        self.rule.is_shadow() && other.in_shadow().is_some_and(|shadow| shadow.key == self.key)
    }

    /// Returns whether the rule says that each instance counts alone, also where they share a store.
    pub fn is_local(&self) -> bool {
        self.rule.declared().is_some_and(|rule| rule.coordination.mode == Some(Coordination::Local))
    }

    /// Returns the value that is a member of the pool: that of the last entry, or what stands for it.
    pub fn member(&self) -> CounterValue<'_> {
        let last = self.entries.len().checked_sub(1);
        last.map_or_else(|| CounterValue::Own("".into()), |last| self.value(last))
    }

    /// Returns what stands for the value of entry `i` in the counter's name. Panics if there is no such entry.
    pub fn value(&self, i: usize) -> CounterValue<'_> {
        let value = self.entries[i].value;
        let counted = self.rule.compiled().and_then(|rule| rule.counted(i, value));
        counted.unwrap_or(CounterValue::Own(value.into()))
    }

    /// Returns the text that replaces all values of entry `i` in the counter's name.
    pub fn shared(&self, i: usize) -> Option<&str> {
        self.rule.compiled()?.shared(i)
    }
}

// === impl RuleRef ===

impl<'a> RuleRef<'a> {
    /// Returns the tiers, all of which must admit a request; none if it is unlimited.
    #[inline]
    pub fn tiers(&self) -> &[Tier] {
        match self {
            Self::Compiled(rule) => rule.tiers(),
            Self::OwnTiers(rule) => rule.tiers().get(1..).unwrap_or_default(),
            Self::Shadow(rule) => rule.shadow().map(Limit::tiers).unwrap_or_default(),
            Self::Override(limit) => limit.tiers(),
            Self::Part(part) => &part.tiers,
        }
    }

    #[inline]
    pub fn over_limit_policy(&self) -> OverLimitPolicy {
        match self {
            Self::Compiled(rule) | Self::OwnTiers(rule) => rule.over_limit_policy,
            Self::Shadow(rule) => rule.shadow().map_or(OverLimitPolicy::Ignore, Limit::over_limit_policy),
            Self::Override(limit) => limit.over_limit_policy(),
            Self::Part(part) => part.of.over_limit_policy(),
        }
    }

    /// Returns whether it rejects every request, now and later. A limit as in envoyproxy/ratelimit is reported as there.
    pub fn is_closed(&self) -> bool {
        self.over_limit_policy() == OverLimitPolicy::Ignore
            && self.tiers().iter().any(|tier| tier.capacity() == 0)
    }

    pub fn meters(&self) -> bool {
        match self {
            Self::Compiled(rule) | Self::OwnTiers(rule) | Self::Shadow(rule) => rule.meters(),
            Self::Override(_) => false,
            Self::Part(part) => part.of.meters(),
        }
    }

    pub const fn is_shadow(&self) -> bool {
        match self {
            Self::Part(part) => part.of.is_shadow(),
            _ => matches!(self, Self::Shadow(_)),
        }
    }

    /// Returns whether it rejects nothing: [`Rule::shadow_mode`], or a limit in a shadow; false for an override.
    pub fn shadow_mode(&self) -> bool {
        match self {
            Self::Compiled(rule) | Self::OwnTiers(rule) => rule.shadow_mode,
            Self::Shadow(_) => true,
            Self::Override(_) => false,
            Self::Part(part) => part.of.shadow_mode(),
        }
    }

    pub fn quota_mode(&self) -> bool {
        match self {
            Self::Compiled(rule) | Self::OwnTiers(rule) => rule.quota_mode,
            Self::Part(part) => part.of.quota_mode(),
            Self::Shadow(_) | Self::Override(_) => false,
        }
    }

    pub fn compiled(&self) -> Option<&'a CompiledRule> {
        match self {
            Self::Compiled(rule) | Self::OwnTiers(rule) | Self::Shadow(rule) => Some(rule),
            Self::Override(_) => None,
            Self::Part(part) => part.of.compiled(),
        }
    }

    pub fn id(&self) -> Option<RuleId> {
        self.compiled().map(CompiledRule::id)
    }

    /// Returns whether callers may give its hits back; none for an override, for which its domain says it.
    pub fn give_back(&self) -> Option<GiveBack> {
        self.compiled().map(|rule| rule.give_back)
    }

    pub fn coordination(&self) -> Option<Coordination> {
        self.compiled()?.coordination
    }

    pub fn name(&self) -> Option<&str> {
        self.compiled()?.name()
    }

    pub fn declared(&self) -> Option<&Rule> {
        self.compiled().map(|compiled| &compiled.rule)
    }

    /// Returns the rule's name, else its path, else `override` for a limit that came with the request.
    pub fn label(&self) -> String {
        match (self.name(), self.compiled()) {
            (Some(name), _) => name.to_owned(),
            (None, Some(rule)) => rule.path.to_string(),
            (None, None) => "override".to_owned(),
        }
    }

    fn replaces(&self) -> &[Box<str>] {
        self.compiled().map_or(&[], CompiledRule::replaces)
    }
}
