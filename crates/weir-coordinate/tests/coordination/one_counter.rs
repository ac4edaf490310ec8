//! Descriptors of one request that share a counter are one change, in their order: what the request gives back is its
//! own to take, whoever else waits for hits.

use std::{slice, sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::sleep};
use weir_coordinate::simulated::Network;
use weir_limit::{Algorithm, Bucket, Coordination, Period, Refill, Scope, Tier};

use crate::fleet::{Fleet, Instance, daily, sliding};

const CALLERS: usize = 16;

const LIMIT: u32 = 1_000;

/// What a caller reserves before its work, and what the work costs.
const RESERVED: u64 = 50;
const COST: u64 = 40;

/// What all callers have used, and what of that was rejected when they counted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Work {
    used: u64,
    lost: u64,
}

/// In which order the cost and the reservation are counted and given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    GiveBackFirst,
    CountFirst,
}

/// A bucket into which hardly anything flows while a test runs.
fn bucket(requests: u32) -> Tier {
    let bucket = Bucket { burst: requests, refill: Refill::Continuous, strict: false };
    Tier { algorithm: Algorithm::TokenBucket(bucket), ..daily(1) }
}

fn network() -> Network {
    Network {
        round_trip: Duration::from_millis(2),
        jitter: Duration::from_millis(1),
        timeout: Duration::from_secs(10),
        ..Network::default()
    }
}

/// Reserves hits and replaces them by those that the work has cost, until there is no reservation.
async fn work(instance: Arc<Instance>, scope: Scope, order: Order) -> Work {
    let mut work = Work::default();
    let (back, count) = ((RESERVED, true), (COST, false));
    while !instance.ask(scope, &[(RESERVED, false)]).await[0].over {
        match order {
            Order::GiveBackFirst => {
                let decided = instance.ask(scope, &[back, count]).await;
                work.used += COST;
                work.lost += if decided[1].over { COST } else { 0 };
            }
            // until there is no room for both
            Order::CountFirst => {
                let decided = instance.ask(scope, &[count, back]).await;
                if decided[0].over {
                    work.used += if scope == Scope::Request { RESERVED } else { 0 };
                    break;
                }
                work.used += COST;
            }
        }
    }
    work
}

/// Has callers at `instances` work until the limit is used up. Returns that, and the hits that the store counts then.
async fn run(instances: usize, mode: Coordination, tier: &Tier, scope: Scope, order: Order) -> (Work, u64) {
    let fleet = Fleet::new(instances, mode, slice::from_ref(tier), network()).await;
    if mode == Coordination::Split {
        // all have their parts then, and the second window has just begun
        sleep(Duration::from_secs(2 * 3_600 + 5)).await;
    }
    let mut callers = JoinSet::new();
    for i in 0..CALLERS {
        callers.spawn(work(Arc::clone(&fleet.instances[i % instances]), scope, order));
    }
    let mut all = Work::default();
    for Work { used, lost } in callers.join_all().await {
        all = Work { used: all.used + used, lost: all.lost + lost };
    }
    for instance in &fleet.instances {
        instance.store.close().await;
    }
    (all, fleet.counted(tier.clone()))
}

/// No other caller takes the hits of a reservation before the cost is counted, so nothing is used that is not counted.
#[tokio::test(start_paused = true)]
async fn what_a_request_gives_back_is_its_own_to_take() {
    use Coordination::{Auto, Interval, Lease, Local, Split, Strict};
    let fleets = [
        (Strict, 1),
        (Strict, 3),
        (Lease, 1),
        (Lease, 3),
        (Interval, 1),
        (Auto, 1),
        (Auto, 3),
        (Split, 1),
        (Split, 3),
        (Local, 1),
    ];
    for (mode, instances) in fleets {
        let tiers = match mode {
            // a newcomer has no part of a bucket until it can have been filled
            Split => [daily(LIMIT), sliding(LIMIT)]
                .map(|tier| Tier { period: Period::from_secs(3_600), ..tier })
                .to_vec(),
            _ => vec![daily(LIMIT), sliding(LIMIT), bucket(LIMIT)],
        };
        for tier in tiers {
            for scope in [Scope::Descriptor, Scope::Request] {
                for order in [Order::GiveBackFirst, Order::CountFirst] {
                    let (Work { used, lost }, counted) = run(instances, mode, &tier, scope, order).await;
                    let case = format!("{mode:?}, {instances} instances, {tier}, {scope:?}, {order:?}");
                    assert_eq!(lost, 0, "{case}: of {used}");
                    assert!(used <= u64::from(LIMIT) + 1, "{case}: {used}");
                    // all but the rest of a reservation of each caller
                    let least = if order == Order::GiveBackFirst { u64::from(LIMIT) / 2 } else { COST };
                    assert!(used >= least, "{case}: {used}");
                    if !matches!(mode, Split | Local) {
                        assert!(counted.abs_diff(used) <= 1, "{case}: {counted} of {used}");
                    }
                }
            }
        }
    }
}

/// More than it gives back: what it asks for is decided with that, not after others.
#[tokio::test(start_paused = true)]
async fn a_larger_count_is_decided_with_what_its_request_gives_back() {
    for mode in [Coordination::Strict, Coordination::Lease] {
        for scope in [Scope::Descriptor, Scope::Request] {
            let tier = daily(100);
            let fleet = Fleet::new(1, mode, slice::from_ref(&tier), Network::default()).await;
            let instance = &fleet.instances[0];
            assert!(!instance.ask(Scope::Descriptor, &[(90, false)]).await[0].over);
            let mut others = JoinSet::new();
            for _ in 0..CALLERS {
                let instance = Arc::clone(instance);
                others.spawn(async move { instance.ask(Scope::Descriptor, &[(20, false)]).await[0].over });
            }
            let decided = instance.ask(scope, &[(50, true), (60, false)]);
            let (decided, others) = tokio::join!(decided, others.join_all());
            assert!(!decided[1].over && others.into_iter().all(|over| over), "{mode:?}: {decided:?}");
            assert_eq!(fleet.counted(tier), 100, "{mode:?}");
        }
    }
}

/// Each status is that after its own descriptor.
#[tokio::test(start_paused = true)]
async fn the_status_of_each_descriptor_is_that_after_it() {
    for mode in [Coordination::Strict, Coordination::Lease, Coordination::Interval, Coordination::Local] {
        let fleet = Fleet::new(1, mode, &[daily(100)], Network::default()).await;
        let instance = &fleet.instances[0];
        instance.ask(Scope::Descriptor, &[(90, false)]).await;
        let asks = [(50, true), (40, false), (5, true), (30, false), (1, false)];
        let decided = instance.ask(Scope::Descriptor, &asks).await;
        let statuses: Vec<_> = decided.iter().map(|decision| (decision.over, decision.remaining)).collect();
        let expected = [(false, 60), (false, 20), (false, 25), (true, 0), (false, 24)];
        let expected = expected.map(|(over, left)| (over, if over { 25 } else { left }));
        assert_eq!(statuses, expected, "{mode:?}");
    }
}

/// The limit has become smaller, so that the cost does not fit even where the reservation was.
#[tokio::test(start_paused = true)]
async fn a_rejected_part_of_a_request_of_all_or_none_changes_nothing() {
    for mode in [Coordination::Strict, Coordination::Lease, Coordination::Interval, Coordination::Local] {
        let fleet = Fleet::new(1, mode, &[daily(100)], Network::default()).await;
        let instance = &fleet.instances[0];
        instance.ask(Scope::Descriptor, &[(90, false)]).await;
        let decided = instance.ask(Scope::Request, &[(50, true), (40, false), (21, false), (1, false)]).await;
        let statuses: Vec<_> = decided.iter().map(|decision| (decision.over, decision.remaining)).collect();
        assert_eq!(statuses, [(false, 10), (false, 10), (true, 20), (false, 10)], "{mode:?}");
        instance.store.close().await;
        if mode != Coordination::Local {
            assert_eq!(fleet.counted(daily(100)), 90, "{mode:?}");
        }
    }
}
