//! The keys of counters in a shared store.
//!
//! A rule in the format of envoyproxy/ratelimit has that service's key, so that both can share one store:
//! `{prefix}{domain}_{key}_{value}_{window start in seconds}`. Different entries can have the same key there, so a
//! setting turns it off. All other keys hold the target's path in braces, which makes it the hash tag: a Redis cluster
//! then keeps all tiers of a target in one slot, as a script requires.

use std::fmt::Write as _;

use smallvec::SmallVec;

use crate::{
    path::{is_of_shadow, reference_path},
    remote::Target,
};
use weir_limit::{OverLimitPolicy, Tier, Timestamp};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySettings {
    /// `CACHE_KEY_PREFIX`: what every key begins with.
    pub prefix: Box<str>,
    /// `WEIR_UNAMBIGUOUS_KEYS`: whether rules in the format of envoyproxy/ratelimit have keys in weir's format, which are never ambiguous.
    pub unambiguous: bool,
    /// `EXPIRATION_JITTER_MAX_SECONDS`, exclusive: how much longer keys may live, to spread their expiry.
    pub jitter_seconds: u64,
}

impl Default for KeySettings {
    fn default() -> Self {
        Self { prefix: Box::default(), unambiguous: false, jitter_seconds: 300 }
    }
}

/// The keys of a target, one for each tier.
pub type Keys = SmallVec<[String; 2]>;

/// Whether envoyproxy/ratelimit can have such a rule. The shadow of a rule would have the key of the rule.
pub fn is_compatible(target: &Target) -> bool {
    match &target.tiers[..] {
        [tier] => {
            target.over_limit_policy == OverLimitPolicy::Count
                && tier.has_windows()
                && tier.calendar.is_none()
                && tier.unit().is_some()
                && !is_of_shadow(&target.path)
        }
        _ => false,
    }
}

/// Redis keeps such a target as a plain number.
pub fn is_one_window(target: &Target) -> bool {
    matches!(&target.tiers[..], [tier] if tier.has_windows())
}

/// Returns how long the key of the window of `at` has to live: as with envoyproxy/ratelimit a whole period, and until a
/// window ends that a calendar cuts.
pub fn seconds_to_live(tier: &Tier, at: Timestamp) -> u64 {
    let rest = tier.calendar.as_ref().map(|windows| windows.window(at).1.since(at));
    rest.unwrap_or(tier.period).as_secs_ceil().max(1)
}

pub fn is_per_second(tiers: &[Tier]) -> bool {
    tiers.iter().all(|tier| tier.unit() == Some(weir_limit::Unit::Second))
}

pub fn keys(settings: &KeySettings, target: &Target, at: Timestamp) -> Keys {
    if is_compatible(target) && !settings.unambiguous {
        let start = target.tiers[0].window(at).0.as_nanos() / 1_000_000_000;
        let path = reference_path(&target.path);
        return std::iter::once([&settings.prefix, &*path, itoa::Buffer::new().format(start)].concat())
            .collect();
    }
    target.tiers.iter().map(|tier| key(&settings.prefix, target, tier, at)).collect()
}

pub fn instances(prefix: &str) -> String {
    format!("{prefix}weir:instances")
}

/// The key of the notes of instances for each other, and that of their summaries, in one slot.
pub fn board(prefix: &str) -> Keys {
    ["notes", "fleet"].map(|part| format!("{prefix}{{weir:instances}}:{part}")).into_iter().collect()
}

/// The keys of the cycle before `cycle`, and of `cycle`; then the key of the members.
pub fn pool(prefix: &str, target: &Target, cycle: u64) -> Keys {
    let members = format!("{prefix}{{{}}}p{}", target.path, target.tiers[0].period);
    let cycles = [cycle.wrapping_sub(1), cycle];
    cycles.into_iter().map(|cycle| format!("{members}_{cycle}")).chain([members.clone()]).collect()
}

/// The key of the places of the counter of `path`, that of the marks of names that have ended, and that of reserved hits.
pub fn places(prefix: &str, path: &str) -> Keys {
    let places = format!("{prefix}{{{path}}}i");
    let (marks, hits) = (format!("{places}e"), format!("{places}h"));
    [places, marks, hits].into_iter().collect()
}

/// Allocates once: thousands are built per second. A tier with another algorithm or period starts with a new counter, and
/// so does one whose calendar has moved the first second of the window.
fn key(prefix: &str, target: &Target, tier: &Tier, at: Timestamp) -> String {
    let path = &*target.path;
    let mut key = String::with_capacity(prefix.len() + path.len() + 40);
    key.extend([prefix, "{", path, "}"]);
    if tier.has_any_pace() {
        key.push('a');
        return key;
    }
    // a rule that counts rejected hits has counters of its own
    let counts_rejected = tier.has_windows() && target.over_limit_policy == OverLimitPolicy::Count;
    key.push(if counts_rejected { 'c' } else { tier.algorithm.kind().letter() });
    if let Some(windows) = &tier.calendar {
        key.push(windows.calendar.unit.letter());
        key.push_str(itoa::Buffer::new().format(windows.first_second(at)));
        return key;
    }
    // writing to a string does not fail
    let _ = write!(key, "{}", tier.period);
    if tier.has_windows() {
        let (start, unit) = match tier.window(at).0.as_nanos() {
            nanos if nanos % 1_000_000_000 == 0 => (nanos / 1_000_000_000, ""),
            nanos if nanos % 1_000_000 == 0 => (nanos / 1_000_000, "ms"),
            nanos => (nanos, "ns"),
        };
        key.extend(["_", itoa::Buffer::new().format(start), unit]);
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_limit::{Calendar, CalendarUnit, CalendarWindows, Period};

    fn fixed(seconds: u64) -> Tier {
        Tier::fixed_window(5, Period::from_secs(seconds))
    }

    fn sliding(seconds: u64) -> Tier {
        Tier::sliding_window(5, Period::from_secs(seconds))
    }

    fn settings(prefix: &str) -> KeySettings {
        KeySettings { prefix: prefix.into(), unambiguous: false, jitter_seconds: 0 }
    }

    fn target(path: &str, tiers: Vec<Tier>, over_limit_policy: OverLimitPolicy) -> Target {
        Target { path: path.into(), tiers: tiers.into(), over_limit_policy }
    }

    #[test]
    fn a_rule_of_envoyproxy_ratelimit_has_its_key() {
        let target = target("shop|tenant=acme", vec![fixed(60)], OverLimitPolicy::Count);
        let at = Timestamp::from_millis(1_234_567_890);
        assert_eq!(keys(&settings(""), &target, at).as_slice(), ["shop_tenant_acme_1234560"]);
        assert_eq!(keys(&settings("eu:"), &target, at).as_slice(), ["eu:shop_tenant_acme_1234560"]);
        let unambiguous = KeySettings { unambiguous: true, ..settings("eu:") };
        assert_eq!(keys(&unambiguous, &target, at).as_slice(), ["eu:{shop|tenant=acme}c1m_1234560"]);
    }

    #[test]
    fn a_limit_in_the_shadow_of_a_rule_has_no_key_of_envoyproxy_ratelimit() {
        let target = target("%shadow|shop|tenant=acme", vec![fixed(60)], OverLimitPolicy::Count);
        let at = Timestamp::from_millis(1_234_567_890);
        assert_eq!(keys(&settings(""), &target, at).as_slice(), ["{%shadow|shop|tenant=acme}c1m_1234560"]);
    }

    #[test]
    fn each_tier_has_its_own_key_in_the_same_slot() {
        let tiers =
            vec![fixed(10), fixed(60), sliding(60), Tier { period: Period::from_millis(500), ..fixed(1) }];
        let target = target("shop|tenant=acme", tiers, OverLimitPolicy::Ignore);
        let keys = keys(&settings("p:"), &target, Timestamp::from_millis(1_234_567_890));
        assert_eq!(
            keys.as_slice(),
            [
                "p:{shop|tenant=acme}f10s_1234560",
                "p:{shop|tenant=acme}f1m_1234560",
                "p:{shop|tenant=acme}s1m",
                "p:{shop|tenant=acme}f500ms_1234567500ms",
            ]
        );
    }

    #[test]
    fn a_period_that_is_no_unit_has_a_key_in_the_format_of_weir() {
        let target = target("d|k=v", vec![fixed(120)], OverLimitPolicy::Count);
        assert_eq!(keys(&settings(""), &target, Timestamp::from_secs(130)).as_slice(), ["{d|k=v}c2m_120"]);
    }

    #[test]
    fn a_window_of_a_calendar_is_named_by_its_unit_and_its_first_second() {
        let tier = |unit, edges: [u64; 8]| {
            let edges = edges.map(Timestamp::from_secs);
            let windows = CalendarWindows::in_force(Calendar::new(unit), &edges, edges[2]);
            Tier::of_calendar(5, windows.expect("enough edges"))
        };
        let months = [1, 2, 3, 4, 5, 6, 7, 8].map(|month| month * 30 * 86_400);
        // a month and a day that begin together
        let days = [58, 59, 60, 61, 62, 63, 64, 65].map(|day| day * 86_400);
        let tiers = vec![tier(CalendarUnit::Month, months), tier(CalendarUnit::Day, days)];
        for (policy, letter) in [(OverLimitPolicy::Ignore, 'f'), (OverLimitPolicy::Count, 'c')] {
            let target = target("d|k=v", tiers.clone(), policy);
            let keys = keys(&settings(""), &target, Timestamp::from_secs(60 * 86_400 + 5));
            assert_eq!(
                keys.as_slice(),
                ["m5184000", "d5184000"].map(|end| format!("{{d|k=v}}{letter}{end}"))
            );
        }
        let (month, at) = (&tiers[0], Timestamp::from_secs(70 * 86_400));
        assert_eq!(seconds_to_live(month, at), 20 * 86_400);
        assert_eq!(seconds_to_live(&fixed(60), at), 60);
    }

    #[test]
    fn only_tiers_of_one_second_are_per_second() {
        let of = |seconds: &[u64]| {
            let tiers: Vec<Tier> = seconds.iter().map(|seconds| sliding(*seconds)).collect();
            is_per_second(&tiers)
        };
        assert!(of(&[1]) && of(&[1, 1]) && !of(&[1, 60]) && !of(&[2]));
    }
}
