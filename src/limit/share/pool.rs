//! One pool in one memory: cycles, steps, newcomers, and lending within a cycle.

use hashbrown::HashMap;

use super::{
    Anonymous, Borrow, Lend, MAX_WEIGHTS, OTHER, Sharing,
    division::{Claim, Division},
    member::MemberState,
};
use crate::limit::units::{Period, Timestamp};

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
    /// How they are shared.
    pub sharing: &'a Sharing,
}

/// A pool: its members, and what they have asked for and were granted.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    pub(super) members: HashMap<Box<str>, MemberState, foldhash::fast::RandomState>,
    /// The number of the cycle, counted from the Unix epoch. None before the first request.
    pub(super) cycle: Option<u64>,
    /// The step of the cycle that the allowances were computed in.
    pub(super) step: u32,
    /// The hits that all members were granted in this cycle.
    pub(super) granted: u32,
    /// The hits that nobody is expected to need: for whoever asks first.
    pub(super) common: u32,
    /// The hits that are kept for members that have not asked for all of their own part.
    pub(super) kept: u64,
    /// The sum of the weights of all members.
    pub(super) weights: u32,
    /// The capacity that the allowances were computed for.
    pub(super) capacity: u32,
    /// The hits that all members were granted in the last cycle with any.
    pub(super) granted_before: u32,
    /// The step, so that not every request computes it.
    pub(super) span: Span,
}

/// The instants at which a step begins and ends, and its cycle ends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    from: Timestamp,
    until: Timestamp,
    end: Timestamp,
}

/// The decision about a request of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolDecision {
    /// Whether the hits are admitted, and counted.
    pub is_admitted: bool,
    /// The member's share by now.
    pub share: u32,
    /// What it was granted in this cycle before these hits.
    pub before: u32,
    /// What is left of the share and of the pool afterwards.
    pub remaining: u32,
    /// The time until the cycle ends. What was rejected has a chance then.
    pub reset: Period,
}

// === impl PoolRule ===

impl PoolRule<'_> {
    /// Returns the number of steps of a cycle.
    #[must_use]
    pub fn steps(&self) -> u32 {
        let steps = self.cycle.as_nanos() / MIN_STEP.as_nanos();
        u32::try_from(steps).map_or(MAX_STEPS, |steps| steps.clamp(MIN_STEPS, MAX_STEPS))
    }

    /// Returns the cycle of `now`, and the step of it.
    #[must_use]
    pub fn place(&self, now: Timestamp) -> (u64, u32) {
        let (now, period) = (now.as_nanos(), self.cycle.as_nanos());
        let (cycle, elapsed) = (now / period, now % period);
        let step = u128::from(elapsed) * u128::from(self.steps()) / u128::from(period);
        (cycle, u32::try_from(step).unwrap_or(u32::MAX))
    }

    /// Returns the instants at which the step of `now` begins and ends, and its cycle ends.
    #[must_use]
    pub fn span(&self, now: Timestamp) -> [Timestamp; 3] {
        let (cycle, step) = self.place(now);
        let (period, steps) = (u128::from(self.cycle.as_nanos()), u128::from(self.steps()));
        let start = u128::from(cycle) * period;
        let nanos = |nanos: u128| Timestamp::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let begins = |step: u32| nanos(start + (u128::from(step) * period).div_ceil(steps));
        [begins(step), begins(step + 1), nanos(start + period)]
    }

    /// Returns the capacity that is shared in `step`. The headroom belongs to newcomers, and is released in line with time where shares are
    /// computed anew within the cycle.
    fn shared_in(&self, step: u32) -> u32 {
        let (capacity, headroom) = (u64::from(self.capacity), u64::from(self.sharing.headroom));
        let steps = u64::from(self.steps());
        let held = match self.sharing.lend {
            Lend::WithinCycle if step > 0 => capacity * headroom * (steps - u64::from(step)) / (100 * steps),
            _ => capacity * headroom / 100,
        };
        u32::try_from(capacity.saturating_sub(held)).unwrap_or(u32::MAX)
    }

    /// Returns the reserve in `step`: within a cycle it is lent in line with time, too.
    fn reserve_in(&self, step: u32) -> u32 {
        let (reserve, steps) = (self.sharing.reserve, self.steps());
        match self.sharing.lend {
            Lend::NextCycle => reserve,
            Lend::WithinCycle => reserve * (steps - 1).saturating_sub(step) / (steps - 1),
        }
    }
}

// === impl Pool ===

impl Pool {
    /// Decides about `hits` of the member that `value` names, and counts them if they are admitted. They are demand in any case. If they do
    /// not `fit` elsewhere, they are rejected.
    pub fn decide(
        &mut self,
        rule: &PoolRule<'_>,
        value: &str,
        hits: u32,
        fit: bool,
        now: Timestamp,
    ) -> PoolDecision {
        let reset = self.advance(rule, now);
        self.decide_in_step(rule, value, hits, fit, reset)
    }

    /// Decides like [`Pool::decide`], in the step that has begun last. `reset` is the time until the cycle ends.
    pub fn decide_in_step(
        &mut self,
        rule: &PoolRule<'_>,
        value: &str,
        hits: u32,
        fit: bool,
        reset: Period,
    ) -> PoolDecision {
        if value.is_empty() && rule.sharing.anonymous != Anonymous::Share {
            let is_admitted = rule.sharing.anonymous == Anonymous::Allow;
            return PoolDecision { is_admitted, share: 0, before: 0, remaining: 0, reset };
        }
        let left = rule.capacity.saturating_sub(self.granted);
        if !self.members.contains_key(value) {
            let name = self.place(rule, value);
            if name != value {
                return self.decide_in_step(rule, name, hits, fit, reset);
            }
        }
        let Some(member) = self.members.get_mut(value) else { unreachable!("it has a place") };
        member.asked = member.asked.saturating_add(hits);
        let before = member.granted;
        let after = u64::from(before) + u64::from(hits);
        let max = rule.sharing.max.unwrap_or(u32::MAX);
        let mut from_common = 0;
        let is_admitted = fit && hits <= left && after <= u64::from(max) && {
            let own = u64::from(member.own);
            let lends = rule.sharing.lend == Lend::WithinCycle && rule.sharing.borrow != Borrow::None;
            // what is kept for the others
            let kept = self.kept - u64::from(member.kept());
            let is_free = || u64::from(hits) + kept <= u64::from(left);
            if after <= own {
                true
            } else if !lends {
                after <= u64::from(member.allowance)
            } else if !is_free() {
                false
            } else if after <= u64::from(member.default) || after <= u64::from(member.allowance) {
                true
            } else {
                from_common = hits;
                hits <= self.common
            }
        };
        let total = if is_admitted { &mut member.admitted_in_all } else { &mut member.rejected_in_all };
        *total = total.saturating_add(hits.into());
        if is_admitted {
            let kept = member.kept();
            member.granted += hits;
            self.granted += hits;
            self.kept -= u64::from(kept - member.kept());
            self.common -= from_common;
        }
        let share = member.allowance.max(member.granted);
        let left = rule.capacity.saturating_sub(self.granted);
        PoolDecision { is_admitted, share, before, remaining: (share - member.granted).min(left), reset }
    }

    /// Returns how the member that `value` names stands. It is no demand, and nobody gets a place by it.
    pub fn look(&mut self, rule: &PoolRule<'_>, value: &str, now: Timestamp) -> PoolDecision {
        let reset = self.advance(rule, now);
        let left = rule.capacity.saturating_sub(self.granted);
        let member = self.members.get(value).or_else(|| self.members.get(OTHER));
        let (share, before) =
            member.map_or((left, 0), |member| (member.allowance.max(member.granted), member.granted));
        let remaining = (share - before).min(left);
        PoolDecision { is_admitted: remaining > 0, share, before, remaining, reset }
    }

    /// Gives back `hits` that the member that `value` names was granted in this cycle.
    pub fn give_back(&mut self, rule: &PoolRule<'_>, value: &str, hits: u32, now: Timestamp) {
        self.advance(rule, now);
        let name = if self.members.contains_key(value) { value } else { OTHER };
        if let Some(member) = self.members.get_mut(name) {
            let hits = hits.min(member.granted);
            let kept = member.kept();
            member.granted -= hits;
            self.granted -= hits;
            self.kept += u64::from(member.kept() - kept);
        }
    }

    /// Returns its members by name, in no order, as of the last request.
    #[must_use]
    pub fn members(&self) -> impl ExactSizeIterator<Item = (&str, &MemberState)> {
        self.members.iter().map(|(name, member)| (&**name, member))
    }

    /// Returns the member `name`.
    #[must_use]
    pub fn member(&self, name: &str) -> Option<&MemberState> {
        self.members.get(name)
    }

    /// Returns whether `name` is a member.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.members.contains_key(name)
    }

    /// Returns the sum of the weights of all members.
    #[must_use]
    pub const fn weights(&self) -> u32 {
        self.weights
    }

    /// Returns the hits that all members were granted in the cycle of the last request.
    #[must_use]
    pub const fn granted(&self) -> u32 {
        self.granted
    }

    /// Returns the hits that all members were granted in the last cycle, and the capacity.
    #[must_use]
    pub const fn usage(&self) -> (u32, u32) {
        (self.granted_before, self.capacity)
    }

    /// Returns the number of the cycle of the last request, counted from the Unix epoch.
    #[must_use]
    pub const fn cycle(&self) -> Option<u64> {
        self.cycle
    }

    /// Returns the instant from which it is no different from a new pool, if the last request was demand.
    #[must_use]
    pub fn idle_at(&self, rule: &PoolRule<'_>) -> Timestamp {
        let Some(cycle) = self.cycle else { return Timestamp::default() };
        let forgotten = cycle + u64::from(rule.sharing.forget_after) + 1;
        Timestamp::from_nanos(forgotten.saturating_mul(rule.cycle.as_nanos()))
    }

    /// Begins the cycle and the step of `now`, if they have not begun. Returns the time until the cycle ends.
    pub fn advance(&mut self, rule: &PoolRule<'_>, now: Timestamp) -> Period {
        let Span { from, until, end } = self.span;
        if from <= now && now < until && self.capacity == rule.capacity {
            return end.since(now);
        }
        let (mut cycle, mut step) = rule.place(now);
        match self.cycle {
            // a clock that steps back does not bring a cycle back, nor a step of it
            Some(current) if cycle < current => (cycle, step) = (current, self.step),
            Some(current) if cycle == current => step = step.max(self.step),
            _ => {}
        }
        if self.cycle != Some(cycle) {
            self.begin_cycle(rule, cycle, step);
        } else if self.step != step || self.capacity != rule.capacity {
            let later = step - self.step;
            self.step = step;
            self.members.values_mut().for_each(|member| member.begin_step(later));
            if rule.sharing.lend == Lend::WithinCycle || self.capacity != rule.capacity {
                self.allow(rule);
            }
        }
        if rule.place(now) == (cycle, step) {
            let [from, until, end] = rule.span(now);
            self.span = Span { from, until, end };
        }
        let end = (cycle + 1).saturating_mul(rule.cycle.as_nanos());
        Timestamp::from_nanos(end).since(now)
    }

    pub(super) fn begin_cycle(&mut self, rule: &PoolRule<'_>, cycle: u64, step: u32) {
        if let Some(last) = self.cycle {
            self.members.retain(|_, member| {
                member.begin_cycle(last, cycle - last);
                cycle - member.last_cycle <= u64::from(rule.sharing.forget_after)
            });
        }
        self.granted_before = self.granted;
        (self.cycle, self.step, self.granted) = (Some(cycle), step, 0);
        self.weights = self.members.keys().map(|name| rule.sharing.weight(name)).sum();
        self.allow(rule);
        for member in self.members.values_mut() {
            member.first_share = member.allowance;
        }
    }

    /// Returns the name of the member that `value` is, or is part of, which has a place then.
    fn place<'a>(&mut self, rule: &PoolRule<'_>, value: &'a str) -> &'a str {
        let sharing = rule.sharing;
        if self.members.contains_key(value) {
            return value;
        }
        let weight = sharing.weight(value);
        let taken =
            self.members.keys().filter(|name| !sharing.weights.contains_key(*name) && &***name != OTHER);
        let has_place = sharing.weights.contains_key(value)
            || (taken.count() as u64 + 1 < u64::from(sharing.max_members)
                // the default of everybody is one hit at least
                && self.weights + weight <= rule.capacity.min(MAX_WEIGHTS));
        let name = if has_place { value } else { OTHER };
        if !self.members.contains_key(name) {
            self.weights += sharing.weight(name);
            let arriving = MemberState::arriving(self.cycle.unwrap_or_default(), self.step);
            self.members.insert(name.into(), arriving);
            self.allow(rule);
            if let Some(member) = self.members.get_mut(name) {
                member.first_share = member.allowance;
            }
        }
        name
    }

    /// Computes the allowances anew, from what everybody was granted and will ask for.
    pub(super) fn allow(&mut self, rule: &PoolRule<'_>) {
        let sharing = rule.sharing;
        let (step, steps, within) = (self.step, rule.steps(), sharing.lend == Lend::WithinCycle);
        let has_newcomer = self.members.values().any(|member| member.is_new);
        // the headroom is for newcomers
        let capacity = if has_newcomer && !within { rule.capacity } else { rule.shared_in(step) };
        let division = Division {
            borrow: sharing.borrow,
            capacity: capacity.max(self.granted),
            reserve: rule.reserve_in(step),
            cycle: self.cycle.unwrap_or_default(),
        };
        let claim = |name, member: &MemberState, demand| Claim {
            name,
            weight: sharing.weight(name),
            demand,
            min: sharing.min,
            max: sharing.max,
            granted: member.granted,
            is_new: member.is_new,
        };
        let mut claims: Vec<Claim<'_>> =
            self.members.iter().map(|(name, member)| claim(&**name, member, member.demand)).collect();
        let defaults = division.default_shares(&claims);
        for ((member, claim), default) in self.members.values().zip(&mut claims).zip(&defaults) {
            if within {
                claim.demand = member.forecast(step, steps, *default);
            } else if member.is_new {
                claim.demand = *default;
            }
        }
        // the exact numbers of the rule, unless somebody was granted more already
        let exact = (!within).then(|| division.shares(&claims));
        let exact =
            exact.filter(|shares| claims.iter().zip(shares).all(|(claim, share)| claim.granted <= *share));
        let shares = exact.unwrap_or_else(|| division.allowances(&claims, !within));
        let allowed: u64 = shares.iter().copied().map(u64::from).sum();
        let lends = within && sharing.borrow != Borrow::None;
        self.common =
            if lends { u32::try_from(u64::from(capacity).saturating_sub(allowed)).unwrap_or(0) } else { 0 };
        self.kept = 0;
        for ((member, share), default) in self.members.values_mut().zip(shares).zip(defaults) {
            (member.allowance, member.default, member.own) = (share, default, share.min(default));
            self.kept += u64::from(member.kept());
        }
        self.capacity = rule.capacity;
    }
}
