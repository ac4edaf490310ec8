//! A bucket of the model.

use weir_limit::{Refill, Tier};

/// The time in nanoseconds within which hits are reported: longer than any sync interval.
const UNREPORTED: u64 = 2_000_000_000;

/// The tokens that a bucket lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    /// The last change; with steps, the last step.
    pub(crate) since: u64,
    /// In tokens times nanoseconds of the period.
    pub(crate) missing: u128,
    /// Whether a cost has taken more than the bucket holds.
    is_in_debt: bool,
    /// The time at which it may be forgotten, by a limit since the last change.
    full_at: u64,
    /// When it was full last.
    began: u64,
    /// The rate, and whether it has steps, if that was the same since the last change; otherwise zero.
    rate: (u32, bool),
    /// With steps: the end of the period in which hits that were given back have filled it.
    filled_until: u64,
}

/// Returns the rate of a bucket, and whether it has steps.
fn rate(tier: &Tier) -> (u32, bool) {
    (tier.requests, tier.bucket().refill == Refill::Step)
}

// === impl Level ===

impl Level {
    /// A full bucket.
    pub(crate) fn new(now: u64) -> Self {
        Self {
            since: now,
            missing: 0,
            is_in_debt: false,
            full_at: 0,
            began: now,
            rate: (0, false),
            filled_until: 0,
        }
    }

    /// Returns whether it is open what an instance and the shared store know of it: its rate has changed, and one of
    /// them may have forgotten it, or the other one has not received the hits since. Or hits given back have filled it:
    /// if they were taken since the last report, the store sees neither, and goes on with its steps.
    pub(crate) fn is_open(self, tier: &Tier, now: u64) -> bool {
        if self.missing == 0 && now < self.filled_until {
            return true;
        }
        self.missing > 0 && self.rate != rate(tier) && (self.full_at <= now || now < self.began + UNREPORTED)
    }

    /// The tokens that are missing at `since`. If the limit was lowered, as many as the bucket holds at most.
    pub(crate) fn capped(self, tier: &Tier) -> u128 {
        self.missing.min(Self::held(tier) * if self.is_in_debt { 2 } else { 1 })
    }

    fn held(tier: &Tier) -> u128 {
        u128::from(tier.capacity()) * u128::from(tier.period.as_nanos())
    }

    /// Takes `hits`; the debt is at most what the bucket holds.
    pub(crate) fn take(&mut self, tier: &Tier, hits: u64) {
        let missing = self.missing + u128::from(hits) * u128::from(tier.period.as_nanos());
        self.set_missing(tier, missing.min(2 * Self::held(tier)));
    }

    fn set_missing(&mut self, tier: &Tier, missing: u128) {
        (self.missing, self.is_in_debt) = (missing, missing > Self::held(tier));
    }

    /// Whether the next hit is the first one again: the bucket is full, with steps for one period at least.
    pub(crate) fn is_idle(self, tier: &Tier, now: u64) -> bool {
        self.missing == 0 || self.idle_at(tier) <= now
    }

    /// Notes the limit of a check. Nothing else has changed if `is_same`.
    pub(crate) fn note_limit(&mut self, tier: &Tier, is_same: bool) {
        let idle_at = self.idle_at(tier);
        if is_same {
            self.full_at = self.full_at.min(idle_at);
            self.rate = if self.rate == rate(tier) { self.rate } else { (0, false) };
        } else {
            (self.full_at, self.rate) = (idle_at, rate(tier));
        }
    }

    pub(crate) fn idle_at(self, tier: &Tier) -> u64 {
        let full_for = match tier.bucket().refill {
            Refill::Continuous | Refill::AnyPace | Refill::Part(_) => 0,
            Refill::Step => tier.period.as_nanos(),
        };
        self.reaches(tier, 0) + full_for
    }

    /// The bucket at `now`.
    pub(crate) fn at(self, tier: &Tier, now: u64) -> Self {
        if self.is_idle(tier, now) {
            return Self { since: now, missing: 0, is_in_debt: false, began: now, ..self };
        }
        let (period, elapsed) = (tier.period.as_nanos(), now.saturating_sub(self.since));
        let credited = match tier.bucket().refill {
            Refill::Continuous | Refill::AnyPace | Refill::Part(_) => elapsed,
            Refill::Step => elapsed - elapsed % period,
        };
        let inflow = u128::from(credited) * u128::from(tier.requests);
        let missing = self.capped(tier).saturating_sub(inflow);
        let mut refilled = Self { since: self.since + credited, ..self };
        refilled.set_missing(tier, missing);
        refilled
    }

    /// Adds `hits` that are given back.
    pub(crate) fn give_back(&mut self, tier: &Tier, hits: u64) {
        let given = u128::from(hits) * u128::from(tier.period.as_nanos());
        self.set_missing(tier, self.missing.saturating_sub(given));
        if self.missing == 0 && tier.bucket().refill == Refill::Step {
            self.filled_until = self.since + tier.period.as_nanos();
        }
    }

    /// The time at which at most `room` is missing.
    pub(crate) fn reaches(self, tier: &Tier, room: u128) -> u64 {
        let missing = self.capped(tier).saturating_sub(room);
        let nanos = match tier.bucket().refill {
            Refill::Continuous | Refill::AnyPace | Refill::Part(_) => missing.div_ceil(tier.requests.into()),
            Refill::Step => {
                let period = u128::from(tier.period.as_nanos());
                missing.div_ceil(u128::from(tier.requests) * period) * period
            }
        };
        self.since + u64::try_from(nanos).expect("some years")
    }
}
