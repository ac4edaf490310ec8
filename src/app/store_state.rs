//! Reports the connection to the shared store in the log, and in health if configured.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::{MissedTickBehavior, interval, sleep};
use weir_client::AnyStore;
use weir_limiter::Limiter;
use weir_remotes::redis::ConnectionStates;
use weir_server::{Health, health::Reason};
use weir_store::remote::Remote as _;

use super::error::AppError;

const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// How long the first attempt may take before it is reported as failed.
const FIRST_ATTEMPT: Duration = Duration::from_secs(1);

/// The least time between two messages about why there is no connection.
const REASON_INTERVAL: Duration = Duration::from_secs(10);

struct Loss {
    reason: String,
    /// There was a connection nevertheless.
    was_connected: bool,
    reported: Instant,
}

/// Waits for `within`, `REDIS_STARTUP_MAX_ELAPSED_TIME`. [`AppError::NoRedis`] when it is over.
pub(super) async fn first_connection(store: &AnyStore, within: Option<Duration>) -> Result<(), AppError> {
    let (AnyStore::Coordinated(store), Some(within)) = (store, within) else { return Ok(()) };
    let (begun, mut is_reported) = (Instant::now(), false);
    loop {
        let state = store.remote().state();
        if state.is_connected() {
            return Ok(());
        }
        let waited = begun.elapsed();
        if waited >= within {
            return Err(AppError::NoRedis { within, reason: state.failures() });
        }
        if !is_reported && (state.has_failed() || waited > FIRST_ATTEMPT) {
            tracing::error!(reason = state.failures(), "cannot connect to redis; retrying for {within:?}");
            is_reported = true;
        }
        sleep(POLL_INTERVAL.min(within.saturating_sub(waited))).await;
    }
}

/// Reports every change. Without a connection the service is unhealthy if `needed`, but decides. Never returns.
pub(super) async fn follow(limiter: Arc<Limiter<AnyStore>>, health: Health, needed: bool) {
    let AnyStore::Coordinated(store) = limiter.store() else {
        return std::future::pending().await;
    };
    let begun = Instant::now();
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let store_name = store.remote().shared_store().system;
    let (mut was_healthy, mut was_available, mut loss): (bool, bool, Option<Loss>) = (false, false, None);
    loop {
        ticks.tick().await;
        let state = store.remote().state();
        let is_available = state.is_connected() && !store.is_store_unavailable();
        let is_healthy =
            is_available || state.one_is_enough && state.servers.iter().any(|server| server.connected);
        if needed && is_healthy != was_healthy {
            if is_healthy { health.ok(Reason::Store) } else { health.fail(Reason::Store) }
        }
        was_healthy = is_healthy;
        match (is_available, &loss) {
            (true, None) if !was_available => tracing::info!("{store_name} connected"),
            // at the level of the loss, so that a log with the loss also has its end
            (true, Some(Loss { was_connected: true, .. })) => {
                tracing::warn!("{store_name} replies again");
                loss = None;
            }
            (true, Some(_)) => {
                tracing::warn!("{store_name} connected again");
                loss = None;
            }
            (false, None) if was_available => loss = Some(Loss::report(store_name, &state, report_loss)),
            (false, None) if state.has_failed() || begun.elapsed() > FIRST_ATTEMPT => {
                loss = Some(Loss::report(store_name, &state, report_failed_start));
            }
            (false, Some(reported))
                if reported.reason != reason(&state) && reported.reported.elapsed() > REASON_INTERVAL =>
            {
                loss = Some(Loss::report(store_name, &state, report_loss));
            }
            _ => {}
        }
        was_available = is_available;
    }
}

fn report_failed_start(store: &str, reason: &str) {
    tracing::error!(reason, "cannot connect to {store}; deciding by on_store_failure until it is connected");
}

fn report_loss(store: &str, reason: &str) {
    tracing::warn!(reason, "no connection to {store}; deciding by on_store_failure until it is connected");
}

fn report_silence(store: &str, reason: &str) {
    tracing::warn!(
        reason,
        "{store} is connected and does not reply; deciding by on_store_failure until it does"
    );
}

fn reason(state: &ConnectionStates) -> String {
    if state.is_connected() { "no reply in time, or only errors".to_owned() } else { state.failures() }
}

impl Loss {
    fn report(store: &str, state: &ConnectionStates, report: fn(&str, &str)) -> Self {
        let (reason, was_connected) = (reason(state), state.is_connected());
        if was_connected {
            report_silence(store, &reason);
        } else {
            report(store, &reason);
        }
        Self { reason, was_connected, reported: Instant::now() }
    }
}
