//! The compiled rules: which one does a descriptor match?
//!
//! A level is decided in the reference's order, without ever going back: the literal value; then the patterns with
//! a `*`, in the order of declaration; then the key alone. A literal costs one hash look-up a level, whatever the number
//! of rules; nothing on the way allocates.

use std::{
    hash::{Hash, Hasher},
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use hashbrown::{Equivalent, HashMap};

use super::{
    compiled_rule::{CompiledRule, Level, RuleId},
    descriptor::Entry,
    inline_str::InlineStr,
    key::{CounterKey, KeyHasher},
    pattern::{Pattern, Values},
    rule::{Domain, Origin, RuleNode},
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
    rules: Vec<CompiledRule>,
    hasher: KeyHasher,
    /// Which one it is of all sets that this process has had.
    number: NonZeroU32,
}

/// How many there were in this process.
static SETS: AtomicU32 = AtomicU32::new(0);

/// An index into [`RuleSet::nodes`].
pub(super) type NodeId = usize;

/// A node of the compiled tree: the ways down from here.
#[derive(Debug, Default)]
pub(super) struct Branch {
    pub(super) literals: HashMap<Edge, NodeId, foldhash::fast::RandomState>,
    pub(super) wildcards: Vec<(Box<str>, Pattern, NodeId)>,
    pub(super) any: HashMap<InlineStr, NodeId, foldhash::fast::RandomState>,
    pub(super) origin: Origin,
}

/// A literal way down.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) key: InlineStr,
    pub(super) value: InlineStr,
}

/// What became of a look-up.
#[derive(Clone, Copy, Debug)]
pub enum Lookup<'a> {
    /// There are no rules for this domain.
    UnknownDomain,
    /// The domain is known, but no rule is for this descriptor.
    NoRule,
    /// This one is.
    Rule(&'a CompiledRule),
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
            // after four billion reloads the first numbers are long forgotten
            number: NonZeroU32::MIN.saturating_add(SETS.fetch_add(1, Ordering::Relaxed)),
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

    fn add_nodes(
        &mut self,
        parent: NodeId,
        nodes: &[RuleNode],
        domain: &Arc<str>,
        coordination: &mut Vec<Level>,
    ) {
        for node in nodes {
            coordination.push(Level::of(node));
            let id = self.add_branch(Branch { origin: node.origin.clone(), ..Branch::default() });
            self.nodes[parent].lead(node, id);
            if let Some(rule) = &node.rule {
                // files are bounded far below that many
                let index = u32::try_from(self.rules.len()).unwrap_or(u32::MAX);
                let rule_id = RuleId { set: self.number, index };
                self.rules.push(CompiledRule::new(rule.clone(), rule_id, domain, coordination, &self.hasher));
                self.ends[id] = Some(index);
            }
            self.add_nodes(id, &node.children, domain, coordination);
            coordination.pop();
        }
    }

    /// The rule for a descriptor of these `entries`: one that is exactly as deep as they are many.
    #[must_use]
    pub fn find(&self, domain: &str, entries: &[Entry<'_>]) -> Lookup<'_> {
        match self.find_index(domain, entries) {
            Ok(index) => Lookup::Rule(&self.rules[index]),
            Err(none) => none,
        }
    }

    /// The [`CompiledRule::index`] of that rule, which is not looked at; or why there is none.
    pub(super) fn find_index(&self, domain: &str, entries: &[Entry<'_>]) -> Result<usize, Lookup<'_>> {
        let Some(&root) = self.domains.get(domain) else {
            return Err(Lookup::UnknownDomain);
        };
        let mut node = root;
        for entry in entries {
            match self.nodes[node].step(entry) {
                Some((next, _)) => node = next,
                None => return Err(Lookup::NoRule),
            }
        }
        self.ends[node].map(|index| index as usize).ok_or(Lookup::NoRule)
    }

    /// The rule of a descriptor that ends at `node`.
    pub(super) fn rule_at(&self, node: NodeId) -> Option<&CompiledRule> {
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

    /// Every rule, in the order of declaration; each has its place as its [`CompiledRule::index`].
    #[must_use]
    pub fn rules(&self) -> &[CompiledRule] {
        &self.rules
    }

    /// The key of a limit that the caller brought along for `entries`.
    #[must_use]
    pub fn override_key(&self, domain: &str, entries: &[Entry<'_>]) -> CounterKey {
        self.hasher.key(domain, entries, |_| None)
    }

    /// The key under which `rule`, which is one of this set and of `domain`, counts a descriptor of `entries`.
    #[must_use]
    pub fn counter_key(&self, rule: &CompiledRule, domain: &str, entries: &[Entry<'_>]) -> CounterKey {
        rule.static_key().unwrap_or_else(|| self.hasher.key(domain, entries, |i| rule.shared(i)))
    }
}

// === impl Branch ===

/// Why a step was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatchedBy {
    Literal,
    /// The n-th of the level's wildcards.
    Wildcard(usize),
    KeyAlone,
}

impl Branch {
    /// Lets `node`'s values lead to `id`.
    fn lead(&mut self, node: &RuleNode, id: NodeId) {
        let key = || node.key.as_str().into();
        if node.values == Values::Any {
            self.any.entry(key()).or_insert(id);
        }
        for pattern in node.values.patterns() {
            // a value that is a pattern to the letter is a literal too: the reference looks there first
            let edge = Edge { key: key(), value: pattern.text().into() };
            self.literals.entry(edge).or_insert(id);
            if pattern.is_wildcard() {
                self.wildcards.push((node.key.as_str().into(), pattern.clone(), id));
            }
        }
    }

    /// The way down for `entry`, and why.
    pub(super) fn step(&self, entry: &Entry<'_>) -> Option<(NodeId, MatchedBy)> {
        if let Some(&node) = self.literals.get(entry) {
            return Some((node, MatchedBy::Literal));
        }
        for (i, (key, pattern, node)) in self.wildcards.iter().enumerate() {
            if **key == *entry.key && pattern.matches(entry.value) {
                return Some((*node, MatchedBy::Wildcard(i)));
            }
        }
        let node = self.any.get(entry.key)?;
        Some((*node, MatchedBy::KeyAlone))
    }
}

/// As [`Entry`] hashes, which an edge is looked up with.
impl Hash for Edge {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Entry { key: self.key.as_str(), value: self.value.as_str() }.hash(state);
    }
}

impl Equivalent<Edge> for Entry<'_> {
    fn equivalent(&self, edge: &Edge) -> bool {
        self.value.equivalent(&edge.value) && self.key.equivalent(&edge.key)
    }
}
