use super::{Lend, Sharing};
use crate::units::{Period, Timestamp};

/// The most steps of a cycle, the fewest, and the least time of one.
const MAX_STEPS: u32 = 20;
const MIN_STEPS: u32 = 2;
const MIN_STEP: Period = Period::from_millis(100);

/// What a pool is asked under: it may change between two requests.
#[derive(Clone, Copy, Debug)]
pub struct PoolRule<'a> {
    /// The hits of all members in a cycle.
    pub capacity: u32,
    /// The time of a cycle, which begins at a multiple of it since the Unix epoch.
    pub cycle: Period,
    pub sharing: &'a Sharing,
}

// === impl PoolRule ===

impl PoolRule<'_> {
    pub fn steps(&self) -> u32 {
        let steps = self.cycle.as_nanos() / MIN_STEP.as_nanos();
        u32::try_from(steps).map_or(MAX_STEPS, |steps| steps.clamp(MIN_STEPS, MAX_STEPS))
    }

    /// Returns the cycle of `now`, and the step of it.
    pub fn place(&self, now: Timestamp) -> (u64, u32) {
        let (now, period) = (now.as_nanos(), self.cycle.as_nanos());
        let (cycle, elapsed) = (now / period, now % period);
        let step = u128::from(elapsed) * u128::from(self.steps()) / u128::from(period);
        (cycle, u32::try_from(step).unwrap_or(u32::MAX))
    }

    /// Returns the instants at which the step of `now` begins and ends, and its cycle ends.
    pub fn span(&self, now: Timestamp) -> [Timestamp; 3] {
        let (cycle, step) = self.place(now);
        let (period, steps) = (u128::from(self.cycle.as_nanos()), u128::from(self.steps()));
        let start = u128::from(cycle) * period;
        let nanos = |nanos: u128| Timestamp::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let begins = |step: u32| nanos(start + (u128::from(step) * period).div_ceil(steps));
        [begins(step), begins(step + 1), nanos(start + period)]
    }

    /// The headroom belongs to newcomers; where shares are computed within the cycle, it is released in line with time.
    pub(super) fn shared_in(&self, step: u32) -> u32 {
        let (capacity, headroom) = (u64::from(self.capacity), u64::from(self.sharing.headroom));
        let steps = u64::from(self.steps());
        let held = match self.sharing.lend {
            Lend::WithinCycle if step > 0 => capacity * headroom * (steps - u64::from(step)) / (100 * steps),
            _ => capacity * headroom / 100,
        };
        u32::try_from(capacity.saturating_sub(held)).unwrap_or(u32::MAX)
    }

    /// Returns the capacity that is shared in `step`, with that of newcomers if there are any.
    pub(super) fn shared_with(&self, newcomers: bool, step: u32) -> u32 {
        let is_all = newcomers && self.sharing.lend == Lend::NextCycle;
        if is_all { self.capacity } else { self.shared_in(step) }
    }

    /// Within a cycle it is lent in line with time.
    pub(super) fn reserve_in(&self, step: u32) -> u32 {
        let (reserve, steps) = (self.sharing.reserve, self.steps());
        match self.sharing.lend {
            Lend::NextCycle => reserve,
            Lend::WithinCycle => reserve * (steps - 1).saturating_sub(step) / (steps - 1),
        }
    }
}
