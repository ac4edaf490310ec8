//! Descriptors of one request that share a counter are one change, in their order: what the request gives back is its
//! own to take, whoever else waits for hits.

use std::{slice, sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::sleep};
use weir::{
    limit::{Coordination, Scope, Tier},
    store::simulated::Network,
};

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

/// Reserves hits and replaces them by those that the work has cost, until there is no reservation.
async fn work(instance: Arc<Instance>) -> Work {
    let mut work = Work::default();
    while !instance.ask(Scope::Descriptor, &[(RESERVED, false)]).await[0].over {
        work.used += COST;
        let decided = instance.ask(Scope::Descriptor, &[(RESERVED, true), (COST, false)]).await;
        work.lost += if decided[1].over { COST } else { 0 };
    }
    work
}

/// Has callers at `instances` work until the limit is used up. Returns that, and the hits that the store counts then.
async fn run(instances: usize, mode: Coordination, tier: &Tier) -> (Work, u64) {
    let network = Network {
        round_trip: Duration::from_millis(2),
        jitter: Duration::from_millis(1),
        timeout: Duration::from_secs(10),
        ..Network::default()
    };
    let fleet = Fleet::new(instances, mode, slice::from_ref(tier), network).await;
    if mode == Coordination::Split {
        // all have their parts then
        sleep(Duration::from_secs(15)).await;
    }
    let mut callers = JoinSet::new();
    for i in 0..CALLERS {
        callers.spawn(work(Arc::clone(&fleet.instances[i % instances])));
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
    use Coordination::{Interval, Lease, Split, Strict};
    for (mode, instances) in
        [(Strict, 1), (Strict, 3), (Lease, 1), (Lease, 3), (Interval, 1), (Split, 1), (Split, 3)]
    {
        for tier in [daily(LIMIT), sliding(LIMIT)] {
            if mode == Strict && tier != daily(LIMIT) {
                // decided one by one
                continue;
            }
            let (Work { used, lost }, counted) = run(instances, mode, &tier).await;
            let case = format!("{mode:?}, {instances} instances, {tier}");
            assert_eq!(lost, 0, "{case}: of {used}");
            assert!(used <= LIMIT.into(), "{case}: {used}");
            // all but the rest of a reservation of each caller
            assert!(used >= u64::from(LIMIT) / 2, "{case}: {used}");
            if mode != Split {
                assert_eq!(counted, used, "{case}");
            }
        }
    }
}

/// More than it gives back: what it asks for is decided with that, not after others.
#[tokio::test(start_paused = true)]
async fn a_larger_count_is_decided_with_what_its_request_gives_back() {
    let tier = daily(100);
    let fleet = Fleet::new(1, Coordination::Strict, slice::from_ref(&tier), Network::default()).await;
    let instance = &fleet.instances[0];
    assert!(!instance.ask(Scope::Descriptor, &[(90, false)]).await[0].over);
    let mut others = JoinSet::new();
    for _ in 0..CALLERS {
        let instance = Arc::clone(instance);
        others.spawn(async move { instance.ask(Scope::Descriptor, &[(20, false)]).await[0].over });
    }
    let decided = instance.ask(Scope::Descriptor, &[(50, true), (60, false)]);
    let (decided, others) = tokio::join!(decided, others.join_all());
    assert!(!decided[1].over && others.into_iter().all(|over| over), "{tier}: {decided:?}");
    assert_eq!(fleet.counted(tier), 100);
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
