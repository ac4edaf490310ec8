//! The compiled rules, and the look-up of the rule for a descriptor.
//!
//! Each level is matched in the order of envoyproxy/ratelimit, without backtracking: the literal value; then tables; then the
//! longest network that holds the value; then the patterns with a `*`, in the order of declaration; then the key with
//! any value. A literal costs one hash look-up per level, independent of the number of rules, and no step allocates.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use hashbrown::HashMap;

use super::{
    compiled_rule::{CompiledRule, Level, RuleId},
    descriptor::{Entry, Request},
    inline_str::InlineStr,
    key::{CounterKey, KeyHasher, ValueHasher},
    name_map::NameMap,
    network::{FoundNetwork, IpNetwork, NetworkList, NetworkTable},
    pattern::{Pattern, Values},
    place::{IN_FLIGHT, PlaceAsk, PlaceCheck},
    rule::{Domain, GiveBack, Origin, RuleNode, Scope},
    table::{TableValues, ValueTable},
};

/// The most comparisons of values with patterns that a request may need: half a second of work at most.
pub const MAX_COMPARISONS: u64 = 2_000_000;

/// Keys with so few patterns are not counted: by default no message then needs [`MAX_COMPARISONS`].
const FEW_PATTERNS: usize = 16;

/// A comparison counts once more for each of so many bytes of a value.
const BYTES_OF_COMPARISON: usize = 64;

/// A request needs more than [`MAX_COMPARISONS`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the request needs up to {needed} comparisons with patterns, of which there are {patterns} for the key {key:?}, and \
     {MAX_COMPARISONS} are allowed: send fewer descriptors or shorter values, or write fewer values with * for that key"
)]
pub struct TooManyPatterns {
    /// The comparisons; one more for each 64 bytes of a value.
    needed: u64,
    key: String,
    patterns: usize,
}

/// All loaded rules, compiled. Immutable: a reload creates another set.
#[derive(Debug)]
pub struct RuleSet {
    pub(super) domains: NameMap<Root>,
    pub(super) nodes: Vec<Branch>,
    /// By node: what a descriptor that ends there finds. Not in the nodes, so that the last step of a look-up reads few
    /// bytes: with thousands of rules, most nodes are not in the CPU's caches.
    ends: Vec<End>,
    rules: Vec<CompiledRule>,
    pub(super) hasher: KeyHasher,
    /// The keys whose values are looked at before requests are decided.
    watched_keys: HashMap<InlineStr, WatchedKey, foldhash::fast::RandomState>,
    /// Identifies the set among all sets that this process has loaded.
    number: NonZeroU32,
}

#[derive(Debug, Default)]
struct WatchedKey {
    /// The most patterns on one level, if they are more than [`FEW_PATTERNS`].
    patterns: usize,
    has_networks: bool,
}

static SETS: AtomicU32 = AtomicU32::new(0);

/// An index into [`RuleSet::nodes`].
pub(super) type NodeId = usize;

#[derive(Clone, Copy, Debug)]
pub struct Root {
    pub(super) node: NodeId,
    pub scope: Scope,
    /// For limits that come with requests.
    pub(super) give_back: GiveBack,
    /// Whether entries name the requests of some rule.
    pub(super) has_names: bool,
}

/// What a descriptor finds at the node at which it ends.
#[derive(Clone, Copy, Debug)]
struct End {
    /// Index in [`RuleSet::rules`].
    rule: Option<u32>,
    keys: ValueHasher,
}

/// A node of the compiled tree: the edges to its children.
#[derive(Debug, Default)]
pub(super) struct Branch {
    /// Nearly all nodes have few keys, or none.
    pub(super) keys: NameMap<KeyEdges>,
    pub(super) origin: Origin,
}

#[derive(Debug, Default)]
pub(super) struct KeyEdges {
    pub(super) literals: HashMap<InlineStr, NodeId, foldhash::fast::RandomState>,
    pub(super) tables: Option<Box<TableEdges>>,
    /// What is tried for values that are no literals and in no table: the networks, then the wildcards in the order of declaration.
    pub(super) others: Vec<ValueMatcher>,
    pub(super) any: Option<NodeId>,
}

/// The edges of the tables of a key.
#[derive(Debug, Default)]
pub(super) struct TableEdges {
    /// In the order of declaration, each with the nodes of its groups.
    pub(super) tables: Vec<(Arc<ValueTable>, Vec<Option<NodeId>>)>,
    /// For all values that the tables lack, and the table that says so.
    pub(super) others: Option<(Arc<ValueTable>, NodeId)>,
}

#[derive(Debug)]
pub(super) enum ValueMatcher {
    /// The nodes are the owners of the networks, by their numbers.
    Networks(Arc<NetworkTable>, Vec<NodeId>),
    Wildcard(Pattern, NodeId),
}

#[derive(Clone, Copy, Debug)]
pub enum Lookup<'a> {
    UnknownDomain,
    NoRule,
    Rule(&'a CompiledRule),
}

// === impl RuleSet ===

impl RuleSet {
    /// Compiles `domains`. Of two nodes of a level with the same key and value, which files cannot have, the first
    /// wins.
    pub fn new(domains: &[Domain], hasher: KeyHasher) -> Self {
        let mut set = Self {
            domains: NameMap::default(),
            nodes: Vec::new(),
            ends: Vec::new(),
            rules: Vec::new(),
            hasher,
            watched_keys: HashMap::default(),
            // wraps after four billion reloads, when the first numbers are no longer in use
            number: NonZeroU32::MIN.saturating_add(SETS.fetch_add(1, Ordering::Relaxed)),
        };
        for domain in domains {
            let root = set.add_branch(Branch::default(), &domain.name, &[]);
            let give_back = domain.give_back.unwrap_or_default();
            let first = set.rules.len();
            let of = (&domain.name.as_str().into(), give_back);
            set.add_nodes(root, &domain.nodes, of, &mut Vec::new());
            let has_names = set.add_names(root, first);
            let root_of = Root { node: root, scope: domain.scope, give_back, has_names };
            *set.domains.get_or_insert_with(&domain.name, || root_of) = root_of;
        }
        set
    }

    fn add_branch(&mut self, branch: Branch, domain: &str, levels: &[Level]) -> NodeId {
        self.nodes.push(branch);
        let keys = self.hasher.of_keys(domain, levels.iter().map(|level| &*level.key));
        self.ends.push(End { rule: None, keys });
        self.nodes.len() - 1
    }

    /// `of` is the domain, and what it says about hits that are given back.
    fn add_nodes(
        &mut self,
        parent: NodeId,
        nodes: &[RuleNode],
        of: (&Arc<str>, GiveBack),
        levels: &mut Vec<Level>,
    ) {
        self.add_networks(parent, nodes);
        for node in nodes {
            levels.push(Level::of(node, self.nodes[parent].networks(&node.key)));
            let branch = Branch { origin: node.origin.clone(), ..Branch::default() };
            let id = self.add_branch(branch, of.0, levels);
            let patterns = self.nodes[parent].add_edges(node, id);
            if patterns > FEW_PATTERNS {
                let watched = self.watched_keys.entry(node.key.as_str().into()).or_default();
                watched.patterns = patterns.max(watched.patterns);
            }
            if let Some(rule) = &node.rule {
                // the size limit of rule files keeps the number of rules far below 2^32
                let index = u32::try_from(self.rules.len()).unwrap_or(u32::MAX);
                let rule_id = RuleId { set: self.number, index };
                self.rules.push(CompiledRule::new(rule.clone(), rule_id, of, levels, &self.hasher));
                self.ends[id].rule = Some(index);
            }
            self.add_nodes(id, &node.children, of, levels);
            levels.pop();
        }
    }

    /// Adds the networks of all `nodes`, of which each key has one table. Their owners follow, in the order of declaration.
    fn add_networks(&mut self, parent: NodeId, nodes: &[RuleNode]) {
        let mut of_keys: NameMap<Vec<&NetworkList>> = NameMap::default();
        for (node, list) in nodes.iter().filter_map(|node| Some((node, node.values.networks()?))) {
            of_keys.get_or_insert_with(&node.key, Vec::new).push(list);
        }
        for (key, lists) in of_keys.iter() {
            let networks = lists
                .iter()
                .zip(0..)
                .flat_map(|(list, owner)| list.networks().iter().map(move |listed| (listed.network, owner)));
            let networks = ValueMatcher::Networks(Arc::new(NetworkTable::new(networks)), Vec::new());
            self.nodes[parent].keys.get_or_insert_with(key, KeyEdges::default).others.push(networks);
            self.watched_keys.entry(key.into()).or_default().has_networks = true;
        }
    }

    /// Below the root of a domain and each of its rules whose requests have names, lets an entry with the name of a
    /// request find such a rule, so that most look-ups need not know of names. Returns whether there are such rules,
    /// among those from the `first`.
    fn add_names(&mut self, root: NodeId, first: usize) -> bool {
        let is_named = |end: &End| {
            end.rule.is_some_and(|rule| rule as usize >= first && self.rules[rule as usize].has_names())
        };
        let named: Vec<NodeId> = (root..self.ends.len()).filter(|node| is_named(&self.ends[*node])).collect();
        let places = named.first().map(|first| (root, *first)).into_iter();
        for (above, node) in places.chain(named.iter().map(|node| (*node, *node))) {
            let id = self.nodes.len();
            self.nodes.push(Branch { origin: self.nodes[node].origin.clone(), ..Branch::default() });
            self.ends.push(self.ends[node]);
            self.nodes[above].keys.get_or_insert_with(IN_FLIGHT, KeyEdges::default).any.get_or_insert(id);
        }
        !named.is_empty()
    }

    /// Finds the place that a descriptor of these `entries` has while its request runs; none if its rule gives no names.
    pub fn place<'a>(&'a self, domain: &'a str, entries: &'a [Entry<'a>]) -> Option<PlaceCheck<'a>> {
        let (index, keys) = self.find_below(self.root(domain)?, entries)?;
        let rule = &self.rules[index];
        if entries.len() != rule.levels.len() {
            return None;
        }
        // requests that began before a reload may have places
        let limit = rule.places().or_else(|| rule.rule.reserve.map(|reserve| reserve.place()))?;
        Some(rule.place((domain, entries), keys, limit, PlaceAsk::Nothing))
    }

    /// Finds the rule for a descriptor of these `entries`: one at exactly that depth.
    pub fn find(&self, domain: &str, entries: &[Entry<'_>]) -> Lookup<'_> {
        let Some(root) = self.root(domain) else {
            return Lookup::UnknownDomain;
        };
        self.find_below(root, entries).map_or(Lookup::NoRule, |(index, _)| Lookup::Rule(&self.rules[index]))
    }

    #[inline]
    pub fn check_patterns(&self, request: &Request<'_>) -> Result<(), TooManyPatterns> {
        if self.watched_keys.is_empty() { Ok(()) } else { self.count_comparisons(request) }
    }

    /// Returns whether nothing has to be told of the values of `request`: they need few comparisons, and are addresses
    /// where networks are declared.
    #[inline]
    pub fn has_plain_values(&self, request: &Request<'_>) -> bool {
        self.watched_keys.is_empty()
            || self.count_comparisons(request).is_ok() && self.invalid_addresses(request).next().is_none()
    }

    #[inline(never)]
    fn count_comparisons(&self, request: &Request<'_>) -> Result<(), TooManyPatterns> {
        let (mut needed, mut worst) = (0_u64, None);
        for entry in request.descriptors.iter().flat_map(|descriptor| &descriptor.entries) {
            let Some(watched) = self.watched_keys.get(entry.key).filter(|watched| watched.patterns > 0)
            else {
                continue;
            };
            let length = entry.value.len() / BYTES_OF_COMPARISON + 1;
            needed = needed.saturating_add((watched.patterns * length) as u64);
            worst = worst.max(Some((watched.patterns, entry.key)));
        }
        match worst.filter(|_| needed > MAX_COMPARISONS) {
            Some((patterns, key)) => Err(TooManyPatterns { needed, key: key.to_owned(), patterns }),
            None => Ok(()),
        }
    }

    /// Returns the rules whose networks values of `request` cannot be looked for in, since they are no addresses: for each
    /// such value the first rule at or below each list of its key.
    pub fn invalid_addresses(&self, request: &Request<'_>) -> impl Iterator<Item = &CompiledRule> {
        let root = self.root(request.domain).map(|root| root.node);
        let is_invalid = |entry: &Entry<'_>| {
            self.watched_keys.get(entry.key).is_some_and(|watched| watched.has_networks)
                && IpNetwork::of_value(entry.value).is_none()
        };
        let mut found = Vec::new();
        for descriptor in &request.descriptors {
            let Some(last) = descriptor.entries.iter().rposition(is_invalid) else { continue };
            let mut node = root;
            for entry in &descriptor.entries[..=last] {
                let Some(branch) = node.map(|node| &self.nodes[node]) else { break };
                let step = branch.step(entry);
                // a value that is declared as text is meant
                if !matches!(step, Some((_, MatchedBy::Literal))) && is_invalid(entry) {
                    let rule_of = |node: &NodeId| self.rule_at(*node).or_else(|| self.first_below(*node));
                    found.extend(branch.network_nodes(entry.key).iter().filter_map(rule_of));
                }
                node = step.map(|(node, _)| node);
            }
        }
        found.into_iter()
    }

    #[inline]
    pub fn root(&self, domain: &str) -> Option<&Root> {
        self.domains.get(domain)
    }

    /// The rule's [`CompiledRule::index`], without reading the rule, and what makes the keys of its counters.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "most decisions are little more than this")]
    pub(super) fn find_below(&self, root: &Root, entries: &[Entry<'_>]) -> Option<(usize, &ValueHasher)> {
        let mut node = root.node;
        for entry in entries {
            node = self.nodes[node].step(entry)?.0;
        }
        let End { rule, keys } = &self.ends[node];
        Some(((*rule)? as usize, keys))
    }

    /// Returns the first key that no rule of `domain` has at its level, if that is why none matches `entries`.
    #[cold]
    pub fn unknown_key<'e>(&self, domain: &str, entries: &[Entry<'e>]) -> Option<&'e str> {
        self.branch_without(domain, entries).map(|(_, key)| key)
    }

    /// Returns the keys that rules have in place of the [`RuleSet::unknown_key`], in no order.
    pub fn keys_beside_unknown<'a>(
        &'a self,
        domain: &str,
        entries: &[Entry<'_>],
    ) -> impl Iterator<Item = &'a str> {
        let found = self.branch_without(domain, entries);
        found.into_iter().flat_map(|(branch, _)| branch.keys.iter().map(|(key, _)| key))
    }

    fn branch_without<'e>(&self, domain: &str, entries: &[Entry<'e>]) -> Option<(&Branch, &'e str)> {
        let mut branch = &self.nodes[self.root(domain)?.node];
        for entry in entries {
            match branch.step(entry) {
                Some((next, _)) => branch = &self.nodes[next],
                None => return branch.keys.get(entry.key).is_none().then_some((branch, entry.key)),
            }
        }
        None
    }

    pub fn domains(&self) -> impl Iterator<Item = &str> {
        self.domains.iter().map(|(name, _)| name)
    }

    pub(super) fn rule_at(&self, node: NodeId) -> Option<&CompiledRule> {
        self.ends[node].rule.map(|rule| &self.rules[rule as usize])
    }

    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.get(domain).is_some()
    }

    pub fn scope_of(&self, domain: &str) -> Option<Scope> {
        self.domains.get(domain).map(|root| root.scope)
    }

    /// Returns every rule, in the order of declaration: each is at its [`CompiledRule::index`].
    pub fn rules(&self) -> &[CompiledRule] {
        &self.rules
    }

    /// Returns the rule that `id` identifies, if it is of this set.
    pub fn rule(&self, id: RuleId) -> Option<&CompiledRule> {
        self.rules.get(id.index as usize).filter(|rule| rule.id() == id)
    }

    /// Returns the key under which `rule`, of this set and `domain`, counts a descriptor of `entries`.
    pub fn counter_key(&self, rule: &CompiledRule, domain: &str, entries: &[Entry<'_>]) -> CounterKey {
        rule.counter_key(&self.hasher.of_keys(domain, entries.iter().map(|entry| entry.key)), entries)
    }
}

// === impl Branch ===

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatchedBy {
    Literal,
    /// The n-th table of the key, in this line.
    Table(usize, u32),
    /// A table that lacks the value.
    OtherOfTable,
    /// The network of this row of the table.
    Network(u32),
    /// The n-th of [`KeyEdges::others`].
    Wildcard(usize),
    KeyOnly,
}

impl Branch {
    pub(super) fn networks(&self, key: &str) -> Option<&Arc<NetworkTable>> {
        match self.keys.get(key)?.others.first()? {
            ValueMatcher::Networks(networks, _) => Some(networks),
            ValueMatcher::Wildcard(..) => None,
        }
    }

    fn network_nodes(&self, key: &str) -> &[NodeId] {
        match self.keys.get(key).and_then(|edges| edges.others.first()) {
            Some(ValueMatcher::Networks(_, nodes)) => nodes,
            Some(ValueMatcher::Wildcard(..)) | None => &[],
        }
    }

    /// Returns the number of patterns of its key.
    fn add_edges(&mut self, node: &RuleNode, id: NodeId) -> usize {
        let edges = self.keys.get_or_insert_with(&node.key, KeyEdges::default);
        match (&node.values, edges.others.first_mut()) {
            (Values::Any, _) => _ = edges.any.get_or_insert(id),
            (Values::Networks(_), Some(ValueMatcher::Networks(_, nodes))) => nodes.push(id),
            _ => {}
        }
        for pattern in node.values.patterns() {
            // envoyproxy/ratelimit first looks for a literal, which a value equal to the pattern's text matches
            edges.literals.entry(pattern.text().into()).or_insert(id);
            if pattern.is_wildcard() {
                edges.others.push(ValueMatcher::Wildcard(pattern.clone(), id));
            }
        }
        if let Values::Table(values) = &node.values {
            edges.tables.get_or_insert_default().add(values, id);
        }
        edges.others.len() - usize::from(matches!(edges.others.first(), Some(ValueMatcher::Networks(..))))
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "most decisions are little more than this")]
    pub(super) fn step(&self, entry: &Entry<'_>) -> Option<(NodeId, MatchedBy)> {
        let edges = self.keys.get(entry.key)?;
        if let Some(&node) = edges.literals.get(entry.value) {
            return Some((node, MatchedBy::Literal));
        }
        if (edges.tables.is_some() || !edges.others.is_empty())
            && let Some(found) = edges.match_value(entry.value)
        {
            return Some(found);
        }
        Some((edges.any?, MatchedBy::KeyOnly))
    }
}

// === impl KeyEdges ===

impl KeyEdges {
    /// Tries what needs more than a look-up of the value. Not inlined, so that most values do not pay for it.
    #[inline(never)]
    fn match_value(&self, value: &str) -> Option<(NodeId, MatchedBy)> {
        if let Some(found) = self.tables.as_ref().and_then(|tables| tables.steps(value).next()) {
            return Some(found);
        }
        for (i, other) in self.others.iter().enumerate() {
            match other {
                ValueMatcher::Networks(networks, nodes) => {
                    let found = IpNetwork::of_value(value).and_then(|value| networks.find(&value));
                    if let Some(FoundNetwork { row, owner }) = found {
                        return Some((nodes[owner as usize], MatchedBy::Network(row)));
                    }
                }
                ValueMatcher::Wildcard(pattern, node) if pattern.matches(value) => {
                    return Some((*node, MatchedBy::Wildcard(i)));
                }
                ValueMatcher::Wildcard(..) => {}
            }
        }
        None
    }
}

// === impl TableEdges ===

impl TableEdges {
    fn add(&mut self, TableValues { table, group }: &TableValues, id: NodeId) {
        let Some(group) = group.map(|group| group as usize) else {
            self.others.get_or_insert_with(|| (Arc::clone(table), id));
            return;
        };
        let known = self.tables.iter().position(|(other, _)| Arc::ptr_eq(other, table));
        let at = known.unwrap_or_else(|| {
            self.tables.push((Arc::clone(table), Vec::new()));
            self.tables.len() - 1
        });
        let nodes = &mut self.tables[at].1;
        if nodes.len() <= group {
            nodes.resize(group + 1, None);
        }
        nodes[group].get_or_insert(id);
    }

    /// In the order in which they are tried.
    pub(super) fn steps(&self, value: &str) -> impl Iterator<Item = (NodeId, MatchedBy)> {
        let of_table = |(i, (table, nodes)): (usize, &(Arc<ValueTable>, Vec<Option<NodeId>>))| {
            let (group, line) = table.find(value)?;
            Some(((*nodes.get(group as usize)?)?, MatchedBy::Table(i, line)))
        };
        let others = self.others.as_ref().map(|(_, node)| (*node, MatchedBy::OtherOfTable));
        self.tables.iter().enumerate().filter_map(of_table).chain(others)
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        let of_groups = self.tables.iter().flat_map(|(_, nodes)| nodes.iter().flatten().copied());
        of_groups.chain(self.others.as_ref().map(|(_, node)| *node))
    }
}
