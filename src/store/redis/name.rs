//! What counters are called in Redis.
//!
//! A rule in the reference's spelling has the reference's key, so that both services can share one Redis:
//! `{prefix}{path}{window start in seconds}`. The keys of everything else begin with the same text in braces, which makes
//! it the hash tag: a cluster keeps all tiers of a target in one slot, as one script that works on them needs it.

use std::{borrow::Cow, fmt::Write as _};

use smallvec::SmallVec;

use crate::{
    limit::{Algorithm, OverLimitPolicy, Tier, Timestamp, Unit},
    store::remote::Target,
};

/// The keys of a target's tiers.
pub(super) type Keys = SmallVec<[String; 2]>;

/// The window of `tier` that `at` lies in: when it begins.
pub(super) fn window_start(tier: &Tier, at: Timestamp) -> Timestamp {
    Timestamp::from_nanos(at.as_nanos() - at.as_nanos() % tier.period.as_nanos())
}

/// Whether the reference has such a rule: one fixed window of one of its units.
pub(super) fn is_references(target: &Target) -> bool {
    match target.tiers.as_slice() {
        [tier] => {
            target.over_limit_policy == OverLimitPolicy::Count
                && tier.algorithm == Algorithm::FixedWindow
                && tier.unit().is_some()
        }
        _ => false,
    }
}

/// Whether it is one fixed window: a number that all who count may add to.
pub(super) fn is_one_window(target: &Target) -> bool {
    matches!(target.tiers.as_slice(), [tier] if tier.algorithm == Algorithm::FixedWindow)
}

/// Whether the reference would count it in its Redis for limits by the second.
pub(super) fn is_per_second(target: &Target) -> bool {
    target.tiers.iter().all(|tier| tier.unit() == Some(Unit::Second))
}

/// One key for each tier of `target`, as of `at`.
pub(super) fn keys(prefix: &str, target: &Target, at: Timestamp) -> Keys {
    if is_references(target) {
        let start = window_start(&target.tiers[0], at).as_nanos() / 1_000_000_000;
        return std::iter::once([prefix, &target.path, itoa::Buffer::new().format(start)].concat()).collect();
    }
    let path = tag(&target.path);
    target.tiers.iter().map(|tier| key(prefix, &path, tier, at)).collect()
}

/// The set of instances.
pub(super) fn instances(prefix: &str) -> String {
    format!("{prefix}weir:instances")
}

/// A tag that begins with a brace would be an empty one, which is none.
fn tag(path: &str) -> Cow<'_, str> {
    match path.strip_prefix('}') {
        Some(rest) => format!("%7D{rest}").into(),
        None => path.into(),
    }
}

/// The key of one tier, in as few steps as there may be: many thousands are made in a second. What stands behind the path
/// tells tiers apart: those that count in another way, or over another period, start afresh.
fn key(prefix: &str, path: &str, tier: &Tier, at: Timestamp) -> String {
    let mut key = String::with_capacity(prefix.len() + path.len() + 40);
    key.extend([prefix, "{", path, "}"]);
    let algorithm = match tier.algorithm {
        Algorithm::FixedWindow => 'f',
        Algorithm::SlidingWindow => 's',
        Algorithm::TokenBucket(_) => 'b',
    };
    key.push(algorithm);
    // writing to a text does not fail
    let _ = write!(key, "{}", tier.period);
    if tier.algorithm == Algorithm::FixedWindow {
        let (start, unit) = match window_start(tier, at).as_nanos() {
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
    use crate::limit::Period;

    fn tier(seconds: u64, algorithm: Algorithm) -> Tier {
        Tier { requests: 5, period: Period::from_secs(seconds), algorithm }
    }

    fn target(path: &str, tiers: Vec<Tier>, over_limit_policy: OverLimitPolicy) -> Target {
        Target { path: path.into(), tiers: tiers.into(), over_limit_policy }
    }

    #[test]
    fn a_rule_of_the_reference_has_its_key() {
        let target =
            target("shop_tenant_acme_", vec![tier(60, Algorithm::FixedWindow)], OverLimitPolicy::Count);
        let at = Timestamp::from_millis(1_234_567_890);
        assert_eq!(keys("", &target, at).as_slice(), ["shop_tenant_acme_1234560"]);
        assert_eq!(keys("eu:", &target, at).as_slice(), ["eu:shop_tenant_acme_1234560"]);
    }

    #[test]
    fn tiers_have_keys_of_their_own_in_one_slot() {
        let tiers = vec![
            tier(10, Algorithm::FixedWindow),
            tier(60, Algorithm::FixedWindow),
            tier(60, Algorithm::SlidingWindow),
            Tier { period: Period::from_millis(500), ..tier(1, Algorithm::FixedWindow) },
        ];
        let target = target("shop_tenant_acme_", tiers, OverLimitPolicy::Ignore);
        let keys = keys("p:", &target, Timestamp::from_millis(1_234_567_890));
        assert_eq!(
            keys.as_slice(),
            [
                "p:{shop_tenant_acme_}f10s_1234560",
                "p:{shop_tenant_acme_}f1m_1234560",
                "p:{shop_tenant_acme_}s1m",
                "p:{shop_tenant_acme_}f500ms_1234567500ms",
            ]
        );
    }

    #[test]
    fn a_period_that_the_reference_has_not_is_weirs_own() {
        let target = target("d_k_v_", vec![tier(120, Algorithm::FixedWindow)], OverLimitPolicy::Count);
        assert_eq!(keys("", &target, Timestamp::from_secs(130)).as_slice(), ["{d_k_v_}f2m_120"]);
    }

    #[test]
    fn no_name_leaves_its_slot() {
        let target = target("}a_", vec![tier(10, Algorithm::SlidingWindow)], OverLimitPolicy::Ignore);
        assert_eq!(keys("", &target, Timestamp::default()).as_slice(), ["{%7Da_}s10s"]);
    }

    #[test]
    fn only_seconds_are_per_second() {
        let of = |seconds: &[u64]| {
            let tiers = seconds.iter().map(|seconds| tier(*seconds, Algorithm::SlidingWindow)).collect();
            is_per_second(&target("d_", tiers, OverLimitPolicy::Ignore))
        };
        assert!(of(&[1]) && of(&[1, 1]) && !of(&[1, 60]) && !of(&[2]));
    }
}
