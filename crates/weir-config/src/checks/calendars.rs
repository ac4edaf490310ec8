//! Warns of windows of the calendar that last longer than what counts in them.

use super::super::{
    calendar,
    error::{ConfigReport, Finding},
    load::Loaded,
};
use weir_limit::{Calendar, CalendarUnit, Domain, Rule, RuleNode, Tier, Values};

/// The rules that are named: the reason is the same for all.
const MAX_NAMED: usize = 10;

/// Warns of windows above a month for each of any values: whoever invents values fills the store with them for that long.
pub(crate) fn warn(domain: &Domain, report: &mut ConfigReport) {
    level(&domain.nodes, report);
}

fn level(nodes: &[RuleNode], report: &mut ConfigReport) {
    for node in nodes {
        let rules = node.rule.iter().filter(|_| node.values == Values::Any).flat_map(Rule::variants);
        let is_long = |unit: &CalendarUnit| unit.period() > CalendarUnit::Month.period();
        let long = rules
            .flat_map(Rule::tiers)
            .filter_map(Tier::calendar)
            .map(|calendar| calendar.unit)
            .find(is_long);
        if let (Some(unit), Some(rule)) = (long, &node.rule) {
            report.warn_at(rule.origin.clone(), || {
                format!(
                    "each value of '{}' is a counter until the {unit} ends, also one that a client invents; name the \
                     values, or write 'per: {}'",
                    node.key,
                    CalendarUnit::Month
                )
            });
        }
        level(&node.children, report);
    }
}

/// Warns of the rules of `loaded` whose windows of the calendar a restart begins anew, since counts are in memory alone.
#[must_use]
pub fn warn_unkept(mut loaded: Loaded) -> Loaded {
    let mut rules = Vec::new();
    loaded.domains.iter().for_each(|domain| with_calendar(&domain.nodes, &mut rules));
    let others = match rules.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        others => format!("; and so {others} more rules"),
    };
    let last = rules.len().min(MAX_NAMED);
    for (i, rule) in rules.into_iter().take(MAX_NAMED).enumerate() {
        let Some(calendar) = calendar_of(rule) else { continue };
        let others = if i + 1 == last { &*others } else { "" };
        let message = format!(
            "a restart forgets what was used of 'per: {}', since counts are in memory alone; share them in Redis, or keep \
             them on disk (WEIR_DATA_DIR){others}",
            calendar.unit
        );
        loaded.warnings.push(Finding { at: rule.origin.clone(), message });
    }
    loaded
}

fn calendar_of(rule: &Rule) -> Option<&Calendar> {
    rule.variants().find_map(|rule| calendar::of_limits([Some(&rule.limit), rule.shadow.as_ref()]))
}

fn with_calendar<'n>(nodes: &'n [RuleNode], rules: &mut Vec<&'n Rule>) {
    for node in nodes {
        let rule = node.rule.as_ref();
        rules.extend(rule.filter(|rule| calendar_of(rule).is_some()));
        with_calendar(&node.children, rules);
    }
}
