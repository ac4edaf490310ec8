use std::sync::Arc;

use tokio::sync::Notify;

/// Requests a reload of the rules, whether or not a change was noticed.
#[derive(Clone, Debug, Default)]
pub struct Reload(Arc<Notify>);

impl Reload {
    /// Requests a reload, which the service starts at once or after the one under way.
    pub fn now(&self) {
        self.0.notify_one();
    }

    pub(super) async fn requested(&self) {
        self.0.notified().await;
    }
}
