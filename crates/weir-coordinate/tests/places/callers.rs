//! Callers in a loop: how much of a limit is used, and never more, also while the store is away.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "random lengths, and means of small numbers"
)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Builder,
    time::{Instant, sleep, sleep_until},
};
use weir_coordinate::simulated::{Condition, Network, Random};
use weir_limit::OnStoreFailure;

use crate::fleet::{Fleet, Instance, limit};

/// Callers that ask again after each answer.
#[derive(Clone, Copy)]
struct Loop {
    instances: usize,
    most: u32,
    callers: u64,
    /// As many more join in this second.
    later: (u64, u64),
    seconds: u64,
    /// The mean length of a request in milliseconds.
    duration: f64,
    network: Network,
    /// From this second to that one.
    outage: Option<(u64, u64, Condition)>,
    /// The second in which the first instance is killed.
    death: Option<u64>,
    give_up_after: u64,
    end_loss: f64,
}

struct Usage {
    begun: Instant,
    running: AtomicI64,
    most: AtomicI64,
    /// In milliseconds, for each second.
    seconds: Vec<AtomicU64>,
}

fn network(round_trip: u64) -> Network {
    let millis = Duration::from_millis;
    Network { round_trip: millis(round_trip), jitter: millis(round_trip), ..Network::default() }
}

impl Default for Loop {
    fn default() -> Self {
        Self {
            instances: 2,
            most: 8,
            callers: 40,
            later: (0, 0),
            seconds: 12,
            duration: 200.0,
            network: network(1),
            outage: None,
            death: None,
            give_up_after: 600_000,
            end_loss: 0.0,
        }
    }
}

impl Loop {
    /// Returns the requests that ran in each second, on average, and the most at once.
    fn run(self) -> (Vec<f64>, i64) {
        let runtime =
            Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(self.run_async())
    }

    async fn run_async(self) -> (Vec<f64>, i64) {
        let fleet = Fleet::new(OnStoreFailure::Local, 1, 0);
        let limit = limit(self.most, self.give_up_after);
        let instances = fleet.started(self.instances, self.network, limit).await;
        let seconds = (0..self.seconds).map(|_| AtomicU64::new(0)).collect();
        let (begun, mut random) = (Instant::now(), Random::new(7));
        let usage = Arc::new(Usage { begun, running: AtomicI64::new(0), most: AtomicI64::new(0), seconds });
        let at = |second: u64| begun + Duration::from_secs(second);
        for caller in 0..self.callers + self.later.0 {
            let joins = if caller < self.callers { begun } else { at(self.later.1) };
            let (instances, usage) = (instances.clone(), Arc::clone(&usage));
            tokio::spawn(self.call((caller, joins), instances, usage, self.death.map(at), random.fork()));
        }
        if let Some((from, to, condition)) = self.outage {
            sleep_until(at(from)).await;
            fleet.store.set(condition);
            sleep_until(at(to)).await;
            fleet.store.set(Condition::Up);
        }
        if let Some(second) = self.death {
            sleep_until(at(second)).await;
            instances[0].store.remote().partition(true);
        }
        sleep_until(at(self.seconds)).await;
        let used = usage.seconds.iter().map(|second| second.load(Ordering::Relaxed) as f64 / 1_000.0);
        (used.collect(), usage.most.load(Ordering::Relaxed))
    }
    async fn call(
        self,
        (caller, joins): (u64, Instant),
        instances: Vec<Arc<Instance>>,
        usage: Arc<Usage>,
        dies: Option<Instant>,
        mut random: Random,
    ) {
        sleep_until(joins + Duration::from_millis(random.next() % 20)).await;
        let is_dead = || dies.is_some_and(|dies| Instant::now() >= dies);
        let choose = |random: &mut Random| {
            let living = &instances[usize::from(is_dead())..];
            Arc::clone(&living[random.next() as usize % living.len()])
        };
        for i in 0.. {
            let instance = choose(&mut random);
            let taken = tokio::select! {
                taken = instance.take(caller << 24 | i) => taken,
                // it may be the dead one
                () = sleep_until(dies.unwrap_or_else(Instant::now)), if dies.is_some() && !is_dead() => continue,
            };
            if taken.decisions[0].over {
                sleep(Duration::from_millis(5 + random.next() % 15)).await;
                continue;
            }
            let length = Duration::from_millis(random.exponential(self.duration) as u64 + 1);
            usage.run(length).await;
            if !random.chance(self.end_loss) {
                choose(&mut random).end(taken.name);
            }
            sleep(Duration::from_millis(random.next() % 2)).await;
        }
    }
}

// === impl Usage ===

impl Usage {
    async fn run(&self, length: Duration) {
        let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(running, Ordering::Relaxed);
        let mut left = length;
        while !left.is_zero() {
            let now = self.begun.elapsed();
            let second = now.as_secs() as usize;
            let part = left.min(Duration::from_nanos(1_000_000_000 - u64::from(now.subsec_nanos())));
            sleep(part).await;
            if let Some(used) = self.seconds.get(second) {
                used.fetch_add(part.as_millis() as u64, Ordering::Relaxed);
            }
            left -= part;
        }
        self.running.fetch_sub(1, Ordering::Relaxed);
    }
}

fn mean(used: &[f64]) -> f64 {
    used.iter().sum::<f64>() / used.len() as f64
}

#[test]
fn a_limit_is_used_and_never_exceeded() {
    let of = |most: u32, duration, round_trip, instances| Loop {
        most,
        duration,
        network: network(round_trip),
        instances,
        callers: u64::from(most) * 5,
        seconds: 6,
        ..Loop::default()
    };
    for callers in [
        of(8, 200.0, 1, 1),
        of(8, 200.0, 1, 3),
        of(8, 50.0, 1, 2),
        of(2, 200.0, 1, 2),
        of(64, 200.0, 1, 3),
        of(8, 200.0, 3, 2),
    ] {
        let (used, most) = callers.run();
        let limit = f64::from(callers.most);
        let is_used = mean(&used[1..5]) >= 0.93 * limit;
        assert!(most <= i64::from(callers.most) && is_used, "{used:?} {most} of {limit}");
    }
}

#[test]
fn an_outage_exceeds_nothing() {
    for condition in [Condition::Down, Condition::Frozen] {
        for (instances, most) in [(3, 12), (2, 8), (1, 8)] {
            let callers = u64::from(most) * 5;
            let outage = Some((4, 14, condition));
            let all = Loop { instances, most, callers, outage, seconds: 20, ..Loop::default() };
            let (used, at_once) = all.run();
            let limit = f64::from(most);
            assert!(at_once <= i64::from(most), "{at_once} of {most}, {instances} instances");
            assert!(mean(&used[1..4]) >= 0.93 * limit, "before: {used:?}");
            assert!(mean(&used[7..13]) >= limit / 3.0, "within: {used:?}");
            assert!(mean(&used[16..19]) >= 0.93 * limit, "after: {used:?}");
        }
    }
}

/// Few callers, whose ends arrive at other instances than their starts, and then many.
#[test]
fn counts_of_the_fallback_do_not_drift_apart() {
    let outage = Some((1, 24, Condition::Down));
    let all = Loop {
        instances: 3,
        most: 12,
        callers: 2,
        later: (60, 14),
        outage,
        seconds: 26,
        ..Loop::default()
    };
    let (used, at_once) = all.run();
    assert!(at_once <= 12 && mean(&used[16..23]) >= 9.0, "{used:?} {at_once}");
}

/// A third of a percent of the calls is up to 60 ms late, so that the fallback decides.
#[test]
fn late_replies_exceed_a_limit_for_moments() {
    let spikes = Network { spikes: 0.003, spike: Duration::from_millis(60), ..network(1) };
    let (used, most) = Loop { network: spikes, seconds: 20, ..Loop::default() }.run();
    let used = mean(&used[2..18]);
    assert!(most <= 12 && (7.2..=8.0).contains(&used), "{used} {most}");
}

#[test]
fn the_places_of_an_instance_that_is_killed_come_back_after_the_age() {
    let (used, most) = Loop { death: Some(6), give_up_after: 3_000, ..Loop::default() }.run();
    // those that run at the end are not counted in the last second
    assert!(most <= 8 && used[10] >= 7.2, "{used:?} {most}");
}

#[test]
fn lost_ends_cost_their_places_until_the_age() {
    let lossy = Loop { end_loss: 0.01, give_up_after: 10_000, seconds: 50, ..Loop::default() };
    let (used, most) = lossy.run();
    assert!(most <= 8 && mean(&used[20..]) >= 3.2, "{used:?} {most}");
}
