//! Divides a request's hits among the stats of its rule, as in envoyproxy/ratelimit.

use super::{decision::Decision, tier::OverLimitPolicy, units::Hits};

/// Hits by outcome: those of a request that straddles a threshold are split at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Hits past the limit.
    pub over_limit: u64,
    /// Hits within the limit, but past the near-limit threshold.
    pub near_limit: u64,
    /// Hits that the rule itself admitted, also of requests that another rule rejected.
    pub within_limit: u64,
}

impl Tally {
    /// Splits `hits`, on which there is a `decision`. The near-limit threshold is floor(`limit` * `near_ratio`).
    #[inline]
    pub fn of(decision: &Decision, limit: u32, policy: OverLimitPolicy, hits: Hits, near_ratio: f32) -> Self {
        let (before, after) = (decision.before.0, decision.before.plus(hits).0);
        let near = near_threshold(limit, near_ratio);
        let limit = u64::from(limit);
        let all = hits.0;
        if !decision.over {
            let near_limit = after.saturating_sub(near.max(before));
            return Self { over_limit: 0, near_limit, within_limit: all };
        }
        // what was rejected may fit by the counter as it is now: another window may have begun meanwhile, or the
        // rejection was not that of the counter, such as with `on_store_failure: deny`
        let fits = after <= limit;
        if policy == OverLimitPolicy::Ignore || decision.is_cached() || before >= limit || fits {
            return Self { over_limit: all, ..Self::default() };
        }
        Self {
            over_limit: after - limit,
            near_limit: limit.saturating_sub(near.max(before)),
            within_limit: 0,
        }
    }
}

/// Computes the near-limit threshold in the arithmetic of envoyproxy/ratelimit: single precision, rounded down.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "the arithmetic of envoyproxy/ratelimit; the ratio is checked to be positive"
)]
fn near_threshold(limit: u32, ratio: f32) -> u64 {
    // as an integer it is rounded towards zero; a signed one costs half as much
    (limit as f32 * ratio) as i64 as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Period;

    fn tally(before: u64, hits: u64, over: bool, policy: OverLimitPolicy) -> Tally {
        let decision = Decision {
            tier: 0,
            over,
            before: Hits(before),
            remaining: 0,
            reset: Period::default(),
            basis: crate::decision::Basis::default(),
            share: None,
        };
        Tally::of(&decision, 10, policy, Hits(hits), 0.8)
    }

    #[test]
    fn hits_that_straddle_a_threshold_are_split() {
        let split = |over_limit, near_limit, within_limit| Tally { over_limit, near_limit, within_limit };
        // the near-limit threshold is 8
        assert_eq!(tally(0, 8, false, OverLimitPolicy::Count), split(0, 0, 8));
        assert_eq!(tally(6, 3, false, OverLimitPolicy::Count), split(0, 1, 3));
        assert_eq!(tally(8, 2, false, OverLimitPolicy::Count), split(0, 2, 2));
        assert_eq!(tally(5, 10, true, OverLimitPolicy::Count), split(5, 2, 0));
        assert_eq!(tally(9, 3, true, OverLimitPolicy::Count), split(2, 1, 0));
        assert_eq!(tally(10, 3, true, OverLimitPolicy::Count), split(3, 0, 0));
    }

    #[test]
    fn rejected_hits_that_do_not_count_are_all_over() {
        assert_eq!(tally(9, 3, true, OverLimitPolicy::Ignore).over_limit, 3);
    }

    #[test]
    fn rejected_hits_that_fit_by_the_counter_are_all_over() {
        for (before, hits) in [(0, 1), (0, 10), (7, 2), (7, 3), (0, 0)] {
            let all = Tally { over_limit: hits, ..Tally::default() };
            assert_eq!(tally(before, hits, true, OverLimitPolicy::Count), all, "{before} before");
        }
    }
}
