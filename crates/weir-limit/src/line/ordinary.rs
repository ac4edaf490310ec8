//! The part of each period that callers that do not wait may take while others wait.

use crate::{
    tier::Tier,
    units::{Hits, Period, Timestamp},
};

/// The part of callers that cannot wait: as much as they ask for, at most half of each period. It is rounded up to a
/// power of two, so that a demand that rises changes it few times.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OrdinaryPart {
    /// The number of the period since the epoch.
    number: u64,
    /// Hits of ordinary callers in this period and in the one before, whether or not they were admitted.
    asked: u64,
    asked_before: u64,
    used: u64,
    part: u32,
}

/// The callers share its periods.
fn shortest(tiers: &[Tier]) -> Option<&Tier> {
    tiers.iter().min_by_key(|tier| (tier.period, tier.requests))
}

pub(super) fn shared_period(tiers: &[Tier]) -> Period {
    shortest(tiers).map_or(Period::from_nanos(1), |tier| tier.period)
}

// === impl OrdinaryPart ===

impl OrdinaryPart {
    pub(super) const fn part(&self) -> u32 {
        self.part
    }

    pub(super) fn begin(&mut self, tiers: &[Tier], now: Timestamp) -> Option<LineChange> {
        let number = now.as_nanos() / shared_period(tiers).as_nanos();
        if number == self.number {
            return None;
        }
        self.asked_before = if number == self.number + 1 { self.asked } else { 0 };
        (self.asked, self.used, self.number) = (0, 0, number);
        self.set(self.wanted(tiers))
    }

    pub(super) fn ask(&mut self, tiers: &[Tier], hits: Hits, fits: bool) -> Option<LineChange> {
        self.asked = self.asked.saturating_add(hits.0);
        if fits && self.admits(hits) {
            return None;
        }
        self.set(self.wanted(tiers).max(self.part))
    }

    pub(super) fn admits(&self, hits: Hits) -> bool {
        self.used.saturating_add(hits.0) <= u64::from(self.part)
    }

    pub(super) fn take(&mut self, hits: Hits) {
        self.used = self.used.saturating_add(hits.0);
    }

    /// What a first waiter of `hits` must leave: the rest of the part, released evenly, if the waiter still fits.
    pub(super) fn reserve(&self, tiers: &[Tier], capacity: u64, now: Timestamp, hits: Hits) -> Hits {
        let left = u64::from(self.part).saturating_sub(self.used);
        if left == 0 {
            return Hits(0);
        }
        let period = shared_period(tiers).as_nanos();
        let rest = period - now.as_nanos() % period;
        let kept = (u128::from(left) * u128::from(rest)).div_ceil(u128::from(period));
        Hits(u64::try_from(kept).unwrap_or(u64::MAX).min(capacity.saturating_sub(hits.0)))
    }

    fn wanted(&self, tiers: &[Tier]) -> u32 {
        let requests = u128::from(shortest(tiers).map_or(0, |tier| tier.requests));
        // an odd limit gives its odd hit to each side in turn
        let half = |number: u64| requests * u128::from(number) / 2;
        let half = half(self.number + 1) - half(self.number);
        let asked = self.asked.max(self.asked_before).min(1 << 32);
        let asked = if asked == 0 { 0 } else { asked.next_power_of_two() };
        u32::try_from(half.min(asked.into())).unwrap_or(u32::MAX)
    }

    fn set(&mut self, part: u32) -> Option<LineChange> {
        let before = std::mem::replace(&mut self.part, part);
        match part.cmp(&before) {
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(LineChange::Grown),
            std::cmp::Ordering::Less => Some(LineChange::Shrunk),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineChange {
    /// The waiters will get less.
    Grown,
    /// The waiters will get more.
    Shrunk,
}
