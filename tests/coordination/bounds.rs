//! Each way's bound, with everything in order.

use std::time::Duration;

use weir::{
    limit::{Algorithm, Coordination, Period, Tier},
    store::simulated::Network,
};

use crate::fleet::{Fleet, by_window};

const SKEWED: [u32; 5] = [60, 20, 10, 6, 4];

async fn run(way: Coordination, limit: u32, seconds: u64, load: u64) -> (Vec<u64>, f64, Fleet) {
    let period = Period::from_secs(seconds);
    let tier = Tier { requests: limit, period, algorithm: Algorithm::FixedWindow };
    let fleet = Fleet::new(5, way, &[tier], Network::default()).await;
    let rate = u64::from(limit) * load / seconds;
    let outcomes = fleet.offer(rate, Duration::from_secs(seconds * 5), &SKEWED).await;
    let windows = by_window(&outcomes, period);
    let calls: u64 = fleet.instances.iter().map(|instance| instance.store.figures().calls.get()).sum();
    let slowest = outcomes.iter().map(|outcome| outcome.waited).max().unwrap_or_default();
    let fallback: u64 = fleet.instances.iter().map(|instance| instance.store.figures().fallback.get()).sum();
    let waited: u64 = fleet.instances.iter().map(|instance| instance.store.figures().waited.get()).sum();
    #[expect(clippy::cast_precision_loss)]
    let share = calls as f64 / outcomes.len() as f64;
    println!(
        "{way:?} L={limit} {seconds}s x{load}: {windows:?} {share:.3} calls a decision, slowest {slowest:?}, waited {waited} fallback {fallback} of {}",
        outcomes.len()
    );
    (windows, share, fleet)
}

#[tokio::test(start_paused = true)]
async fn explore() {
    for way in [Coordination::Lease, Coordination::Strict, Coordination::Interval] {
        for (limit, seconds, load) in
            [(1_000, 1, 2), (1_000, 1, 10), (500, 3, 2), (500, 3, 10), (1_000, 10, 2)]
        {
            run(way, limit, seconds, load).await;
        }
    }
}
