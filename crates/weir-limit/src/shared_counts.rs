//! How instances share their counts, and which coordination mode a rule gets of it.

use super::{
    coordination::{Coordination, OnStoreFailure},
    rule::Rule,
    tier::Tier,
    units::Period,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedStore {
    /// Its name in messages to users, such as `Redis`.
    pub name: &'static str,
    /// Its name in the log and in traces, such as `redis`.
    pub system: &'static str,
    pub capabilities: Capabilities,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Capabilities {
    /// Every limit in every mode, and the pools of fair shares.
    #[default]
    All,
    /// Single fixed windows, without leases.
    SingleFixedWindow,
}

/// How instances share their counts, as far as a service's settings say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedCounts {
    /// Where they share them; none if each counts alone.
    pub store: Option<SharedStore>,
    /// `WEIR_COORDINATION`: the mode of rules that name none.
    pub mode: Coordination,
    /// `WEIR_SYNC_INTERVAL`, for rules that name none.
    pub sync_interval: Period,
    /// `WEIR_ON_STORE_FAILURE`, for rules that name none.
    pub on_store_failure: OnStoreFailure,
    /// The number of instances; none if unknown.
    pub instances: Option<usize>,
}

// === impl SharedStore ===

impl SharedStore {
    /// Redis, which messages also name where no store is in use.
    pub const REDIS: Self = Self { name: "Redis", system: "redis", capabilities: Capabilities::All };

    pub fn shares(self, rule: &Rule) -> bool {
        self.capabilities.count(rule.limit.tiers())
            && (rule.sharing.is_none() || self.capabilities == Capabilities::All)
    }
}

// === impl Capabilities ===

impl Capabilities {
    /// Returns whether they include to count `tiers`; no tiers are nothing to count.
    pub fn count(self, tiers: &[Tier]) -> bool {
        self == Self::All || (tiers.len() < 2 && tiers.iter().all(Tier::has_windows))
    }

    /// Of tiers that they count.
    pub fn support(self, mode: Coordination) -> bool {
        self == Self::All || !mode.leases()
    }
}

// === impl SharedCounts ===

/// Each instance counts alone.
impl Default for SharedCounts {
    fn default() -> Self {
        Self {
            store: None,
            mode: Coordination::Auto,
            sync_interval: Period::from_millis(100),
            on_store_failure: OnStoreFailure::Local,
            instances: None,
        }
    }
}

impl SharedCounts {
    /// Returns the mode that is requested for `rule`. Nothing is to choose for a pool, of which instances lease.
    pub fn requested(&self, rule: &Rule) -> Coordination {
        let mode = rule.coordination.mode.unwrap_or(self.mode);
        if rule.sharing.is_some() { mode.of_pool() } else { mode }
    }

    /// Returns the mode in which `rule` is counted among `instances` that share `store`.
    pub fn mode_in(&self, store: SharedStore, rule: &Rule, instances: usize) -> Coordination {
        let mode = self.requested(rule).of_limit(rule.limit.capacity(), instances);
        if !mode.is_coordinated() {
            // nothing is counted in the store
            return mode;
        }
        mode.nearest(|mode| store.shares(rule) && store.capabilities.support(mode))
    }

    /// Returns the mode in which `rule` is counted; none if it depends on the number of instances, which is unknown.
    pub fn mode_now(&self, rule: &Rule) -> Option<Coordination> {
        let Some(store) = self.store else { return Some(Coordination::Local) };
        let depends = self.requested(rule) == Coordination::Auto && store.shares(rule);
        let (alone, many) = (self.mode_in(store, rule, 1), self.mode_in(store, rule, usize::MAX));
        match self.instances {
            Some(instances) => Some(self.mode_in(store, rule, instances)),
            None if depends && alone != many => None,
            None => Some(alone),
        }
    }

    /// Returns the time between two syncs of a counter of `rule` that is near its limit.
    pub fn sync_interval_of(&self, rule: &Rule) -> Period {
        rule.coordination.sync_interval.unwrap_or(self.sync_interval)
    }

    /// Returns how `rule` is decided while the store does not reply.
    pub fn on_store_failure_of(&self, rule: &Rule) -> OnStoreFailure {
        rule.coordination.on_store_failure.unwrap_or(self.on_store_failure)
    }
}
