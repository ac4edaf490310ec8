//! The calendars of the rules, as an instance tells them to the others: one with another database of time zones cuts other
//! windows, and so has other counters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_limit::{NANOS_PER_SECOND, RuleSet, Tier};

/// The most that an instance tells of.
const MOST: usize = 32;

/// A calendar of the loaded rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ReportedCalendar {
    /// In words, such as `calendar month in Europe/Berlin`.
    pub(super) calendar: String,
    /// The first rule that has it.
    pub(super) rule: String,
    /// The next two, in seconds since the epoch.
    pub(super) edges: [u64; 2],
}

// === impl ReportedCalendar ===

impl ReportedCalendar {
    /// Returns each calendar of `rules` once.
    pub(super) fn of_rules(rules: &RuleSet) -> Vec<Self> {
        let mut found: BTreeMap<_, Self> = BTreeMap::new();
        for compiled in rules.rules() {
            for windows in compiled.rule.tiers().iter().filter_map(|tier: &Tier| tier.calendar.as_deref()) {
                if found.len() == MOST || found.contains_key(&windows.calendar) {
                    continue;
                }
                let edges = windows.next_edges().map(|edge| edge.as_nanos() / NANOS_PER_SECOND);
                let reported =
                    Self { calendar: windows.calendar.to_string(), rule: compiled.path.to_string(), edges };
                found.insert(&windows.calendar, reported);
            }
        }
        found.into_values().collect()
    }

    /// Returns whether `other` is of the same calendar and has other edges. One of both may have passed an edge already.
    pub(super) fn differs_from(&self, other: &Self) -> bool {
        let ([next, later], [others_next, others_later]) = (self.edges, other.edges);
        let is_ahead = later == others_next || next == others_later;
        self.calendar == other.calendar && self.edges != other.edges && !is_ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_that_has_passed_an_edge_has_no_other_edges() {
        let of = |edges| ReportedCalendar { calendar: "c".into(), rule: "r".into(), edges };
        for (own, other, differs) in [
            ([1, 2], [1, 2], false),
            ([1, 2], [2, 3], false),
            ([2, 3], [1, 2], false),
            ([1, 2], [1, 3], true),
            ([1, 3], [2, 4], true),
        ] {
            assert_eq!(of(own).differs_from(&of(other)), differs, "{own:?} {other:?}");
        }
        let of_another = ReportedCalendar { calendar: "d".into(), ..of([7, 8]) };
        assert!(!of([1, 2]).differs_from(&of_another));
    }
}
