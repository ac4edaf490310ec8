//! Buckets whose parameters come with requests.

use std::{collections::HashMap, thread, time::Duration};

use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestRunner},
};
use weir_disk::DiskSync;
use weir_limit::{
    OnStoreFailure, Period,
    algorithm::CounterState,
    request_bucket::{BucketRequest, Pace, PacedRequest, StepLimit, StepRequest, decide_bucket},
};

use crate::support::{DAY, Disk, Opened, paced, steps};

/// What a client does next.
#[derive(Clone, Debug)]
enum Step {
    Ask(u8, BucketRequest),
    Delete(u8),
    Advance(u64),
    Reopen,
}

/// Requests about buckets that are never full before the test ends, so that no model has to know when they are
/// forgotten.
fn request() -> impl Strategy<Value = BucketRequest> {
    let step =
        (0..3_u64, 1..3_u64, 0..40_u64, proptest::option::of(0..5_000_000_000_u64), any::<[bool; 2]>());
    let step = step.prop_map(|(max, refill, take, at, [strict, session])| {
        let limit = StepLimit { max: 1_000_000 + max, refill, period_ms: 60_000 };
        BucketRequest::Step(StepRequest { limit, take: take * 100, at, strict, session })
    });
    let paced = (1..4_i64, 2..4_u64, -30..60_i64).prop_map(|(count, capacity, quantity)| {
        let pace = Pace::new(count, 86_400).expect("a pace");
        BucketRequest::Paced(PacedRequest { capacity: capacity * 100, pace, quantity })
    });
    prop_oneof![step, paced]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0..12_u8, request()).prop_map(|(key, request)| Step::Ask(key, request)),
        1 => (0..12_u8).prop_map(Step::Delete),
        4 => (0..90_000_u64).prop_map(Step::Advance),
        1 => Just(Step::Reopen),
    ]
}

/// Whatever leaves memory, and whenever the store is closed, the replies are those of one state in memory.
#[test]
fn replies_are_those_of_a_store_that_keeps_all_in_memory() {
    let mut runner = TestRunner::new(Config { cases: 12, failure_persistence: None, ..Config::default() });
    let run = |all: Vec<Step>| {
        let mut disk = Disk::new();
        // nearly nothing stays
        disk.settings.max_counters = 1;
        let mut opened = disk.open();
        let mut model: HashMap<(u8, String), Option<CounterState>> = HashMap::new();
        for step in all {
            let now = weir_store::clock::Clock::now(&*disk.clock);
            match step {
                Step::Ask(key, request) => {
                    let state = model.entry((key, format!("{:?}", request.kind()))).or_default();
                    let expected = decide_bucket(&request, state, now);
                    prop_assert_eq!(opened.ask(&[key, 0xff], &request), expected, "{:?}", request);
                }
                Step::Delete(key) => {
                    let of_key = |other: &(u8, String)| other.0 == key;
                    let was_there = model.iter().any(|(name, state)| {
                        of_key(name) && state.as_ref().is_some_and(|state| state.idle_at() > now)
                    });
                    model.retain(|name, _| !of_key(name));
                    prop_assert_eq!(opened.find_bytes(&[key, 0xff], true).is_some(), was_there);
                    prop_assert_eq!(opened.find_bytes(&[key, 0xff], false), None);
                }
                Step::Advance(millis) => disk.clock.advance(Period::from_millis(millis)),
                Step::Reopen => {
                    opened.close();
                    opened = disk.open();
                }
            }
        }
        prop_assert_eq!(opened.metric("weir.disk.fallback"), 0);
        Ok(())
    };
    runner.run(&vec(step(), 1..120), run).expect("the replies are the same");
}

fn fill(opened: &Opened) {
    assert_eq!(opened.tokens("k", &paced(30)), 100);
    assert_eq!(opened.tokens("k", &steps(5, 2)), 5);
    assert_eq!(opened.tokens("k", &steps(6, 6)), 6);
}

fn counted(opened: &Opened) -> [u64; 3] {
    [paced(0), steps(5, 0), steps(6, 0)].map(|request| opened.tokens("k", &request))
}

/// Returns whole seconds: the time until a paced bucket is full is rounded up.
fn seconds(found: Option<Period>) -> Option<u64> {
    found.map(|period| period.as_nanos() / 1_000_000_000)
}

/// Deleted buckets stay deleted, wherever they were: in memory only, in memory and on disk, or on disk only.
#[test]
fn deleted_buckets_do_not_come_back() {
    for place in 0..3 {
        let mut disk = Disk::new();
        disk.settings.sync = DiskSync::Always;
        let mut opened = disk.open();
        if place == 0 {
            // nothing waits, so what was counted is not written yet
            opened.close();
            disk.settings.sync = DiskSync::Interval;
            disk.settings.interval = Period::from_secs(3_600);
            opened = disk.open();
        }
        fill(&opened);
        opened.tokens("k2", &steps(5, 1));
        if place == 2 {
            opened.close();
            opened = disk.open();
        }
        assert_eq!(seconds(opened.find("k", true)), Some(30 * 3_600), "{place}");
        assert_eq!((opened.find("k", false), opened.find("k", true)), (None, None), "{place}");
        if place > 0 {
            // as a kill leaves it
            assert_eq!(disk.copy().open().find("k", false), None, "{place}");
        }
        opened.close();
        let opened = disk.open();
        assert_eq!((opened.find("k", false), counted(&opened)), (None, [100, 5, 6]), "{place}");
        assert_eq!(opened.tokens("k2", &steps(5, 0)), 4, "{place}");
    }
}

/// Deletions beside a thread that writes all the time: a bucket that was deleted while it was being written stays so.
#[test]
fn buckets_are_deleted_also_while_they_are_written() {
    let mut disk = Disk::new();
    disk.settings.interval = Period::from_nanos(1);
    let opened = disk.open();
    for i in 0..300 {
        let key = i.to_string();
        opened.tokens(&key, &steps(5, 3));
        opened.tokens(&key, &paced(3));
        if i % 3 == 0 {
            thread::sleep(Duration::from_micros(i % 7 * 200));
        }
        assert!(opened.find(&key, true).is_some(), "{i}");
    }
    opened.written();
    opened.close();
    let opened = disk.open();
    for i in 0..300 {
        assert_eq!(opened.find(&i.to_string(), false), None, "{i}");
    }
}

#[test]
fn buckets_are_found_on_disk_by_all_their_parameters() {
    let disk = Disk::new();
    let opened = disk.open();
    fill(&opened);
    for max in 1..=2_500 {
        opened.tokens("many", &steps(max, 1));
    }
    // no name is the beginning of another one
    opened.tokens("k}", &steps(5, 1));
    opened.tokens("", &steps(5, 1));
    opened.close();
    let opened = disk.open();
    assert_eq!(seconds(opened.find("k", false)), Some(30 * 3_600));
    assert_eq!(opened.find("many", false), Some(Period::from_secs(DAY)));
    assert_eq!(opened.metric("weir.counters.live"), 0, "a search leaves nothing in memory");
    assert_eq!((opened.find("kk", false), opened.find("man", false)), (None, None));
    // what memory has is newer: the bucket is full there, and not yet on disk
    assert_eq!(opened.tokens("k", &paced(-30)), 70);
    assert_eq!(opened.find("k", false), Some(Period::from_secs(DAY)));
    assert!(opened.find("many", true).is_some());
    assert_eq!(opened.find("many", false), None);
    opened.close();
    let opened = disk.open();
    assert_eq!((opened.find("many", false), opened.find("k}", false)), (None, Some(Period::from_secs(DAY))));
}

/// The server's clock says when a bucket expires. A caller's time says nothing about that.
#[test]
fn buckets_expire_by_the_servers_clock_and_those_of_callers_a_week_after_their_last_use() {
    let disk = Disk::new();
    let by_caller = |at| {
        let limit = StepLimit { max: 5, refill: 5, period_ms: 60_000 };
        BucketRequest::Step(StepRequest { limit, take: 1, at: Some(at), strict: false, session: false })
    };
    let opened = disk.open();
    opened.tokens("k", &steps(5, 3));
    for (key, at) in [("past", 7_000), ("future", 9_000_000_000_000_000)] {
        assert_eq!(opened.tokens(key, &by_caller(at)), 5);
    }
    opened.close();
    let reopened_after = |seconds| {
        disk.clock.advance(Period::from_secs(seconds));
        disk.open()
    };
    let opened = reopened_after(DAY - 1);
    assert_eq!(opened.tokens("k", &steps(5, 0)), 2);
    let opened = {
        opened.close();
        reopened_after(1)
    };
    assert_eq!((opened.find("k", false), opened.tokens("k", &steps(5, 0))), (None, 5));
    let opened = {
        opened.close();
        reopened_after(6 * DAY - 1)
    };
    for (key, at) in [("past", 7_000), ("future", 9_000_000_000_000_000)] {
        assert!(opened.find(key, false).is_some(), "{key}");
        assert_eq!(opened.tokens(key, &by_caller(at)), 4, "{key}");
    }
    let opened = {
        opened.close();
        reopened_after(7 * DAY)
    };
    for (key, at) in [("past", 7_000), ("future", 9_000_000_000_000_000)] {
        assert_eq!(opened.find(key, false), None, "{key}");
        assert_eq!(opened.tokens(key, &by_caller(at)), 5, "{key}");
    }
}

/// Where no decision waits, `on_store_failure` decides, and what is counted meanwhile is added.
#[test]
fn on_store_failure_decides_until_a_bucket_is_read() {
    for policy in [OnStoreFailure::Local, OnStoreFailure::Allow, OnStoreFailure::Deny] {
        let mut disk = Disk::new();
        let opened = disk.open();
        for i in 0..50 {
            opened.tokens(&i.to_string(), &paced(99));
            opened.tokens(&i.to_string(), &steps(100, 99));
        }
        opened.close();
        disk.settings.on_store_failure = policy;
        disk.settings.budget = Period::from_nanos(0);
        let opened = disk.open();
        // a read may arrive just before a decision, which then knows that there are too few
        let mut missing = Vec::new();
        for i in 0..50 {
            for request in [paced(3), steps(100, 3)] {
                let before = opened.metric("weir.disk.fallback");
                let admitted = opened.ask(i.to_string().as_bytes(), &request).admits(&request);
                if opened.metric("weir.disk.fallback") > before && policy != OnStoreFailure::Local {
                    assert_eq!(admitted, policy != OnStoreFailure::Deny, "{policy:?}, {request:?}");
                }
                missing.push(admitted);
            }
        }
        assert!(opened.metric("weir.disk.fallback") > 0);
        opened.close();
        disk.settings.budget = Period::from_secs(60);
        let opened = disk.open();
        for i in 0..50 {
            let key = i.to_string();
            // three more than the bucket holds were taken, unless they were rejected; steps hand out the last one then
            let left = opened.tokens(&key, &paced(0));
            // what is allowed although the bucket is known by then counts nothing
            let is_right = left == u64::from(!missing[2 * i]) || policy == OnStoreFailure::Allow && left == 1;
            assert!(is_right, "{policy:?}, {i}: {left}");
            assert!(opened.tokens(&key, &steps(100, 0)) <= 1, "{policy:?}, {i}");
        }
    }
}

/// With `always` a reply waits for its sync, and a rejection that takes nothing does not.
#[test]
fn replies_wait_for_their_sync() {
    let mut disk = Disk::new();
    disk.settings.sync = DiskSync::Always;
    // no write happens by itself
    disk.settings.interval = Period::from_secs(3_600);
    let opened = disk.open();
    for i in 0..10 {
        opened.tokens("k", &paced(10));
        opened.tokens("k", &steps(100, 7));
        let copy = disk.copy().open();
        assert_eq!(copy.tokens("k", &paced(0)), 90 - 10 * i);
        assert_eq!(copy.tokens("k", &steps(100, 0)), 93 - 7 * i);
    }
    let written = opened.metric("weir.disk.written");
    assert_eq!(opened.tokens("k", &paced(1)), 0);
    assert_eq!(opened.metric("weir.disk.written"), written);
    assert!(opened.find("k", true).is_some());
    assert_eq!(disk.copy().open().find("k", false), None, "so does a deletion");
}

/// Many threads, few buckets, nearly no memory: nothing is admitted twice.
#[test]
fn no_token_is_handed_out_twice() {
    let mut disk = Disk::new();
    disk.settings.max_counters = 1;
    let opened = disk.open();
    let admitted = std::sync::Mutex::new(HashMap::<u64, u64>::new());
    thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (opened, admitted) = (&opened, &admitted);
            scope.spawn(move || {
                let mut seed = thread;
                for _ in 0..2_000 {
                    seed =
                        seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let key = (seed >> 33) % 40;
                    let request = if key % 2 == 0 { paced(1) } else { steps(100, 1) };
                    if opened.ask_blocking(&key.to_string(), &request).admits(&request) {
                        *admitted.lock().expect("no panic").entry(key).or_default() += 1;
                    }
                }
            });
        }
    });
    let admitted = admitted.into_inner().expect("no panic");
    opened.close();
    let opened = disk.open();
    for key in 0..40_u64 {
        let request = if key % 2 == 0 { paced(0) } else { steps(100, 0) };
        let left = 100 - opened.tokens(&key.to_string(), &request);
        assert_eq!(left, admitted.get(&key).copied().unwrap_or(0).min(100), "{key}");
    }
}
