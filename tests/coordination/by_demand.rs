//! `split: by_demand`: parts are where demand is, and whatever happens all together admit no more than the limit.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use weir::{
    limit::{Algorithm, Coordination, OnStoreFailure, OverLimitPolicy, Period, Rule, RuleCoordination, Tier},
    store::simulated::{Condition, Network, Random, SimulatedClock, SimulatedStore},
};

use crate::fleet::{EPOCH, Fleet, rule};

/// The times in a second at which requests come.
const STEPS: u64 = 10;

fn by_demand(limit: u32) -> Rule {
    let tier = Tier { requests: limit, period: Period::from_secs(1), algorithm: Algorithm::FixedWindow };
    let coordination = RuleCoordination {
        mode: Some(Coordination::Split),
        on_store_failure: Some(OnStoreFailure::Deny),
        follows_demand: true,
        ..RuleCoordination::default()
    };
    Rule { coordination, ..rule(Coordination::Split, &[tier], OverLimitPolicy::Ignore) }
}

/// Instances of which some have most of the demand.
struct Skewed {
    fleet: Fleet,
    limit: u32,
    random: Random,
    /// The instances that are not dead.
    alive: Vec<bool>,
    /// The hits that were admitted in each second.
    windows: Vec<u64>,
    begun: Instant,
}

impl Skewed {
    /// Starts `count` instances whose heartbeats have random phases, and waits until all have parts.
    async fn start(count: usize, limit: u32, network: Network, seed: u64) -> Self {
        let clock = SimulatedClock::new(EPOCH);
        let shared = SimulatedStore::new(clock.clone(), seed);
        let mut fleet = Fleet { clock, shared, instances: Vec::new() };
        let mut random = Random::new(seed);
        for _ in 0..count {
            fleet.add(1, &by_demand(limit), network);
            sleep(Duration::from_millis(random.next() % (1_900 / count as u64))).await;
        }
        // between two steps of the second after all have parts
        let now = fleet.clock.right().as_nanos() % 1_000_000_000;
        sleep(Duration::from_nanos(4_000_000_000 + 25_000_000 - now)).await;
        Self { fleet, limit, random, alive: vec![true; count], windows: Vec::new(), begun: Instant::now() }
    }

    /// Has `hot` of the instances get 90 % of the demand of twice the limit for a second, and the others the rest.
    async fn second(&mut self, hot: std::ops::Range<usize>) {
        let second = self.windows.len() as u64;
        self.windows.push(0);
        self.alive.resize(self.fleet.instances.len(), true);
        let count = self.alive.len();
        for step in 0..STEPS {
            let at = Duration::from_millis(second * 1_000 + step * 1_000 / STEPS);
            sleep_until(self.begun + at).await;
            for i in (0..count).filter(|i| self.alive[*i]) {
                let (share, of) = if hot.contains(&i) { (9, hot.len()) } else { (1, count - hot.len()) };
                // a random number of requests of this mean, in hundredths
                let mean = u64::from(self.limit) * 2 * share * 10 / STEPS / of as u64;
                let asked = (mean / 2 + self.random.next() % (mean + 1) + 50) / 100;
                for _ in 0..asked {
                    *self.windows.last_mut().expect("it was added") +=
                        u64::from(self.fleet.instances[i].hit().await);
                }
            }
        }
    }

    fn most(&self) -> u64 {
        self.windows.iter().copied().max().unwrap_or_default()
    }

    fn used(&self, seconds: std::ops::Range<usize>) -> u64 {
        let count = seconds.len() as u64;
        self.windows[seconds].iter().sum::<u64>() * 1_000 / (count * u64::from(self.limit))
    }
}

/// A tenth of the instances has 90 % of the demand, and after 14 s others have it. From 6 s after that on nearly all of
/// the limit is used.
#[tokio::test(start_paused = true)]
async fn parts_are_where_demand_is_within_six_seconds() {
    let jitter = Network { jitter: Duration::from_millis(20), ..Network::default() };
    for (count, limit, seeds) in [(2, 200, 4), (8, 400, 6), (24, 1_200, 2)] {
        for seed in 0..seeds {
            let mut skewed = Skewed::start(count, limit, jitter, seed).await;
            let hot = (count / 10).max(1);
            for second in 0..28 {
                let first = if second < 14 { 0 } else { count - hot };
                skewed.second(first..first + hot).await;
            }
            let what = format!("{count} instances, seed {seed}: {:?}", skewed.windows);
            assert!(skewed.most() <= u64::from(limit), "{what}");
            assert!(skewed.used(8..14) >= 950 && skewed.used(20..28) >= 950, "{what}");
        }
    }
}

/// Joins, a stop, a death, and instances that lose the store; and a store that is gone, or loses its data.
#[tokio::test(start_paused = true)]
async fn no_window_exceeds_the_limit_whatever_happens() {
    for event in 0..7 {
        for seed in 0..4 {
            let mut skewed = Skewed::start(6, 300, Network::default(), 100 + seed).await;
            for second in 0..30 {
                let first = if second < 17 { 0 } else { 4 };
                match (second, event) {
                    (8, 0) => skewed.fleet.add(1, &by_demand(300), Network::default()),
                    (8, 1) => skewed.fleet.add(6, &by_demand(300), Network::default()),
                    (8, 2 | 3) => {
                        skewed.alive[0] = false;
                        let first = std::sync::Arc::clone(&skewed.fleet.instances[0]);
                        if event == 2 {
                            tokio::spawn(async move { first.store.close().await });
                        } else {
                            first.store.remote().partition(true);
                        }
                    }
                    (8, 4) => (0..3).for_each(|i| skewed.fleet.instances[i].store.remote().partition(true)),
                    (8, 5) => skewed.fleet.shared.set(Condition::Down),
                    (8, 6) => skewed.fleet.shared.flush(),
                    (18, 4) => (0..3).for_each(|i| skewed.fleet.instances[i].store.remote().partition(false)),
                    (18, 5) => {
                        skewed.fleet.shared.flush();
                        skewed.fleet.shared.set(Condition::Up);
                    }
                    _ => {}
                }
                skewed.second(first..first + 1).await;
            }
            let what = format!("event {event}, seed {seed}: {:?}", skewed.windows);
            assert!(skewed.most() <= 300, "{what}");
            assert!(skewed.used(6..8) >= 900, "{what}");
            assert!(skewed.used(26..30) >= 950, "it recovers, {what}");
        }
    }
}

/// When nobody asks for a minute, the store forgets the limit, and all have even parts again.
#[tokio::test(start_paused = true)]
async fn parts_are_even_again_after_a_minute_without_demand() {
    let mut skewed = Skewed::start(4, 200, Network::default(), 7).await;
    for _ in 0..6 {
        skewed.second(0..1).await;
    }
    let told = |skewed: &Skewed| skewed.fleet.instances[1].store.limits_by_demand();
    assert_eq!(told(&skewed), 1);
    sleep(Duration::from_secs(70)).await;
    assert_eq!(told(&skewed), 0);
    let mut admitted = Vec::new();
    for instance in &skewed.fleet.instances {
        let mut hits = 0;
        while hits < 300 && instance.hit().await {
            hits += 1;
        }
        admitted.push(hits);
    }
    assert_eq!(admitted, [50; 4]);
}
