//! A model of envoyproxy/ratelimit: how its documentation says that requests match rules and are counted.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// A node of the rules of the one domain.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) key: &'static str,
    pub(crate) value: Option<&'static str>,
    pub(crate) rule: Option<Rule>,
    pub(crate) share_threshold: bool,
    pub(crate) shadow: bool,
    pub(crate) quota: bool,
    pub(crate) children: Vec<Node>,
}

#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// Requests per unit; none if it is unlimited.
    pub(crate) limit: Option<Limit>,
    pub(crate) name: &'static str,
    pub(crate) replaces: Vec<&'static str>,
}

/// Requests and unit, as a number of `RateLimitResponse.RateLimit.Unit`.
pub(crate) type Limit = (u32, i32);

/// Keys and values.
pub(crate) type Entries = Vec<(&'static str, &'static str)>;

#[derive(Clone, Debug)]
pub(crate) struct Descriptor {
    pub(crate) entries: Entries,
    pub(crate) hits: Option<u64>,
    pub(crate) limit: Option<Limit>,
}

/// The counts, and the modes of the whole service.
#[derive(Debug)]
pub(crate) struct Model {
    shadow_mode: bool,
    quota_mode: bool,
    /// By the entries, where a shared pattern replaces the value, and the unit.
    counts: BTreeMap<(Entries, i32), u64>,
}

/// What a descriptor matches.
struct Match {
    rule: Rule,
    shadow: bool,
    quota: bool,
    counter: Entries,
}

/// The names of units, by their numbers.
const UNITS: [&str; 8] = ["", "second", "minute", "hour", "day", "month", "year", "week"];

// === impl Node ===

impl Node {
    /// Writes the node as envoyproxy/ratelimit reads it: JSON is YAML.
    pub(crate) fn config(&self) -> Value {
        let mut node = json!({ "key": self.key });
        if let Some(value) = self.value {
            node["value"] = value.into();
        }
        if let Some(Rule { limit, name, replaces }) = &self.rule {
            let mut rule = match limit {
                Some((requests, unit)) => {
                    json!({ "requests_per_unit": requests, "unit": UNITS[usize::try_from(*unit).expect("a unit")] })
                }
                None => json!({ "unlimited": true }),
            };
            if !name.is_empty() {
                rule["name"] = (*name).into();
            }
            rule["replaces"] = replaces.iter().map(|name| json!({ "name": name })).collect();
            node["rate_limit"] = rule;
        }
        for (name, is_set) in [
            ("share_threshold", self.share_threshold),
            ("shadow_mode", self.shadow),
            ("quota_mode", self.quota),
        ] {
            if is_set {
                node[name] = true.into();
            }
        }
        node["descriptors"] = self.children.iter().map(Self::config).collect();
        node
    }

    fn is_wildcard(&self) -> bool {
        self.value.is_some_and(|value| value.contains('*'))
    }
}

// === impl Model ===

impl Model {
    /// Creates a model that has counted nothing.
    pub(crate) fn new(shadow_mode: bool, quota_mode: bool) -> Self {
        Self { shadow_mode, quota_mode, counts: BTreeMap::new() }
    }

    /// Answers a request, in the format of the recording but for the headers, and counts it.
    pub(crate) fn answer(&mut self, rules: &[Node], hits: u32, descriptors: &[Descriptor]) -> Value {
        let mut matches: Vec<Option<Match>> =
            descriptors.iter().map(|descriptor| find(rules, descriptor)).collect();
        let replaced: Vec<&str> =
            matches.iter().flatten().flat_map(|found| found.rule.replaces.clone()).collect();
        for found in &mut matches {
            found.take_if(|found| found.rule.limit.is_some() && replaced.contains(&found.rule.name));
        }
        let (mut limits_over, mut quotas, mut quotas_over) = (0, 0, 0);
        let mut statuses = Vec::new();
        for (descriptor, found) in descriptors.iter().zip(matches) {
            let quota = self.quota_mode || found.as_ref().is_some_and(|found| found.quota);
            let (status, over) = match found {
                None => (json!([1, null, 0, null]), false),
                Some(Match { rule: Rule { limit: None, .. }, .. }) => {
                    statuses.push(json!([1, null, u32::MAX, null]));
                    continue;
                }
                Some(Match {
                    rule: Rule { limit: Some((requests, unit)), name, .. },
                    shadow,
                    counter,
                    ..
                }) => {
                    let count = self.counts.entry((counter, unit)).or_default();
                    *count += descriptor.hits.unwrap_or_else(|| hits.max(1).into());
                    let is_past = *count > requests.into();
                    let remaining = if is_past { 0 } else { u64::from(requests) - *count };
                    let over = is_past && !shadow;
                    (json!([if over { 2 } else { 1 }, [requests, unit, name], remaining, "t"]), over)
                }
            };
            statuses.push(status);
            quotas += u32::from(quota);
            quotas_over += u32::from(quota && over);
            limits_over += u32::from(!quota && over);
        }
        let over = limits_over > 0 || (quotas > 0 && quotas == quotas_over);
        let code = if over && !self.shadow_mode { 2 } else { 1 };
        json!({ "code": code, "statuses": statuses, "headers": [] })
    }
}

/// Finds the rule of a descriptor: at each level the literal value, then wildcards in their order, then the key alone.
fn find(rules: &[Node], descriptor: &Descriptor) -> Option<Match> {
    if let Some(limit) = descriptor.limit {
        let rule = Rule { limit: Some(limit), name: "", replaces: Vec::new() };
        return Some(Match { rule, shadow: false, quota: false, counter: descriptor.entries.clone() });
    }
    let (mut level, mut counter, mut last) = (rules, Vec::new(), None);
    for (key, value) in &descriptor.entries {
        let of_key = || level.iter().filter(|node| node.key == *key);
        let node = of_key()
            .find(|node| node.value == Some(value))
            .or_else(|| {
                of_key().find(|node| node.is_wildcard() && glob(node.value.unwrap_or_default(), value))
            })
            .or_else(|| of_key().find(|node| node.value.is_none()))?;
        let shared = node.value.filter(|_| node.share_threshold);
        counter.push((*key, shared.unwrap_or(value)));
        (level, last) = (&node.children, Some(node));
    }
    let node = last?;
    Some(Match { rule: node.rule.clone()?, shadow: node.shadow, quota: node.quota, counter })
}

/// Whether `pattern`, in which `*` is any text, is `value`.
fn glob(pattern: &str, value: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == value,
        Some((start, rest)) => value.strip_prefix(start).is_some_and(|value| {
            let ends = value.char_indices().map(|(at, _)| at).chain([value.len()]);
            ends.into_iter().any(|at| glob(rest, &value[at..]))
        }),
    }
}
