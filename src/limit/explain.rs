//! Why a descriptor matches the rule that it does, or none.

use super::{
    compiled_rule::CompiledRule,
    descriptor::Entry,
    matcher::{Because, Branch, RuleSet},
    rule::Origin,
};

/// Other ways down that are told of at a level.
const MOST_OTHERS: usize = 8;

/// The way of a descriptor through the rules.
#[derive(Debug)]
pub struct Explanation<'a> {
    /// One for each entry, as far as it went.
    pub steps: Vec<Step<'a>>,
    /// Where it ended.
    pub outcome: Outcome<'a>,
}

/// What happened to one entry.
#[derive(Debug)]
pub struct Step<'a> {
    /// The entry.
    pub entry: Entry<'a>,
    /// What was looked for, in order. The last one was taken, if any was.
    pub tried: Vec<Tried<'a>>,
    /// If nothing was taken: other ways down from here, those with the entry's key first, `key_value` or key. At most
    /// eight.
    pub others: Vec<String>,
    /// How many other ways down there are.
    pub others_in_all: usize,
}

/// One thing that was looked for.
#[derive(Debug, PartialEq, Eq)]
pub struct Tried<'a> {
    /// What it was.
    pub what: What<'a>,
    /// Where the descriptor is declared that was taken; none if this did not match.
    pub origin: Option<&'a Origin>,
}

/// A way in which an entry can match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What<'a> {
    /// A descriptor with the entry's key and value.
    Literal,
    /// This pattern, for the entry's key.
    Wildcard(&'a str),
    /// A descriptor with the entry's key and no value.
    KeyAlone,
}

/// Where a descriptor ended.
#[derive(Debug)]
pub enum Outcome<'a> {
    /// At a rule.
    Rule(&'a CompiledRule),
    /// There are no rules for the domain. These are the domains that there are, by name.
    UnknownDomain(Vec<&'a str>),
    /// It has no entries, and matches nothing.
    NoEntries,
    /// Nothing matched the entry of the last step.
    NoMatch,
    /// The descriptor that matched last has nothing below it, but there are more entries.
    TooManyEntries {
        /// The entries that matched.
        depth: usize,
        /// There is a limit there, which is for descriptors that end there.
        limited: bool,
    },
    /// The entries ended at a descriptor without a limit.
    NoLimit {
        /// Where that is declared.
        origin: &'a Origin,
        /// There are descriptors below it, which want more entries.
        below: bool,
    },
}

impl RuleSet {
    /// What [`RuleSet::find`] does with a descriptor of these `entries`, and why.
    #[must_use]
    pub fn explain<'a>(&'a self, domain: &str, entries: &[Entry<'a>]) -> Explanation<'a> {
        let mut steps = Vec::new();
        let outcome = self.walk(domain, entries, &mut steps);
        Explanation { steps, outcome }
    }

    fn walk<'a>(&'a self, domain: &str, entries: &[Entry<'a>], steps: &mut Vec<Step<'a>>) -> Outcome<'a> {
        let Some(&root) = self.domains.get(domain) else {
            let mut domains: Vec<_> = self.domains.keys().map(|name| &**name).collect();
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
            // the step is `find`'s own: an explanation of anything else would be a guess
            let taken = branch.step(entry);
            steps.push(branch.explain(entry, taken.map(|(next, because)| (&self.nodes[next], because))));
            match taken {
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
    fn is_leaf(&self) -> bool {
        self.literals.is_empty() && self.any.is_empty()
    }

    fn explain<'a>(&'a self, entry: &Entry<'a>, taken: Option<(&'a Self, Because)>) -> Step<'a> {
        let because = taken.map(|(_, because)| because);
        let mut ways = vec![(What::Literal, Because::Literal)];
        for (i, (key, pattern, _)) in self.wildcards.iter().enumerate() {
            if **key == *entry.key {
                ways.push((What::Wildcard(pattern.text()), Because::Wildcard(i)));
            }
        }
        ways.push((What::KeyAlone, Because::KeyAlone));
        let end = ways
            .iter()
            .position(|(_, coordination)| Some(*coordination) == because)
            .map_or(ways.len(), |i| i + 1);
        let tried = ways.into_iter().take(end).map(|(what, coordination)| {
            let origin =
                taken.filter(|(_, because)| *because == coordination).map(|(branch, _)| &branch.origin);
            Tried { what, origin }
        });
        let mut others = if taken.is_none() { self.ways_down(entry.key) } else { Vec::new() };
        let others_in_all = others.len();
        others.truncate(MOST_OTHERS);
        let others = others.into_iter().map(|(_, name)| name).collect();
        Step { entry: *entry, tried: tried.collect(), others, others_in_all }
    }

    /// The names of all ways down; those with `key` first, then by name.
    fn ways_down(&self, key: &str) -> Vec<(bool, String)> {
        let literals = self.literals.keys().map(|edge| (edge.key.as_str(), edge.value.as_str()));
        let keys = self.any.keys().map(|key| (key.as_str(), ""));
        let name = |(key, value)| Entry { key, value }.step();
        let mut ways: Vec<_> =
            literals.chain(keys).map(|coordination| (coordination.0 != key, name(coordination))).collect();
        ways.sort_unstable();
        ways
    }
}
