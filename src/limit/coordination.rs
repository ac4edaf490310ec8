//! How the counts of many instances are kept together. What it means is in [`store::coordinated`](crate::store); here are
//! the words.

use super::units::Period;

/// How a rule's counts are kept together over instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coordination {
    /// Not at all: every instance has the whole limit to itself.
    Local,
    /// Each counts by itself, and at an interval they tell each other. No decision waits.
    Interval,
    /// Each takes some of the limit in advance and spends it by itself. Never more than the limit.
    Lease,
    /// Every decision is the shared store's. Never more than the limit.
    Strict,
}

/// What is decided when the shared store cannot be asked in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreFailure {
    /// Count in this instance's memory against its part of the limit.
    #[default]
    Local,
    /// Let everything pass.
    Allow,
    /// Let nothing pass.
    Deny,
}

/// What a rule says of its coordination; what it leaves out is as the settings have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCoordination {
    /// How.
    pub mode: Option<Coordination>,
    /// How long an instance counts by itself, under [`Coordination::Interval`]. Longer than zero.
    pub sync_interval: Option<Period>,
    /// What then.
    pub on_store_failure: Option<OnStoreFailure>,
}

// === impl Coordination ===

impl Coordination {
    /// Every way.
    pub const ALL: [Self; 4] = [Self::Local, Self::Interval, Self::Lease, Self::Strict];

    /// Its name in the rule language and in settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Interval => "interval",
            Self::Lease => "lease",
            Self::Strict => "strict",
        }
    }

    /// The way of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|coordination| coordination.name() == name)
    }
}

// === impl OnStoreFailure ===

impl OnStoreFailure {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Local, Self::Allow, Self::Deny];

    /// Its name in the rule language and in settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }

    /// The one of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|failure| failure.name() == name)
    }
}
