//! A member of a pool, in one cycle after the other.

use super::census::Standing;

/// The number of steps whose pace is the pace of now.
const PACE_STEPS: usize = 5;

/// The parts of a hit that a [`Forecast`] counts in.
pub(super) const HIT: u64 = 1 << 20;

/// What a member will have by the end of the cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Forecast {
    pub(super) hits: u32,
    /// The part of one more hit that its demand lets expect, in parts of [`HIT`]. Rounded up for each of many members, a
    /// hit of each would be kept until the last step.
    pub(super) fraction: u64,
    /// Whether that hit may be its own.
    pub(super) has_room: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberState {
    /// The hits that it asked for in the last cycle.
    pub demand: u32,
    /// The hits that it has asked for in this cycle, admitted or not.
    pub asked: u32,
    pub granted: u32,
    /// Its share by now: what it may have by the end of the cycle.
    pub allowance: u32,
    /// Its allowance, as far as it is not above its default: kept for it while it has not asked yet.
    pub own: u32,
    /// Its default, rounded up, but at most its maximum.
    pub default: u32,
    /// The last cycle in which it asked for hits.
    pub last_cycle: u64,
    pub is_new: bool,
    /// The step in which it arrived, if it is new.
    pub arrived_in: u32,
    /// The hits that it was admitted with since it is a member.
    pub admitted_in_all: u64,
    /// The hits that it was rejected with since it is a member.
    pub rejected_in_all: u64,
    /// What it had asked for at the starts of the last steps, the newest first.
    pub(super) past: [u32; PACE_STEPS + 1],
    pub(super) standing: Standing,
}

impl MemberState {
    pub(super) fn arriving(cycle: u64, step: u32) -> Self {
        let standing = Standing { weight: 1, is_named: false };
        Self { last_cycle: cycle, is_new: true, arrived_in: step, standing, ..Self::default() }
    }

    pub(super) fn allow(&mut self, allowance: u32, default: u32) {
        (self.allowance, self.default, self.own) = (allowance, default, allowance.min(default));
    }

    /// Begins the next cycle, `later` cycles after the one of the number `cycle`.
    pub(super) fn begin_cycle(&mut self, cycle: u64, later: u64) {
        if self.asked > 0 {
            self.last_cycle = cycle;
        }
        self.demand = if later == 1 { self.asked } else { 0 };
        (self.asked, self.granted, self.is_new, self.arrived_in) = (0, 0, false, 0);
        self.past = [0; PACE_STEPS + 1];
    }

    /// Begins the step that is `later` steps after the last one.
    pub(super) fn begin_step(&mut self, later: u32) {
        for _ in 0..(later as usize).min(self.past.len()) {
            for i in (1..self.past.len()).rev() {
                self.past[i] = self.past[i - 1];
            }
            self.past[0] = self.asked;
        }
    }

    /// Returns what is kept for it although it has not asked for it yet.
    pub(super) const fn kept(&self) -> u32 {
        self.own.saturating_sub(self.granted)
    }

    /// At the start of `step`: what it was granted, and the larger of what is left of its demand, released in line with
    /// time, and of its pace in the last steps. `default` is the demand of a new member. Beyond it, demand counts up to
    /// twice the pace in this cycle: who asks for nothing borrows nothing.
    pub(super) fn forecast(&self, step: u32, steps: u32, default: u32) -> Forecast {
        let (demand, from) = if self.is_new { (default, self.arrived_in) } else { (self.demand, 0) };
        if step <= from {
            return Forecast { hits: demand.max(self.granted), fraction: 0, has_room: false };
        }
        let [granted, asked, default, step, steps] =
            [self.granted, self.asked, default, step, steps].map(u64::from);
        let demand = u64::from(demand).min(default.max(2 * asked * steps / step));
        let (left, rest) = (steps - step, steps - u64::from(from));
        let released = demand * (left - 1) / (rest - 1);
        let counted = usize::try_from(step).map_or(PACE_STEPS, |step| step.min(PACE_STEPS));
        let asked_in = |steps: usize| u64::from(self.past[0].saturating_sub(self.past[steps]));
        let pace = (asked_in(counted) * left).div_ceil((counted as u64).max(2));
        // a burst that has ended asks for nothing more
        let now = pace.min(2 * asked_in(1) * left);
        let last = demand.saturating_sub(granted).min(released);
        Forecast {
            hits: u32::try_from(granted + last.max(now)).unwrap_or(u32::MAX),
            // half a step's demand more, since it comes at random; but nothing is kept in the last step
            fraction: match left {
                1 => 0,
                _ => (demand * (2 * left + 1) * HIT / (2 * rest) - released * HIT).min(HIT),
            },
            // what was asked for already will not be asked for again
            has_room: demand.saturating_sub(asked) > released && now <= released,
        }
    }
}
