//! Plans, and the limits that rows of a table have: both are read as a `rate_limit` is.

use std::{collections::HashMap, rc::Rc};

use jiff::tz::TimeZone;

use super::super::{
    calendar,
    error::ConfigReport,
    fields::{Fields, wrong},
    keys::KeyLevel,
    rate_limit,
    scalar::{Scalar, brief},
    yaml::{Value, YamlNode, YamlPosition},
};
use weir_limit::{Origin, Rule};
use weir_observe::spelling;

/// The plans of a domain by their names.
pub(crate) type Plans = HashMap<Box<str>, Plan>;

#[derive(Debug)]
pub(crate) struct Plan {
    node: Rc<YamlNode>,
    pub(crate) at: Origin,
    pub(super) rule: Rule,
    /// That of its rule file, for calendars that name none.
    timezone: Option<TimeZone>,
}

/// A field of a row, cut of spaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) text: Box<str>,
    pub(super) at: YamlPosition,
}

/// What a row says about its limit: either a plan or a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitCells<'c> {
    pub(super) plan: Option<&'c Cell>,
    pub(super) limit: Option<&'c Cell>,
    pub(super) timezone: Option<&'c Cell>,
    pub(super) starts: Option<&'c Cell>,
}

/// What a plan may not have, since it is the rule's.
const OF_RULES: [&str; 7] =
    ["name", "replaces", "coordination", "sync_interval", "on_store_failure", "instances", "share"];

const RIGHT: &str = "write a limit such as '100 per 1m', several with ';' between them, or 'unlimited'";

// === impl Plan ===

impl Plan {
    /// Gives its calendars that name no zone this one, also where a row changes them.
    pub(crate) fn fill_zone(&mut self, timezone: &TimeZone) {
        calendar::fill_in_rule(&mut self.rule, timezone);
        self.timezone = Some(timezone.clone());
    }
}

/// Reads `plans`.
pub(crate) fn read(fields: &Fields<'_>, report: &mut ConfigReport) -> Vec<(Box<str>, Plan)> {
    let Some(field) = fields.get("plans") else { return Vec::new() };
    let Value::Map(entries) = &field.value.value else {
        report.error(field.at, wrong("plans", "a mapping of names to limits", field.value));
        return Vec::new();
    };
    let mut plans = Vec::new();
    for (name, node) in entries {
        let Some(text) = name.scalar().map(Scalar::written).filter(|text| !text.is_empty()) else {
            report.error(name.at, "the name of a plan must be a text");
            continue;
        };
        if let Value::Map(_) = node.value
            && let Some(fields) =
                Fields::new(node, KeyLevel::RateLimit, "a plan", &mut ConfigReport::of_load())
        {
            for key in OF_RULES {
                if let Some(field) = fields.get(key) {
                    report.error(
                        field.key_at,
                        format!("a plan has no '{key}'; it belongs to the rules that use the plan"),
                    );
                }
            }
        }
        let Some(rule) = rate_limit::read(node, name.at, report) else { continue };
        if rule.sharing.is_some() {
            report.error(node.at, "a plan has no 'share'; each value has all of its limit");
        }
        let (node, at) = (Rc::clone(node), report.origin(name.at));
        plans.push((text.into(), Plan { node, at, rule, timezone: None }));
    }
    plans
}

/// Returns the plan of that name; reports it to be unknown.
pub(super) fn find<'p>(
    name: &str,
    plans: &'p Plans,
    at: impl FnOnce(&mut ConfigReport, String),
    report: &mut ConfigReport,
) -> Option<&'p Plan> {
    let plan = plans.get(name);
    if plan.is_none() {
        let mut names: Vec<&str> = plans.keys().map(|name| &**name).collect();
        names.sort_unstable();
        let hint = spelling::nearest(name, names.iter().copied());
        let right = match (hint, &*names) {
            (Some(name), _) => format!("did you mean '{name}'?"),
            (None, []) => "the domain has no 'plans'".to_owned(),
            (None, names) => format!("the plans of the domain are {}", brief(&names.join(", "))),
        };
        at(report, format!("unknown plan '{}'; {right}", brief(name)));
    }
    plan
}

/// Returns the limit of a row, as a rule that has only that.
pub(super) fn rule_of(cells: LimitCells<'_>, plans: &Plans, report: &mut ConfigReport) -> Option<Rule> {
    let calendar = [("timezone", cells.timezone), ("starts", cells.starts)];
    let first = calendar.iter().find_map(|(key, cell)| Some((*key, (*cell)?)));
    let mut timezone = None;
    let (node, at, what) = match (cells.plan, cells.limit) {
        (Some(cell), _) => {
            let plan = find(&cell.text, plans, |report, message| report.error(cell.at, message), report)?;
            if first.is_none() {
                return Some(plan.rule.clone());
            }
            timezone = plan.timezone.as_ref();
            (Rc::clone(&plan.node), cell.at, "the plan")
        }
        (None, Some(cell)) => match limit_node(cell) {
            Ok(node) => (Rc::new(node), cell.at, "the limit"),
            Err(message) => {
                report.error(cell.at, message);
                return None;
            }
        },
        (None, None) => return None,
    };
    let node = match first {
        None => node,
        Some((key, cell)) => {
            let changed = in_calendar(&node, &calendar);
            if changed.is_none() {
                report.error(
                    cell.at,
                    format!("{what} has no calendar window, such as '1000 per calendar month', so it has no '{key}'"),
                );
            }
            Rc::new(changed?)
        }
    };
    let mut rule = rate_limit::read(&node, at, report)?;
    if let Some(timezone) = timezone {
        calendar::fill_in_rule(&mut rule, timezone);
    }
    Some(rule)
}

/// The `rate_limit` that a limit is short for.
fn limit_node(Cell { text, at }: &Cell) -> Result<YamlNode, String> {
    let leaf = |text: &str, plain| Rc::new(YamlNode::leaf(Scalar::new(text, plain), *at));
    let map = |entries: &[(&str, &Rc<YamlNode>)]| {
        YamlNode::map(entries.iter().map(|(key, node)| (leaf(key, false), Rc::clone(node))).collect(), *at)
    };
    if &**text == "unlimited" {
        return Ok(map(&[("unlimited", &leaf("true", true))]));
    }
    let mut tiers = Vec::new();
    for part in text.split(';') {
        let (requests, per) = part
            .trim()
            .split_once(" per ")
            .filter(|(requests, _)| is_number(requests.trim()))
            .ok_or_else(|| format!("invalid limit '{}'; {RIGHT}", brief(part.trim())))?;
        tiers.push(map(&[("requests", &leaf(requests.trim(), true)), ("per", &leaf(per.trim(), false))]));
    }
    if tiers.len() == 1
        && let Some(tier) = tiers.pop()
    {
        return Ok(tier);
    }
    let tiers = Rc::new(YamlNode::list(tiers.into_iter().map(Rc::new).collect(), *at));
    Ok(map(&[("tiers", &tiers)]))
}

/// A number that starts with 0 is an octal one in YAML.
fn is_number(text: &str) -> bool {
    text == "0"
        || !text.starts_with('0') && !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `node` with these keys in its calendar windows, in place of their own. None if it has no such window.
fn in_calendar(node: &YamlNode, keys: &[(&str, Option<&Cell>)]) -> Option<YamlNode> {
    let Value::Map(entries) = &node.value else { return None };
    let is_key = |node: &YamlNode, key: &str| node.scalar().is_some_and(|scalar| scalar.text() == key);
    let value = |key: &str| entries.iter().find(|(name, _)| is_key(name, key)).map(|(_, value)| value);
    let (of_all, of_windows): (Vec<_>, Vec<_>) =
        keys.iter().copied().partition(|(key, _)| *key == "timezone");
    let (mut keys, mut parts) = (keys.to_vec(), None);
    if let Some((name, list)) = ["schedule", "tiers"].into_iter().find_map(|name| Some((name, value(name)?)))
    {
        let Value::List(items) = &list.value else { return None };
        // the zone is that of all parts
        let changed: Vec<_> = items.iter().map(|item| in_calendar(item, &of_windows).map(Rc::new)).collect();
        changed.iter().any(Option::is_some).then_some(())?;
        let items =
            changed.into_iter().zip(items).map(|(changed, item)| changed.unwrap_or_else(|| Rc::clone(item)));
        parts = Some((name, Rc::new(YamlNode::list(items.collect(), list.at))));
        keys = of_all;
    } else {
        value("per")?.scalar()?.text().starts_with("calendar ").then_some(())?;
    }
    let given = || keys.iter().filter_map(|(key, cell)| Some((*key, (*cell)?)));
    let is_replaced = |node: &YamlNode| given().any(|(key, _)| is_key(node, key));
    let kept = entries.iter().filter(|(key, _)| !is_replaced(key));
    let kept = kept.map(|(key, node)| {
        let part = parts.as_ref().filter(|(name, _)| is_key(key, name)).map(|(_, parts)| parts);
        let node = part.unwrap_or(node);
        (Rc::clone(key), Rc::clone(node))
    });
    let leaf = |text: &str, at| Rc::new(YamlNode::leaf(Scalar::new(text, false), at));
    let added = given().map(|(key, cell)| (leaf(key, cell.at), leaf(&cell.text, cell.at)));
    Some(YamlNode::map(kept.chain(added).collect(), node.at))
}

/// The name of such limits in stats: no value of a request is part of it.
pub(super) fn label<'c>(plan: Option<&Cell>, limits: impl Iterator<Item = &'c Cell>) -> Box<str> {
    if let Some(plan) = plan {
        return format!("plan_{}", plan.text).into();
    }
    let mut label = String::from("limit");
    for limit in limits {
        let words =
            limit.text.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty());
        words.for_each(|word| {
            label.push('_');
            label.push_str(word);
        });
    }
    label.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml;

    fn cell(text: &str) -> Cell {
        Cell { text: text.into(), at: YamlPosition { line: 3, column: 5 } }
    }

    /// As YAML with one entry a line.
    fn shown(node: &YamlNode) -> String {
        match &node.value {
            Value::Scalar(scalar) => scalar.written().to_owned(),
            Value::List(items) => {
                format!("[{}]", items.iter().map(|item| shown(item)).collect::<Vec<_>>().join(", "))
            }
            Value::Map(entries) => {
                let entries = entries.iter().map(|(key, value)| format!("{}: {}", shown(key), shown(value)));
                format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
            }
        }
    }

    #[test]
    fn a_limit_in_a_table_is_short_for_a_rate_limit() {
        for (text, expected) in [
            ("100 per 1m", "{requests: 100, per: 1m}"),
            ("unlimited", "{unlimited: true}"),
            ("0 per 1s", "{requests: 0, per: 1s}"),
            (
                "10 per 1s;  1000 per calendar month",
                "{tiers: [{requests: 10, per: 1s}, {requests: 1000, per: calendar month}]}",
            ),
        ] {
            assert_eq!(limit_node(&cell(text)).map(|node| shown(&node)).as_deref(), Ok(expected));
        }
        for text in [
            "",
            "100",
            "per 1m",
            "010 per 1m",
            "-1 per 1m",
            "1.5 per 1m",
            "1 per 1m;",
            "Unlimited",
            "1_0 per 1s",
        ] {
            assert!(limit_node(&cell(text)).is_err_and(|message| message.ends_with(RIGHT)), "{text}");
        }
    }

    #[test]
    fn a_row_replaces_the_time_zone_and_the_start_of_calendar_windows() {
        let (zone, starts) = (cell("Europe/Berlin"), cell("08"));
        let changed = |text: &str, starts| {
            let node = yaml::parse(text).root.expect("YAML");
            in_calendar(&node, &[("timezone", Some(&zone)), ("starts", starts)]).map(|node| shown(&node))
        };
        let text = "{requests: 9, per: calendar month, timezone: UTC, starts: 3}";
        let expected = "{requests: 9, per: calendar month, timezone: Europe/Berlin, starts: 08}";
        assert_eq!(changed(text, Some(&starts)).as_deref(), Some(expected));
        let expected = "{requests: 9, per: calendar month, starts: 3, timezone: Europe/Berlin}";
        assert_eq!(changed(text, None).as_deref(), Some(expected));
        let text = "{reserve: 0, tiers: [{requests: 1, per: 1s}, {requests: 9, per: calendar day}]}";
        let expected = "{reserve: 0, tiers: [{requests: 1, per: 1s}, {requests: 9, per: calendar day}], timezone: Europe/Berlin}";
        assert_eq!(changed(text, None).as_deref(), Some(expected));
        assert_eq!(
            (changed("{requests: 9, per: 1d}", None), changed("{unlimited: true}", None)),
            (None, None)
        );
    }

    #[test]
    fn limits_without_a_plan_are_named_by_their_text() {
        let limits = [cell("10 per 1s; 1000 per calendar month"), cell("unlimited")];
        assert_eq!(&*label(None, limits.iter()), "limit_10_per_1s_1000_per_calendar_month_unlimited");
        assert_eq!(&*label(Some(&cell("free")), limits.iter()), "plan_free");
    }
}
