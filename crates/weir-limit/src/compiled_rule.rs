use std::{borrow::Cow, fmt, num::NonZeroU32, ops::Deref, slice, sync::Arc};

use super::{
    coordination::Coordination,
    descriptor::Entry,
    key::{CounterKey, KeyHasher, ValueHasher},
    network::{CountBy, IpNetwork, NetworkTable, PrefixLengths},
    pattern::Values,
    place::{InFlight, PlaceAsk, PlaceCheck},
    reserve::Reserve,
    rule::{GiveBack, Limit, Rule, RuleNode},
    share::Sharing,
    tier::{OverLimitPolicy, SharedTiers, Tier},
    units::{Hits, Period},
};

/// A rule with its position in the tree, compiled for look-ups.
///
/// The fields that every request reads fit in one cache line; flags say which optional data is behind the pointer. With
/// thousands of rules, most are not in the CPU's caches, and each further line is a cache miss.
#[derive(Debug)]
#[repr(align(64))]
pub struct CompiledRule {
    /// The first of its tiers: most rules have one. A placeholder without a limit.
    first: Tier,
    has_one_tier: bool,
    pub(super) over_limit_policy: OverLimitPolicy,
    details: Box<Details>,
    id: RuleId,
    pub(super) shadow_mode: bool,
    pub(super) quota_mode: bool,
    pub(super) coordination: Option<Coordination>,
    has_name: bool,
    /// Whether it replaces other rules, its values share the limit, a limit is in its shadow, it meters, or it limits
    /// requests in flight.
    has_extras: bool,
    has_static_key: bool,
    has_shared_values: bool,
    has_dynamic_stats: bool,
}

/// Identifies a rule among all rules that were ever loaded in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId {
    pub(super) set: NonZeroU32,
    pub(super) index: u32,
}

impl RuleId {
    /// Returns whether it is of an earlier set of rules than `other`.
    pub const fn is_older_than(self, other: Self) -> bool {
        // the numbers of sets may have begun again
        self.set.get() != other.set.get() && other.set.get().wrapping_sub(self.set.get()) < u32::MAX / 2
    }
}

/// The parts of a rule that few requests read.
#[derive(Debug)]
pub struct Details {
    pub rule: Rule,
    /// Its tiers, for counters of their own that outlive a request; they share them.
    pub shared_tiers: SharedTiers,
    pub(super) shadow_tiers: Option<SharedTiers>,
    pub give_back: GiveBack,
    /// The key of its one counter, if no value is part of it.
    static_key: Option<CounterKey>,
    /// Its domain, in one allocation that all rules of the domain share.
    pub domain: Arc<str>,
    /// The levels from the domain down to the rule. Never empty.
    pub levels: Vec<Level>,
    /// The domain, keys and values as declared. Names the rule in stats and on debug pages.
    pub path: RulePath,
}

/// What stands for the value of each member in the key of a pool.
const MEMBERS: &str = "*";

/// A domain and the steps below it, such as `shop.tenant_acme.method`. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RulePath(Box<[Box<str>]>);

/// One level of the path from a domain to a rule.
#[derive(Clone, Debug)]
pub struct Level {
    pub key: Box<str>,
    pub values: Values,
    /// As [`RuleNode::plan`].
    pub plan: Option<Box<str>>,
    /// What of its values has a counter of its own.
    pub count_by: CountBy,
    pub value_to_metric: bool,
    counted: CountedValue,
}

/// What stands for the value of a level in counter keys.
#[derive(Clone, Debug)]
enum CountedValue {
    Own,
    Shared(Box<str>),
    /// The longest network that holds it.
    Network(Arc<NetworkTable>),
    Prefix(PrefixLengths),
}

/// What stands for the value of an entry in the name of its counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CounterValue<'a> {
    /// The value itself, or the canonical text of its address or network.
    Own(Cow<'a, str>),
    /// The pattern, list or network of the rule, in place of all values that share the counter.
    Shared(Cow<'a, str>),
}

// === impl CompiledRule ===

impl CompiledRule {
    pub(super) fn new(
        rule: Rule,
        id: RuleId,
        (domain, give_back): (&Arc<str>, GiveBack),
        levels: &[Level],
        hasher: &KeyHasher,
    ) -> Self {
        let path = RulePath::new(domain, levels.iter().map(|level| level.name().into()));
        let static_key = static_key(domain, levels, hasher);
        Self {
            first: rule.tiers().first().cloned().unwrap_or(Tier::fixed_window(0, Period::MAX)),
            has_one_tier: rule.tiers().len() == 1,
            over_limit_policy: rule.limit.over_limit_policy(),
            id,
            shadow_mode: rule.shadow_mode,
            quota_mode: rule.quota_mode,
            coordination: rule.coordination.mode,
            has_name: rule.name.is_some(),
            has_extras: !rule.replaces.is_empty()
                || rule.sharing.is_some()
                || rule.shadow.is_some()
                || rule.meters()
                || rule.in_flight.is_some(),
            has_static_key: static_key.is_some(),
            has_shared_values: levels.iter().any(|level| !matches!(level.counted, CountedValue::Own)),
            has_dynamic_stats: levels.iter().any(|level| level.has_dynamic_stats(rule.detailed_metric)),
            details: Box::new(Details {
                shared_tiers: rule.limit.tiers().iter().cloned().collect(),
                shadow_tiers: rule.shadow.as_ref().map(|shadow| shadow.tiers().iter().cloned().collect()),
                give_back: rule.give_back.unwrap_or(give_back),
                rule,
                static_key,
                domain: Arc::clone(domain),
                levels: levels.to_vec(),
                path,
            }),
        }
    }

    /// Returns its index in its [`RuleSet`](super::RuleSet), for tables parallel to the set.
    pub const fn index(&self) -> usize {
        self.id.index as usize
    }

    pub(super) const fn id(&self) -> RuleId {
        self.id
    }

    /// Returns its tiers; none without a limit.
    #[inline]
    pub(super) fn tiers(&self) -> &[Tier] {
        if self.has_one_tier { slice::from_ref(&self.first) } else { &self.shared_tiers }
    }

    pub const fn has_one_counter(&self) -> bool {
        self.has_static_key
    }

    pub const fn shadow_mode(&self) -> bool {
        self.shadow_mode
    }

    pub(super) fn name(&self) -> Option<&str> {
        if self.has_name { self.rule.name.as_deref() } else { None }
    }

    pub(super) fn sharing(&self) -> Option<&Arc<Sharing>> {
        if self.has_extras { self.rule.sharing.as_ref() } else { None }
    }

    pub(super) fn replaces(&self) -> &[Box<str>] {
        if self.has_extras { &self.rule.replaces } else { &[] }
    }

    pub(super) fn shadow(&self) -> Option<&Limit> {
        if self.has_extras { self.rule.shadow.as_ref() } else { None }
    }

    pub(super) fn meters(&self) -> bool {
        self.has_extras && self.rule.meters()
    }

    /// Returns [`Rule::places`].
    pub fn places(&self) -> Option<InFlight> {
        if self.has_extras { self.rule.places() } else { None }
    }

    /// Returns whether entries of the key [`IN_FLIGHT`](super::IN_FLIGHT) name its requests.
    pub(super) fn has_names(&self) -> bool {
        self.has_extras && (self.rule.in_flight.is_some() || self.rule.meters())
    }

    /// Returns what its requests reserve, if they do.
    pub fn reserve(&self) -> Option<Reserve> {
        if self.has_extras { self.rule.reserve.filter(Reserve::takes_hits) } else { None }
    }

    pub(super) fn place<'a>(
        &'a self,
        (domain, entries): (&'a str, &'a [Entry<'a>]),
        keys: &ValueHasher,
        limit: InFlight,
        ask: PlaceAsk,
    ) -> PlaceCheck<'a> {
        let key = self.counter_key(keys, entries);
        PlaceCheck { rule: self, domain, entries, key, limit, ask, reserved: Hits(0) }
    }

    pub(super) const fn has_extras(&self) -> bool {
        self.has_extras
    }

    /// Returns whether a pattern or a network stands for some of its values, so that descriptors with other values have the
    /// same counter.
    pub const fn has_shared_values(&self) -> bool {
        self.has_shared_values
    }

    /// Returns the text that replaces all values of entry `i` in counter keys.
    pub(super) fn shared(&self, i: usize) -> Option<&str> {
        if self.has_shared_values { self.levels[i].shared() } else { None }
    }

    /// None for the value itself.
    pub(super) fn counted<'a>(&'a self, i: usize, value: &str) -> Option<CounterValue<'a>> {
        if self.has_shared_values { self.levels[i].counted(value) } else { None }
    }

    #[inline]
    pub(super) fn counter_key(&self, keys: &ValueHasher, entries: &[Entry<'_>]) -> CounterKey {
        if self.has_static_key || self.has_shared_values {
            return self.declared_key(keys, entries);
        }
        keys.key(entries, |_| None)
    }

    #[inline(never)]
    fn declared_key(&self, keys: &ValueHasher, entries: &[Entry<'_>]) -> CounterKey {
        self.static_key.unwrap_or_else(|| keys.key(entries, |i| self.counted(i, entries[i].value)))
    }

    /// None if the values of the last entry share no pool.
    pub(super) fn pool_key(&self, keys: &ValueHasher, entries: &[Entry<'_>]) -> Option<CounterKey> {
        self.sharing()?;
        let last = entries.len().saturating_sub(1);
        let members = || CounterValue::Shared(MEMBERS.into());
        Some(
            keys.key(
                entries,
                |i| if i == last { Some(members()) } else { self.counted(i, entries[i].value) },
            ),
        )
    }

    /// Returns whether some value is part of the stats' name.
    pub const fn has_dynamic_stats(&self) -> bool {
        self.has_dynamic_stats
    }

    /// Returns the path of this rule's stats for `entries`, if it differs from [`Details::path`]: with the values of
    /// levels that `detailed_metric` or `value_to_metric` covers, unless a shared pattern replaces the value.
    pub fn stat_path(&self, entries: &[Entry<'_>]) -> Option<RulePath> {
        if !self.has_dynamic_stats {
            return None;
        }
        let detailed = self.rule.detailed_metric;
        let mut pairs = self.levels.iter().zip(entries);
        let shares = pairs.any(|(level, entry)| level.shared().is_some_and(|text| text != entry.value));
        let steps = self.levels.iter().zip(entries).map(|(level, entry)| {
            let counted = level.counted(entry.value);
            let entry = Entry { key: entry.key, value: counted.as_deref().unwrap_or(entry.value) };
            match level {
                level if !level.has_dynamic_stats(detailed) => level.name().into(),
                // envoyproxy/ratelimit keeps the separator before an empty value in this case only
                _ if detailed && !shares => entry.metric_step().into(),
                _ => entry.step().into(),
            }
        });
        Some(RulePath::new(&self.domain, steps))
    }
}

impl Deref for CompiledRule {
    type Target = Details;

    fn deref(&self) -> &Details {
        &self.details
    }
}

// === impl RulePath ===

impl RulePath {
    /// Returns the path of a request's own limit: every value, or one empty step, as in envoyproxy/ratelimit.
    pub fn of_override(domain: &str, entries: &[Entry<'_>]) -> Self {
        if entries.is_empty() {
            return Self::new(domain, std::iter::once("".into()));
        }
        Self::new(domain, entries.iter().map(|entry| entry.step().into()))
    }

    fn new(domain: &str, steps: impl Iterator<Item = Box<str>>) -> Self {
        Self(std::iter::once(domain.into()).chain(steps).collect())
    }

    pub fn parts(&self) -> &[Box<str>] {
        &self.0
    }
}

impl fmt::Display for RulePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

/// None if a request's value is part of the key.
fn static_key(domain: &str, levels: &[Level], hasher: &KeyHasher) -> Option<CounterKey> {
    let entries: Option<Vec<_>> = levels
        .iter()
        .map(|level| {
            let value = match (&level.counted, &level.values) {
                (CountedValue::Shared(shared), _) => shared,
                (CountedValue::Own, Values::One(pattern)) if !pattern.is_wildcard() => pattern.text(),
                _ => return None,
            };
            Some(Entry { key: &level.key, value })
        })
        .collect();
    // a value that looks like a pattern is another counter, and the same rule below a level with a pattern is the same
    // one
    Some(hasher.key(domain, &entries?, |i| levels[i].shared().map(|text| CounterValue::Shared(text.into()))))
}

// === impl Level ===

impl Level {
    /// `networks` are those of the key on this level.
    pub(super) fn of(node: &RuleNode, networks: Option<&Arc<NetworkTable>>) -> Self {
        let shares = match &node.values {
            Values::Of(_) | Values::Networks(_) => true,
            Values::Table(_) => node.share_threshold,
            values => node.share_threshold && values.is_wildcard(),
        };
        let counted = match (node.count_by, networks) {
            (CountBy::Network, Some(networks)) => CountedValue::Network(Arc::clone(networks)),
            (CountBy::Prefix(lengths), _) => CountedValue::Prefix(lengths),
            _ if shares => CountedValue::Shared(node.values.to_string().into()),
            _ => CountedValue::Own,
        };
        Self {
            key: node.key.as_str().into(),
            values: node.values.clone(),
            plan: node.plan.clone(),
            count_by: node.count_by,
            value_to_metric: node.value_to_metric,
            counted,
        }
    }

    /// Returns the text that replaces all of its values in counter keys.
    fn shared(&self) -> Option<&str> {
        if let CountedValue::Shared(text) = &self.counted { Some(text) } else { None }
    }

    /// None for the value itself.
    fn counted(&self, value: &str) -> Option<CounterValue<'_>> {
        match &self.counted {
            CountedValue::Own => None,
            CountedValue::Shared(text) => Some(CounterValue::Shared(Cow::Borrowed(text))),
            CountedValue::Network(networks) => {
                let found = networks.find(&IpNetwork::of_value(value)?)?;
                Some(CounterValue::Shared(networks.network(found.row).to_string().into()))
            }
            CountedValue::Prefix(lengths) => {
                let network = IpNetwork::of_value(value)?.shortened(*lengths);
                Some(CounterValue::Own(network.to_string().into()))
            }
        }
    }

    fn has_dynamic_stats(&self, detailed: bool) -> bool {
        (detailed || self.value_to_metric)
            && match &self.counted {
                CountedValue::Own => self.values == Values::Any || self.values.is_wildcard(),
                CountedValue::Shared(_) => false,
                CountedValue::Network(_) | CountedValue::Prefix(_) => true,
            }
    }

    /// Returns the key, and the values if there are any: `tenant`, `path_/v1/*`; or the plan: `tenant.plan_free`.
    pub fn name(&self) -> String {
        match (&self.plan, &self.values) {
            (Some(plan), _) => format!("{}.{plan}", self.key),
            (None, Values::Any) => self.key.to_string(),
            (None, values) => format!("{}_{values}", self.key),
        }
    }
}

// === impl CounterValue ===

impl Deref for CounterValue<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        let (Self::Own(text) | Self::Shared(text)) = self;
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiled_rule_fits_one_cache_line() {
        assert_eq!((size_of::<CompiledRule>(), align_of::<CompiledRule>()), (64, 64));
    }
}
