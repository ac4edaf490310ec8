//! Whether weir can do its work, as the health checks of all doors tell it.

use std::{collections::BTreeSet, fmt, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::watch;

/// The health of the process. Clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct Health {
    /// What ails it. The lock is held while the change is told, so that changes are told in their order.
    reasons: Arc<Mutex<BTreeSet<Reason>>>,
    healthy: Arc<watch::Sender<bool>>,
}

/// Why weir is not healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// It waits for rules: `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED` asks for at least one domain.
    NoConfiguration,
    /// Its store does not answer: not yet, or not any more.
    Store,
    /// It was told to stop, and is to get no more traffic.
    Stopping,
}

// === impl Health ===

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// Good health. Whoever waits for something says so with [`Health::fail`] before the doors open.
    #[must_use]
    pub fn new() -> Self {
        Self { reasons: Arc::default(), healthy: Arc::new(watch::Sender::new(true)) }
    }

    /// Notes that `reason` holds.
    pub fn fail(&self, reason: Reason) {
        self.update(|reasons| reasons.insert(reason));
    }

    /// Notes that `reason` does not hold, or no longer.
    pub fn ok(&self, reason: Reason) {
        self.update(|reasons| reasons.remove(&reason));
    }

    fn update(&self, change: impl FnOnce(&mut BTreeSet<Reason>) -> bool) {
        let mut reasons = self.reasons.lock();
        change(&mut reasons);
        let now = reasons.is_empty();
        self.healthy.send_if_modified(|healthy| std::mem::replace(healthy, now) != now);
    }

    /// Whether there is no reason against it.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        *self.healthy.borrow()
    }

    /// What is wrong; empty if all is well.
    #[must_use]
    pub fn reasons(&self) -> Vec<Reason> {
        self.reasons.lock().iter().copied().collect()
    }

    /// Follows [`Health::is_healthy`].
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.healthy.subscribe()
    }
}

// === impl Reason ===

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoConfiguration => "no rate limit configuration loaded",
            Self::Store => "the store does not answer",
            Self::Stopping => "stopping",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_must_be_gone() {
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
    fn followers_hear_of_changes_only() {
        let health = Health::new();
        let mut follower = health.subscribe();
        health.clone().fail(Reason::Store);
        assert!(follower.has_changed().unwrap() && !*follower.borrow_and_update());
        health.fail(Reason::Stopping);
        assert!(!follower.has_changed().unwrap());
    }
}
