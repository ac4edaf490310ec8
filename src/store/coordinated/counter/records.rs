//! The records that a local counter keeps: pending hits and held leases, and the outcome of each.

use super::tiers::{all_ended, has_ended, negative, same_windows};
use crate::{
    limit::{
        Hits, Tier, Timestamp,
        algorithm::{CountChange, CounterState, SlidingWindow},
    },
    store::remote::{Report, UnusedHits},
};

/// What was counted here in one window of each fixed tier, and the store has not counted yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    pub(super) left: u64,
    pub(super) granted_at: Timestamp,
    pub(super) until: Timestamp,
}

// === impl Dropped ===

impl Dropped {
    pub(super) const fn add(&mut self, unreported: u64, stranded: u64) {
        self.unreported = self.unreported.saturating_add(unreported);
        self.stranded = self.stranded.saturating_add(stranded);
    }

    pub(super) fn all_of(deltas: &[PendingDelta]) -> Self {
        let mut all = Self::default();
        for delta in deltas {
            all.add(delta.taken(), delta.returned());
        }
        all
    }

    pub(in super::super) const fn all(self) -> u64 {
        self.unreported.saturating_add(self.stranded)
    }
}

// === impl PendingDelta ===

impl PendingDelta {
    /// Negative `hits` are given back.
    pub(super) fn of(hits: i64, at: Timestamp) -> Self {
        Self { at, last_at: at, change: CountChange::of(hits), ..Self::default() }
    }

    /// Hits that were taken at `at` to be used until `until`, and were not.
    pub(super) fn unused(hits: u64, at: Timestamp, until: Timestamp) -> Self {
        Self { unused: hits, unused_until: until, ..Self::of(0, at) }
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

    /// Takes in `later` if both are in the same windows of `tiers`, apart from those that have ended at `now`. Returns
    /// whether it has.
    pub(super) fn takes_in(&mut self, later: &Self, tiers: &[Tier], now: Timestamp) -> bool {
        let is_same_in = |tier: &Tier| {
            let alone = std::slice::from_ref(tier);
            same_windows(alone, self.last_at, later.at) || has_ended(tier, later.last_at, now)
        };
        if !tiers.iter().all(is_same_in) {
            return false;
        }
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
        true
    }

    pub(super) fn only_adds(&self) -> bool {
        self.change.is_addition() && self.unused == 0 && self.rejected_at == Timestamp::default()
    }

    pub(super) fn has_ended(&self, tiers: &[Tier], now: Timestamp) -> bool {
        all_ended(tiers, self.last_at, now)
    }

    fn rejected_at(&self) -> Option<Timestamp> {
        (self.rejected_at > Timestamp::default()).then_some(self.rejected_at)
    }

    pub(super) fn report(&self) -> Report {
        Report {
            at: self.last_at,
            change: self.change,
            unused: (self.unused > 0).then_some(UnusedHits { hits: self.unused, until: self.unused_until }),
            rejected_at: self.rejected_at(),
        }
    }

    pub(super) fn apply_to_all(&self, tiers: &[Tier], states: &mut [CounterState], now: Timestamp) {
        tiers.iter().zip(states).for_each(|(tier, state)| self.apply(tier, state, now));
    }

    /// As the store applies the report.
    pub(super) fn apply(&self, tier: &Tier, state: &mut CounterState, now: Timestamp) {
        match state {
            CounterState::FixedWindow(_) => state.put_back(tier, self.at, self.at, Hits(self.unused)),
            _ => state.release(tier, now, self.unused_until, Hits(self.unused)),
        }
        let try_before = self.rejected_at().filter(|at| *at <= self.last_at);
        let try_after = self.rejected_at().filter(|at| *at > self.last_at);
        if let Some(at) = try_before {
            state.reject(tier, at);
        }
        state.add(tier, self.last_at, self.change, now);
        if let Some(at) = try_after {
            state.reject(tier, at);
        }
    }
}

// === impl HeldLease ===

impl HeldLease {
    pub(super) fn unused(&self) -> PendingDelta {
        PendingDelta::unused(self.left, self.granted_at, self.until)
    }

    /// Takes `leases` off `state`, which is the store's and counts them.
    pub(super) fn exclude(leases: &[Self], tier: &Tier, state: &mut CounterState, now: Timestamp) {
        leases.iter().for_each(|lease| lease.unused().apply(tier, state, now));
        // unused leases have the newest span begin at their end: the next hit begins its own
        if let Some(window) = state.sliding_window().filter(|_| !leases.is_empty())
            && window.spans().last().is_some_and(|span| span.hits == 0)
        {
            let spans = window.spans().iter().filter(|span| span.hits > 0).copied();
            let window = SlidingWindow::new(Timestamp::default(), spans);
            *state = CounterState::from_sliding_window(window, tier);
        }
    }
}
