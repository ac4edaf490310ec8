//! Tests of policies, which only see a counter.

// the tiers of tests are
#![cfg(feature = "server")]

use super::{AutoPolicy, View, auto::Switch, interval::read_from_age, *};
use crate::{
    limit::{Algorithm, Bucket, Coordination, Refill, Tier},
    store::coordinated::{
        counter::policy::ModeChoice,
        link::{Link, StoreTime},
        test_tiers::{START, bucket, fixed, millis, sliding},
    },
};

struct Seen {
    target: Target,
    estimate: Vec<CounterState>,
    demand: Demand,
    leases: Vec<HeldLease>,
    unacknowledged: Unacknowledged,
    instances: u64,
    denied_until: Timestamp,
    now: Timestamp,
}

impl Seen {
    fn new(tiers: &[Tier], instances: u64) -> Self {
        let over_limit_policy = OverLimitPolicy::Ignore;
        let target = Target { path: "d|k=v".into(), tiers: tiers.to_vec().into(), over_limit_policy };
        Self {
            estimate: tiers.iter().map(|tier| CounterState::unused(tier, START)).collect(),
            target,
            demand: Demand::default(),
            leases: Vec::new(),
            unacknowledged: Unacknowledged::default(),
            instances,
            denied_until: Timestamp::default(),
            now: START,
        }
    }

    fn view(&self) -> View<'_> {
        View {
            target: &self.target,
            estimate: &self.estimate,
            demand: &self.demand,
            leases: &self.leases,
            unacknowledged: &self.unacknowledged,
            last_reply_at: None,
            instances: self.instances,
            denied_until: self.denied_until,
            last_check_at: self.now,
            sync_interval: millis(100),
        }
    }

    fn lease(&mut self, hits: u64) {
        self.leases = vec![HeldLease::new(Hits(hits), self.now, self.now.after(millis(500)))];
    }

    fn take(&mut self, hits: u64) {
        for (tier, state) in self.target.tiers.iter().zip(&mut self.estimate) {
            state.take(tier, self.now, Hits(hits));
        }
    }

    fn demand(&mut self, every: Period, times: u64) {
        for _ in 0..times {
            self.now = self.now.after(every);
            self.demand.record(1, self.now);
        }
    }

    fn ahead(&self, needed: u64) -> u64 {
        let link = Link {
            time: StoreTime { now: self.now, latest: self.now },
            instances: 2,
            writer: 1,
            round_trip: millis(2),
            budget: millis(15),
            local_cache: true,
        };
        self.view().next_hold(needed, 0, &link, self.now).map_or(0, |hold| hold.want)
    }
}

/// An idle stock would be requested again whenever it is returned.
#[test]
fn a_stock_is_kept_only_beside_hits_that_are_needed_and_of_an_eighth_of_the_rest() {
    for (taken, kept) in [(0, 125), (900, 12), (993, 0)] {
        let mut seen = Seen::new(&[fixed(1_000, 3_600)], 1);
        seen.take(taken);
        assert_eq!((seen.ahead(0), seen.ahead(1)), (0, kept), "{taken} taken");
    }
}

#[test]
fn what_may_be_kept_unused_is_missing_nowhere() {
    let allowance = |tiers: &[Tier], instances| Seen::new(tiers, instances).view().idle_allowance();
    let window = fixed(1_000, 60);
    assert_eq!(
        [1, 2, 3, 11].map(|instances| allowance(std::slice::from_ref(&window), instances)),
        [125, 5, 3, 0]
    );
    assert_eq!([1, 2].map(|instances| allowance(&[sliding(1_000, 60)], instances)), [125, 5]);
    assert_eq!([1, 2].map(|instances| allowance(&[bucket(1_000, 60)], instances)), [125, 0]);
    assert_eq!([1, 2].map(|instances| allowance(&[window.clone(), bucket(1_000, 60)], instances)), [0; 2]);
    let mut shared = Seen::new(&[window], 2);
    shared.target.over_limit_policy = OverLimitPolicy::Count;
    assert_eq!(shared.view().idle_allowance(), 0);
}

/// It would be missing elsewhere, and saves no call.
#[test]
fn a_single_hit_of_a_small_limit_is_not_leased_ahead() {
    for (requests, is_leased) in [(3, false), (30, true)] {
        let mut seen = Seen::new(&[fixed(requests, 1)], 2);
        seen.demand(millis(10), 500);
        assert_eq!(seen.ahead(0) > 0, is_leased, "{requests}");
    }
}

#[test]
fn a_lease_is_requested_before_the_last_is_used_up_but_not_while_all_is_denied() {
    let mut seen = Seen::new(&[fixed(1_000, 3_600)], 2);
    seen.demand(millis(1), 600);
    let soon = millis(4);
    let expected = u32::try_from(seen.demand.in_the_next(soon, seen.now)).expect("it is small");
    assert!(expected >= 3);
    for (left, runs_low) in [(expected - 1, true), (expected, false)] {
        seen.lease(left.into());
        assert_eq!(seen.view().runs_low(soon, seen.now), runs_low, "{left}");
    }
    seen.leases.clear();
    seen.denied_until = seen.now.after(millis(1));
    assert!(!seen.view().runs_low(soon, seen.now));
    assert!(seen.view().runs_low(soon, seen.denied_until));
    seen.take(1_000);
    assert!(!seen.view().runs_low(soon, seen.denied_until), "nothing is left");
}

/// Three expected hits and two round trips earlier, but not in the first half of the pause.
#[test]
fn the_call_that_ends_a_pause_is_sent_a_little_earlier() {
    for (every, times) in [(1, 600), (200, 30)] {
        let mut seen = Seen::new(&[bucket(100, 10)], 3);
        seen.demand(millis(every), times);
        seen.take(100);
        let scarcity = seen.view().scarcity(false, true, millis(2), seen.now).expect("a bucket");
        let pause = scarcity.pause.expect("it is empty");
        assert!(scarcity.is_scarce);
        assert_eq!(pause.until, seen.now.after(millis(1_000)), "a hit each {every} ms");
        let lead = (seen.demand.time_for(3, seen.now).as_nanos() + 4_000_000).min(500_000_000);
        assert_eq!(lead == 500_000_000, every == 200, "{lead} ns");
        assert_eq!(pause.until.since(pause.call_at), Period::from_nanos(lead), "a hit each {every} ms");
    }
}

#[test]
fn only_tokens_of_several_instances_are_scarce() {
    let scarcity = |tier: Tier, instances, taken, was_scarce| {
        let mut seen = Seen::new(&[tier], instances);
        seen.demand(millis(1), 600);
        seen.take(taken);
        let scarcity = seen.view().scarcity(was_scarce, false, millis(2), seen.now);
        scarcity.map(|scarcity| (scarcity.is_scarce, scarcity.pause.is_some()))
    };
    assert_eq!(scarcity(bucket(100, 10), 1, 100, true), None);
    assert_eq!(scarcity(fixed(100, 10), 3, 100, true), None);
    assert_eq!(scarcity(bucket(100, 10), 3, 100, false), Some((true, true)));
    // one for each instance is left, and then half of the bucket
    assert_eq!(scarcity(bucket(100, 10), 3, 97, false), Some((false, false)));
    assert_eq!(scarcity(bucket(100, 10), 3, 97, true), Some((true, true)));
    assert_eq!(scarcity(bucket(100, 10), 3, 50, true), Some((false, false)));
}

const IGNORE: OverLimitPolicy = OverLimitPolicy::Ignore;

fn ask(direction: Direction, hits: u64) -> Ask {
    Ask { direction, hits: Hits(hits), policy: IGNORE, is_own: false }
}

fn taking(hits: u64) -> Ask {
    ask(Direction::Take, hits)
}

#[test]
fn a_lease_is_spent_before_the_store_is_asked() {
    let mut seen = Seen::new(&[fixed(10, 60)], 2);
    seen.take(4);
    seen.lease(3);
    for (asked, answer) in [
        (taking(0), Answer::Wait(Asks::Look)),
        (taking(3), Answer::Spend),
        (taking(4), Answer::Wait(Asks::Lease(IGNORE))),
        (Ask { is_own: true, ..taking(4) }, Answer::Wait(Asks::Take(IGNORE))),
        (taking(6), Answer::Wait(Asks::Lease(IGNORE))),
        (taking(7), Answer::Reject(Denial::Estimate)),
        (ask(Direction::GiveBack, 7), Answer::Count),
    ] {
        assert_eq!(seen.view().lease_answer(&asked, seen.now), answer, "{asked:?}");
    }
    // in a pause what is held may be used
    seen.denied_until = seen.now.after(millis(1));
    for (hits, answer) in [
        (0, Answer::Wait(Asks::Look)),
        (3, Answer::Spend),
        (4, Answer::Reject(Denial::Pause)),
        (7, Answer::Reject(Denial::Estimate)),
    ] {
        assert_eq!(seen.view().lease_answer(&taking(hits), seen.now), answer, "{hits}");
    }
    assert_eq!(seen.view().lease_answer(&taking(4), seen.denied_until), Answer::Wait(Asks::Lease(IGNORE)));
}

#[test]
fn the_store_decides_under_strict_unless_the_cache_knows_that_nothing_fits() {
    let strict = Algorithm::TokenBucket(Bucket { burst: 10, refill: Refill::Continuous, strict: true });
    let strict = Tier { algorithm: strict, ..fixed(10, 60) };
    for (tier, left, is_denied, cache, answer) in [
        (fixed(10, 60), 0, true, true, Answer::Reject(Denial::Cached)),
        (fixed(10, 60), 0, true, false, Answer::Wait(Asks::Take(IGNORE))),
        (fixed(10, 60), 0, false, true, Answer::Wait(Asks::Take(IGNORE))),
        // one was given back
        (fixed(10, 60), 1, true, true, Answer::Wait(Asks::Take(IGNORE))),
        // it has to notice the try
        (strict, 0, true, true, Answer::Wait(Asks::Take(IGNORE))),
    ] {
        let mut seen = Seen::new(std::slice::from_ref(&tier), 2);
        seen.take(10 - left);
        seen.denied_until = if is_denied { seen.now.after(millis(1)) } else { seen.now };
        let answer_to = |asked: &Ask| seen.view().strict_answer(asked, cache, seen.now);
        assert_eq!(answer_to(&taking(2)), answer, "{tier}, {left} left");
        assert_eq!(answer_to(&taking(0)), Answer::Wait(Asks::Look));
        assert_eq!(answer_to(&ask(Direction::GiveBack, 2)), Answer::Count);
    }
}

/// What is counted is reported, and the reply says the rest.
#[test]
fn interval_reads_where_nothing_is_counted() {
    let age = |hits, over, instances| {
        read_from_age(&taking(hits), over, Seen::new(&[fixed(9, 1)], instances).view())
    };
    let second = Some(Period::from_secs(1));
    let ages = [age(0, false, 1), age(1, false, 2), age(1, true, 1), age(1, true, 2), age(0, true, 2)];
    assert_eq!(ages, [Some(millis(100)), None, None, second, Some(millis(100))]);
}

#[test]
fn auto_leases_small_limits_and_bursts_of_large_ones_until_they_are_over() {
    use Coordination::{Interval, Lease, Strict};
    let in_burst = |mode| (mode, true);
    for (requests, (mode, is_in_burst), taking, is_settled, expected) in [
        // 50 for each instance
        (99, (Interval, false), Some(1), true, Some(Switch::Small)),
        (99, (Lease, false), Some(1), true, None),
        (99, in_burst(Lease), Some(1), true, Some(Switch::Small)),
        (149, (Lease, false), Some(1), true, None),
        (149, (Strict, false), Some(1), true, None),
        (150, (Lease, false), Some(1), true, Some(Switch::Large)),
        (150, (Strict, false), Some(1), false, Some(Switch::Large)),
        (150, (Interval, false), Some(1), true, None),
        // more than a tenth of the limit if both take as many
        (200, (Interval, false), Some(10), true, None),
        (200, (Interval, false), Some(11), true, Some(Switch::Burst)),
        (200, (Interval, false), None, true, None),
        (200, in_burst(Lease), Some(11), true, None),
        (200, in_burst(Lease), Some(1), false, None),
        (200, in_burst(Lease), Some(1), true, Some(Switch::Large)),
        (200, in_burst(Lease), None, true, Some(Switch::Large)),
    ] {
        let seen = Seen::new(&[fixed(requests, 60)], 2);
        let choice = ModeChoice { mode, is_in_burst, requested_mode: Some(Coordination::Auto) };
        let policy = AutoPolicy::new(seen.view(), Some(2), millis(2));
        let switch = policy.switch(&choice, taking.map(Hits), || is_settled, seen.now);
        assert_eq!(switch, expected, "{requests}, {choice:?}, {taking:?}");
    }
}
