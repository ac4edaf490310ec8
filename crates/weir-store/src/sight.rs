//! How counters stand, for people who look: nothing is counted.

use smallvec::SmallVec;

use weir_limit::{Coordination, Decision, Hits, LimitCheck, Tiers, Timestamp, algorithm::CounterState};

/// The counters of one check.
#[derive(Clone, Debug)]
pub struct CounterSight {
    /// One for each tier in which a value counts by itself.
    pub counters: SmallVec<[CounterState; 1]>,
    /// The time, on the clock that counts them.
    pub at: Timestamp,
    /// The tiers of this instance's part, if the limit is split.
    pub part: Option<Tiers>,
    /// What the pool would say of a hit, if the values share one.
    pub pool: Option<Decision>,
    pub source: SightSource,
    /// What this instance has of a counter that is shared; none if it is not.
    pub local: Option<LocalSight>,
}

/// Where counters were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SightSource {
    Memory,
    Disk,
    /// The shared store has answered.
    Store,
    /// The shared store has not answered: this instance's copy.
    Copy,
}

/// An instance's copy of the counters of one check.
#[derive(Clone, Debug)]
pub struct LocalSight {
    /// As it was before the store was asked.
    pub counters: SmallVec<[CounterState; 1]>,
    pub mode: Coordination,
    /// Hits leased to this instance that nobody has used.
    pub leased: Hits,
    /// Hits that the store has not been told of.
    pub pending: Hits,
}

// === impl CounterSight ===

impl CounterSight {
    /// Returns counters that are here.
    pub const fn of(
        counters: SmallVec<[CounterState; 1]>,
        pool: Option<Decision>,
        source: SightSource,
        at: Timestamp,
    ) -> Self {
        Self { counters, at, part: None, pool, source, local: None }
    }

    /// Returns counters of which nothing is known.
    pub(super) fn unused(check: &LimitCheck<'_>, now: Timestamp) -> Self {
        let counters = check.own_tiers().iter().map(|tier| CounterState::unused(tier, now)).collect();
        Self::of(counters, None, SightSource::Memory, now)
    }
}
