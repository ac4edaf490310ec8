//! Reports the connection to the shared store in the log, and in health if configured.

use std::{sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval};

use crate::{
    Limiter,
    observe::{Health, health::Reason},
    store::AnyStore,
};

/// How often the state is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Reports every change of the state. Without a connection the service is unhealthy if `needed`
/// (`REDIS_HEALTH_CHECK_ACTIVE_CONNECTION`), but continues to decide. Never returns.
pub(super) async fn follow(limiter: Arc<Limiter<AnyStore>>, health: Health, needed: bool) {
    let AnyStore::Coordinated(store) = limiter.store() else {
        return std::future::pending().await;
    };
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut was_available = None;
    loop {
        ticks.tick().await;
        let state = store.remote().state();
        let is_available = state.is_connected() && !store.is_store_unavailable();
        if was_available == Some(is_available) {
            continue;
        }
        if is_available {
            tracing::info!("redis connected");
        } else if was_available.is_some() || !state.is_connected() {
            tracing::warn!(?state, "redis connection lost; deciding by on_store_failure");
        }
        if needed {
            if is_available { health.ok(Reason::Store) } else { health.fail(Reason::Store) }
        }
        was_available = Some(is_available);
    }
}
