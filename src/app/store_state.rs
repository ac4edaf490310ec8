//! Follows the connection to the shared store: in the log, and in health where that is asked for.

use std::{sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval};

use crate::{
    Limiter,
    observe::{Health, health::Reason},
    store::AnyStore,
};

/// How often it is looked at.
const EVERY: Duration = Duration::from_millis(250);

/// Follows for ever. Without a connection the service is unhealthy if `needed`: the reference's
/// `REDIS_HEALTH_CHECK_ACTIVE_CONNECTION`. It decides all the same.
pub(super) async fn follow(limiter: Arc<Limiter<AnyStore>>, health: Health, needed: bool) {
    let AnyStore::Coordinated(store) = limiter.store() else {
        return std::future::pending().await;
    };
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut was_there = None;
    loop {
        ticks.tick().await;
        let state = store.remote().state();
        let is_there = state.is_connected() && !store.is_store_unavailable();
        if was_there == Some(is_there) {
            continue;
        }
        if is_there {
            tracing::info!("connected to redis");
        } else if was_there.is_some() || !state.is_connected() {
            tracing::warn!(?state, "redis does not answer; decisions are made as on_store_failure says");
        }
        if needed {
            if is_there { health.ok(Reason::Store) } else { health.fail(Reason::Store) }
        }
        was_there = Some(is_there);
    }
}
