//! Takes expired counters out of the memory store, a little at a time.

use std::{sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval};

use crate::{Limiter, clock::Clock, store::AnyStore};

/// How long one pass over the whole store takes.
const PASS: Duration = Duration::from_secs(10);

/// Timers are no finer than a millisecond, so a large store gets several steps a tick.
const SHORTEST_TICK: Duration = Duration::from_millis(5);

/// Sweeps for ever: every part of the store once in a [`PASS`], evenly spread over it, so that no request waits for
/// more than one part.
pub(super) async fn run(limiter: Arc<Limiter<AnyStore>>, clock: Arc<dyn Clock>) {
    let store = limiter.store().memory();
    let (tick, steps_a_tick) = pace(store.sweep_steps());
    let mut ticks = interval(tick);
    // a process that was stopped for a while has not to catch up at once
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut step: usize = 0;
    loop {
        ticks.tick().await;
        for _ in 0..steps_a_tick {
            store.sweep_step(step, clock.now());
            step = step.wrapping_add(1);
        }
    }
}

/// How often to do how many steps, so that `steps` of them take a [`PASS`].
fn pace(steps: usize) -> (Duration, usize) {
    let steps = steps.max(1);
    let most_ticks = usize::try_from(PASS.as_millis() / SHORTEST_TICK.as_millis()).unwrap_or(usize::MAX);
    let steps_a_tick = steps.div_ceil(most_ticks);
    let ticks = steps.div_ceil(steps_a_tick);
    (PASS / u32::try_from(ticks).unwrap_or(u32::MAX), steps_a_tick)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_takes_as_long_whatever_the_stores_size() {
        for steps in [1, 7, 256, 2_000, 2_001, 100_000] {
            let (tick, steps_a_tick) = pace(steps);
            assert!(tick >= SHORTEST_TICK, "{steps}");
            let ticks = u32::try_from(steps.div_ceil(steps_a_tick)).expect("they are few");
            let pass = tick * ticks;
            assert!(pass <= PASS && pass > PASS * 9 / 10, "{steps}: {pass:?}");
        }
    }
}
