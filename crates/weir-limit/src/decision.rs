//! The decision on one rule: all of its tiers admit the hits, or none takes any.

use std::borrow::{Borrow, BorrowMut};

use smallvec::SmallVec;

use super::{
    algorithm::{Availability, CounterState, Outcome, Probe},
    tier::{OverLimitPolicy, Tier},
    units::{Hits, Period, Timestamp},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The index of the reported tier. If over, it is the violated tier with the longest wait, otherwise the tier with
    /// the lowest remaining share. The first tier wins ties.
    pub tier: usize,
    pub over: bool,
    /// The hits that the reported tier had counted before this request.
    pub before: Hits,
    /// Whole requests that the reported tier would still admit.
    pub remaining: u32,
    /// The wait of a rejected request if nobody else takes hits; otherwise until the window ends or the bucket is full.
    pub reset: Period,
    pub basis: Basis,
    /// The member's share of the reported tier, if it is a pool.
    pub share: Option<u32>,
}

// === impl Decision ===

impl Decision {
    /// The decision of a store that knows nothing of the counters.
    pub const fn unknown(reset: Period) -> Self {
        Self::of(0, false, Hits(0), Availability { remaining: 0, reset })
    }

    #[inline]
    const fn of(tier: usize, over: bool, before: Hits, available: Availability) -> Self {
        let Availability { remaining, reset } = available;
        Self { tier, over, before, remaining, reset, basis: Basis::Counters, share: None }
    }

    pub const fn is_cached(&self) -> bool {
        matches!(self.basis, Basis::LocalCache)
    }

    /// Returns the same decision, made without the store, as `on_store_failure` says.
    pub const fn by_fallback(self) -> Self {
        Self { basis: Basis::Fallback, ..self }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Basis {
    #[default]
    Counters,
    /// A local cache that knows of the rejection without a call to the store, as in envoyproxy/ratelimit.
    LocalCache,
    /// `on_store_failure`, since the store did not reply in time.
    Fallback,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Take,
    /// The hits are given back, whether or not as many were taken.
    GiveBack,
    /// No hits are taken. Admitted if the hits, at least one, would fit.
    Look,
}

/// Decides on `hits` and counts them in `counters`, one for each of `tiers`.
///
/// Under [`OverLimitPolicy::Ignore`] a request that does not fit every tier takes nothing from any. Giving hits back
/// always succeeds; the decision then reports the counters after it. Panics if there are no tiers, or if the numbers of
/// tiers and counters differ.
pub fn decide(
    tiers: &[Tier],
    counters: &mut [CounterState],
    policy: OverLimitPolicy,
    direction: Direction,
    hits: Hits,
    now: Timestamp,
) -> Decision {
    assert!(!tiers.is_empty() && tiers.len() == counters.len());
    let hits = match direction {
        Direction::Take => hits,
        Direction::GiveBack => {
            for (tier, counter) in tiers.iter().zip(&mut *counters) {
                counter.give_back(tier, now, hits);
            }
            Hits(0)
        }
        Direction::Look => return look(tiers, counters, hits.max(Hits(1)), now),
    };
    match (tiers, &mut *counters) {
        ([tier], [counter]) => take_one(tier, counter, policy, hits, now),
        ([first, second], [a, b]) => take_two([first, second], [a, b], policy, hits, now),
        _ => decide_all(tiers, counters, policy, hits, now),
    }
}

/// Decides on `hits` like [`decide`] and takes them, for a rule of one tier, as most rules are.
#[inline]
pub fn take_one(
    tier: &Tier,
    counter: &mut CounterState,
    policy: OverLimitPolicy,
    hits: Hits,
    now: Timestamp,
) -> Decision {
    let Outcome { over, used, available } = counter.decide(tier, policy, hits, now);
    Decision::of(0, over, used, available)
}

/// Decides on `hits` like [`decide`] and takes them, for a rule of two tiers, each with its counter.
#[inline]
pub fn take_two(
    tiers: [&Tier; 2],
    counters: [&mut CounterState; 2],
    policy: OverLimitPolicy,
    hits: Hits,
    now: Timestamp,
) -> Decision {
    let ([first, second], [a, b]) = (tiers, counters);
    let probes = [a.probe(first, now, hits), b.probe(second, now, hits)];
    if !(probes[0].fits && probes[1].fits) {
        return decide_all(&tiers, &mut [a, b], policy, hits, now);
    }
    let available = [a.take_and_look(first, now, hits), b.take_and_look(second, now, hits)];
    let tier = usize::from(is_nearer(&available[1], second, &available[0], first));
    Decision::of(tier, false, probes[tier].used, available[tier])
}

#[inline(never)]
fn decide_all<T: Borrow<Tier>, C: BorrowMut<CounterState>>(
    tiers: &[T],
    counters: &mut [C],
    policy: OverLimitPolicy,
    hits: Hits,
    now: Timestamp,
) -> Decision {
    // pushed one by one: `collect` costs more than the probes of two tiers
    let (mut probes, mut over) = (SmallVec::<[Probe; 2]>::new(), false);
    for (tier, counter) in tiers.iter().zip(&*counters) {
        let probe = counter.borrow().probe(tier.borrow(), now, hits);
        over |= !probe.fits;
        probes.push(probe);
    }
    for ((tier, counter), probe) in tiers.iter().zip(&mut *counters).zip(&probes) {
        let (tier, counter) = (tier.borrow(), counter.borrow_mut());
        if !over || policy == OverLimitPolicy::Count {
            counter.take(tier, now, hits);
        } else if !probe.fits {
            counter.reject(tier, now);
        }
    }
    if over {
        longest_wait(tiers, counters, &probes, hits, now)
    } else {
        lowest_share(tiers, counters, &probes, now)
    }
}

/// Returns how `counters` stand; over, if `hits` do not fit. Panics if there are no tiers, or if the numbers of tiers
/// and counters differ.
pub fn look(tiers: &[Tier], counters: &[CounterState], hits: Hits, now: Timestamp) -> Decision {
    let over = !tiers.iter().zip(counters).all(|(tier, counter)| counter.probe(tier, now, hits).fits);
    let hits = if over { hits } else { Hits(0) };
    decision_from_store(tiers, counters, OverLimitPolicy::Ignore, over, hits, now)
}

/// Returns the decision that a shared store made on `hits`, from the counters after that decision. Panics if there are
/// no tiers, or if the numbers of tiers and counters differ.
pub fn decision_from_store(
    tiers: &[Tier],
    counters: &[CounterState],
    policy: OverLimitPolicy,
    over: bool,
    hits: Hits,
    now: Timestamp,
) -> Decision {
    assert!(!tiers.is_empty() && tiers.len() == counters.len());
    let counted = if over && policy == OverLimitPolicy::Ignore { Hits(0) } else { hits };
    let probes: SmallVec<[Probe; 2]> = tiers
        .iter()
        .zip(counters)
        .map(|(tier, counter)| {
            let probe = counter.probe(tier, now, hits);
            Probe { used: probe.used.minus(counted), ..probe }
        })
        .collect();
    if over {
        longest_wait(tiers, counters, &probes, hits, now)
    } else {
        lowest_share(tiers, counters, &probes, now)
    }
}

fn longest_wait<T: Borrow<Tier>, C: Borrow<CounterState>>(
    tiers: &[T],
    counters: &[C],
    probes: &[Probe],
    hits: Hits,
    now: Timestamp,
) -> Decision {
    let mut longest: Option<(usize, Period)> = None;
    for (i, (tier, counter)) in tiers.iter().zip(counters).enumerate() {
        if probes[i].fits {
            continue;
        }
        let wait = counter.borrow().wait(tier.borrow(), now, hits);
        if longest.is_none_or(|(_, longest)| wait > longest) {
            longest = Some((i, wait));
        }
    }
    let (tier, reset) = longest.unwrap_or_default();
    let available = counters[tier].borrow().availability(tiers[tier].borrow(), now);
    Decision::of(tier, true, probes[tier].used, Availability { reset, ..available })
}

fn lowest_share<T: Borrow<Tier>, C: Borrow<CounterState>>(
    tiers: &[T],
    counters: &[C],
    probes: &[Probe],
    now: Timestamp,
) -> Decision {
    let available = |i: usize| counters[i].borrow().availability(tiers[i].borrow(), now);
    let mut lowest = (0, available(0));
    for i in 1..tiers.len() {
        let other = available(i);
        if is_nearer(&other, tiers[i].borrow(), &lowest.1, tiers[lowest.0].borrow()) {
            lowest = (i, other);
        }
    }
    let (tier, available) = lowest;
    Decision::of(tier, false, probes[tier].used, available)
}

/// Whether a lower share of `tier` is left than of `other`.
#[inline]
fn is_nearer(available: &Availability, tier: &Tier, other_available: &Availability, other: &Tier) -> bool {
    let (left, capacity) = (u64::from(available.remaining), u64::from(tier.capacity()));
    let (other_left, other_capacity) = (u64::from(other_available.remaining), u64::from(other.capacity()));
    // compares the shares without division
    left * other_capacity < other_left * capacity
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tier(requests: u32, seconds: u64) -> Tier {
        Tier::fixed_window(requests, Period::from_secs(seconds))
    }

    struct Fixture {
        tiers: Vec<Tier>,
        counters: Vec<CounterState>,
        policy: OverLimitPolicy,
    }

    impl Fixture {
        fn new(tiers: Vec<Tier>, policy: OverLimitPolicy) -> Self {
            let counters = vec![CounterState::default(); tiers.len()];
            Self { tiers, counters, policy }
        }

        fn decide(&mut self, direction: Direction, hits: u64, seconds: u64) -> Decision {
            let now = Timestamp::from_secs(seconds);
            decide(&self.tiers, &mut self.counters, self.policy, direction, Hits(hits), now)
        }
    }

    #[test]
    fn rejected_hits_count_under_the_count_policy() {
        let mut rule = Fixture::new(vec![tier(3, 60)], OverLimitPolicy::Count);
        assert_eq!(rule.decide(Direction::Take, 2, 0).remaining, 1);
        let over = rule.decide(Direction::Take, 5, 0);
        assert!(over.over && over.remaining == 0 && over.before == Hits(2));
        assert_eq!(rule.decide(Direction::Take, 1, 0).before, Hits(7));
    }

    #[test]
    fn a_request_that_one_tier_rejects_takes_nothing_from_the_others() {
        let mut rule = Fixture::new(vec![tier(2, 10), tier(100, 3600)], OverLimitPolicy::Ignore);
        for _ in 0..2 {
            assert!(!rule.decide(Direction::Take, 1, 0).over);
        }
        for _ in 0..50 {
            assert!(rule.decide(Direction::Take, 1, 0).over);
        }
        assert_eq!(rule.counters[1].used(), Hits(2));
    }

    #[test]
    fn the_violated_tier_with_the_longest_wait_is_reported() {
        let mut rule = Fixture::new(vec![tier(1, 10), tier(1, 60), tier(9, 3600)], OverLimitPolicy::Ignore);
        rule.decide(Direction::Take, 1, 0);
        let over = rule.decide(Direction::Take, 1, 1);
        assert_eq!((over.tier, over.reset), (1, Period::from_secs(59)));
    }

    #[test]
    fn the_tier_with_the_lowest_share_left_is_reported() {
        let mut rule = Fixture::new(vec![tier(100, 10), tier(4, 60)], OverLimitPolicy::Ignore);
        let decision = rule.decide(Direction::Take, 1, 0);
        assert_eq!((decision.tier, decision.remaining), (1, 3));
    }

    #[test]
    fn hits_are_given_back_to_every_tier() {
        let mut rule = Fixture::new(vec![tier(5, 10), tier(5, 60)], OverLimitPolicy::Ignore);
        rule.decide(Direction::Take, 4, 0);
        let decision = rule.decide(Direction::GiveBack, 3, 0);
        assert!(!decision.over);
        assert_eq!(decision.remaining, 4);
        assert_eq!(rule.counters[1].used(), Hits(1));
    }
}
