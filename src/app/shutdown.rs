//! Waiting for a stop flag, and for tasks to end within a time limit.

use std::time::Duration;

use tokio::{sync::watch, task::JoinSet, time::timeout};

/// Also ends if the sender is dropped.
pub(super) async fn until_true(mut flag: watch::Receiver<bool>) {
    let _ = flag.wait_for(|flag| *flag).await;
}

pub(super) async fn drain<T: 'static>(mut tasks: JoinSet<T>, limit: Duration) {
    if timeout(limit, async { while tasks.join_next().await.is_some() {} }).await.is_err() {
        tracing::warn!(tasks = tasks.len(), "shutdown timed out; aborting the remaining tasks");
        tasks.shutdown().await;
    }
}
