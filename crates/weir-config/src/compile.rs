//! Compiles the tree of a document to the rules that it declares.

use std::{collections::HashSet, sync::Arc};

use jiff::tz::TimeZone;

use super::{
    calendar,
    checks::{duplicates, foreign},
    error::ConfigReport,
    fields::{Field, Fields},
    keys::KeyLevel,
    metadata, networks, rate_limit,
    scalar::{Meaning, Scalar, brief},
    tables::{self, TableRef, TableRefs, plans},
    yaml::{Value, YamlNode, YamlPosition},
    zone,
};
use weir_limit::{self as limit, CountBy, Domain, NetworkList, Origin, Pattern, Rule, Scope, Values};

const LITERAL_STAR: &str = "'*' in a key is literal here, but to envoyproxy/ratelimit it is a wildcard in the text \
                            'key_value' of an entry; write a descriptor for each key, and wildcards in 'value'";

/// Bytes of keys and values on the paths to all rules of a file: each rule has its whole path.
const MAX_PATHS: usize = 64 << 20;

const MAX_STARS: usize = 100;

pub(super) struct Declared {
    pub(super) domain: Domain,
    pub(super) at: YamlPosition,
    pub(super) tables: TableRefs,
    pub(super) plans: Vec<(Box<str>, plans::Plan)>,
}

struct Walk<'r> {
    report: &'r mut ConfigReport,
    /// The domain and the composite keys of the enclosing descriptors.
    path: Vec<String>,
    path_bytes: usize,
    tables: TableRefs,
    timezone: Option<TimeZone>,
}

pub(super) fn compile(root: &YamlNode, report: &mut ConfigReport) -> Option<Declared> {
    let no_domain = "config file cannot have empty domain";
    if root.is_null() {
        report.error(YamlPosition::default(), no_domain);
        return None;
    }
    let fields = Fields::new(root, KeyLevel::Root, "a rule file", report)?;
    let domain = fields.text("domain", report);
    if domain.is_none() && fields.get("domain").is_none_or(|domain| domain.value.scalar().is_some()) {
        report.error(root.at, no_domain);
    }
    let name = domain.map_or("", |domain| domain.value);
    // of this file, also if others have the same domain
    let timezone = zone::read(&fields, report);
    let mut walk = Walk {
        report,
        path: vec![name.to_owned()],
        path_bytes: 0,
        tables: TableRefs::new(),
        timezone: timezone.clone(),
    };
    let mut nodes = walk.descriptors(&fields);
    let all_or_nothing = fields.flag("all_or_nothing", walk.report);
    let scope = if all_or_nothing { Scope::Request } else { Scope::Descriptor };
    let give_back = rate_limit::give_back(&fields, walk.report);
    let mut plans = plans::read(&fields, walk.report);
    if let Some(timezone) = &timezone {
        calendar::fill_in_nodes(&mut nodes, timezone);
        for (_, plan) in &mut plans {
            plan.fill_zone(timezone);
        }
    }
    let tables = walk.tables;
    let of = |at| Declared {
        domain: Domain { name: name.to_owned(), scope, give_back, nodes },
        at,
        tables,
        plans,
    };
    domain.map(|domain| of(domain.at))
}

// === impl Walk ===

impl Walk<'_> {
    fn descriptors(&mut self, fields: &Fields<'_>) -> Vec<limit::RuleNode> {
        fields.maps("descriptors", self.report).filter_map(|node| self.descriptor(node)).collect()
    }

    fn descriptor(&mut self, node: &YamlNode) -> Option<limit::RuleNode> {
        let fields = Fields::new(node, KeyLevel::Descriptor, "a descriptor", self.report)?;
        let key = fields.text("key", self.report);
        match &key {
            None if fields.get("key").is_some_and(|key| key.value.scalar().is_none()) => {}
            None => self.report.error(node.at, "descriptor has empty key"),
            // control planes make keys of names, which may have any characters
            Some(key) if key.value.contains('*') && key.at != YamlPosition::default() => {
                self.report.warn(key.at, LITERAL_STAR);
            }
            Some(_) => {}
        }
        let key = key.map_or("", |key| key.value);
        let is_cidr = fields.choice("match", &[("glob", false), ("cidr", true)], self.report) == Some(true);
        let table = TableRef::read(&fields, is_cidr, self.report);
        let is_list = table.as_ref().is_some_and(|table| !table.has_limits());
        let values = if is_cidr && !is_list { self.networks(&fields) } else { self.values(&fields, key) };
        let count_by = match &table {
            // its values are one list, or each is by itself
            Some(_) if !is_cidr => CountBy::Values,
            _ => networks::count_by(&fields, &values, is_cidr, self.report),
        };
        let name = match &table {
            Some(table) => format!("{key}_{}", table.name),
            None if values == Values::Any => key.to_owned(),
            None => format!("{key}_{values}"),
        };
        let share_threshold = self.share_threshold(&fields, &values, &name)
            || is_list && !is_cidr && tables::shares_counter(&fields, self.report);
        let rule = self.rule(&fields, table.as_ref());
        let has_one_counter = share_threshold
            || (count_by == CountBy::Values && matches!(values, Values::Of(_) | Values::Networks(_)))
            || matches!(&values, Values::One(pattern) if !pattern.is_wildcard());
        if let Some(rule) = rule.as_ref().filter(|rule| rule.sharing.is_some() && has_one_counter) {
            let Origin { line, column, .. } = rule.origin;
            self.report.warn(
                YamlPosition { line, column },
                "'share' has no effect, since all values of this descriptor are one member: leave 'value' out, or give \
                 it a wildcard and no 'share_threshold'",
            );
        }
        if rule.is_some() && !self.add_path(name.len(), node.at) {
            return None;
        }
        let enabled = fields.flag_or("enabled", true, self.report);
        let value_to_metric = fields.flag("value_to_metric", self.report);
        self.path.push(name);
        let children = self.descriptors(&fields);
        if !enabled {
            // the check of whole domains does not see disabled descriptors
            let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
            duplicates::report(&path, &children, &mut |at, message| {
                self.report.error_with(YamlPosition { line: at.line, column: at.column }, message);
            });
        }
        self.path.pop();
        let origin = self.report.origin(node.at);
        if let Some(mut table) = table {
            table.timezone.clone_from(&self.timezone);
            self.tables.insert(origin.clone(), table);
        }
        let node = limit::RuleNode {
            key: key.to_owned(),
            values,
            plan: None,
            share_threshold,
            count_by,
            value_to_metric,
            rule,
            children,
            origin,
        };
        (enabled && !key.is_empty()).then_some(node)
    }

    /// Whether there is room for the path; reports the first without. Control planes' rules are bounded before.
    fn add_path(&mut self, name: usize, at: YamlPosition) -> bool {
        let was_full = self.path_bytes > MAX_PATHS;
        self.path_bytes += self.path.iter().map(String::len).sum::<usize>() + name;
        let has_room = self.path_bytes <= MAX_PATHS || at == YamlPosition::default();
        if !was_full && !has_room {
            self.report.error(
                at,
                format!(
                    "the keys and values on the paths to the rules have more than {MAX_PATHS} bytes, since each rule has \
                     all above it; write shorter ones"
                ),
            );
        }
        has_room
    }

    fn pattern(&mut self, key: &str, text: &str, at: YamlPosition) -> Pattern {
        // control planes send what they mean
        if at != YamlPosition::default() {
            foreign::warn(key, text, at, self.report);
        }
        if text.bytes().filter(|byte| *byte == b'*').count() <= MAX_STARS {
            return Pattern::new(text);
        }
        self.report.error(at, format!("a value may have at most {MAX_STARS} '*'"));
        Pattern::new("")
    }

    fn values(&mut self, fields: &Fields<'_>, key: &str) -> Values {
        let value = fields.text("value", self.report);
        let Some(list) = fields.get("values") else {
            return value.map_or(Values::Any, |value| Values::One(self.pattern(key, value.value, value.at)));
        };
        if fields.get("value").is_some() {
            self.report.error(list.key_at, "'value' and 'values' cannot be combined");
        }
        let mut patterns: Vec<Pattern> = Vec::new();
        let mut seen = HashSet::new();
        for (text, at) in self.texts(fields, list.at) {
            if seen.insert(text) {
                patterns.push(self.pattern(key, text, at));
            } else {
                self.report.error(at, format!("duplicate value '{}'", brief(text)));
            }
        }
        if patterns.is_empty() { Values::Any } else { Values::Of(patterns) }
    }

    /// The texts of `values`, which is at `at`, with their places.
    fn texts<'n>(&mut self, fields: &Fields<'n>, at: YamlPosition) -> Vec<(&'n str, YamlPosition)> {
        let items = fields.list("values", self.report);
        if items.is_empty()
            && fields.get("values").is_some_and(|list| matches!(list.value.value, Value::List(_)))
        {
            self.report.error(at, "'values' must not be empty; remove it to match every value");
        }
        let mut texts = Vec::with_capacity(items.len());
        for item in items {
            match item.scalar().map(Scalar::text) {
                None => {
                    let kind = item.kind();
                    self.report.error(item.at, format!("'values' must be a list of texts, but has {kind}"));
                }
                Some("") => self.report.error(item.at, "a value in 'values' must not be empty"),
                Some(text) => texts.push((text, item.at)),
            }
        }
        texts
    }

    /// The values of `match: cidr`.
    fn networks(&mut self, fields: &Fields<'_>) -> Values {
        let right = "'match: cidr' takes a list: write 'values";
        if let Some(value) = fields.get("value") {
            let written = value.value.scalar().map_or("10.0.0.0/8".into(), Scalar::brief);
            self.report.error(value.key_at, format!("{right}: [{written}]'"));
        }
        let Some(list) = fields.get("values") else {
            let at = fields.get("match").map_or(fields.at, |field| field.key_at);
            if fields.get("value").is_none() {
                self.report.error(at, format!("{right}: [10.0.0.0/8]'"));
            }
            return Values::Any;
        };
        let file = self.report.origin(list.at).file;
        let networks = networks::read(&file, self.texts(fields, list.at), self.report);
        if networks.is_empty() {
            Values::Any
        } else {
            Values::Networks(NetworkList::new(file, networks).into())
        }
    }

    fn share_threshold(&mut self, fields: &Fields<'_>, values: &Values, name: &str) -> bool {
        let shares = fields.flag("share_threshold", self.report);
        if !shares || values.is_wildcard() {
            return shares;
        }
        let at = fields.get("share_threshold").map_or(fields.at, |field| field.key_at);
        if name.contains('*') {
            // envoyproxy/ratelimit accepts it, since a key may have the wildcard there
            self.report.warn(at, "share_threshold has no effect without a wildcard in 'value'");
        } else {
            self.report.error(
                at,
                format!(
                    "share_threshold can only be used with wildcard values (containing '*'), but found key '{}'",
                    brief(name)
                ),
            );
        }
        false
    }

    /// Flags of a descriptor are not about the limits of nested ones.
    fn warn_of_flags_without_limit(&mut self, fields: &Fields<'_>) {
        for key in ["shadow_mode", "quota_mode", "detailed_metric"] {
            let is_on = |field: &Field<&YamlNode>| {
                field.value.scalar().map(Scalar::meaning) == Some(Meaning::Bool(true))
            };
            if let Some(field) = fields.get(key).filter(is_on) {
                self.report.warn(
                    field.key_at,
                    format!(
                        "'{key}' has no effect without 'rate_limit' beside it: it is not about nested descriptors"
                    ),
                );
            }
        }
    }

    fn rule(&mut self, fields: &Fields<'_>, table: Option<&TableRef>) -> Option<Rule> {
        let shadow_mode = fields.flag("shadow_mode", self.report);
        let quota_mode = fields.flag("quota_mode", self.report);
        let detailed_metric = fields.flag("detailed_metric", self.report);
        let metadata = fields.get("metadata").and_then(|field| metadata::read(field.value, self.report));
        if let Some(at) = fields.bare("rate_limit") {
            self.report.warn(
                at,
                "nothing is written under 'rate_limit', so this descriptor has no limit; write 'rate_limit: null' \
                 if that is intended",
            );
        }
        let limits = fields.get("limits_from").filter(|_| table.is_some_and(TableRef::has_limits));
        let (field, rule) = match (fields.get("rate_limit"), limits) {
            (Some(field), None) => (field, rate_limit::read(field.value, field.key_at, self.report)?),
            (beside, Some(field)) => (field, rate_limit::read_beside_table(beside, self.report)?),
            (None, None) => {
                self.warn_of_flags_without_limit(fields);
                return None;
            }
        };
        Some(Rule {
            shadow_mode,
            quota_mode,
            detailed_metric,
            metadata: metadata.map(Arc::new),
            origin: self.report.origin(field.key_at),
            ..rule
        })
    }
}
