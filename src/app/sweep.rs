//! Removes expired counters from the memory store, a few at a time, and names of stats that nobody asks for.

use std::{sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval};
use weir_client::AnyStore;
use weir_limiter::Limiter;
use weir_observe::Stats;
use weir_store::clock::Clock;

const PASS: Duration = Duration::from_secs(10);

/// Timers have a resolution of a millisecond, so a large store takes several steps per tick.
const SHORTEST_TICK: Duration = Duration::from_millis(5);

/// Names age by one in this time. An unknown domain goes at 12, after an hour, a rule not in force at 288, after a day.
const AGING: Duration = Duration::from_mins(5);

/// Never returns.
pub(super) async fn forget_names(stats: Arc<Stats>) {
    let mut ticks = interval(AGING);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        stats.age_names();
    }
}

/// Sweeps the whole store once per [`PASS`], evenly, so that a request waits for at most one part. Never returns.
pub(super) async fn run(limiter: Arc<Limiter<AnyStore>>, clock: Arc<dyn Clock>) {
    let store = limiter.store();
    let (tick, steps_per_tick) = pace(store.sweep_steps());
    let mut ticks = interval(tick);
    // after a pause of the process, missed ticks are skipped
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut step: usize = 0;
    loop {
        ticks.tick().await;
        for _ in 0..steps_per_tick {
            store.sweep_step(step, clock.now());
            step = step.wrapping_add(1);
        }
    }
}

/// Returns the time between ticks and the steps per tick that spread `steps` over a [`PASS`].
fn pace(steps: usize) -> (Duration, usize) {
    let steps = steps.max(1);
    let max_ticks = usize::try_from(PASS.as_millis() / SHORTEST_TICK.as_millis()).unwrap_or(usize::MAX);
    let steps_per_tick = steps.div_ceil(max_ticks);
    let ticks = steps.div_ceil(steps_per_tick);
    (PASS / u32::try_from(ticks).unwrap_or(u32::MAX), steps_per_tick)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_unknown_domain_is_kept_for_an_hour() {
        let stats = Arc::new(Stats::default());
        let forgetting = tokio::spawn(forget_names(Arc::clone(&stats)));
        tokio::time::sleep(Duration::from_mins(3)).await;
        stats.unknown_domain("d", 1);
        tokio::time::sleep(Duration::from_hours(1)).await;
        assert_eq!(stats.unknown_domains().len(), 1);
        tokio::time::sleep(AGING).await;
        assert!(stats.unknown_domains().is_empty());
        forgetting.abort();
    }

    #[test]
    fn a_pass_takes_the_same_time_for_every_store_size() {
        for steps in [1, 7, 256, 2_000, 2_001, 100_000] {
            let (tick, steps_per_tick) = pace(steps);
            assert!(tick >= SHORTEST_TICK, "{steps}");
            let ticks = u32::try_from(steps.div_ceil(steps_per_tick)).expect("they are few");
            let pass = tick * ticks;
            assert!(pass <= PASS && pass > PASS * 9 / 10, "{steps}: {pass:?}");
        }
    }
}
