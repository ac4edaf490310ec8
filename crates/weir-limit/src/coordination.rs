//! The coordination modes, and what the rest of the program has to know of each. The stores implement them.

use std::num::NonZeroU16;

use super::units::Period;

/// How the instances coordinate a rule's counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coordination {
    /// [`Coordination::Lease`] or [`Coordination::Interval`] for each counter: see [`Coordination::for_limit`].
    Auto,
    /// The instances do not coordinate: each admits the whole limit.
    Local,
    /// Each instance counts locally and reports its counts to the store at an interval. No decision waits.
    Interval,
    /// Each instance reserves part of the limit in advance and spends it locally. The limit is never exceeded.
    Lease,
    /// The shared store makes every decision. The limit is never exceeded.
    Strict,
    /// Each instance has its own part of the limit, by their number, and asks nobody. All parts together are the limit.
    Split,
}

/// The decision when the shared store does not reply in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreFailure {
    /// Count in this instance's memory against its share of the limit.
    #[default]
    Local,
    Allow,
    Deny,
}

impl OnStoreFailure {
    /// The retry time of a rejection under `deny`. The length of an outage is not known.
    pub const DENY_RETRY: Period = Period::from_secs(1);
}

/// A rule's coordination settings; those it omits default to the service's settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCoordination {
    pub mode: Option<Coordination>,
    /// The time between two syncs under [`Coordination::Interval`]. Longer than zero.
    pub sync_interval: Option<Period>,
    pub on_store_failure: Option<OnStoreFailure>,
    /// The number of instances that the limit and its shadow are divided between already; the mode is then local.
    pub split_between: Option<NonZeroU16>,
}

// === impl Coordination ===

impl Coordination {
    pub const ALL: [Self; 6] =
        [Self::Auto, Self::Local, Self::Interval, Self::Lease, Self::Strict, Self::Split];

    pub const NAMES: &str = "auto, local, interval, lease, strict or split";

    /// With fewer hits for each instance, [`Coordination::Split`] wastes a limit: some instances idle, others run out.
    pub const COARSE_BELOW: u64 = 20;

    /// Limits of fewer hits for each instance get a lease under [`Coordination::Auto`]. An instance learns of a burst
    /// after one round trip, in which so few hits can be used up several times.
    pub const EXACT_BELOW: u64 = 50;

    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Local => "local",
            Self::Interval => "interval",
            Self::Lease => "lease",
            Self::Strict => "strict",
            Self::Split => "split",
        }
    }

    /// Returns what [`Coordination::Auto`] stands for: a lease below [`Coordination::EXACT_BELOW`] hits for each of
    /// `instances`. `capacity` is the smallest of the limit's tiers.
    pub const fn for_limit(capacity: u64, instances: usize) -> Self {
        if capacity < Self::EXACT_BELOW.saturating_mul(instances as u64) {
            Self::Lease
        } else {
            Self::Interval
        }
    }

    /// Returns the mode of a counter: another one than this only for [`Coordination::Auto`].
    pub const fn of_limit(self, capacity: u64, instances: usize) -> Self {
        if matches!(self, Self::Auto) { Self::for_limit(capacity, instances) } else { self }
    }

    /// Returns the mode of a pool. Its members have shares instead of parts, and nothing is to choose: instances lease.
    pub const fn of_pool(self) -> Self {
        if matches!(self, Self::Auto | Self::Split) { Self::Lease } else { self }
    }

    /// Returns this mode, or what replaces it in a store that does not support it: the next one that it `supports`.
    pub fn nearest(self, supports: impl Fn(Self) -> bool) -> Self {
        let order = [Self::Lease, Self::Strict, Self::Interval];
        order.into_iter().skip_while(|mode| *mode != self).find(|mode| supports(*mode)).unwrap_or(Self::Local)
    }

    /// Returns whether instances ask or tell the store about a counter: not if each of them counts by itself.
    pub const fn is_coordinated(self) -> bool {
        !matches!(self, Self::Local | Self::Split)
    }

    /// Returns whether requests in flight can be counted so: an end may arrive at another instance than its start.
    pub const fn keeps_places(self) -> bool {
        matches!(self, Self::Auto | Self::Strict | Self::Local)
    }

    /// Returns whether all instances together never exceed a limit, while the store replies and keeps its data.
    pub const fn is_exact(self) -> bool {
        matches!(self, Self::Lease | Self::Strict | Self::Split)
    }

    /// Returns whether the store decides about every hit, so that none is leased and none predicted.
    pub const fn asks_always(self) -> bool {
        matches!(self, Self::Strict)
    }

    /// Returns whether instances lease hits, and ask the store about those that no lease covers.
    pub const fn leases(self) -> bool {
        matches!(self, Self::Lease)
    }

    /// Returns whether the estimate admits hits, which are reported later: then [`RuleCoordination::sync_interval`]
    /// has an effect.
    pub const fn syncs(self) -> bool {
        matches!(self, Self::Interval | Self::Auto)
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|coordination| coordination.name() == name)
    }
}

// === impl OnStoreFailure ===

impl OnStoreFailure {
    pub const ALL: [Self; 3] = [Self::Local, Self::Allow, Self::Deny];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|failure| failure.name() == name)
    }
}
