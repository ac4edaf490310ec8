//! `auto` on a real Redis: small limits are never exceeded, large ones by little, and no hit is lost while the mode
//! changes.

use std::{sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::sleep};
use weir_limit::{Algorithm, Bucket, Coordination, Refill, RuleCoordination, Tier};

use crate::{
    fleet::{Instance, sum},
    support::{Server, tier, until},
};

/// The longest window, which no test can see the end of.
const YEAR: u64 = 365 * 86_400;

/// Starts `count` instances after those of `fleet`, and waits until all know each other.
async fn join(fleet: &mut Vec<Arc<Instance>>, count: usize, server: &Server, tier: &Tier) {
    let auto = RuleCoordination { mode: Some(Coordination::Auto), ..RuleCoordination::default() };
    let first = fleet.len();
    fleet.extend((first..first + count).map(|number| Instance::new(server, number, tier, auto, 0)));
    wait_until_known(fleet).await;
}

async fn wait_until_known(fleet: &[Arc<Instance>]) {
    until("all instances know each other", async || {
        fleet.iter().all(|instance| instance.store.instances() == fleet.len())
    })
    .await;
}

async fn start(count: usize, server: &Server, tier: &Tier) -> Vec<Arc<Instance>> {
    let mut fleet = Vec::new();
    join(&mut fleet, count, server, tier).await;
    fleet
}

/// Sends `requests` for each of `keys` at once, to the instances in turn. Returns how many were admitted of each key.
async fn burst(fleet: &[Arc<Instance>], keys: usize, requests: usize) -> Vec<u64> {
    let mut all = JoinSet::new();
    for i in 0..requests {
        for key in 0..keys {
            let instance = Arc::clone(&fleet[(i + key) % fleet.len()]);
            all.spawn(async move { (key, instance.send_for(&format!("v{key}")).await) });
        }
    }
    let mut admitted = vec![0; keys];
    for (key, is_admitted) in all.join_all().await {
        admitted[key] += u64::from(is_admitted);
    }
    admitted
}

#[tokio::test]
async fn parallel_requests_for_a_limit_of_three_admit_three() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let server = Server::start();
        let fleet = start(2, &server, &tier(3, YEAR, algorithm)).await;
        assert_eq!(burst(&fleet, 1, 12).await, [3], "{algorithm:?}");
    }
}

#[tokio::test]
async fn no_key_of_many_with_small_limits_is_exceeded() {
    let server = Server::start();
    let fleet = start(3, &server, &tier(3, YEAR, Algorithm::FixedWindow)).await;
    let admitted = burst(&fleet, 240, 10).await;
    assert!(admitted.iter().all(|admitted| (2..=3).contains(admitted)), "{admitted:?}");
    assert!(admitted.iter().sum::<u64>() >= 240 * 3 * 95 / 100, "{admitted:?}");
    assert_eq!(sum(&fleet, |metrics| metrics.decisions.fallback.get()), 0);
}

/// One hit less for each instance than the limit that needs no lease.
#[tokio::test]
async fn the_largest_exact_limit_is_not_exceeded() {
    let bucket = Bucket { burst: 149, refill: Refill::Continuous, strict: false };
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::TokenBucket(bucket)] {
        let server = Server::start();
        let fleet = start(3, &server, &tier(149, YEAR, algorithm)).await;
        let mut admitted = 0;
        for _ in 0..20 {
            admitted += burst(&fleet, 1, 40).await[0];
        }
        assert!((140..=149).contains(&admitted), "{admitted} {algorithm:?}");
    }
}

#[tokio::test]
async fn a_burst_exceeds_a_large_limit_by_a_tenth_at_most() {
    let server = Server::start();
    let fleet = start(3, &server, &tier(300, YEAR, Algorithm::FixedWindow)).await;
    let admitted = burst(&fleet, 1, 1_500).await[0];
    assert!((270..=330).contains(&admitted), "{admitted}");
}

#[tokio::test]
async fn no_decision_about_a_large_limit_waits() {
    let server = Server::start();
    let fleet = start(3, &server, &tier(100_000, YEAR, Algorithm::FixedWindow)).await;
    for _ in 0..100 {
        assert_eq!(burst(&fleet, 1, 30).await, [30]);
    }
    assert_eq!(
        (sum(&fleet, |m| m.decisions.waited.get()), sum(&fleet, |m| m.decisions.fallback.get())),
        (0, 0)
    );
}

/// Two instances join a single one while requests arrive, and leave again. Redis counts every admitted hit once.
#[tokio::test]
async fn no_hit_is_lost_or_doubled_while_the_mode_changes() {
    let server = Server::start();
    let tier = tier(120, YEAR, Algorithm::FixedWindow);
    let mut fleet = start(1, &server, &tier).await;
    let mut admitted = 0;
    // before the reply to its first heartbeat an instance assumes that there are others
    until("the instance counts by itself", async || {
        let asked = || sum(&fleet, |m| m.decisions.leased.get() + m.decisions.waited.get());
        let before = asked();
        admitted += burst(&fleet, 1, 1).await[0];
        asked() == before
    })
    .await;
    let [leased, to_lease, to_interval] = [
        sum(&fleet, |m| m.decisions.leased.get()),
        sum(&fleet, |m| m.switches.to_lease.get()),
        sum(&fleet, |m| m.switches.to_interval.get()),
    ];
    for _ in 0..5 {
        admitted += burst(&fleet, 1, 5).await[0];
    }
    assert_eq!(sum(&fleet, |metrics| metrics.decisions.leased.get()), leased);
    join(&mut fleet, 2, &server, &tier).await;
    for _ in 0..10 {
        admitted += burst(&fleet, 1, 6).await[0];
    }
    assert_eq!(sum(&fleet[..1], |metrics| metrics.switches.to_lease.get()), to_lease + 1);
    for left in fleet.drain(1..) {
        left.store.close().await;
    }
    wait_until_known(&fleet).await;
    until("the last instance counts by itself again", async || {
        sleep(Duration::from_millis(200)).await;
        // the mode is chosen again when a request arrives
        admitted += burst(&fleet, 1, 1).await[0];
        sum(&fleet, |metrics| metrics.switches.to_interval.get()) == to_interval + 1
    })
    .await;
    for _ in 0..10 {
        admitted += burst(&fleet, 1, 10).await[0];
    }
    fleet[0].store.close().await;
    let keys: Vec<String> = server.send(&["KEYS", "*fleet*"]);
    let counts: Vec<Option<u64>> = keys.iter().map(|key| server.send(&["GET", key])).collect();
    assert_eq!((counts.iter().flatten().sum::<u64>(), admitted), (120, 120));
}
