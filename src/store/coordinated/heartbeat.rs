//! The instances know how many they are.

use std::sync::{Arc, atomic::Ordering};

use tokio::time::{MissedTickBehavior, interval, timeout};

use super::Inner;
use crate::{limit::Period, store::remote::Remote};

/// Says every now and then that this instance lives, until it is dropped. A heartbeat that is not heard for twice its time
/// is taken for a death.
pub(super) async fn run<R: Remote>(inner: Arc<Inner<R>>) {
    let every = inner.settings.heartbeat;
    let mut ticks = interval(every.into());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if inner.closed.load(Ordering::Relaxed) {
            return;
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

/// Says that this instance leaves, and nothing more after that.
pub(super) async fn leave<R: Remote>(inner: &Inner<R>) {
    inner.closed.store(true, Ordering::Relaxed);
    let left = inner.remote.heartbeat(&inner.settings.instance, Period::default());
    let _ = timeout(inner.settings.heartbeat.into(), left).await;
}
