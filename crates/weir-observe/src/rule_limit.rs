//! The limits of the loaded rules, as gauges beside the rules' counters.

use std::collections::BTreeMap;
use std::time::Duration;

/// One tier of a loaded rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleLimit {
    /// The domain, then the steps below it. Never empty.
    pub name: Box<[Box<str>]>,
    /// The requests that each period admits, 0 to 2^32-1.
    pub requests: u32,
    /// The period; longer than zero.
    pub period: Duration,
    /// The period as text, such as `1m`. It distinguishes the tiers of a rule.
    pub per: Box<str>,
    /// Whether it is in the shadow of the rule, and rejects nothing.
    pub in_shadow: bool,
}

/// The lowest limit and its period for each name as it is `shown` and each period's text.
pub fn series(
    limits: &[RuleLimit],
    in_shadow: bool,
    shown: impl Fn(&[Box<str>]) -> Vec<String>,
) -> BTreeMap<(Vec<String>, &str), (u32, Duration)> {
    let mut series = BTreeMap::new();
    for limit in limits.iter().filter(|limit| limit.in_shadow == in_shadow) {
        let name = shown(&limit.name);
        let lowest = series.entry((name, &*limit.per)).or_insert((limit.requests, limit.period));
        lowest.0 = lowest.0.min(limit.requests);
    }
    series
}
