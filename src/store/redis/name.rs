//! The keys of counters in Redis.
//!
//! A rule in the format of envoyproxy/ratelimit has that service's key, so that both can share one Redis:
//! `{prefix}{path}{window start in seconds}`. All other keys hold the path in braces, which makes it the hash tag: a cluster
//! then keeps all tiers of a target in one slot, as a script requires.

use std::{borrow::Cow, fmt::Write as _};

use smallvec::SmallVec;

use crate::{
    limit::{Algorithm, OverLimitPolicy, Tier, Timestamp, Unit},
    store::remote::Target,
};

/// The keys of a target's tiers.
pub(super) type Keys = SmallVec<[String; 2]>;

/// Returns the start of the window of `tier` that contains `at`.
pub(super) fn window_start(tier: &Tier, at: Timestamp) -> Timestamp {
    Timestamp::from_nanos(at.as_nanos() - at.as_nanos() % tier.period.as_nanos())
}

/// Returns whether envoyproxy/ratelimit can have such a rule: one fixed window of one of its units.
pub(super) fn is_compatible(target: &Target) -> bool {
    match &target.tiers[..] {
        [tier] => {
            target.over_limit_policy == OverLimitPolicy::Count
                && tier.algorithm == Algorithm::FixedWindow
                && tier.unit().is_some()
        }
        _ => false,
    }
}

/// Returns whether the target is one fixed window, a plain number in Redis.
pub(super) fn is_one_window(target: &Target) -> bool {
    matches!(&target.tiers[..], [tier] if tier.algorithm == Algorithm::FixedWindow)
}

/// Returns whether the target belongs to the per-second Redis: every tier has a period of one second.
pub(super) fn is_per_second(target: &Target) -> bool {
    target.tiers.iter().all(|tier| tier.unit() == Some(Unit::Second))
}

/// Returns one key for each tier of `target`, in the windows of `at`.
pub(super) fn keys(prefix: &str, target: &Target, at: Timestamp) -> Keys {
    if is_compatible(target) {
        let start = window_start(&target.tiers[0], at).as_nanos() / 1_000_000_000;
        return std::iter::once([prefix, &target.path, itoa::Buffer::new().format(start)].concat()).collect();
    }
    let path = tag(&target.path);
    target.tiers.iter().map(|tier| key(prefix, &path, tier, at)).collect()
}

/// Returns the key of the set of instances.
pub(super) fn instances(prefix: &str) -> String {
    format!("{prefix}weir:instances")
}

/// Escapes a leading `}`: an empty hash tag is no hash tag.
fn tag(path: &str) -> Cow<'_, str> {
    match path.strip_prefix('}') {
        Some(rest) => format!("%7D{rest}").into(),
        None => path.into(),
    }
}

/// Returns the key of one tier, with one allocation, because thousands are built per second. The algorithm and the period
/// are part of the key, so a tier that changes either starts with a new counter.
fn key(prefix: &str, path: &str, tier: &Tier, at: Timestamp) -> String {
    let mut key = String::with_capacity(prefix.len() + path.len() + 40);
    key.extend([prefix, "{", path, "}"]);
    let algorithm = match tier.algorithm {
        Algorithm::FixedWindow => 'f',
        Algorithm::SlidingWindow => 's',
        Algorithm::TokenBucket(_) => 'b',
    };
    key.push(algorithm);
    // writing to a string does not fail
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
    fn a_rule_of_envoyproxy_ratelimit_has_its_key() {
        let target =
            target("shop_tenant_acme_", vec![tier(60, Algorithm::FixedWindow)], OverLimitPolicy::Count);
        let at = Timestamp::from_millis(1_234_567_890);
        assert_eq!(keys("", &target, at).as_slice(), ["shop_tenant_acme_1234560"]);
        assert_eq!(keys("eu:", &target, at).as_slice(), ["eu:shop_tenant_acme_1234560"]);
    }

    #[test]
    fn each_tier_has_its_own_key_in_the_same_slot() {
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
    fn a_period_that_is_no_unit_has_a_key_in_the_format_of_weir() {
        let target = target("d_k_v_", vec![tier(120, Algorithm::FixedWindow)], OverLimitPolicy::Count);
        assert_eq!(keys("", &target, Timestamp::from_secs(130)).as_slice(), ["{d_k_v_}f2m_120"]);
    }

    #[test]
    fn a_leading_brace_does_not_end_the_hash_tag() {
        let target = target("}a_", vec![tier(10, Algorithm::SlidingWindow)], OverLimitPolicy::Ignore);
        assert_eq!(keys("", &target, Timestamp::default()).as_slice(), ["{%7Da_}s10s"]);
    }

    #[test]
    fn only_tiers_of_one_second_are_per_second() {
        let of = |seconds: &[u64]| {
            let tiers = seconds.iter().map(|seconds| tier(*seconds, Algorithm::SlidingWindow)).collect();
            is_per_second(&target("d_", tiers, OverLimitPolicy::Ignore))
        };
        assert!(of(&[1]) && of(&[1, 1]) && !of(&[1, 60]) && !of(&[2]));
    }
}
