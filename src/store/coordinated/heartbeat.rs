//! The instances know how many they are, and what the store's clock shows.

use std::sync::{Arc, atomic::Ordering};

use tokio::time::{MissedTickBehavior, interval, timeout};

use super::Inner;
use crate::{
    limit::{Algorithm, Period, Refused, Tier},
    store::remote::{Command, Op, Remote, Target},
};

/// Says every now and then that this instance lives, until it is dropped or leaves. A heartbeat that is not heard for twice
/// its time is taken for a death.
pub(super) async fn run<R: Remote>(inner: Arc<Inner<R>>) {
    let every = inner.settings.heartbeat;
    let mut ticks = interval(every.into());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if inner.closed.load(Ordering::Relaxed) {
            return;
        }
        if inner.store_clock.is_stale(inner.clock.now()) {
            let _ = timeout(every.into(), look_at_the_clock(&inner)).await;
        }
        let lives_for = Period::from_nanos(2 * every.as_nanos());
        let beat = inner.remote.heartbeat(&inner.settings.instance, lives_for);
        // it is also how a store that was given up is found to be back
        match timeout(every.into(), beat).await {
            Ok(Ok(instances)) => {
                inner.instances.store(instances.max(1), Ordering::Relaxed);
                inner.breaker.answered();
            }
            Ok(Err(_)) | Err(_) => inner.breaker.failed(),
        }
    }
}

/// Asks for no hits, to learn what the store's clock shows: so that the first window that is counted in is the right one.
async fn look_at_the_clock<R: Remote>(inner: &Inner<R>) {
    let tier = Tier { requests: 1, period: Period::from_secs(1), algorithm: Algorithm::SlidingWindow };
    let target = Target { path: "weir:clock_".into(), tiers: vec![tier], refused: Refused::Vanish };
    let sent = inner.clock.now();
    let command = Command { target: Arc::new(target), at: sent, op: Op::Take { hits: 0 } };
    if let Ok(replies) = inner.remote.call(vec![command]).await {
        inner.store_clock.measured(sent, inner.clock.now(), replies.now);
    }
}

/// Says that this instance leaves, and nothing more after that.
pub(super) async fn leave<R: Remote>(inner: &Inner<R>) {
    inner.closed.store(true, Ordering::Relaxed);
    let left = inner.remote.heartbeat(&inner.settings.instance, Period::default());
    let _ = timeout(inner.settings.heartbeat.into(), left).await;
}
