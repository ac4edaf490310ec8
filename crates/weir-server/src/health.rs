//! The health of the process, as the health checks of all servers report it.

use std::{collections::BTreeSet, fmt, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::watch;

/// The health of the process. Clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct Health {
    /// Why it is unhealthy. The lock is held while a change is published, so that changes are published in order.
    reasons: Arc<Mutex<BTreeSet<Reason>>>,
    healthy: Arc<watch::Sender<bool>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// No rules are loaded, and `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED` requires at least one domain.
    NoConfiguration,
    Store,
    /// The process is shutting down and should get no more traffic.
    Stopping,
}

// === impl Health ===

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// Returns a healthy state. Parts that are not ready call [`Health::fail`] before the servers accept connections.
    pub fn new() -> Self {
        Self { reasons: Arc::default(), healthy: Arc::new(watch::Sender::new(true)) }
    }

    pub fn fail(&self, reason: Reason) {
        self.update(|reasons| reasons.insert(reason));
    }

    pub fn ok(&self, reason: Reason) {
        self.update(|reasons| reasons.remove(&reason));
    }

    fn update(&self, change: impl FnOnce(&mut BTreeSet<Reason>) -> bool) {
        let mut reasons = self.reasons.lock();
        change(&mut reasons);
        let now = reasons.is_empty();
        self.healthy.send_if_modified(|healthy| std::mem::replace(healthy, now) != now);
    }

    pub fn is_healthy(&self) -> bool {
        *self.healthy.borrow()
    }

    pub fn reasons(&self) -> Vec<Reason> {
        self.reasons.lock().iter().copied().collect()
    }

    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.healthy.subscribe()
    }
}

// === impl Reason ===

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoConfiguration => "no rate limit configuration loaded",
            Self::Store => "the store does not reply",
            Self::Stopping => "stopping",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_returns_when_every_reason_is_removed() {
        let health = Health::new();
        assert!(health.is_healthy());
        health.fail(Reason::NoConfiguration);
        health.fail(Reason::Stopping);
        health.fail(Reason::Stopping);
        health.ok(Reason::NoConfiguration);
        assert!(!health.is_healthy());
        assert_eq!(health.reasons(), [Reason::Stopping]);
        health.ok(Reason::Stopping);
        assert!(health.is_healthy());
    }

    #[test]
    fn only_changes_are_published() {
        let health = Health::new();
        let mut follower = health.subscribe();
        health.clone().fail(Reason::Store);
        assert!(follower.has_changed().unwrap() && !*follower.borrow_and_update());
        health.fail(Reason::Stopping);
        assert!(!follower.has_changed().unwrap());
    }
}
