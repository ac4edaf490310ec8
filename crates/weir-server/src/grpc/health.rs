//! Reports the process's health in gRPC's health service.

use std::{convert::Infallible, future};

use tokio::sync::watch;
use tonic_health::{ServingStatus, server::HealthReporter};

/// The service name of envoyproxy/ratelimit, and the name of the whole server.
const NAMES: [&str; 2] = ["ratelimit", ""];

pub(super) async fn follow(mut healthy: watch::Receiver<bool>, reporter: &HealthReporter) -> Infallible {
    loop {
        let now = *healthy.borrow_and_update();
        report(reporter, now).await;
        if healthy.changed().await.is_err() {
            // the sender is gone: the last value stays
            return future::pending().await;
        }
    }
}

/// Ends the `Watch` streams, which would otherwise delay a shutdown until its timeout.
pub(super) async fn end(mut reporter: HealthReporter) {
    for name in NAMES {
        reporter.clear_service_status(name).await;
    }
}

pub(super) async fn report(reporter: &HealthReporter, healthy: bool) {
    let status = if healthy { ServingStatus::Serving } else { ServingStatus::NotServing };
    for name in NAMES {
        reporter.set_service_status(name, status).await;
    }
}
