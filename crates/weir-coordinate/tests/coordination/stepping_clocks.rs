//! Clocks of instances that step. For a moment they do not know what the store's clock shows.

use std::time::Duration;

use tokio::time::sleep;
use weir_coordinate::simulated::{Network, SimulatedClock, SimulatedStore};
use weir_limit::{Algorithm, Bucket, Coordination, OverLimitPolicy, Period, Refill, Scope, Tier};

use crate::fleet::{EPOCH, Fleet, rule};

/// Counters of `local` rules follow the clock of their instance, as in memory.
const MODES: [Coordination; 4] =
    [Coordination::Auto, Coordination::Interval, Coordination::Lease, Coordination::Strict];

/// Steps in seconds.
const STEPS: [i64; 5] = [-5, 3_600, -7_200, -1, 86_400];

fn algorithms() -> [Algorithm; 4] {
    let bucket = |refill| Algorithm::TokenBucket(Bucket { burst: 4, refill, strict: false });
    [Algorithm::FixedWindow, Algorithm::SlidingWindow, bucket(Refill::Continuous), bucket(Refill::Step)]
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_steps_lengthens_no_wait() {
    for (mode, policy) in MODES
        .iter()
        .flat_map(|mode| [OverLimitPolicy::Ignore, OverLimitPolicy::Count].map(|policy| (*mode, policy)))
    {
        for (algorithm, instances) in
            algorithms().into_iter().flat_map(|algorithm| [1, 2].map(|instances| (algorithm, instances)))
        {
            if policy == OverLimitPolicy::Count && algorithm != Algorithm::FixedWindow {
                continue;
            }
            // windows of two seconds, and a bucket that fills in two, and may be in debt by as much
            let (period, is_bucket) = (Period::from_secs(2), matches!(algorithm, Algorithm::TokenBucket(_)));
            let longest = Period::from_secs(if is_bucket { 4 } else { 2 });
            let tier = Tier::new(4, period, algorithm);
            let clock = SimulatedClock::new(EPOCH);
            // whose clock goes on
            let store = SimulatedStore::new(clock.skewed(0), 7);
            let rule = rule(mode, &[tier], policy);
            let fleet = Fleet::start(instances, rule.clone(), Network::default(), clock, store).await;
            let mut offset = 0;
            for step in STEPS {
                offset += step;
                let rules = fleet.instances[0].rules_with(rule.clone());
                for stepped in [false, true] {
                    if stepped {
                        fleet.clock.set_offset(offset * 1_000_000_000);
                    }
                    for i in 0..40 {
                        let instance = &fleet.instances[i % instances];
                        let decision = instance.decide(&rules, Scope::Descriptor, false).await;
                        assert!(
                            decision.reset <= longest,
                            "{mode:?}, {algorithm:?}, {instances} instances, {step} s, hit {i}: {:?}",
                            decision.reset
                        );
                        sleep(Duration::from_millis(if i < 20 { 0 } else { 25 })).await;
                    }
                }
            }
        }
    }
}

/// A window of the past is another one: what it counts is not known to the store any more, or never was.
#[tokio::test(start_paused = true)]
async fn a_step_of_the_stores_clock_is_counted_once() {
    let tier = Tier::fixed_window(4, Period::from_secs(60));
    for mode in [Coordination::Strict, Coordination::Lease, Coordination::Interval] {
        let clock = SimulatedClock::new(EPOCH);
        let of_store = clock.skewed(0);
        let store = SimulatedStore::new(of_store.clone(), 7);
        let rule = rule(mode, std::slice::from_ref(&tier), OverLimitPolicy::Ignore);
        let fleet = Fleet::start(1, rule, Network::default(), clock, store).await;
        let steps = || fleet.instances[0].store.coordination_metrics().store.clock_steps.get();
        for (count, offset) in [-3_600, -3_599, 0].into_iter().enumerate() {
            assert_eq!(steps(), u64::try_from(count).expect("few"), "{mode:?}");
            of_store.set_offset(offset * 1_000_000_000);
            // heartbeats tell
            sleep(Duration::from_secs(5)).await;
        }
        assert_eq!(steps(), 3, "{mode:?}");
    }
}
