//! Puts the rows of tables in the tree of rules.
//!
//! A descriptor whose key a table knows becomes a node for each limit, with the values that have it; nodes below take the
//! limits of the same rows. Values that the table lacks go to a node of their own, if there is a default or if the
//! descriptor stands for any value.

use std::{collections::HashMap, rc::Rc, sync::Arc};

use super::{
    super::{calendar, error::ConfigReport, networks, scalar::brief, yaml::YamlPosition},
    ComparedTables, LimitsFrom, Plans, TableOfLoad, TableRef, TableRefs, Tables,
    file::ReadTable,
    plans, rows_of,
};
use weir_limit::{Domain, NetworkList, Origin, Pattern, Rule, RuleNode, TableValues, ValueTable, Values};

/// The most nodes that tables add to all domains, as many as the largest rule file has.
const MAX_NODES: usize = 150_000;

/// The most bytes of keys and values on the paths to their rules.
const MAX_PATHS: usize = 64 << 20;

/// The most networks of one table, which take up to 82 bytes each.
const MAX_NETWORKS: usize = 1_000_000;

/// The most tables that a request's value is looked for in on one level.
const MAX_TABLES: usize = 16;

pub(super) fn domains(
    tables: &mut Tables,
    domains: &mut [Domain],
    refs: &TableRefs,
    plans: &HashMap<String, Plans>,
    report: &mut ConfigReport,
) {
    let none = Plans::default();
    let (mut nodes, mut paths, mut compared) = (0, 0, ComparedTables::new());
    for domain in domains {
        let mut expansion = Expansion {
            tables,
            refs,
            plans: plans.get(&domain.name).unwrap_or(&none),
            domain: &domain.name,
            report,
            nodes: &mut nodes,
            paths: &mut paths,
            compared: &mut compared,
            above: Vec::new(),
        };
        domain.nodes = expansion.level(&domain.nodes);
    }
}

struct Expansion<'e> {
    tables: &'e mut Tables,
    refs: &'e TableRefs,
    plans: &'e Plans,
    domain: &'e str,
    report: &'e mut ConfigReport,
    nodes: &'e mut usize,
    paths: &'e mut usize,
    compared: &'e mut ComparedTables,
    above: Vec<Above>,
}

/// A node above, and the row that it stands for.
#[derive(Clone)]
struct Above {
    key: String,
    row: Row,
}

#[derive(Clone)]
enum Row {
    /// No table has the node's values.
    NoTable,
    /// One of those of a class.
    Class(usize),
    /// The table lacks it.
    Missing,
}

/// The rows of a table that have the same limits in some columns.
struct RowGroup {
    label: Box<str>,
    /// One of their classes.
    class: usize,
}

impl Expansion<'_> {
    fn level(&mut self, nodes: &[RuleNode]) -> Vec<RuleNode> {
        let mut expanded = Vec::with_capacity(nodes.len());
        for node in nodes {
            let uses = self.uses(node);
            let own = self.refs.get(&node.origin);
            match (&*uses, own) {
                ([], Some(table)) if !table.has_limits() => {
                    let values = self.listed(table);
                    expanded.push(
                        self.below(node, Row::NoTable, |node| node.values = values.unwrap_or(Values::Any)),
                    );
                }
                ([], own) => {
                    let rule = self.rule_by_above(node, own);
                    expanded.push(self.below(node, Row::NoTable, |below| below.rule = rule));
                }
                (uses, own) => self.rows(node, own, uses, &mut expanded),
            }
        }
        self.check(nodes, &expanded);
        expanded
    }

    /// The limits of rows whose values this node has: its own, and those of nodes below that are `by` its key.
    fn uses(&self, node: &RuleNode) -> Vec<TableRef> {
        fn add(refs: &TableRefs, nodes: &[RuleNode], key: &str, uses: &mut Vec<TableRef>) {
            for node in nodes.iter().filter(|node| node.key != key) {
                let table = refs.get(&node.origin);
                let is_by = |limits: &LimitsFrom| limits.by.as_ref().is_some_and(|(by, _)| **by == *key);
                uses.extend(table.filter(|table| table.limits_from().is_some_and(is_by)).cloned());
                add(refs, &node.children, key, uses);
            }
        }
        let is_own = |limits: &LimitsFrom| limits.by.as_ref().is_none_or(|(by, _)| **by == *node.key);
        let own = self.refs.get(&node.origin).filter(|table| table.limits_from().is_some_and(is_own));
        let mut uses: Vec<TableRef> = own.cloned().into_iter().collect();
        add(self.refs, &node.children, &node.key, &mut uses);
        uses
    }

    /// `node` with what is below it, as `change` makes it.
    fn below(&mut self, node: &RuleNode, row: Row, change: impl FnOnce(&mut RuleNode)) -> RuleNode {
        self.above.push(Above { key: node.key.clone(), row });
        let children = self.level(&node.children);
        self.above.pop();
        let mut below = RuleNode { children, ..without_children(node) };
        change(&mut below);
        below
    }

    fn listed(&mut self, table: &TableRef) -> Option<Values> {
        let rows = Arc::clone(&self.tables.of(table)?.table.as_ref()?.rows);
        if table.has_networks() {
            if rows.len() > MAX_NETWORKS {
                self.report.error_at(table.at.clone(), || {
                    format!("the table has {} networks, and a list has at most {MAX_NETWORKS}", rows.len())
                });
                return None;
            }
            let place = |line| YamlPosition { line, column: 1 };
            let lines = rows.values().map(|(value, line)| (value, place(line)));
            let networks = networks::read(rows.file(), lines, self.report);
            let list = NetworkList::named(&table.name, Arc::clone(rows.file()), networks);
            return Some(Values::Networks(list.into()));
        }
        let table = Arc::new(ValueTable::new(&table.name, rows, [0]));
        Some(Values::Table(TableValues { table, group: Some(0) }))
    }

    /// The rule of a node whose values no table has: its own, or that of the row of a node above.
    fn rule_by_above(&mut self, node: &RuleNode, own: Option<&TableRef>) -> Option<Rule> {
        let Some((table, limits)) = own.and_then(|table| Some((table, table.limits_from()?))) else {
            return node.rule.clone();
        };
        let (by, at) = limits.by.clone().unwrap_or_default();
        let above = self.above.iter().rev().find(|above| *above.key == *by);
        match above.map(|above| above.row.clone()) {
            Some(Row::Class(class)) => self.rule(node, table, limits, class),
            Some(Row::Missing) => self.default_rule(node, table, limits),
            Some(Row::NoTable) => None,
            None => {
                self.report.error_at(at, || {
                    format!(
                        "no key '{}' is above this descriptor; 'by' names its key, or one above it",
                        brief(&by)
                    )
                });
                None
            }
        }
    }

    /// A node for each limit, and one for the values that the table lacks.
    fn rows(
        &mut self,
        node: &RuleNode,
        own: Option<&TableRef>,
        uses: &[TableRef],
        expanded: &mut Vec<RuleNode>,
    ) {
        let Some(table) = self.table_of(node, own, uses) else {
            return;
        };
        let name = &uses[0].name;
        let columns = uses.iter().filter_map(|table| Some(&*table.limits_from()?.column));
        let mut columns: Vec<&str> = columns.collect();
        columns.sort_unstable();
        columns.dedup();
        let (groups, of_classes) = groups(&table, &columns);
        if !self.has_room(node, groups.len(), &uses[0].at) {
            return;
        }
        let values = Arc::new(ValueTable::new(name, Arc::clone(&table.rows), of_classes));
        let of_group = |group| Values::Table(TableValues { table: Arc::clone(&values), group });
        let by_own = own.and_then(|table| Some((table, table.limits_from()?)));
        let by_own = by_own.filter(|(_, limits)| limits.by.as_ref().is_none_or(|(by, _)| **by == *node.key));
        let by_above = if by_own.is_none() { self.rule_by_above(node, own) } else { None };
        for (group, RowGroup { label, class }) in (0..).zip(groups) {
            let rule = match by_own {
                Some((table, limits)) => self.rule(node, table, limits, class),
                None => by_above.clone(),
            };
            expanded.push(self.below(node, Row::Class(class), |below| {
                below.values = of_group(Some(group));
                below.plan = Some(label);
                below.rule = rule;
            }));
        }
        match by_own {
            Some((table, limits)) => {
                let Some((default, _)) = &limits.default else { return };
                let rule = self.default_rule(node, table, limits);
                expanded.push(self.below(node, Row::Missing, |below| {
                    below.values = of_group(None);
                    below.plan = Some(format!("plan_{default}").into());
                    below.rule = rule;
                }));
            }
            None => expanded.push(self.below(node, Row::Missing, |below| below.rule = by_above)),
        }
    }

    /// The only table of a node; reports more than one, and values beside it.
    fn table_of(
        &mut self,
        node: &RuleNode,
        own: Option<&TableRef>,
        uses: &[TableRef],
    ) -> Option<Rc<ReadTable>> {
        let first = &uses[0];
        if let Some(other) = uses.iter().find(|other| other.place != first.place) {
            if other.place.is_some() && first.place.is_some() {
                self.report.error_at(other.at.clone(), || {
                    format!(
                        "the limits of '{}' are in {} already; one table has all columns",
                        node.key, first.name
                    )
                });
            }
            return None;
        }
        if node.values != Values::Any || own.is_some_and(|table| !table.has_limits()) {
            self.report.error_at(first.at.clone(), || {
                format!("the table has the values of '{}'; remove those that {} names", node.key, node.origin)
            });
            return None;
        }
        self.tables.of(first)?.table.clone()
    }

    fn rule(&mut self, node: &RuleNode, table: &TableRef, limits: &LimitsFrom, class: usize) -> Option<Rule> {
        let (domain, plans, named) = (self.domain, self.plans, table);
        let TableOfLoad { table, report, rules } = self.tables.of(table)?;
        let table = table.as_ref()?;
        let key = (domain.into(), limits.column.clone(), class);
        let read = rules
            .entry(key)
            .or_insert_with(|| plans::rule_of(table.cells(class, &limits.column), plans, report));
        Some(with_zone(with_limit(node.rule.as_ref()?, read.as_ref()?), named))
    }

    fn default_rule(&mut self, node: &RuleNode, table: &TableRef, limits: &LimitsFrom) -> Option<Rule> {
        let (name, at) = limits.default.as_ref()?;
        let at = |report: &mut ConfigReport, message| report.error_at(at.clone(), || message);
        let plan = plans::find(name, self.plans, at, self.report)?;
        Some(with_zone(with_limit(node.rule.as_ref()?, &plan.rule), table))
    }

    fn has_room(&mut self, node: &RuleNode, groups: usize, at: &Origin) -> bool {
        let above: usize = self.above.iter().map(|above| above.key.len()).sum();
        let (nodes, paths) = size(node, above);
        let was_full = *self.nodes > MAX_NODES || *self.paths > MAX_PATHS;
        *self.nodes = self.nodes.saturating_add(nodes.saturating_mul(groups));
        *self.paths = self.paths.saturating_add(paths.saturating_mul(groups));
        let has_room = *self.nodes <= MAX_NODES && *self.paths <= MAX_PATHS;
        if !has_room && !was_full {
            self.report.error_at(at.clone(), || {
                format!(
                    "the table has {groups} different limits, each with {nodes} descriptors here, and tables add at most \
                     {MAX_NODES} to all rules; equal limits are one, so give more values the same plan"
                )
            });
        }
        has_room
    }

    /// Checks the tables of each key on one level.
    fn check(&mut self, declared: &[RuleNode], expanded: &[RuleNode]) {
        let mut keys: HashMap<&str, Vec<&TableValues>> = HashMap::new();
        for node in expanded {
            if let Values::Table(values) = &node.values {
                let known = keys.entry(&node.key).or_default();
                let is_known = |other: &&TableValues| Arc::ptr_eq(&other.table, &values.table);
                match known.iter_mut().find(|other| is_known(other)) {
                    // the one of missing values stands for all of the table
                    Some(other) if values.group.is_none() => *other = values,
                    Some(_) => {}
                    None => known.push(values),
                }
            }
        }
        for node in declared {
            self.check_rest(node, expanded);
            let of_key = keys.get(&*node.key).into_iter().flatten();
            let default = of_key.filter(|values| values.group.is_none()).map(|values| &values.table).next();
            let is_rest = node.values == Values::Any || node.values.patterns().all(Pattern::is_wildcard);
            if let Some(table) = default.filter(|_| is_rest && !self.refs.contains_key(&node.origin)) {
                self.report.warn_at(node.origin.clone(), || {
                    format!("this descriptor never matches: the 'default' of {} is tried first", table.name())
                });
            }
        }
        for node in declared {
            let Some(known) = keys.remove(&*node.key) else { continue };
            if known.len() > MAX_TABLES {
                self.report.error_at(node.origin.clone(), || {
                    format!(
                        "the key '{}' has more than {MAX_TABLES} tables here; join some of them",
                        node.key
                    )
                });
                continue;
            }
            if known.iter().filter(|values| values.group.is_none()).count() > 1 {
                self.report.error_at(node.origin.clone(), || {
                    format!(
                        "the key '{}' has several tables with a 'default' here; keep one of these",
                        node.key
                    )
                });
            }
            for (i, second) in known.iter().enumerate() {
                known[..i].iter().for_each(|first| self.compare(&first.table, &second.table));
            }
        }
        self.check_names(expanded);
    }

    /// Reports different files of one name, which would share their counters.
    fn check_names(&mut self, expanded: &[RuleNode]) {
        let mut files: HashMap<(&str, String), &Arc<str>> = HashMap::new();
        for node in expanded {
            let file = match &node.values {
                Values::Table(values) => values.table.rows().file(),
                Values::Networks(list) => list.file(),
                Values::Any | Values::One(_) | Values::Of(_) => continue,
            };
            let first = *files.entry((&node.key, node.values.to_string())).or_insert(file);
            if first != file {
                self.report.error_at(node.origin.clone(), || {
                    format!("the table {file} has the name of {first} for the same key; rename one of both")
                });
            }
        }
    }

    /// Reports the values that both tables have.
    fn compare(&mut self, first: &Arc<ValueTable>, second: &Arc<ValueTable>) {
        if !self.compared.insert((rows_of(first), rows_of(second))) {
            return;
        }
        let (small, large) =
            if first.rows().len() < second.rows().len() { (first, second) } else { (second, first) };
        for (value, line) in small.rows().values() {
            if let Some((_, other)) = large.find(value) {
                let file = small.rows().file();
                self.report.error_at(Origin { file: Arc::clone(file), line, column: 1 }, || {
                    format!(
                        "the value '{}' is in line {other} of {}, too, and both are tables of one key",
                        brief(value),
                        large.rows().file()
                    )
                });
            }
        }
    }

    /// Warns of values that a table lacks and no descriptor has.
    fn check_rest(&mut self, node: &RuleNode, expanded: &[RuleNode]) {
        let Some(table) = self.refs.get(&node.origin) else { return };
        let Some(limits) = table.limits_from() else { return };
        let is_own = limits.by.as_ref().is_none_or(|(by, _)| **by == *node.key);
        let takes_rest = |other: &RuleNode| {
            let is_rest = match &other.values {
                Values::Any => true,
                Values::Table(values) => values.group.is_none(),
                values => values.is_wildcard(),
            };
            is_rest && other.key == node.key
        };
        if is_own && limits.default.is_none() && !expanded.iter().any(takes_rest) {
            self.report.warn_at(table.at.clone(), || {
                format!(
                    "values of '{}' that the table lacks have no limit; write 'default' with a plan, or a descriptor for \
                     any value",
                    node.key
                )
            });
        }
    }
}

fn without_children(node: &RuleNode) -> RuleNode {
    RuleNode {
        key: node.key.clone(),
        values: node.values.clone(),
        plan: node.plan.clone(),
        share_threshold: node.share_threshold,
        count_by: node.count_by,
        value_to_metric: node.value_to_metric,
        rule: node.rule.clone(),
        children: Vec::new(),
        origin: node.origin.clone(),
    }
}

/// `limit` with what the descriptor says of its rule.
fn with_limit(declared: &Rule, limit: &Rule) -> Rule {
    let mut rule = limit.clone();
    rule.change_variants(&|rule| {
        *rule = Rule {
            limit: rule.limit.clone(),
            shadow: rule.shadow.clone(),
            give_back: rule.give_back,
            reserve: rule.reserve,
            in_flight: rule.in_flight,
            schedule: rule.schedule.clone(),
            ..declared.clone()
        };
    });
    rule
}

/// `rule` with the zone of the file that names `table`, where it has no other.
fn with_zone(mut rule: Rule, table: &TableRef) -> Rule {
    if let Some(timezone) = &table.timezone {
        calendar::fill_in_rule(&mut rule, timezone);
    }
    rule
}

/// Puts rows together that have the same limits in `columns`. Returns the group of each class, too.
fn groups(table: &ReadTable, columns: &[&str]) -> (Vec<RowGroup>, Vec<u32>) {
    let mut known: HashMap<Vec<Option<&str>>, u32> = HashMap::new();
    let (mut groups, mut of_classes) = (Vec::new(), Vec::with_capacity(table.limits.len()));
    for class in 0..table.limits.len() {
        let cells = columns.iter().map(|column| table.cells(class, column));
        let limits = cells.clone().filter_map(|cells| cells.limit);
        let of_row = table.cells(class, "");
        let mut key: Vec<Option<&str>> = table.limits[class].texts().take(3).collect();
        key.extend(limits.clone().map(|limit| Some(&*limit.text)));
        let group = *known.entry(key).or_insert_with(|| {
            groups.push(RowGroup { label: plans::label(of_row.plan, limits), class });
            u32::try_from(groups.len() - 1).unwrap_or(u32::MAX)
        });
        of_classes.push(group);
    }
    (groups, of_classes)
}

/// The nodes from `node` on, and the bytes of the paths to their rules.
fn size(node: &RuleNode, above: usize) -> (usize, usize) {
    let path = above + node.key.len() + node.values.to_string().len();
    let own = if node.rule.is_some() { path } else { 0 };
    node.children
        .iter()
        .map(|child| size(child, path))
        .fold((1, own), |(nodes, paths), (more, longer)| (nodes + more, paths + longer))
}
