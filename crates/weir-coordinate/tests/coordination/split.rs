//! `split`: each instance enforces its own part. Whatever happens to instances and the store, all together admit no
//! more than `docs/coordination.md` says.

use std::{slice, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};
use weir_coordinate::simulated::{Condition, Network};
use weir_limit::{
    Algorithm, Bucket, Coordination, Hits, OnStoreFailure, OverLimitPolicy, Period, Refill,
    ReservationRequest, Rule, RuleCoordination, Scope, Tier, Timestamp,
};
use weir_store::Store as _;

use crate::{
    fleet::{Fleet, Instance, rule},
    pair::{Ask, Pair},
};

const MODE: Coordination = Coordination::Split;

fn tier(requests: u32, seconds: u64, algorithm: Algorithm) -> Tier {
    Tier::new(requests, Period::from_secs(seconds), algorithm)
}

fn second(requests: u32) -> Tier {
    tier(requests, 1, Algorithm::FixedWindow)
}

/// What happens to a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Nothing,
    /// One starts, or as many as there are, within a second and a half.
    Join,
    JoinAll,
    /// One leaves, or dies.
    Stop,
    Die,
    /// So many instances lose their connections for 12 s.
    CutOff(usize),
    /// One loses its connection for so many milliseconds, and meanwhile another one starts.
    JoinUnheard(u64),
    /// The store is gone for 12 s, and returns with its data or without.
    StoreGone,
    StoreEmpty,
    /// The store loses its data and replies on.
    StoreFlushed,
}

/// The admitted hits of each window of a second that has begun and ended while requests came.
struct Run {
    windows: Vec<u64>,
}

/// In seconds.
const LENGTH: u64 = 26;

/// The times in a second at which all instances take what they can.
const STEPS: u64 = 10;

/// The second in which the event happens.
const EVENT_AT: u64 = 4;

/// Has `instances` take as much as they can of `limit` hits a second, and `event` happen `millis` after the start of a
/// second.
async fn run(instances: usize, limit: u32, failure: OnStoreFailure, event: Event, millis: u64) -> Run {
    let coordination =
        RuleCoordination { mode: Some(MODE), on_store_failure: Some(failure), ..RuleCoordination::default() };
    let rule = Rule { coordination, ..rule(MODE, &[second(limit)], OverLimitPolicy::Ignore) };
    let clock = weir_coordinate::simulated::SimulatedClock::new(crate::fleet::EPOCH);
    let store = weir_coordinate::simulated::SimulatedStore::new(clock.clone(), 7 + millis);
    let network = Network { jitter: Duration::from_millis(20), ..Network::default() };
    let mut fleet = Fleet { clock, shared: store, instances: Vec::new() };
    // heartbeats of random phases
    for _ in 0..instances {
        fleet.add(1, &rule, network);
        sleep(Duration::from_millis(997 / instances as u64)).await;
    }
    // between two steps of the second after all have parts
    let now = fleet.clock.right().as_nanos() % 1_000_000_000;
    sleep(Duration::from_nanos(5_000_000_000 + 25_000_000 - now)).await;
    let begun = Instant::now();
    let mut windows = Vec::new();
    let mut done = event == Event::Nothing;
    let mut alive = vec![true; instances];
    for step in 0..LENGTH * STEPS {
        let elapsed = step * 1_000 / STEPS;
        sleep_until(begun + Duration::from_millis(elapsed)).await;
        if !done && elapsed >= EVENT_AT * 1_000 + millis {
            done = true;
            let count = fleet.instances.len();
            let remote = |i: usize| fleet.instances[i].store.remote().clone();
            match event {
                Event::Nothing => {}
                Event::Join => fleet.add(1, &rule, network),
                Event::JoinAll => fleet.add(count, &rule, network),
                Event::Stop => {
                    alive[0] = false;
                    let first = Arc::clone(&fleet.instances[0]);
                    tokio::spawn(async move { first.store.close().await });
                }
                Event::Die => {
                    alive[0] = false;
                    remote(0).partition(true);
                }
                Event::JoinUnheard(_) => {
                    remote(0).partition(true);
                    fleet.add(1, &rule, network);
                }
                Event::CutOff(many) => (0..many).for_each(|i| remote(i).partition(true)),
                Event::StoreGone | Event::StoreEmpty => fleet.shared.set(Condition::Down),
                Event::StoreFlushed => fleet.shared.flush(),
            }
            alive.resize(fleet.instances.len(), true);
        }
        if let Event::JoinUnheard(lasts) = event
            && elapsed == EVENT_AT * 1_000 + millis + lasts
        {
            fleet.instances[0].store.remote().partition(false);
        }
        if elapsed == (EVENT_AT + 12) * 1_000 + millis {
            if event == Event::StoreEmpty {
                fleet.shared.flush();
            }
            fleet.shared.set(Condition::Up);
            if matches!(event, Event::CutOff(_)) {
                fleet.instances.iter().for_each(|instance| instance.store.remote().partition(false));
            }
        }
        let mut admitted = 0;
        for (instance, _) in fleet.instances.iter().zip(&alive).filter(|(_, alive)| **alive) {
            admitted += take_all(instance, limit).await;
        }
        if step % STEPS == 0 {
            windows.push(0);
        }
        *windows.last_mut().expect("one was added") += admitted;
    }
    Run { windows }
}

/// Takes hits until one is rejected, or many more than `limit` were admitted. Returns how many were admitted.
async fn take_all(instance: &Instance, limit: u32) -> u64 {
    let mut admitted = 0;
    while admitted < 3 * u64::from(limit) && instance.hit().await {
        admitted += 1;
    }
    admitted
}

impl Run {
    fn most(&self) -> u64 {
        self.windows.iter().copied().max().unwrap_or_default()
    }

    fn least(&self) -> u64 {
        self.windows.iter().copied().min().unwrap_or_default()
    }

    /// Returns the seconds from the event on until `used` is admitted in each.
    fn recovered_after(&self, used: u64) -> u64 {
        let last = self.windows.iter().rposition(|admitted| *admitted != used);
        last.map_or(0, |last| (last as u64 + 1).saturating_sub(EVENT_AT))
    }
}

const FLEETS: [usize; 3] = [2, 3, 8];

/// The instants of the event within a second.
const MILLIS: [u64; 3] = [0, 300, 800];

/// What the division leaves over belongs to nobody.
#[tokio::test(start_paused = true)]
async fn parts_sum_to_the_limit_in_every_window() {
    for instances in [1, 2, 3, 8, 13] {
        for limit in [0, 1, 5, 20, 101] {
            let run = run(instances, limit, OnStoreFailure::Local, Event::Nothing, 0).await;
            let all = u64::from(limit) / instances as u64 * instances as u64;
            assert!(run.windows.iter().all(|admitted| *admitted == all), "{:?}", run.windows);
        }
    }
}

/// A newcomer has its part after four seconds, and the next window. The others have left it by then.
#[tokio::test(start_paused = true)]
async fn joins_never_exceed_the_limit_and_leave_the_part_of_newcomers_for_seconds() {
    for instances in FLEETS {
        for (event, joined) in [(Event::Join, 1), (Event::JoinAll, instances)] {
            for millis in MILLIS {
                let limit = (instances * (instances + joined) * 5) as u64;
                let run =
                    run(instances, u32::try_from(limit).expect("few"), OnStoreFailure::Local, event, millis);
                let run = run.await;
                let what = format!("{instances}, {event:?} at {millis}: {:?}", run.windows);
                let left = limit * instances as u64 / (instances + joined) as u64;
                assert!(run.most() == limit && run.least() >= left, "{what}");
                assert!((1..=6).contains(&run.recovered_after(limit)), "{what}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_part_of_an_instance_that_stops_or_dies_is_used_again_within_seconds() {
    for instances in FLEETS {
        for (event, longest) in [(Event::Stop, 9), (Event::Die, 11)] {
            for millis in MILLIS {
                let limit = (instances * (instances - 1) * 5) as u64;
                let run =
                    run(instances, u32::try_from(limit).expect("few"), OnStoreFailure::Local, event, millis);
                let run = run.await;
                let what = format!("{instances}, {event:?} at {millis}: {:?}", run.windows);
                assert_eq!(run.most(), limit, "{what}");
                assert!(run.least() >= limit - limit / instances as u64, "{what}");
                assert!((1..=longest).contains(&run.recovered_after(limit)), "{what}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn instances_that_are_cut_off_keep_their_parts_or_stop() {
    for instances in FLEETS {
        for cut_off in [1, instances / 2] {
            for millis in MILLIS {
                let event = Event::CutOff(cut_off);
                let local = run(instances, 48, OnStoreFailure::Local, event, millis).await;
                let what = format!("{cut_off} of {instances} at {millis}: {:?}", local.windows);
                let bound = 48 + 48 * cut_off as u64 / instances as u64;
                assert!(local.most() <= bound, "{what}");
                // the others have a whole number of hits each
                assert!(local.least() > 48 - instances as u64, "{what}");
                assert_eq!(local.windows.last(), Some(&48), "{what}");

                let deny = run(instances, 48, OnStoreFailure::Deny, event, millis).await;
                let what = format!("{cut_off} of {instances}, deny, at {millis}: {:?}", deny.windows);
                assert_eq!(deny.most(), 48, "{what}");
                // that returns, and begins anew
                let others = instances - cut_off;
                assert!(deny.least() >= (48 / instances * others) as u64, "{what}");
                assert_eq!(deny.windows.last(), Some(&48), "{what}");
            }
        }
    }
}

/// One that may not have heard of a newcomer stops in time, or exceeds the limit by less than its part.
#[tokio::test(start_paused = true)]
async fn one_that_misses_heartbeats_while_another_one_starts_stops_or_keeps_its_part() {
    for instances in FLEETS {
        for lasts in [1_200, 1_800, 2_400, 3_600] {
            for millis in [0, 200, 500, 800] {
                let event = Event::JoinUnheard(lasts);
                let local = run(instances, 72, OnStoreFailure::Local, event, millis).await;
                let what = format!("{instances}, {lasts} ms at {millis}: {:?}", local.windows);
                assert!(local.most() <= 72 + 72 / instances as u64, "{what}");
                let deny = run(instances, 72, OnStoreFailure::Deny, event, millis).await;
                let what = format!("{instances}, {lasts} ms, deny, at {millis}: {:?}", deny.windows);
                assert_eq!((deny.most(), deny.windows.last()), (72, Some(&72)), "{what}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_gone_and_returns_changes_nothing_or_stops_all() {
    for instances in FLEETS {
        for event in [Event::StoreGone, Event::StoreEmpty, Event::StoreFlushed] {
            for millis in MILLIS {
                for failure in [OnStoreFailure::Local, OnStoreFailure::Allow] {
                    let kept = run(instances, 48, failure, event, millis).await;
                    let what = format!("{instances}, {event:?}, {failure:?} at {millis}: {:?}", kept.windows);
                    assert_eq!((kept.most(), kept.windows.last()), (48, Some(&48)), "{what}");
                }
                let deny = run(instances, 48, OnStoreFailure::Deny, event, millis).await;
                let what = format!("{instances}, {event:?}, deny, at {millis}: {:?}", deny.windows);
                assert_eq!((deny.most(), deny.windows.last()), (48, Some(&48)), "{what}");
                assert_eq!(deny.windows.contains(&0), event != Event::StoreFlushed, "{what}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_store_at_first_each_has_a_hundredth() {
    let clock = weir_coordinate::simulated::SimulatedClock::new(crate::fleet::EPOCH);
    let shared = weir_coordinate::simulated::SimulatedStore::new(clock.clone(), 7);
    shared.set(Condition::Down);
    let mut fleet = Fleet { clock, shared, instances: Vec::new() };
    fleet.add(3, &rule(MODE, &[second(1_000)], OverLimitPolicy::Ignore), Network::default());
    assert!(!fleet.instances[0].hit().await, "the store may say that others have it all");
    sleep(Duration::from_millis(4_525)).await;
    for instance in &fleet.instances {
        assert_eq!(take_all(instance, 1_000).await, 10);
    }
    fleet.shared.set(Condition::Up);
    sleep(Duration::from_secs(7)).await;
    let mut all = 0;
    for instance in &fleet.instances {
        all += take_all(instance, 1_000).await;
    }
    assert_eq!(all, 999);
}

/// No interval of a sliding window and no burst of a bucket exceeds the limit while instances come and go, and it is
/// used again.
#[tokio::test(start_paused = true)]
async fn intervals_and_buckets_stay_within_their_limits_while_instances_come_and_go() {
    let bucket = |burst| Algorithm::TokenBucket(Bucket { burst, refill: Refill::Continuous, strict: false });
    for tier in [tier(60, 3, Algorithm::SlidingWindow), tier(20, 1, bucket(40))] {
        let rule = rule(MODE, std::slice::from_ref(&tier), OverLimitPolicy::Ignore);
        let clock = weir_coordinate::simulated::SimulatedClock::new(crate::fleet::EPOCH);
        let shared = weir_coordinate::simulated::SimulatedStore::new(clock.clone(), 7);
        let mut fleet = Fleet { clock, shared, instances: Vec::new() };
        fleet.add(2, &rule, Network::default());
        let mut times: Vec<u64> = Vec::new();
        let begun = Instant::now();
        for step in 0..1_200_u64 {
            sleep_until(begun + Duration::from_millis(step * 50)).await;
            match step {
                300 => fleet.add(3, &rule, Network::default()),
                600 => fleet.instances[0].store.remote().partition(true),
                _ => {}
            }
            for (i, instance) in fleet.instances.iter().enumerate() {
                if step < 600 || i > 0 {
                    times.extend(std::iter::repeat_n(
                        step * 50,
                        usize::try_from(take_all(instance, 60).await).expect("few"),
                    ));
                }
            }
        }
        let in_any = |millis: u64| {
            let count = |(i, first): (usize, &u64)| {
                times[i..].iter().take_while(|time| **time < first + millis).count()
            };
            times.iter().enumerate().map(count).max().unwrap_or_default()
        };
        let used = |from: u64, to: u64| times.iter().filter(|time| (from..to).contains(time)).count();
        if tier.algorithm == Algorithm::SlidingWindow {
            assert!(in_any(3_000) <= 60, "{} in an interval", in_any(3_000));
        } else {
            for seconds in [0, 1, 2, 5, 10] {
                let most = 40 + 20 * usize::try_from(seconds).expect("few");
                // rounding down to tokens gives nothing away
                assert!(
                    in_any(seconds * 1_000 + 1) <= most,
                    "{} in {seconds} s",
                    in_any(seconds * 1_000 + 1)
                );
            }
        }
        // 20 a second, of which a sliding window may leave a thirteenth
        for (from, to) in [(12_000, 15_000), (27_000, 30_000), (48_000, 57_000)] {
            let due = usize::try_from((to - from) / 50).expect("few");
            assert!(used(from, to) >= due * 9 / 10, "{} from {from} to {to} ms: {tier}", used(from, to));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_decision_calls_the_store() {
    let fleet = Fleet::new(3, MODE, &[second(30)], Network::default()).await;
    sleep(Duration::from_secs(5)).await;
    let calls: Vec<u64> = fleet.instances.iter().map(|instance| instance.store.remote().calls()).collect();
    for _ in 0..100 {
        for instance in &fleet.instances {
            instance.hit().await;
            instance.hits(0).await;
            instance.give_back().await;
        }
        sleep(Duration::from_millis(50)).await;
    }
    for (instance, calls) in fleet.instances.iter().zip(calls) {
        assert_eq!(instance.store.remote().calls(), calls);
        let metrics = instance.store.coordination_metrics();
        assert_eq!(
            (metrics.decisions.split.get(), metrics.decisions.waited.get(), metrics.decisions.fallback.get()),
            (300, 0, 0)
        );
        assert_eq!(instance.store.counters(), 0, "nothing is kept for the store");
    }
}

#[tokio::test(start_paused = true)]
async fn hits_are_given_back_and_reserved_within_the_own_part() {
    let fleet = Fleet::new(2, MODE, &[tier(40, 10, Algorithm::FixedWindow)], Network::default()).await;
    // the window in which both have parts
    sleep(Duration::from_secs(10)).await;
    let first = &fleet.instances[0];
    assert_eq!(take_all(first, 40).await, 20);
    first.give_back().await;
    assert!(first.hit().await && !first.hit().await);
    let second = &fleet.instances[1];
    let request = ReservationRequest { least: Hits(1), want: Hits(30), hold: Period::from_secs(1) };
    let reserved = second.with_check(async |check| {
        second.store.reserve(check, request, second.now()).await.expect("it reserves")
    });
    let reserved = reserved.await;
    assert_eq!(reserved.hits, Hits(20));
    let left = reserved.until.since(second.now());
    assert!(left > Period::from_millis(900) && left <= Period::from_secs(1), "{left}");
    assert!(!second.hit().await);
    let release = second.with_check(async |check| {
        second.store.release(check, reserved, Hits(5), second.now()).await.expect("it releases");
    });
    release.await;
    assert_eq!(take_all(second, 40).await, 5);
}

/// Requests of several descriptors count all or none, whether instances split all of their limits or only one.
#[tokio::test(start_paused = true)]
async fn several_descriptors_count_all_or_none() {
    for other in [MODE, Coordination::Local, Coordination::Strict, Coordination::Lease] {
        let minute = |requests| tier(requests, 60, Algorithm::FixedWindow);
        let of = |mode, requests| rule(mode, &[minute(requests)], OverLimitPolicy::Ignore);
        let pair = Pair::with(of(other, 100), of(MODE, 4)).await;
        // the next minute
        sleep(Duration::from_mins(1)).await;
        let over = async |keys: &[&str]| {
            let decisions = pair.request(0, keys).await;
            decisions.iter().map(|decision| decision.over).collect::<Vec<_>>()
        };
        for _ in 0..2 {
            assert_eq!(over(&["large", "small"]).await, [false, false], "{other:?}");
        }
        for _ in 0..3 {
            assert_eq!(over(&["large", "small"]).await, [false, true], "{other:?}");
        }
        // two hits were counted
        let large = pair.ask(Scope::Request, 0, &[Ask { hits: 0, ..Ask::hit("large") }]).await[0];
        let part = if other == MODE { 50 } else { 100 };
        assert_eq!(large.remaining, part - 2, "{other:?}: {large:?}");
        // and the other instance has the other part
        let decisions = pair.request(1, &["large", "small"]).await;
        assert!(decisions.iter().all(|decision| !decision.over), "{other:?}");
    }
}

/// What is reported is the declared limit's counter of this instance: what is left of its part, and when it begins
/// anew.
#[tokio::test(start_paused = true)]
async fn a_decision_reports_the_own_part() {
    let fleet = Fleet::new(4, MODE, &[tier(100, 10, Algorithm::FixedWindow)], Network::default()).await;
    sleep(Duration::from_secs(10)).await;
    let instance = &fleet.instances[2];
    let decision = instance
        .with_check(async |check| {
            let checks = std::slice::from_ref(check);
            instance.store.take(checks, Scope::Descriptor, instance.now()).await.expect("it decides")[0]
        })
        .await;
    assert_eq!((decision.share, decision.remaining, decision.over), (Some(25), 24, false));
}

/// Before an instance has a part, it reports the whole limit, and a rejection lasts until the part begins.
#[tokio::test(start_paused = true)]
async fn an_instance_without_a_part_says_when_it_begins() {
    let bucket = Algorithm::TokenBucket(Bucket { burst: 60, refill: Refill::Step, strict: false });
    for kind in [Algorithm::FixedWindow, Algorithm::SlidingWindow, bucket] {
        for seconds in [3_600, 5] {
            let tier = tier(3_600, seconds, kind);
            let rule = rule(MODE, slice::from_ref(&tier), OverLimitPolicy::Ignore);
            let clock = weir_coordinate::simulated::SimulatedClock::new(Timestamp::from_secs(1_763_722_801));
            let shared = weir_coordinate::simulated::SimulatedStore::new(clock.clone(), 7);
            let mut fleet = Fleet { clock, shared, instances: Vec::new() };
            fleet.add(1, &rule, Network::default());
            sleep(Duration::from_millis(500)).await;
            let instance = &fleet.instances[0];
            let decision = instance.ask(Scope::Descriptor, &[(1, false)]).await[0];
            assert!(decision.over && decision.share.is_none(), "{tier}: {decision:?}");
            assert!(decision.reset <= Period::from_secs(seconds + 5), "{tier}: {decision:?}");
            sleep(Duration::from(decision.reset) + Duration::from_millis(5)).await;
            let decision = instance.ask(Scope::Descriptor, &[(1, false)]).await[0];
            assert!(!decision.over && decision.share.is_some(), "{tier}: {decision:?}");
        }
    }
}

/// What it removed would be admitted once more.
#[tokio::test(start_paused = true)]
async fn a_sweep_keeps_a_window_that_is_open_by_the_clock_of_the_store() {
    let minute = tier(20, 60, Algorithm::FixedWindow);
    let rule = rule(MODE, &[minute], OverLimitPolicy::Ignore);
    let clock = weir_coordinate::simulated::SimulatedClock::new(crate::fleet::EPOCH);
    let store = weir_coordinate::simulated::SimulatedStore::new(clock.skewed(-50_000_000_000), 7);
    let fleet = Fleet::start(1, rule, Network::default(), clock, store).await;
    // in the first tenth of a window of the store: in the last tenth of one by the clock of the instance
    let into = || (fleet.clock.right().as_nanos() / 1_000_000_000 + 10) % 60;
    sleep(Duration::from_secs(60 - into() + 60 + 2)).await;
    let instance = &fleet.instances[0];
    for admitted in [20, 0] {
        assert_eq!(take_all(instance, 20).await, admitted);
        sleep(Duration::from_secs(20)).await;
        for step in 0..instance.store.memory().sweep_steps() {
            instance.store.sweep_step(step, instance.now());
        }
    }
}
