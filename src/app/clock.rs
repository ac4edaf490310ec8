//! Notices when the machine's clock is set, since windows without a shared store follow it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::{MissedTickBehavior, interval};
use weir_client::AnyStore;
use weir_limit::Period;
use weir_limiter::Limiter;
use weir_observe::{Metric, Source};
use weir_store::clock::{Clock, Reading};

const INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct ClockSteps(AtomicU64);

// === impl ClockSteps ===

impl ClockSteps {
    /// Tells steps of `clock` to the log, for the store of `limiter`, and to the metrics. Never returns.
    pub(super) async fn follow(self: Arc<Self>, limiter: Arc<Limiter<AnyStore>>, clock: Arc<dyn Clock>) {
        let mut last = Reading::of(&*clock);
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let reading = Reading::of(&*clock);
            if let Some(step) = reading.step_since(&last) {
                report(step, limiter.store());
                // last, so that what the metrics show is in the log
                self.0.fetch_add(1, Ordering::Relaxed);
            }
            last = reading;
        }
    }
}

impl Source for ClockSteps {
    fn metrics(&self) -> Vec<Metric> {
        let steps = self.0.load(Ordering::Relaxed);
        vec![Metric::counter("weir.clock.steps", "Steps of this machine's clock by a second or more.", steps)]
    }
}

fn report(step: i64, store: &AnyStore) {
    let by = Period::from_nanos(step.unsigned_abs());
    if matches!(store, AnyStore::Coordinated(_)) {
        let direction = if step < 0 { "back" } else { "forth" };
        tracing::warn!(%by, "the clock was set {direction}; limits that the store counts follow the store's clock");
    } else if step < 0 {
        tracing::warn!(
            %by,
            "the clock was set back; counters that were in use stay as they are until it is there again, and what they \
             reject is told so long a wait"
        );
    } else {
        tracing::warn!(%by, "the clock was set forth, or the machine slept; windows have ended early");
    }
}
