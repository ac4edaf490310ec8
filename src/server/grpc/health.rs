//! gRPC's health service, which says what the service's own health says.

use std::{convert::Infallible, future};

use tokio::sync::watch;
use tonic_health::{ServingStatus, server::HealthReporter};

/// What the reference calls itself there, and the name that stands for the whole server.
const NAMES: [&str; 2] = ["ratelimit", ""];

/// Tells `reporter` of every change of `healthy`, for ever.
pub(super) async fn follow(mut healthy: watch::Receiver<bool>, reporter: &HealthReporter) -> Infallible {
    loop {
        let now = *healthy.borrow_and_update();
        report(reporter, now).await;
        if healthy.changed().await.is_err() {
            // whoever changed it is gone, and what it was last it stays
            return future::pending().await;
        }
    }
}

/// Ends the streams of those who watch: they would hold a server that stops until it cuts them.
pub(super) async fn end(mut reporter: HealthReporter) {
    for name in NAMES {
        reporter.clear_service_status(name).await;
    }
}

/// Tells `reporter`.
pub(super) async fn report(reporter: &HealthReporter, healthy: bool) {
    let status = if healthy { ServingStatus::Serving } else { ServingStatus::NotServing };
    for name in NAMES {
        reporter.set_service_status(name, status).await;
    }
}
