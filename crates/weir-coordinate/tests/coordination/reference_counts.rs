//! What the store counts for rules in envoyproxy/ratelimit's spelling, beside what that would count: all hits, rejected
//! ones included.

use std::{sync::Arc, time::Duration};

use proptest::prelude::*;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use weir_coordinate::simulated::{Network, SimulatedClock, SimulatedStore};
use weir_limit::{Coordination, OverLimitPolicy};

use crate::fleet::{EPOCH, Fleet, daily, rule};

const MODES: [Coordination; 4] =
    [Coordination::Auto, Coordination::Lease, Coordination::Interval, Coordination::Strict];

/// The time after which the store counts all hits of a limit that is used up.
const SECOND: Duration = Duration::from_secs(1);

/// Hits of one request.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// How long after the request before.
    after: Duration,
    instance: usize,
    hits: u32,
}

#[derive(Clone, Debug)]
struct Case {
    mode: Coordination,
    instances: usize,
    limit: u32,
    sent: Vec<Sent>,
}

async fn start(mode: Coordination, instances: usize, limit: u32) -> Fleet {
    let clock = SimulatedClock::new(EPOCH);
    let store = SimulatedStore::new(clock.clone(), 7);
    let rule = rule(mode, &[daily(limit)], OverLimitPolicy::Count);
    Fleet::start(instances, rule, Network::default(), clock, store).await
}

impl Fleet {
    /// Returns what the store counts.
    fn all_counted(&self, limit: u32) -> u64 {
        self.counted_under(daily(limit), OverLimitPolicy::Count)
    }
}

/// Sends the hits of `case`. Returns what the store counts a second after the last one, and what it should if the limit
/// is used up.
async fn run(case: &Case) -> (u64, Option<u64>) {
    let fleet = start(case.mode, case.instances, case.limit).await;
    let (mut sum, mut requests, mut last) = (0, JoinSet::new(), Instant::now());
    for sent in &case.sent {
        sleep(sent.after).await;
        sum += u64::from(sent.hits);
        last = Instant::now();
        let (instance, hits) = (Arc::clone(&fleet.instances[sent.instance % case.instances]), sent.hits);
        requests.spawn(async move { instance.hits(hits).await });
    }
    let decided = requests.join_all().await.into_iter();
    let admitted: u64 = decided.zip(&case.sent).map(|(admitted, _)| u64::from(admitted)).sum();
    assert!(admitted <= case.sent.len() as u64);
    sleep_until(last + SECOND).await;
    (fleet.all_counted(case.limit), (sum >= u64::from(case.limit)).then_some(sum))
}

fn sent() -> impl Strategy<Value = Sent> {
    let after = prop_oneof![
        3 => Just(0),
        3 => 1..5_u64,
        3 => 5..200_u64,
        1 => 200..3_000_u64,
        1 => 3_000..12_000_u64,
    ];
    let hits = prop_oneof![4 => Just(1_u32), 2 => 1..10_u32, 1 => 10..60_u32];
    (after, 0..3_usize, hits).prop_map(|(after, instance, hits)| Sent {
        after: Duration::from_millis(after),
        instance,
        hits,
    })
}

fn case() -> impl Strategy<Value = Case> {
    let limit = prop_oneof![2 => 1..20_u32, 2 => 20..200_u32, 1 => 200..1_000_u32];
    let parts =
        (proptest::sample::select(&MODES), 1..=3_usize, limit, proptest::collection::vec(sent(), 1..80));
    parts.prop_map(|(mode, instances, limit, sent)| Case { mode, instances, limit, sent })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_second_after_the_last_hit_of_a_limit_that_is_used_up_the_store_counts_all(case in case()) {
        let (counted, expected) = runtime().block_on(run(&case));
        if let Some(expected) = expected {
            prop_assert_eq!(counted, expected);
        }
    }
}

/// The sequence of Envoy AI Gateway's end-to-end test: one hit with a request, 20 with its end, one more request.
#[tokio::test(start_paused = true)]
async fn a_hit_that_was_leased_ahead_goes_back_when_the_limit_is_used_up() {
    for mode in MODES {
        let fleet = start(mode, 1, 10).await;
        assert!(fleet.instances[0].hits(1).await);
        sleep(SECOND).await;
        let mut sum = 1;
        for hits in [20, 1] {
            assert!(!fleet.instances[0].hits(hits).await);
            sum += u64::from(hits);
            sleep(SECOND).await;
            assert_eq!(fleet.all_counted(10), sum, "{mode:?}");
        }
        // and stays so
        sleep(12 * SECOND).await;
        assert_eq!(fleet.all_counted(10), 22, "{mode:?}");
        let metrics = fleet.instances[0].store.coordination_metrics();
        assert_eq!((metrics.hits.stranded.get(), metrics.hits.unreported.get()), (0, 0), "{mode:?}");
    }
}
