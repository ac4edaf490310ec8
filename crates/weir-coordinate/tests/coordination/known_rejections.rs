//! Requests whose descriptors count all or none, and of which this instance knows that one is rejected, or that none
//! is.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use weir_coordinate::{
    CoordinationSettings,
    simulated::{Condition, Network},
};
use weir_limit::{
    Algorithm, Bucket, Coordination, OverLimitPolicy, Period, Refill, RuntimeLimit, Scope, Tier,
};

use crate::{
    fleet::{daily, rule},
    pair::{Ask, Pair, REPORTED, over},
};

const MODES: [Coordination; 4] =
    [Coordination::Strict, Coordination::Lease, Coordination::Interval, Coordination::Local];

impl Pair {
    /// Sends a request with one hit for each of `keys` to instance 0. Returns which of them were rejected, and the
    /// commands that it took.
    async fn request_and_count(&self, keys: &[&str]) -> (Vec<bool>, u64) {
        let before = self.commands(0);
        let decisions = self.request(0, keys).await;
        (over(&decisions), self.commands(0) - before)
    }
}

/// A limit under `strict` costs a command, for its status or as it rejects the hit; nothing is counted that would have
/// to be given back.
#[tokio::test(start_paused = true)]
async fn nothing_is_taken_for_a_request_that_is_known_to_be_rejected() {
    let cases = [
        (Coordination::Strict, Coordination::Strict, 2),
        (Coordination::Strict, Coordination::Lease, 1),
        (Coordination::Strict, Coordination::Interval, 1),
        (Coordination::Strict, Coordination::Local, 1),
        (Coordination::Interval, Coordination::Strict, 1),
        (Coordination::Local, Coordination::Strict, 1),
        (Coordination::Lease, Coordination::Interval, 0),
        (Coordination::Lease, Coordination::Local, 0),
        (Coordination::Interval, Coordination::Lease, 0),
        (Coordination::Interval, Coordination::Interval, 0),
        (Coordination::Interval, Coordination::Local, 0),
        (Coordination::Local, Coordination::Local, 0),
    ];
    for (large, small, commands) in cases {
        let pair = Pair::new(large, small).await;
        assert!(pair.hit(0, "small").await);
        sleep(Period::from_secs(2).into()).await;
        for keys in [["large", "small"], ["small", "large"]] {
            let (rejected, sent) = pair.request_and_count(&keys).await;
            assert_eq!(rejected, keys.map(|key| key == "small"), "{large:?}, {small:?}");
            assert_eq!((sent, pair.counted()), (commands, 0), "{large:?}, {small:?}");
        }
        // only rules that are coordinated take space in the table
        let coordinated = [large, small].into_iter().filter(|mode| *mode != Coordination::Local).count();
        assert_eq!(pair.stores[0].counters(), coordinated, "{large:?}, {small:?}");
    }
}

/// One descriptor needs no read before it is decided.
#[tokio::test(start_paused = true)]
async fn a_single_descriptor_is_decided_with_one_command() {
    let pair = Pair::new(Coordination::Strict, Coordination::Strict).await;
    for rejected in [false, true, true] {
        assert_eq!(pair.request_and_count(&["small"]).await, (vec![rejected], 1));
    }
    // also if it fits again, which only the store knows
    pair.ask(Scope::Descriptor, 1, &[Ask { gives_back: true, ..Ask::hit("small") }]).await;
    sleep(REPORTED).await;
    assert_eq!(pair.request_and_count(&["small"]).await, (vec![false], 1));
}

/// The store says so when it is asked for the status of the first one.
#[tokio::test(start_paused = true)]
async fn every_descriptor_that_is_used_up_is_reported_as_rejected() {
    let strict = |requests| rule(Coordination::Strict, &[daily(requests)], OverLimitPolicy::Ignore);
    let pair = Pair::with(strict(1), strict(1)).await;
    assert!(pair.hit(1, "large").await && pair.hit(0, "small").await);
    assert_eq!(over(&pair.request(0, &["large", "small"]).await), [true, true]);
}

/// The status of a descriptor is not worth a wait for a node that does not reply.
#[tokio::test(start_paused = true)]
async fn a_rejected_request_waits_for_no_store_that_is_away() {
    let pair = Pair::new(Coordination::Strict, Coordination::Local).await;
    assert!(pair.hit(0, "small").await);
    pair.shared.set(Condition::Frozen);
    for _ in 0..100 {
        pair.hit(0, "large").await;
        sleep(Duration::from_millis(50)).await;
    }
    let begun = Instant::now();
    assert_eq!(over(&pair.request(0, &["large", "small"]).await), [false, true]);
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

/// Its limit is lower than what is used, so that it does not fit either.
#[tokio::test(start_paused = true)]
async fn a_rejected_request_gives_nothing_back() {
    for mode in MODES {
        let settings = CoordinationSettings { coordination: mode, ..CoordinationSettings::default() };
        let of = |mode, requests| rule(mode, &[daily(requests)], OverLimitPolicy::Ignore);
        let pair = Pair::start(of(mode, 3), of(Coordination::Interval, 1), settings).await;
        assert_eq!(over(&pair.request_in(Scope::Descriptor, 0, &["large"], 3).await), [false]);
        assert!(pair.hit(0, "small").await);
        let own = RuntimeLimit::new([daily(2)].into(), OverLimitPolicy::Ignore).expect("it is valid");
        let given = Ask { gives_back: true, own: Some(own), ..Ask::hit("large") };
        assert!(pair.ask(Scope::Request, 0, &[given, Ask::hit("small")]).await[1].over, "{mode:?}");
        assert!(!pair.hit(0, "large").await, "{mode:?}");
    }
}

/// None of their hits are counted, also not those of the first one in the status of the second one.
#[tokio::test(start_paused = true)]
async fn the_statuses_of_a_rejected_request_leave_its_hits_out() {
    for mode in [Coordination::Strict, Coordination::Lease, Coordination::Interval] {
        for large in [mode, Coordination::Local] {
            let pair = Pair::new(large, mode).await;
            assert!(pair.hit(0, "small").await);
            let decisions = pair.request(0, &["large", "large", "small"]).await;
            let status: Vec<_> = decisions.iter().map(|d| (d.over, d.before.0, d.remaining)).collect();
            assert_eq!(status, [(false, 0, 100), (false, 0, 100), (true, 1, 0)], "{large:?}, {mode:?}");
        }
    }
}

/// The rejected hits are decided last, and all of the others fit.
#[tokio::test(start_paused = true)]
async fn several_descriptors_are_decided_in_one_round_trip() {
    for mode in [Coordination::Strict, Coordination::Lease] {
        let pair = Pair::new(mode, mode).await;
        let begun = Instant::now();
        assert_eq!(over(&pair.request(0, &["large", "small"]).await), [false, false]);
        assert_eq!(begun.elapsed(), Network::default().round_trip, "{mode:?}");
    }
}

/// The status of a descriptor under `lease` is what this instance knows.
#[tokio::test(start_paused = true)]
async fn a_leased_descriptor_of_a_rejected_request_costs_no_command() {
    let of = |mode, requests| rule(mode, &[daily(requests)], OverLimitPolicy::Ignore);
    let pair = Pair::with(of(Coordination::Lease, 10_000), of(Coordination::Interval, 1)).await;
    assert!(pair.hit(0, "small").await);
    // several hits at once are leased with some ahead
    let taken = 4;
    assert_eq!(over(&pair.request_in(Scope::Descriptor, 0, &["large"], taken).await), [false]);
    let held = pair.counted() - taken;
    assert!(held > 0, "nothing is leased ahead");
    for hits in [1, held, held + 1, 0] {
        let before = pair.commands(0);
        let asks = [Ask { hits, ..Ask::hit("large") }, Ask::hit("small")];
        assert_eq!(over(&pair.ask(Scope::Request, 0, &asks).await), [false, true]);
        assert_eq!(pair.commands(0), before, "{hits} of {held}");
    }
}

/// Each of them would fit by itself. Otherwise a request that repeats a descriptor would pass without being counted.
#[tokio::test(start_paused = true)]
async fn descriptors_of_one_counter_have_to_fit_together() {
    for mode in MODES {
        let of = |requests| rule(mode, &[daily(requests)], OverLimitPolicy::Ignore);
        let pair = Pair::with(of(100), of(3)).await;
        let commands = pair.commands(0);
        let small = |hits| Ask { hits, ..Ask::hit("small") };
        let decisions = pair.ask(Scope::Request, 0, &[small(2), small(2)]).await;
        let status: Vec<_> = decisions.iter().map(|d| (d.over, d.before.0, d.remaining)).collect();
        assert_eq!(status, [(false, 0, 3), (true, 2, 1)], "{mode:?}");
        let sent = match mode {
            // of both hits, since the store decides
            Coordination::Strict => 1,
            _ => 0,
        };
        assert_eq!(pair.commands(0) - commands, sent, "{mode:?}");
        // those that are rejected leave what is left to the next
        let decisions = pair.ask(Scope::Request, 0, &[small(2), small(5), small(1)]).await;
        assert_eq!(over(&decisions), [false, true, false], "{mode:?}");
        // those of other counters and those that are given back do not count
        let given = Ask { gives_back: true, ..small(3) };
        let asks = [given, Ask { hits: 50, ..Ask::hit("large") }, small(3)];
        assert_eq!(over(&pair.ask(Scope::Request, 0, &asks).await), [false; 3], "{mode:?}");
    }
}

/// The second one waits for what the first one would have left.
#[tokio::test(start_paused = true)]
async fn the_retry_time_of_descriptors_that_do_not_fit_together_is_that_after_the_first_one() {
    let bucket = Bucket { burst: 10, refill: Refill::Continuous, strict: false };
    for mode in MODES {
        // until the first six expire, and until two tokens have flowed in
        for (algorithm, seconds) in [(Algorithm::SlidingWindow, 60), (Algorithm::TokenBucket(bucket), 12)] {
            let small = Tier::new(10, Period::from_secs(60), algorithm);
            let of = |tier| rule(mode, &[tier], OverLimitPolicy::Ignore);
            let pair = Pair::with(of(daily(100)), of(small)).await;
            let asks = [Ask { hits: 6, ..Ask::hit("small") }, Ask { hits: 6, ..Ask::hit("small") }];
            let decisions = pair.ask(Scope::Request, 0, &asks).await;
            assert_eq!(over(&decisions), [false, true], "{mode:?}");
            let (least, most) = (Period::from_millis(1_000 * seconds - 10), Period::from_secs(seconds));
            let reset = decisions[1].reset;
            assert!((least..=most).contains(&reset), "{mode:?}, {seconds}: {reset:?}");
        }
    }
}

/// The counts of one of them are those of this instance only.
#[tokio::test(start_paused = true)]
async fn descriptors_of_one_local_counter_have_to_fit_together() {
    let pair = Pair::new(Coordination::Lease, Coordination::Local).await;
    for _ in 0..3 {
        let decisions = pair.request(0, &["large", "small", "small"]).await;
        let status: Vec<_> = decisions.iter().map(|d| (d.over, d.before.0, d.remaining)).collect();
        assert_eq!((status, pair.counted()), (vec![(false, 0, 100), (false, 0, 1), (true, 1, 0)], 0));
    }
    assert_eq!(over(&pair.request(0, &["large", "small"]).await), [false, false]);
}

/// A strict bucket begins its refill again with each rejected try, also when it is only one descriptor of a request.
#[tokio::test(start_paused = true)]
async fn a_strict_bucket_notices_a_rejected_request() {
    for mode in MODES {
        for (is_strict, admitted_again) in [(true, 0), (false, 2)] {
            let bucket = Bucket { burst: 1, refill: Refill::Continuous, strict: is_strict };
            let tier = Tier::new(1, Period::from_secs(10), Algorithm::TokenBucket(bucket));
            let small = rule(mode, &[tier], OverLimitPolicy::Ignore);
            let pair = Pair::with(rule(mode, &[daily(100)], OverLimitPolicy::Ignore), small).await;
            assert!(pair.hit(0, "small").await);
            let mut admitted = 0;
            for _ in 0..5 {
                sleep(Period::from_secs(6).into()).await;
                let decisions = pair.request(0, &["large", "small"]).await;
                assert!(!decisions[0].over);
                admitted += i32::from(!decisions[1].over);
            }
            assert_eq!(admitted, admitted_again, "{mode:?}, strict: {is_strict}");
        }
    }
}

/// Other instances decide by its refill.
#[tokio::test(start_paused = true)]
async fn the_store_notices_a_try_that_a_strict_bucket_rejects_at_once() {
    for is_strict in [true, false] {
        let bucket = Bucket { burst: 1, refill: Refill::Continuous, strict: is_strict };
        let tier = Tier::new(1, Period::from_secs(10), Algorithm::TokenBucket(bucket));
        let of = |tier| rule(Coordination::Strict, &[tier], OverLimitPolicy::Ignore);
        let pair = Pair::with(of(daily(100)), of(tier)).await;
        assert!(pair.hit(0, "small").await);
        assert_eq!(pair.request_and_count(&["large", "small"]).await, (vec![false, true], 2));
    }
}

/// The second descriptor brings a limit of its own to the counter of the first one.
#[tokio::test(start_paused = true)]
async fn hits_are_given_back_if_a_limit_of_the_request_rejects_them() {
    for mode in [Coordination::Strict, Coordination::Lease, Coordination::Interval] {
        let pair = Pair::new(mode, mode).await;
        let own = RuntimeLimit::new([daily(1)].into(), OverLimitPolicy::Ignore).expect("it is valid");
        let asks = [Ask::hit("large"), Ask { own: Some(own), ..Ask::hit("large") }];
        let decisions = pair.ask(Scope::Request, 0, &asks).await;
        assert_eq!(over(&decisions), [false, true], "{mode:?}");
        let read = pair.request_in(Scope::Descriptor, 0, &["large"], 0).await[0];
        assert_eq!(read.remaining, 100, "{mode:?}");
    }
}
