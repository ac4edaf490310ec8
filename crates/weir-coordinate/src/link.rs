//! The way to the store: what it is like at an instant, on the store's clock; what is asked about there, and whether a
//! command has arrived.

use ring::digest::{SHA256, digest};
use weir_limit::{Period, Timestamp};
use weir_store::remote::RemoteError;

/// The shortest time that a lease should last, unless [`ROUND_TRIPS`] take longer.
const HORIZON: Period = Period::from_millis(50);

const ROUND_TRIPS: u64 = 8;

/// How late the queue may be.
const LATE: Period = Period::from_millis(6);

/// What shortens long paths.
pub(super) fn sha256(bytes: &[u8]) -> [u8; 32] {
    digest(&SHA256, bytes).as_ref().try_into().expect("it has 32 bytes")
}

/// An instant on the store's clock, as this instance estimates it.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreTime {
    /// The best estimate. Hits are counted in the window of this instant.
    pub(super) now: Timestamp,
    /// The latest instant that it can be. A lease is not used after its end by this clock.
    pub(super) latest: Timestamp,
}

/// What the way to the store is like now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) time: StoreTime,
    pub(super) instances: usize,
    /// What this process has in common among the [writers](weir_store::remote::Exchange::writer) of counters.
    pub(super) writer: u64,
    pub(super) round_trip: Period,
    pub(super) budget: Period,
    pub(super) local_cache: bool,
}

/// How long before its end a lease has to be returned: two round trips, and how late the queue may be.
pub(super) fn lead(round_trip: Period) -> Period {
    round_trip * 2 + LATE
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    Applied,
    /// The store has definitely not applied it, so it may be sent again.
    NotApplied,
    /// The connection broke, or no reply came in time. It must not be repeated: its hits could count twice.
    Unknown,
    /// It is not known yet: this try was sent, and its outcome decides whether the hits of the answer are reported.
    OnWay(SentTry),
}

/// A try that was sent, whose caller waits no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SentTry {
    pub(super) generation: u32,
    pub(super) id: u32,
}

// === impl Link ===

impl Link {
    /// Returns the writer's number of the counter with this `generation`, modulo 2^48: as several instances, two counters
    /// do not know what the other one has changed.
    pub(super) fn writer_of(&self, generation: u32) -> u64 {
        (self.writer.wrapping_add(u64::from(generation) << 16) % (1 << 48)).max(1)
    }

    pub(super) fn horizon(&self) -> Period {
        HORIZON.max(self.round_trip * ROUND_TRIPS)
    }

    pub(super) fn lead(&self) -> Period {
        lead(self.round_trip)
    }

    /// So far away that no decision should wait for two replies.
    pub(super) fn is_far(&self) -> bool {
        self.round_trip * 3 > self.budget
    }
}

// === impl Delivery ===

impl Delivery {
    pub(super) fn of<T>(outcome: &Result<T, &RemoteError>) -> Self {
        outcome.as_ref().map_or_else(|error| Self::of_error(error), |_| Self::Applied)
    }

    pub(super) const fn of_error(error: &RemoteError) -> Self {
        if error.is_definitely_not_applied() { Self::NotApplied } else { Self::Unknown }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_limit::{
        Algorithm, Descriptor, Domain, Entry, KeyHasher, Limit, Matched, Pattern, Period, Request, Rule,
        RuleNode, RuleSet, Values,
    };
    use weir_limit::{OverLimitPolicy, Tier};
    use weir_store::remote::Target;

    fn name(rules: &RuleSet, value: &str) -> String {
        let entries = [Entry { key: "k", value }];
        let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
        let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits: 1 };
        Target::of(&Matched::new(rules, &request).checks[0], sha256).path.to_string()
    }

    #[test]
    fn values_that_share_a_limit_have_one_name_in_the_store() {
        for shares in [true, false] {
            let node = RuleNode {
                rule: Some(Rule::new(Limit::fixed_window(1, Period::from_secs(1)))),
                share_threshold: shares,
                ..RuleNode::new("k", Values::One(Pattern::new("a*")))
            };
            let domain = Domain::new("d", vec![node]);
            let rules = RuleSet::new(&[domain], KeyHasher::random());
            assert_eq!(name(&rules, "a1") == name(&rules, "a2"), shares);
        }
    }

    /// Its counts are in keys of their own.
    #[test]
    fn a_target_in_the_format_of_envoyproxy_ratelimit_shares_no_counter() {
        use OverLimitPolicy::{Count, Ignore};
        let tier = Tier { requests: 1, period: Period::from_secs(60), algorithm: Algorithm::FixedWindow };
        let target = |over_limit_policy| Target {
            path: "d|k=v".into(),
            tiers: [tier.clone()].into(),
            over_limit_policy,
        };
        for (one, other, shares) in
            [(Ignore, Ignore, true), (Ignore, Count, false), (Count, Ignore, false), (Count, Count, false)]
        {
            assert_eq!(target(one).shares_counters(&target(other)), shares, "{one:?} {other:?}");
        }
    }
}
