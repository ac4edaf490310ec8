//! The rules as they are in force at an instant. What changes with time is decided here, and at each edge again: a decision
//! computes no time zone.

use std::{collections::HashMap, sync::Arc};

use weir_limit::{Calendar, CalendarWindows, Domain, Limit, Rule, RuleNode, Timestamp};

use super::{calendar, schedule, zone};

/// Makes the declared `domains` those that are in force at `at`, by the store's clock. Returns when they change next.
pub fn put_in_force(domains: &mut [Domain], at: Timestamp) -> Option<Timestamp> {
    let mut in_force = InForce { at, calendars: HashMap::new(), next: None };
    for domain in domains {
        in_force.nodes(&mut domain.nodes);
    }
    in_force.next
}

struct InForce {
    at: Timestamp,
    /// Many rules have the same calendar: they share its windows.
    calendars: HashMap<Calendar, Arc<CalendarWindows>>,
    /// The first edge after `at`.
    next: Option<Timestamp>,
}

impl InForce {
    fn nodes(&mut self, nodes: &mut [RuleNode]) {
        for node in nodes {
            if let Some(rule) = &mut node.rule {
                self.rule(rule);
            }
            self.nodes(&mut node.children);
        }
    }

    fn rule(&mut self, rule: &mut Rule) {
        if let Some(until) = schedule::put_in_force(rule, self.at) {
            self.changes_at(until);
        }
        for limit in std::iter::once(&mut rule.limit).chain(&mut rule.shadow) {
            self.limit(limit);
        }
    }

    fn limit(&mut self, limit: &mut Limit) {
        let Limit::Tiers { tiers, .. } = limit else { return };
        for windows in tiers.iter_mut().filter_map(|tier| tier.calendar.as_mut()) {
            *windows = self.windows(&windows.calendar);
        }
    }

    fn windows(&mut self, calendar: &Calendar) -> Arc<CalendarWindows> {
        if let Some(known) = self.calendars.get(calendar) {
            return Arc::clone(known);
        }
        let zone = zone::named(calendar.timezone());
        let windows = Arc::new(calendar::in_force(calendar, &zone, self.at));
        if let Some((_, end)) = windows.present() {
            self.changes_at(end);
        }
        self.calendars.insert(calendar.clone(), Arc::clone(&windows));
        windows
    }

    fn changes_at(&mut self, edge: Timestamp) {
        self.next = Some(self.next.map_or(edge, |next| next.min(edge)));
    }
}
