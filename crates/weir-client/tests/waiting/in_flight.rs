//! Requests in flight in the library: permits that end them, and callers that wait for places, in memory and in a
//! simulated store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{task::JoinSet, time::sleep};
use tower::{Layer as _, Service as _, service_fn};
use weir_client::{AcquireError, LimitLayer, Limiter};
use weir_limit::{Coordination, Hits, Period, line::Rejection};
use weir_store::{Store as _, WaitBounds, clock::Clock as _};

use super::{
    shared::{Instance, World},
    support::rules,
};

/// Where places are kept: in memory, and in the store.
const MODES: [Coordination; 2] = [Coordination::Local, Coordination::Strict];

const LONG: Duration = Duration::from_mins(1);

async fn instance(limit: &str, mode: Coordination) -> (World, Arc<Instance>) {
    let world = World::new();
    let instance = world.fleet(1, &rules(limit), mode).await.remove(0);
    (world, instance)
}

/// Returns the name of the request, which is admitted.
async fn begin(instance: &Instance, max_wait: Duration) -> Box<str> {
    let acquired = instance.acquire(1, max_wait).await;
    assert_eq!(acquired.rejection, None);
    acquired.name.expect("a name")
}

async fn end(instance: &Instance, name: &str) {
    let ended =
        instance.limiter.end_request("partners".into(), name.into(), None, instance.clock.now()).await;
    ended.expect("it ends");
}

#[tokio::test(start_paused = true)]
async fn places_are_given_in_the_order_of_arrival() {
    for mode in MODES {
        let (_world, instance) = instance("{ in_flight: 1 }", mode).await;
        let held = begin(&instance, Duration::ZERO).await;
        let (mut tasks, order) = (JoinSet::new(), Arc::new(Mutex::new(Vec::new())));
        for i in 0..20 {
            let (instance, order) = (Arc::clone(&instance), Arc::clone(&order));
            tasks.spawn(async move {
                let name = begin(&instance, LONG).await;
                order.lock().push(i);
                sleep(Duration::from_millis(3)).await;
                end(&instance, &name).await;
            });
            sleep(Duration::from_millis(5)).await;
        }
        let begun = instance.clock.now();
        end(&instance, &held).await;
        tasks.join_all().await;
        assert_eq!(*order.lock(), (0..20).collect::<Vec<_>>(), "{mode:?}");
        // an end serves the next one at once
        let took = instance.clock.now().since(begun);
        assert!(took < Period::from_millis(500), "{mode:?}: {took}");
        assert_eq!(instance.limiter.waiters(), 0);
    }
}

/// Callers come at random, run at random, and some give up.
#[tokio::test(start_paused = true)]
async fn never_more_run_than_may_and_all_are_served() {
    for (mode, instances) in [(Coordination::Local, 1), (Coordination::Strict, 1), (Coordination::Strict, 2)]
    {
        let world = World::new();
        let fleet = world.fleet(instances, &rules("{ in_flight: 3 }"), mode).await;
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (mut tasks, mut random) = (JoinSet::new(), 7_u64);
        let mut next = move |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for i in 0..300 {
            let instance = Arc::clone(&fleet[i % instances]);
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            let (comes, runs, leaves) = (next(3_000), next(40), next(5) == 0);
            tasks.spawn(async move {
                sleep(Duration::from_millis(comes)).await;
                let patience = if leaves { Duration::from_millis(30) } else { LONG };
                let Ok(acquired) = tokio::time::timeout(patience, instance.acquire(1, LONG)).await else {
                    return false;
                };
                let name = acquired.name.expect("all that stay are served");
                most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                sleep(Duration::from_millis(runs)).await;
                running.fetch_sub(1, Ordering::Relaxed);
                end(&instance, &name).await;
                true
            });
        }
        let served = tasks.join_all().await.into_iter().filter(|served| *served).count();
        assert!(served >= 200 && most.load(Ordering::Relaxed) == 3, "{mode:?}: {served}, {most:?}");
        assert!(fleet.iter().all(|instance| instance.limiter.waiters() == 0));
        // no place is lost
        sleep(Duration::from_millis(100)).await;
        for _ in 0..3 {
            begin(&fleet[0], Duration::ZERO).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_line_and_callers_that_cannot_wait_take_places_in_turn() {
    for mode in MODES {
        for limit in [1, 2, 8] {
            let (_world, instance) = instance(&format!("{{ in_flight: {limit} }}"), mode).await;
            let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
            let (mut tasks, is_over) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
            for i in 0..40 {
                let (instance, counts, is_over) =
                    (Arc::clone(&instance), Arc::clone(&counts), Arc::clone(&is_over));
                tasks.spawn(async move {
                    let waits = i % 2 == 0;
                    while !is_over.load(Ordering::Relaxed) {
                        let acquired = instance.acquire(1, if waits { LONG } else { Duration::ZERO }).await;
                        if let Some(name) = acquired.name {
                            counts[usize::from(waits)].fetch_add(1, Ordering::Relaxed);
                            sleep(Duration::from_millis(20)).await;
                            end(&instance, &name).await;
                        } else {
                            sleep(Duration::from_millis(10)).await;
                        }
                    }
                });
            }
            sleep(Duration::from_secs(20)).await;
            let [others, line] = [0, 1].map(|i| counts[i].load(Ordering::Relaxed));
            is_over.store(true, Ordering::Relaxed);
            let all = others + line;
            assert!(others * 4 >= all && line * 4 >= all, "{mode:?}, {limit}: {others} beside {line}");
            // of 20 s, each place takes a request in some 20 to 30 ms
            assert!(all >= limit * 500, "{mode:?}, {limit}: {all}");
        }
    }
}

/// Where others asked once and do not come back, little is lost.
#[tokio::test(start_paused = true)]
async fn a_place_is_kept_for_others_for_a_while_only() {
    let (_world, instance) = instance("{ in_flight: 1 }", Coordination::Local).await;
    let mut held = begin(&instance, Duration::ZERO).await;
    for _ in 0..10 {
        let waits = tokio::spawn({
            let instance = Arc::clone(&instance);
            async move { (begin(&instance, LONG).await, instance.clock.now()) }
        });
        sleep(Duration::from_millis(1)).await;
        assert!(instance.acquire(1, Duration::ZERO).await.rejection.is_some());
        let begun = instance.clock.now();
        end(&instance, &held).await;
        let (name, at) = waits.await.expect("no panic");
        assert!(at.since(begun) < Period::from_millis(150));
        held = name;
    }
}

#[tokio::test(start_paused = true)]
async fn each_wait_has_its_end() {
    for mode in MODES {
        let (world, instance) = instance("{ in_flight: 1, give_up_after: 20s }", mode).await;
        let room = instance.limiter.store().wait_room().expect("it has one");
        room.set_bounds(WaitBounds { per_key: 2, ..WaitBounds::default() });
        let held = begin(&instance, Duration::ZERO).await;
        let begun = world.clock.now();
        let late = instance.acquire(1, Duration::from_millis(300)).await;
        let waited = world.clock.now().since(begun);
        assert_eq!(late.rejection, Some(Rejection::Timeout { retry_after: Period::from_secs(1) }));
        assert!((Period::from_millis(300)..Period::from_millis(310)).contains(&waited), "{waited}");
        // two wait, and a third one may not
        let mut waiting = JoinSet::new();
        for _ in 0..2 {
            let instance = Arc::clone(&instance);
            waiting.spawn(async move { instance.acquire(1, LONG).await });
        }
        sleep(Duration::from_millis(10)).await;
        let full = instance.acquire(1, LONG).await.rejection;
        assert_eq!(full, Some(Rejection::Full { retry_after: Period::from_secs(1) }));
        waiting.shutdown().await;
        assert_eq!(instance.limiter.waiters(), 0);
        // one that is given up serves the next one
        let second = begin(&instance, LONG).await;
        let waited = world.clock.now().since(begun);
        assert!(waited > Period::from_secs(19) && waited < Period::from_millis(21_500), "{waited}");
        end(&instance, &held).await;
        assert_eq!(instance.acquire(1, Duration::ZERO).await.name, None, "it was unknown");
        let stopped = tokio::spawn({
            let instance = Arc::clone(&instance);
            async move { instance.acquire(1, LONG).await.rejection }
        });
        sleep(Duration::from_millis(10)).await;
        instance.limiter.close_waiters(world.clock.now());
        assert_eq!(stopped.await.expect("no panic"), Some(Rejection::Closed));
        end(&instance, &second).await;
        instance.load(&rules("{ in_flight: 0 }"));
        assert_eq!(instance.acquire(1, LONG).await.rejection, Some(Rejection::Never));
    }
}

/// Rates are waited for first, and get their hits back if there is no place in time.
#[tokio::test(start_paused = true)]
async fn a_wait_in_vain_counts_nothing_of_the_tiers_beside_it() {
    for mode in MODES {
        let limit = "{ tiers: [{ in_flight: 1 }, { requests: 3, per: 10s, algorithm: fixed_window }] }";
        let (_world, instance) = instance(limit, mode).await;
        let (mut turns, served) = (JoinSet::new(), Arc::clone(&instance));
        turns.spawn(async move {
            loop {
                // the lines for tiers in memory
                served.limiter.serve_waiters(served.clock.now());
                sleep(Duration::from_millis(10)).await;
            }
        });
        let held = begin(&instance, Duration::ZERO).await;
        for _ in 0..5 {
            let late = instance.acquire(1, Duration::from_millis(100)).await;
            assert!(matches!(late.rejection, Some(Rejection::Timeout { .. })), "{late:?}");
        }
        end(&instance, &held).await;
        sleep(Duration::from_millis(500)).await;
        for _ in 0..2 {
            let name = begin(&instance, LONG).await;
            end(&instance, &name).await;
        }
        let begun = instance.clock.now();
        let name = begin(&instance, LONG).await;
        let waited = instance.clock.now().since(begun);
        assert!(waited > Period::from_secs(5), "{mode:?}: the window is used, {waited}");
        end(&instance, &name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn lines_for_places_follow_reloads() {
    for mode in MODES {
        let (_world, instance) = instance("{ in_flight: 1 }", mode).await;
        let _held = begin(&instance, Duration::ZERO).await;
        let waits = || {
            let instance = Arc::clone(&instance);
            tokio::spawn(async move { instance.acquire(1, LONG).await })
        };
        let (raised, gone) = (waits(), waits());
        sleep(Duration::from_secs(3)).await;
        let begun = instance.clock.now();
        instance.load(&rules("{ in_flight: 2 }"));
        assert!(raised.await.expect("no panic").name.is_some());
        instance.load("domain: partners\ndescriptors:\n  - key: other\n");
        let gone = gone.await.expect("no panic");
        assert_eq!((gone.rejection, gone.name), (None, None));
        assert!(instance.clock.now().since(begun) < Period::from_millis(100));
    }
}

async fn limiter(limit: &str) -> Limiter {
    Limiter::builder().rules_text(&rules(limit)).build().await.expect("valid rules")
}

const ENTRIES: [(&str, &str); 1] = [("api", "x")];

#[tokio::test]
async fn a_permit_ends_its_request() {
    let limiter = limiter("{ in_flight: 1 }").await;
    let key = limiter.key("partners", &ENTRIES).expect("a key");
    let taken = || matches!(key.try_acquire(Hits(1)), Err(AcquireError::Timeout { .. }));
    let permit = key.try_acquire(Hits(1)).expect("a place");
    assert!(taken());
    drop(permit);
    key.try_acquire(Hits(1)).expect("a place").settle(Hits(9));
    key.try_acquire(Hits(1)).expect("a place").give_back();
    // in another task, and on a thread without a runtime
    let permit = limiter.acquire("partners", &ENTRIES, Hits(1), Duration::ZERO).await.expect("a place");
    let moved = tokio::spawn(async move { drop(permit) });
    moved.await.expect("no panic");
    let permit = key.try_acquire(Hits(1)).expect("a place");
    thread::spawn(move || drop(permit)).join().expect("no panic");
    let permit = key.try_acquire(Hits(1)).expect("a place");
    let waits = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.until_ready("partners", &ENTRIES).await.map(|permit| permit.waited()) }
    });
    while limiter.waiters() == 0 {
        tokio::task::yield_now().await;
    }
    drop(permit);
    waits.await.expect("it ends").expect("a permit");
    // the last one outlives its limiter
    let permit = key.try_acquire(Hits(1)).expect("a place");
    drop((key, limiter));
    drop(permit);
}

#[tokio::test]
async fn a_permit_settles_what_its_request_has_cost() {
    let limiter = limiter("{ tiers: [{ in_flight: 1 }, { requests: 100, per: 1h }], reserve: 0 }").await;
    let key = limiter.key("partners", &ENTRIES).expect("a key");
    key.try_acquire(Hits(1)).expect("a place").settle(Hits(200));
    assert!(key.try_acquire(Hits(1)).is_err(), "the budget is used");
}

/// A start of one hit reserves 30 beside it.
#[tokio::test]
async fn a_dropped_permit_costs_what_it_has_reserved() {
    for limit in ["requests: 100, per: 365d", "tiers: [{ in_flight: 1 }, { requests: 100, per: 365d }]"] {
        let limiter = limiter(&format!("{{ {limit}, reserve: 30 }}")).await;
        let key = limiter.key("partners", &ENTRIES).expect("a key");
        let begin = || key.try_acquire(Hits(1));
        for _ in 0..20 {
            begin().expect("nothing is used").give_back();
        }
        begin().expect("room").settle(Hits(5));
        drop(begin().expect("room for 94"));
        drop(begin().expect("room for 63"));
        drop(begin().expect("room for 32"));
        assert!(begin().is_err(), "{limit}: 1 is left");
    }
}

/// Rules that reserve nothing count costs in full, with a place or without.
#[tokio::test]
async fn a_permit_settles_where_nothing_is_reserved() {
    let limiter = limiter("{ requests: 100, per: 365d, reserve: 0 }").await;
    let key = limiter.key("partners", &ENTRIES).expect("a key");
    key.try_acquire(Hits(1)).expect("100 are left").settle(Hits(39));
    drop(limiter.acquire("partners", &ENTRIES, Hits(1), LONG).await.expect("60 are left"));
    limiter.acquire("partners", &ENTRIES, Hits(1), LONG).await.expect("59 are left").settle(Hits(57));
    key.try_acquire(Hits(1)).expect("1 is left").settle(Hits(1));
    assert!(key.try_acquire(Hits(1)).is_err(), "one is owed");
}

/// The store counts the cost of a name without a place.
#[tokio::test(start_paused = true)]
async fn instances_settle_where_nothing_is_reserved() {
    for mode in MODES {
        let (_world, instance) = instance("{ requests: 100, per: 365d, reserve: 0 }", mode).await;
        for (cost, is_left) in [(Some(50), true), (None, true), (Some(47), false)] {
            let name = begin(&instance, Duration::ZERO).await;
            let now = instance.clock.now();
            let ended = instance.limiter.end_request("partners".into(), name, cost.map(Hits), now).await;
            ended.expect("it ends");
            let looked = instance.acquire(1, Duration::ZERO).await;
            assert_eq!(looked.rejection.is_none(), is_left, "{mode:?}, {cost:?}");
        }
    }
}

#[tokio::test]
async fn a_layer_runs_no_more_requests_than_may() {
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (Arc::clone(&running), Arc::clone(&most));
    let client = service_fn(move |()| {
        let (running, most) = counts.clone();
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            running.fetch_sub(1, Ordering::Relaxed);
            Ok::<_, std::convert::Infallible>(())
        }
    });
    let layer = LimitLayer::new(limiter("{ in_flight: 2 }").await, "partners", LONG, |(): &()| {
        vec![("api".to_owned(), "x".to_owned())]
    });
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let mut client = layer.layer(client.clone());
        calls.spawn(async move { client.call(()).await.expect("a response") });
    }
    calls.join_all().await;
    assert!((1..=2).contains(&most.load(Ordering::Relaxed)), "{most:?}");
}
