//! The records that a local counter keeps: pending hits and held leases, and the outcome of each.

use smallvec::SmallVec;

use super::tiers::{has_ended, negative, same_windows, saturated};
use crate::{
    limit::{
        Hits, Tier, Timestamp,
        algorithm::{CountChange, CounterState},
    },
    store::remote::{Report, UnusedHits},
};

/// What was counted here in one window of each fixed tier, and the store has not counted yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PendingDelta {
    /// When the first of the hits were counted.
    pub(super) at: Timestamp,
    pub(super) last_at: Timestamp,
    pub(super) change: CountChange,
    /// How many of the hits count although they were rejected.
    pub(super) rejected: u64,
    /// Leased hits that are given back. Others can take them only after the store has received them.
    pub(super) unused: u64,
    /// The earliest end of those leases: a sliding window gives back hits up to then, and the rest count for longer.
    pub(super) unused_until: Timestamp,
    /// The last try that a strict bucket rejected; zero if none.
    pub(super) rejected_at: Timestamp,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Dropped {
    /// Never reported: their windows had ended, or their counter was evicted.
    pub(in super::super) unreported: u64,
    /// Leased and not used before the lease ended, or given back and never reported.
    pub(in super::super) stranded: u64,
}

/// Hits that may be admitted without a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldLease {
    /// No tier admits more than 2^32 - 1 at once.
    pub(super) left: u32,
    /// Whether it ends after its grant. This flag leaves room for the variants of [`Rare`](super::rare::Rare).
    pub(super) has_hold: bool,
    pub(super) granted_at: Timestamp,
    pub(super) until: Timestamp,
}

/// In order of their ends.
pub(super) type HeldLeases = SmallVec<[HeldLease; 1]>;

pub(super) fn left_in(leases: &[HeldLease]) -> u64 {
    leases.iter().map(|lease| lease.left().0).sum()
}

// === impl Dropped ===

impl Dropped {
    pub(in super::super) const fn stranded(hits: Hits) -> Self {
        Self { unreported: 0, stranded: hits.0 }
    }

    pub(super) const fn add(&mut self, unreported: u64, stranded: u64) {
        self.unreported = self.unreported.saturating_add(unreported);
        self.stranded = self.stranded.saturating_add(stranded);
    }

    pub(in super::super) const fn all(self) -> u64 {
        self.unreported.saturating_add(self.stranded)
    }
}

// === impl PendingDelta ===

impl PendingDelta {
    /// Negative `hits` are given back.
    pub(super) fn of(hits: i64, at: Timestamp) -> Self {
        Self {
            at,
            last_at: at,
            change: CountChange::of(hits),
            rejected: 0,
            unused: 0,
            unused_until: Timestamp::default(),
            rejected_at: Timestamp::default(),
        }
    }

    pub(super) fn unused(lease: HeldLease) -> Self {
        let HeldLease { left, granted_at: at, until, .. } = lease;
        Self { unused: left.into(), unused_until: until, ..Self::of(0, at) }
    }

    /// Returns whether the store learns nothing from it.
    pub(super) fn is_none(&self) -> bool {
        self.change.is_none() && self.unused == 0 && self.rejected_at == Timestamp::default()
    }

    pub(super) fn taken(&self) -> u64 {
        u64::try_from(self.change.hits).unwrap_or_default()
    }

    pub(super) fn returned(&self) -> u64 {
        u64::try_from(self.change.hits.saturating_neg()).unwrap_or_default().saturating_add(self.unused)
    }

    pub(super) fn admitted(&self) -> u64 {
        self.taken().saturating_sub(self.rejected)
    }

    /// `at` must be in the same windows.
    pub(super) fn add(&mut self, hits: i64, at: Timestamp) {
        self.change.append(hits);
        self.last_at = self.last_at.max(at);
    }

    /// Takes in `later` if both are in the same windows of `tiers`, apart from those that have ended at `now`. A mere
    /// rejected try takes in anything, since no window counts it. Returns whether it has.
    pub(super) fn takes_in(&mut self, later: &Self, tiers: &[Tier], now: Timestamp) -> bool {
        let is_same_in = |tier: &Tier| {
            let alone = std::slice::from_ref(tier);
            same_windows(alone, self.last_at, later.at) || has_ended(tier, later.last_at, now)
        };
        if tiers.iter().all(is_same_in) {
            self.append(later);
            return true;
        }
        let is_only_a_try = self.change.is_none() && self.unused == 0;
        if is_only_a_try {
            *self = Self { rejected_at: self.rejected_at.max(later.rejected_at), ..later.clone() };
        }
        is_only_a_try
    }

    /// Has one of `records` [take in](Self::takes_in) `later`. Only those that add hits may change their order.
    pub(super) fn merge(records: &mut [Self], later: &Self, tiers: &[Tier], now: Timestamp) -> bool {
        for earlier in records.iter_mut().rev() {
            if earlier.takes_in(later, tiers, now) {
                return true;
            }
            if !earlier.only_adds() || !later.only_adds() {
                break;
            }
        }
        false
    }

    fn only_adds(&self) -> bool {
        self.change.is_addition() && self.unused == 0 && self.rejected_at == Timestamp::default()
    }

    pub(super) fn has_ended(&self, tiers: &[Tier], now: Timestamp) -> bool {
        tiers.iter().all(|tier| has_ended(tier, self.last_at, now))
    }

    fn append(&mut self, later: &Self) {
        // the store gives the unused hits back first, so those that it has not counted yet are taken back here
        let uncounted = later.unused.min(self.taken());
        self.change.append(negative(uncounted));
        let unused = later.unused - uncounted;
        self.change.floor = self.change.floor.saturating_sub(unused);
        self.change.append_all(later.change);
        self.rejected = self.rejected.saturating_add(later.rejected);
        if unused > 0 {
            let until = later.unused_until;
            self.unused_until = if self.unused == 0 { until } else { self.unused_until.min(until) };
            self.unused = self.unused.saturating_add(unused);
        }
        self.rejected_at = self.rejected_at.max(later.rejected_at);
        if !later.change.is_none() {
            self.last_at = self.last_at.max(later.last_at);
        }
    }

    pub(super) fn report(&self) -> Report {
        Report {
            at: self.last_at,
            change: self.change,
            unused: (self.unused > 0).then_some(UnusedHits { hits: self.unused, until: self.unused_until }),
            rejected_at: (self.rejected_at > Timestamp::default()).then_some(self.rejected_at),
        }
    }

    /// As the store applies the report.
    pub(super) fn apply(&self, tier: &Tier, state: &mut CounterState, now: Timestamp) {
        if let CounterState::FixedWindow(window) = state {
            if window.end() == self.last_at.window_end(tier.period) || window.end() <= self.last_at {
                state.add(tier, self.last_at, CountChange::of(negative(self.unused)), now);
                state.add(tier, self.last_at, self.change, now);
            }
            return;
        }
        if self.unused > 0 {
            state.release(tier, now, self.unused_until, Hits(self.unused));
        }
        let rejected = self.rejected_at > Timestamp::default();
        if rejected && self.rejected_at <= self.last_at {
            state.reject(tier, self.rejected_at);
        }
        state.add(tier, self.last_at, self.change, now);
        if rejected && self.rejected_at > self.last_at {
            state.reject(tier, self.rejected_at);
        }
    }
}

// === impl HeldLease ===

impl HeldLease {
    pub(super) fn new(hits: Hits, granted_at: Timestamp, until: Timestamp) -> Self {
        Self { left: saturated(hits.0), has_hold: until > granted_at, granted_at, until }
    }

    pub(super) const fn left(&self) -> Hits {
        Hits(self.left as u64)
    }

    /// `state` is the store's, which counts leased hits.
    pub(super) fn exclude(&self, tier: &Tier, state: &mut CounterState, now: Timestamp) {
        match state {
            CounterState::FixedWindow(window) => {
                if window.end() == self.granted_at.window_end(tier.period) {
                    let at = self.granted_at;
                    state.add(tier, at, CountChange::of(negative(self.left().0)), at);
                }
            }
            _ => state.release(tier, now, self.until, self.left()),
        }
    }
}
