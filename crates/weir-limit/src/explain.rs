//! Explains why a descriptor matches a rule, or why it matches none.

use std::collections::BTreeSet;

use super::{
    compiled_rule::CompiledRule,
    descriptor::Entry,
    inline_str::InlineStr,
    matcher::{Branch, MatchedBy, NodeId, RuleSet, ValueMatcher},
    network::IpNetwork,
    rule::Origin,
};

const MAX_ALTERNATIVES: usize = 8;

#[derive(Debug)]
pub struct Explanation<'a> {
    /// One per entry, up to the last one that was looked up.
    pub steps: Vec<Step<'a>>,
    pub outcome: Outcome<'a>,
    /// If nothing matches the whole descriptor: the rule that would match most of it if a look-up went back.
    pub passed_over: Option<PassedOver<'a>>,
}

/// A rule that a look-up does not reach, because it does not go back.
#[derive(Debug)]
pub struct PassedOver<'a> {
    pub rule: &'a CompiledRule,
    pub fit: Fit,
    /// The entry that matches both its level of the rule and what is tried before that.
    pub entry: Entry<'a>,
    /// What is tried before, and has nothing for the next entries.
    pub chosen: &'a Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    Whole,
    /// All of it, and more entries.
    Longer,
    /// So many of its entries.
    Shorter(usize),
}

#[derive(Debug)]
pub struct Step<'a> {
    pub entry: Entry<'a>,
    /// The candidates that were tried, in order. The last one matched, if any did.
    pub attempts: Vec<Attempt<'a>>,
    /// If nothing matched: up to eight descriptors of this level, as `key_value` or key, those with this key first.
    pub alternatives: Vec<String>,
    /// The number of descriptors declared at this level, listed or not.
    pub alternatives_total: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Attempt<'a> {
    pub candidate: Candidate<'a>,
    /// Where the matching descriptor is declared; none if this candidate did not match.
    pub origin: Option<&'a Origin>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidate<'a> {
    /// A descriptor with the entry's key and value.
    Literal,
    /// The values of this file; the line, if the entry's value is there.
    Table(&'a str, Option<u32>),
    /// The values that this file lacks.
    OtherOfTable(&'a str),
    /// So many networks, for the entry's key, and the longest one that holds the value.
    Networks(usize, Option<IpNetwork>),
    /// This pattern, for the entry's key.
    Wildcard(&'a str),
    /// A descriptor with the entry's key and no value.
    KeyOnly,
}

#[derive(Debug)]
pub enum Outcome<'a> {
    Rule(&'a CompiledRule),
    /// There are no rules for the domain. Holds the known domains, sorted by name.
    UnknownDomain(Vec<&'a str>),
    NoEntries,
    NoMatch,
    /// The descriptor that matched last has nothing below it, but there are more entries.
    TooManyEntries {
        /// The number of entries that matched.
        depth: usize,
        /// Whether the last matching descriptor has a limit, which applies only to descriptors that end there.
        limited: bool,
    },
    /// The entries ended at a descriptor without a limit.
    NoLimit {
        origin: &'a Origin,
        /// Whether it has descriptors below it, which need more entries.
        below: bool,
    },
}

impl RuleSet {
    /// Explains the result of [`RuleSet::find`] for a descriptor of these `entries`.
    pub fn explain<'a>(&'a self, domain: &str, entries: &[Entry<'a>]) -> Explanation<'a> {
        let mut steps = Vec::new();
        let outcome = self.walk(domain, entries, &mut steps);
        let passed_over = match outcome {
            Outcome::NoMatch | Outcome::TooManyEntries { .. } | Outcome::NoLimit { below: true, .. } => {
                self.passed_over(domain, entries)
            }
            _ => None,
        };
        Explanation { steps, outcome, passed_over }
    }

    /// What the look-up would find if it went back: a rule for all `entries`, else for more, else for most of them.
    fn passed_over<'a>(&'a self, domain: &str, entries: &[Entry<'a>]) -> Option<PassedOver<'a>> {
        let mut path = vec![self.domains.get(domain)?.node];
        let mut untried: Vec<Vec<NodeId>> = vec![self.nodes[path[0]].all_steps(entries.first()?)];
        let (mut longer, mut shorter): (Option<PassedOver<'a>>, Option<PassedOver<'a>>) = (None, None);
        loop {
            // each node is on one path, so that none is visited twice
            let Some(next) = untried.last_mut().and_then(Vec::pop) else {
                untried.pop();
                path.pop();
                if untried.is_empty() {
                    return longer.or(shorter);
                }
                continue;
            };
            path.push(next);
            let (depth, rule) = (path.len() - 1, self.rule_at(next));
            let found = |rule, fit| {
                let (level, chosen) = self.parting(&path, entries)?;
                Some(PassedOver { rule, fit, entry: entries[level], chosen: &self.nodes[chosen].origin })
            };
            if let Some(entry) = entries.get(depth) {
                let is_longest = |shorter: &PassedOver<'_>| shorter.fit < Fit::Shorter(depth);
                if let Some(rule) = rule
                    && shorter.as_ref().is_none_or(is_longest)
                {
                    shorter = found(rule, Fit::Shorter(depth)).or(shorter);
                }
                untried.push(self.nodes[next].all_steps(entry));
            } else {
                if let Some(whole) = rule.and_then(|rule| found(rule, Fit::Whole)) {
                    return Some(whole);
                }
                if longer.is_none() {
                    longer = self.first_below(next).and_then(|rule| found(rule, Fit::Longer));
                }
                path.pop();
            }
        }
    }

    /// The level at which the look-up leaves `path`, and the node to which it goes there.
    fn parting(&self, path: &[NodeId], entries: &[Entry<'_>]) -> Option<(usize, NodeId)> {
        path.windows(2).zip(entries).enumerate().find_map(|(level, (pair, entry))| {
            let (chosen, _) = self.nodes[pair[0]].step(entry)?;
            (chosen != pair[1]).then_some((level, chosen))
        })
    }

    pub(super) fn first_below(&self, node: NodeId) -> Option<&CompiledRule> {
        // nodes are numbered in the order of declaration, each before those below it
        let mut unseen = BTreeSet::from([node]);
        while let Some(next) = unseen.pop_first() {
            if next != node
                && let Some(rule) = self.rule_at(next)
            {
                return Some(rule);
            }
            for (_, edges) in self.nodes[next].keys.iter() {
                let others = edges.others.iter().flat_map(ValueMatcher::nodes);
                unseen.extend(edges.literals.values().chain(others).chain(&edges.any));
                unseen.extend(edges.tables.iter().flat_map(|tables| tables.nodes()));
            }
        }
        None
    }

    fn walk<'a>(&'a self, domain: &str, entries: &[Entry<'a>], steps: &mut Vec<Step<'a>>) -> Outcome<'a> {
        let Some(root) = self.root(domain).map(|root| root.node) else {
            let mut domains: Vec<_> = self.domains.iter().map(|(name, _)| name).collect();
            domains.sort_unstable();
            return Outcome::UnknownDomain(domains);
        };
        if entries.is_empty() {
            return Outcome::NoEntries;
        }
        let mut node = root;
        for (depth, entry) in entries.iter().enumerate() {
            let branch = &self.nodes[node];
            if depth > 0 && branch.is_leaf() {
                return Outcome::TooManyEntries { depth, limited: self.rule_at(node).is_some() };
            }
            // the same step as `find` takes, so that the explanation cannot differ from the match
            let matched = branch.step(entry);
            steps.push(branch.explain(entry, matched.map(|(next, by)| (&self.nodes[next], by))));
            match matched {
                Some((next, _)) => node = next,
                None => return Outcome::NoMatch,
            }
        }
        let branch = &self.nodes[node];
        match self.rule_at(node) {
            Some(rule) => Outcome::Rule(rule),
            None => Outcome::NoLimit { origin: &branch.origin, below: !branch.is_leaf() },
        }
    }
}

impl Branch {
    /// The child that is tried first comes last.
    fn all_steps(&self, entry: &Entry<'_>) -> Vec<NodeId> {
        let Some(edges) = self.keys.get(entry.key) else { return Vec::new() };
        let mut steps: Vec<NodeId> = edges.literals.get(entry.value).copied().into_iter().collect();
        let of_tables = edges.tables.iter().flat_map(|tables| tables.steps(entry.value));
        steps.extend(of_tables.map(|(node, _)| node));
        for other in &edges.others {
            match other {
                ValueMatcher::Networks(networks, nodes) => {
                    let Some(value) = IpNetwork::of_value(entry.value) else { continue };
                    // lists may hold a value by several of their networks
                    for node in networks.owners(&value).map(|owner| nodes[owner as usize]) {
                        if !steps.contains(&node) {
                            steps.push(node);
                        }
                    }
                }
                ValueMatcher::Wildcard(pattern, node) if pattern.matches(entry.value) => steps.push(*node),
                ValueMatcher::Wildcard(..) => {}
            }
        }
        steps.extend(edges.any);
        steps.reverse();
        steps
    }

    fn is_leaf(&self) -> bool {
        self.keys.is_empty()
    }

    fn explain<'a>(&'a self, entry: &Entry<'a>, matched: Option<(&'a Self, MatchedBy)>) -> Step<'a> {
        let mut candidates = vec![(Candidate::Literal, MatchedBy::Literal)];
        let edges = self.keys.get(entry.key);
        for tables in edges.iter().filter_map(|edges| edges.tables.as_ref()) {
            for (i, (table, _)) in tables.tables.iter().enumerate() {
                let line = table.find(entry.value).map(|(_, line)| line);
                let by = MatchedBy::Table(i, line.unwrap_or_default());
                candidates.push((Candidate::Table(table.rows().file(), line), by));
            }
            let others = tables.others.iter();
            candidates.extend(
                others.map(|(table, _)| {
                    (Candidate::OtherOfTable(table.rows().file()), MatchedBy::OtherOfTable)
                }),
            );
        }
        let others = edges.map(|edges| &*edges.others).unwrap_or_default();
        let matched_by = matched.map(|(_, by)| by);
        for (i, other) in others.iter().enumerate() {
            candidates.push(match (other, matched_by) {
                (ValueMatcher::Networks(networks, _), Some(by @ MatchedBy::Network(row))) => {
                    (Candidate::Networks(networks.len(), Some(networks.network(row))), by)
                }
                (ValueMatcher::Networks(networks, _), _) => {
                    (Candidate::Networks(networks.len(), None), MatchedBy::Network(u32::MAX))
                }
                (ValueMatcher::Wildcard(pattern, _), _) => {
                    (Candidate::Wildcard(pattern.text()), MatchedBy::Wildcard(i))
                }
            });
        }
        candidates.push((Candidate::KeyOnly, MatchedBy::KeyOnly));
        let mut attempts = Vec::new();
        for (candidate, by) in candidates {
            let branch = matched.filter(|(_, matched_by)| *matched_by == by).map(|(branch, _)| branch);
            attempts.push(Attempt { candidate, origin: branch.map(|branch| &branch.origin) });
            if branch.is_some() {
                break;
            }
        }
        let mut alternatives = if matched.is_none() { self.children(entry.key) } else { Vec::new() };
        let alternatives_total = alternatives.len();
        alternatives.truncate(MAX_ALTERNATIVES);
        let alternatives = alternatives.into_iter().map(|(_, name)| name).collect();
        Step { entry: *entry, attempts, alternatives, alternatives_total }
    }

    /// Those with `key` first, then by name.
    fn children(&self, key: &str) -> Vec<(bool, String)> {
        let mut children = Vec::new();
        for (child_key, edges) in self.keys.iter() {
            let values = edges.literals.keys().map(InlineStr::as_str).chain(edges.any.map(|_| ""));
            let tables = edges.tables.iter().flat_map(|tables| &tables.tables);
            let values = values.chain(tables.map(|(table, _)| table.name()));
            let name = |value: &str| Entry { key: child_key, value }.step();
            children.extend(values.map(|value| (child_key != key, name(value))));
            if let Some(networks) = self.networks(child_key) {
                let networks = networks.iter().map(|network| network.to_string());
                children.extend(networks.map(|network| (child_key != key, name(&network))));
            }
        }
        children.sort_unstable();
        children
    }
}

impl ValueMatcher {
    fn nodes(&self) -> &[NodeId] {
        match self {
            Self::Networks(_, nodes) => nodes,
            Self::Wildcard(_, node) => std::slice::from_ref(node),
        }
    }
}
