//! The compiled rules: which one does a descriptor match?
//!
//! A level is decided in the reference's order, without ever going back: the literal value; then the patterns with
//! a `*`, in the order of declaration; then the key alone. A literal costs one hash look-up a level, whatever the number
//! of rules; nothing on the way allocates.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use hashbrown::{Equivalent, HashMap};

use super::{
    descriptor::Entry,
    key::{CounterKey, KeyHasher},
    pattern::{Pattern, Values},
    rule::{Domain, Node, Origin, Rule},
};

/// All rules of a moment, compiled. Immutable: a reload makes another.
#[derive(Debug)]
pub struct RuleSet {
    pub(super) domains: HashMap<Box<str>, NodeId, foldhash::fast::RandomState>,
    /// The roots of the domains and everything below them.
    pub(super) nodes: Vec<Branch>,
    /// For each of the nodes the rule of a descriptor that ends there, an index into `rules`. Beside the nodes, so that the
    /// last step of a look-up touches four bytes in the place of a node: among thousands of rules most are in no cache.
    ends: Vec<Option<u32>>,
    rules: Vec<PlacedRule>,
    hasher: KeyHasher,
}

/// An index into [`RuleSet::nodes`].
pub(super) type NodeId = usize;

/// A node of the compiled tree: the ways down from here.
#[derive(Debug, Default)]
pub(super) struct Branch {
    pub(super) literals: HashMap<Edge, NodeId, foldhash::fast::RandomState>,
    pub(super) wildcards: Vec<(Box<str>, Pattern, NodeId)>,
    pub(super) any: HashMap<Box<str>, NodeId, foldhash::fast::RandomState>,
    pub(super) origin: Origin,
}

/// A literal way down.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) key: Box<str>,
    pub(super) value: Box<str>,
}

/// What became of a look-up.
#[derive(Clone, Copy, Debug)]
pub enum Lookup<'a> {
    /// There are no rules for this domain.
    UnknownDomain,
    /// The domain is known, but no rule is for this descriptor.
    NoRule,
    /// This one is.
    Rule(&'a PlacedRule),
}

/// A rule and its place in the tree. Laid out as it is written, as [`Rule`] is.
#[derive(Debug)]
#[repr(C)]
pub struct PlacedRule {
    /// The key of its one counter, if no value is part of it.
    sole_key: Option<CounterKey>,
    /// Its number in its [`RuleSet`], from 0: for tables beside the set.
    pub index: usize,
    /// Some level has a text that stands in for its value. Known beforehand, as is the next: most rules' levels need not be
    /// looked at then.
    shares: bool,
    /// Some value is part of the stat's name.
    shows: bool,
    /// The domain that it is in; one text for all of its rules.
    pub domain: Arc<str>,
    /// What was declared.
    pub rule: Rule,
    /// The way to it, from the domain down. Never empty.
    pub levels: Vec<Level>,
    /// The domain, keys and values as declared. Names the rule where people look.
    pub path: RulePath,
}

/// A domain and the steps below it, as people are told of them: `shop.tenant_acme.method`. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RulePath(Box<[Box<str>]>);

/// A step of the way to a rule.
#[derive(Clone, Debug)]
pub struct Level {
    /// The key of the entry.
    pub key: Box<str>,
    /// The values that it may have.
    pub values: Values,
    /// The request's value is part of the stat's name.
    pub value_to_metric: bool,
    /// The text that stands in for the value in counters' keys.
    pub shared: Option<Box<str>>,
}

// === impl RuleSet ===

impl RuleSet {
    /// Compiles `domains`. Where two nodes of a level have the same key and value, the first one counts; the
    /// configuration refuses such files before they get here.
    #[must_use]
    pub fn new(domains: &[Domain], hasher: KeyHasher) -> Self {
        let mut set = Self {
            domains: HashMap::default(),
            nodes: Vec::new(),
            ends: Vec::new(),
            rules: Vec::new(),
            hasher,
        };
        for domain in domains {
            let root = set.add_branch(Branch::default());
            set.domains.insert(domain.name.as_str().into(), root);
            set.add_nodes(root, &domain.nodes, &domain.name.as_str().into(), &mut Vec::new());
        }
        set
    }

    fn add_branch(&mut self, branch: Branch) -> NodeId {
        self.nodes.push(branch);
        self.ends.push(None);
        self.nodes.len() - 1
    }

    fn add_nodes(&mut self, parent: NodeId, nodes: &[Node], domain: &Arc<str>, way: &mut Vec<Level>) {
        for node in nodes {
            way.push(Level::of(node));
            let id = self.add_branch(Branch { origin: node.origin.clone(), ..Branch::default() });
            self.nodes[parent].lead(node, id);
            if let Some(rule) = &node.rule {
                let index = self.rules.len();
                self.rules.push(PlacedRule::new(rule.clone(), index, domain, way, &self.hasher));
                // files are bounded far below that many
                self.ends[id] = u32::try_from(index).ok();
            }
            self.add_nodes(id, &node.children, domain, way);
            way.pop();
        }
    }

    /// The rule for a descriptor of these `entries`: one that is exactly as deep as they are many.
    #[must_use]
    pub fn find(&self, domain: &str, entries: &[Entry<'_>]) -> Lookup<'_> {
        let Some(&root) = self.domains.get(domain) else {
            return Lookup::UnknownDomain;
        };
        let mut node = root;
        for entry in entries {
            match self.nodes[node].step(entry) {
                Some((next, _)) => node = next,
                None => return Lookup::NoRule,
            }
        }
        self.rule_at(node).map_or(Lookup::NoRule, Lookup::Rule)
    }

    /// The rule of a descriptor that ends at `node`.
    pub(super) fn rule_at(&self, node: NodeId) -> Option<&PlacedRule> {
        self.ends[node].map(|rule| &self.rules[rule as usize])
    }

    /// Whether there are rules for `domain`.
    #[must_use]
    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// Whether there are no domains at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// Every rule, in the order of declaration; each has its place as its [`PlacedRule::index`].
    #[must_use]
    pub fn rules(&self) -> &[PlacedRule] {
        &self.rules
    }

    /// The key of a limit that the caller brought along for `entries`.
    #[must_use]
    pub fn override_key(&self, domain: &str, entries: &[Entry<'_>]) -> CounterKey {
        self.hasher.key(domain, entries, |_| None)
    }

    /// The key under which `rule`, which is one of this set, counts a descriptor of `entries`.
    #[must_use]
    pub fn counter_key(&self, rule: &PlacedRule, entries: &[Entry<'_>]) -> CounterKey {
        let shared = |i: usize| if rule.shares { rule.levels[i].shared.as_deref() } else { None };
        rule.sole_key.unwrap_or_else(|| self.hasher.key(&rule.domain, entries, shared))
    }
}

// === impl Branch ===

/// Why a step was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Because {
    Literal,
    /// The n-th of the level's wildcards.
    Wildcard(usize),
    KeyAlone,
}

impl Branch {
    /// Lets `node`'s values lead to `id`.
    fn lead(&mut self, node: &Node, id: NodeId) {
        let key = || node.key.as_str().into();
        if node.values == Values::Any {
            self.any.entry(key()).or_insert(id);
        }
        for pattern in node.values.patterns() {
            // a value that is a pattern to the letter is a literal too: the reference looks there first
            let edge = Edge { key: key(), value: pattern.text().into() };
            self.literals.entry(edge).or_insert(id);
            if pattern.is_wildcard() {
                self.wildcards.push((key(), pattern.clone(), id));
            }
        }
    }

    /// The way down for `entry`, and why.
    pub(super) fn step(&self, entry: &Entry<'_>) -> Option<(NodeId, Because)> {
        if let Some(&node) = self.literals.get(entry) {
            return Some((node, Because::Literal));
        }
        for (i, (key, pattern, node)) in self.wildcards.iter().enumerate() {
            if **key == *entry.key && pattern.matches(entry.value) {
                return Some((*node, Because::Wildcard(i)));
            }
        }
        let node = self.any.get(entry.key)?;
        Some((*node, Because::KeyAlone))
    }
}

/// As [`Entry`] hashes, which an edge is looked up with.
impl Hash for Edge {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { key, value } = self;
        Entry { key, value }.hash(state);
    }
}

impl Equivalent<Edge> for Entry<'_> {
    fn equivalent(&self, edge: &Edge) -> bool {
        *self.value == *edge.value && *self.key == *edge.key
    }
}

// === impl PlacedRule ===

impl PlacedRule {
    fn new(rule: Rule, index: usize, domain: &Arc<str>, way: &[Level], hasher: &KeyHasher) -> Self {
        let path = RulePath::new(domain, way.iter().map(|level| level.name().into()));
        let detailed = rule.detailed_metric;
        Self {
            shares: way.iter().any(|level| level.shared.is_some()),
            shows: way.iter().any(|level| level.shows(detailed)),
            rule,
            index,
            domain: Arc::clone(domain),
            levels: way.to_vec(),
            path,
            sole_key: sole_key(domain, way, hasher),
        }
    }

    /// The name that this rule's stats have for a descriptor of `entries`, if it is not its [`PlacedRule::path`].
    ///
    /// A value is part of it where the rule is a `detailed_metric` or the level says `value_to_metric`; a shared
    /// pattern stands in for the value all the same.
    #[must_use]
    pub fn stat_path(&self, entries: &[Entry<'_>]) -> Option<RulePath> {
        if !self.shows {
            return None;
        }
        let steps = self.levels.iter().zip(entries).map(|(level, entry)| {
            let shows = level.shows(self.rule.detailed_metric);
            if shows { entry.step().into() } else { level.name().into() }
        });
        Some(RulePath::new(&self.domain, steps))
    }
}

// === impl RulePath ===

impl RulePath {
    /// The path of a limit that the caller brought along for `entries`: every value is in it.
    #[must_use]
    pub fn of_override(domain: &str, entries: &[Entry<'_>]) -> Self {
        Self::new(domain, entries.iter().map(|entry| entry.step().into()))
    }

    fn new(domain: &str, steps: impl Iterator<Item = Box<str>>) -> Self {
        Self(std::iter::once(domain.into()).chain(steps).collect())
    }

    /// The domain.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.0[0]
    }

    /// The steps below the domain, outermost first, each a key or `key_value`.
    #[must_use]
    pub fn steps(&self) -> &[Box<str>] {
        &self.0[1..]
    }
}

/// Joined with dots.
impl fmt::Display for RulePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

/// The key of the one counter of a rule at the end of `way`, if every level's text is known beforehand.
fn sole_key(domain: &str, way: &[Level], hasher: &KeyHasher) -> Option<CounterKey> {
    let entries: Option<Vec<_>> = way
        .iter()
        .map(|level| {
            let value = match (&level.shared, &level.values) {
                (Some(shared), _) => shared,
                (None, Values::One(pattern)) if !pattern.is_wildcard() => pattern.text(),
                _ => return None,
            };
            Some(Entry { key: &level.key, value })
        })
        .collect();
    Some(hasher.key(domain, &entries?, |_| None))
}

// === impl Level ===

impl Level {
    fn of(node: &Node) -> Self {
        let shares =
            matches!(node.values, Values::Of(_)) || (node.share_threshold && node.values.is_wildcard());
        Self {
            key: node.key.as_str().into(),
            values: node.values.clone(),
            value_to_metric: node.value_to_metric,
            shared: shares.then(|| node.values.to_string().into()),
        }
    }

    /// Whether the value is part of the stat's name, where the rule's metric is `detailed` or not.
    fn shows(&self, detailed: bool) -> bool {
        self.shared.is_none()
            && (detailed || self.value_to_metric)
            && (self.values == Values::Any || self.values.is_wildcard())
    }

    /// The key, and the values if there are any: `tenant`, `path_/v1/*`.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.values {
            Values::Any => self.key.to_string(),
            values => format!("{}_{values}", self.key),
        }
    }
}
