//! One pool in one memory: cycles, steps, newcomers, and lending within a cycle.

use std::sync::Arc;

use super::{
    Anonymous, Borrow, Lend, MAX_WEIGHTS, OTHER, Sharing,
    census::{Census, Standing},
    computation::{Computation, ComputationId, SharePosition, Shares, compute},
    division::Division,
    member::MemberState,
    members::PoolMembers,
    rule::PoolRule,
};
use crate::units::{Period, Timestamp};

/// With so few members, a decision computes shares itself, also in a [concurrent](Pool::concurrent) pool: to wake a
/// thread costs as much.
pub const AT_ONCE: usize = 16;

/// A pool: its members, and what they have asked for and were granted.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    pub(super) members: PoolMembers,
    /// Counted from the Unix epoch. None before the first request.
    pub(super) cycle: Option<u64>,
    pub(super) step: u32,
    pub(super) granted: u32,
    /// The hits that nobody is expected to need: for whoever asks first.
    pub(super) common: u32,
    /// The hits that are kept for members that have not asked for all of their own part.
    pub(super) kept: u64,
    pub(super) census: Census,
    /// The capacity that the allowances are for, or will be.
    pub(super) capacity: u32,
    pub(super) granted_before: u32,
    /// The step, so that not every request computes it.
    pub(super) span: StepSpan,
    pub(super) is_beside: bool,
    /// Whether shares have to be computed, and whether somebody does.
    pub(super) is_due: bool,
    pub(super) computing: Option<ComputationId>,
}

/// The instants at which a step begins and ends, and its cycle ends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepSpan {
    from: Timestamp,
    until: Timestamp,
    end: Timestamp,
}

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

// === impl Pool ===

impl Pool {
    /// Returns an empty pool that many threads use: with more than [`AT_ONCE`] members, shares are computed beside
    /// decisions. Until then these follow the shares in force, and a new member has its default. The caller asks
    /// [`Pool::is_due`] after each call, and brings what [`Pool::begin_shares`] returns back to [`Pool::install`].
    pub fn concurrent() -> Self {
        Self { is_beside: true, ..Self::default() }
    }

    /// Decides about `hits` of the member of `value`: demand in any case, and rejected unless they `fit` elsewhere.
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
        let place = self.place_for(rule, value);
        let member = self.members.at_mut(place);
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
        self.look_in_step(rule, value, reset)
    }

    /// Looks like [`Pool::look`], in the step that has begun last. `reset` is the time until the cycle ends.
    pub fn look_in_step(&self, rule: &PoolRule<'_>, value: &str, reset: Period) -> PoolDecision {
        let left = rule.capacity.saturating_sub(self.granted);
        let member = self.members.get(value).or_else(|| self.members.get(OTHER));
        let (share, before) =
            member.map_or((left, 0), |member| (member.allowance.max(member.granted), member.granted));
        let remaining = (share - before).min(left);
        PoolDecision { is_admitted: remaining > 0, share, before, remaining, reset }
    }

    /// Gives back `hits` that the member that `value` names was granted in this cycle. Returns those that it had.
    pub fn give_back(&mut self, rule: &PoolRule<'_>, value: &str, hits: u32, now: Timestamp) -> i64 {
        self.advance(rule, now);
        self.place_of(value).map_or(0, |place| -self.grant(place, -i64::from(hits)))
    }

    /// Undoes a `change` of what the member that `value` names was granted, in the cycle of the last request.
    pub fn undo(&mut self, value: &str, change: i64) {
        if let Some(place) = self.place_of(value) {
            self.grant(place, -change);
        }
    }

    fn place_of(&self, value: &str) -> Option<usize> {
        self.members.place(value).or_else(|| self.members.place(OTHER))
    }

    /// Never below zero. Returns the change.
    pub(super) fn grant(&mut self, place: usize, hits: i64) -> i64 {
        let member = self.members.at_mut(place);
        let (granted, kept) = (member.granted, member.kept());
        let after = i64::from(granted).saturating_add(hits).max(0);
        member.granted = u32::try_from(after).unwrap_or(u32::MAX);
        self.kept = self.kept + u64::from(member.kept()) - u64::from(kept);
        self.granted = if member.granted < granted {
            self.granted.saturating_sub(granted - member.granted)
        } else {
            self.granted.saturating_add(member.granted - granted)
        };
        i64::from(member.granted) - i64::from(granted)
    }

    /// Returns its members by name, in no order, as of the last request.
    pub fn members(&self) -> impl ExactSizeIterator<Item = (&str, &MemberState)> {
        self.members.iter()
    }

    pub fn copied(&self) -> Vec<(Arc<str>, MemberState)> {
        self.members.row().to_vec()
    }

    pub fn member(&self, name: &str) -> Option<&MemberState> {
        self.members.get(name)
    }

    pub fn has(&self, name: &str) -> bool {
        self.members.place(name).is_some()
    }

    /// Returns the hits that all members were granted in the cycle of the last request.
    pub const fn granted(&self) -> u32 {
        self.granted
    }

    /// Returns the hits that all members were granted in the last cycle, and the capacity.
    pub const fn usage(&self) -> (u32, u32) {
        (self.granted_before, self.capacity)
    }

    /// Returns the number of the cycle of the last request, counted from the Unix epoch.
    pub const fn cycle(&self) -> Option<u64> {
        self.cycle
    }

    /// Returns the instant from which it is no different from a new pool, if the last request was demand.
    pub fn idle_at(&self, rule: &PoolRule<'_>) -> Timestamp {
        let Some(cycle) = self.cycle else { return Timestamp::default() };
        let forgotten = cycle + u64::from(rule.sharing.forget_after) + 1;
        Timestamp::from_nanos(forgotten.saturating_mul(rule.cycle.as_nanos()))
    }

    /// Begins the cycle and the step of `now`, if they have not begun. Returns the time until the cycle ends.
    pub fn advance(&mut self, rule: &PoolRule<'_>, now: Timestamp) -> Period {
        let StepSpan { from, until, end } = self.span;
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
            self.begin_cycle(rule.sharing.forget_after, cycle, step);
            self.share(rule);
        } else if self.step != step || self.capacity != rule.capacity {
            let later = step - self.step;
            self.step = step;
            self.members.iter_mut().for_each(|(_, member)| member.begin_step(later));
            if rule.sharing.lend == Lend::WithinCycle || self.capacity != rule.capacity {
                self.share(rule);
            }
        }
        if rule.place(now) == (cycle, step) {
            let [from, until, end] = rule.span(now);
            self.span = StepSpan { from, until, end };
        }
        Timestamp::from_nanos((cycle + 1).saturating_mul(rule.cycle.as_nanos())).since(now)
    }

    /// Keeps the shares of the last cycle. Removes members without demand for more than `forget_after` cycles.
    pub(super) fn begin_cycle(&mut self, forget_after: u32, cycle: u64, step: u32) {
        let last = self.cycle.replace(cycle).unwrap_or(cycle);
        let (census, mut kept) = (&mut self.census, 0);
        self.members.retain(|member| {
            member.begin_cycle(last, cycle.saturating_sub(last));
            let stays = cycle.saturating_sub(member.last_cycle) <= u64::from(forget_after);
            if stays {
                kept += u64::from(member.kept());
            } else {
                census.remove(member.standing);
            }
            stays
        });
        self.granted_before = self.granted;
        (self.step, self.granted, self.kept) = (step, 0, kept);
    }

    pub(super) fn has_place(&self, rule: &PoolRule<'_>, standing: Standing) -> bool {
        standing.is_named
            || (self.census.unnamed + 1 < rule.sharing.places()
                // the default of everybody is one hit at least
                && self.census.weight() + standing.weight <= rule.capacity.min(MAX_WEIGHTS))
    }

    pub(super) fn place_for(&mut self, rule: &PoolRule<'_>, value: &str) -> usize {
        self.members.place(value).unwrap_or_else(|| self.welcome(rule, value))
    }

    /// Returns the place of a new member, or of [`OTHER`] if no new one fits.
    #[cold]
    fn welcome(&mut self, rule: &PoolRule<'_>, value: &str) -> usize {
        let sharing = rule.sharing;
        let standing = Standing::of(value, sharing);
        let name = if self.has_place(rule, standing) { value } else { OTHER };
        if let Some(place) = self.members.place(name) {
            return place;
        }
        let standing = Standing::of(name, sharing);
        let arriving = MemberState::arriving(self.cycle.unwrap_or_default(), self.step);
        let place = self.members.insert(name, MemberState { standing, ..arriving });
        self.census.add(standing);
        self.share(rule);
        if self.is_due {
            self.allow_default(rule, place);
        }
        place
    }

    /// Until shares are computed, a new member has its default.
    pub(super) fn allow_default(&mut self, rule: &PoolRule<'_>, place: usize) {
        let default = self.default_of(rule, self.members.row()[place].1.standing.weight);
        let left = rule.capacity.saturating_sub(self.granted);
        let member = self.members.at_mut(place);
        member.allow(default.min(left), default);
        self.kept += u64::from(member.kept());
    }

    fn default_of(&self, rule: &PoolRule<'_>, weight: u32) -> u32 {
        let sharing = rule.sharing;
        let division = Division {
            borrow: sharing.borrow,
            capacity: rule.shared_with(true, self.step).max(self.granted),
            reserve: sharing.reserve,
            cycle: self.cycle.unwrap_or_default(),
        };
        division.default_by_weight(&self.census.weights, weight, sharing.min, sharing.max)
    }

    pub(super) fn share(&mut self, rule: &PoolRule<'_>) {
        if self.is_beside && self.members.len() > AT_ONCE {
            (self.capacity, self.is_due) = (rule.capacity, true);
        } else {
            self.allow(rule);
        }
    }

    /// Computes the shares anew, from what everybody was granted and will ask for.
    pub(super) fn allow(&mut self, rule: &PoolRule<'_>) {
        (self.capacity, self.is_due) = (rule.capacity, false);
        let shares = compute(rule, self.position(), self.members.row());
        self.apply(shares);
    }

    fn position(&self) -> SharePosition {
        SharePosition { cycle: self.cycle.unwrap_or_default(), step: self.step, granted: self.granted }
    }

    /// Returns whether shares are to be computed, and nobody does.
    pub const fn is_due(&self) -> bool {
        self.is_due && self.computing.is_none()
    }

    pub const fn is_computing(&self) -> bool {
        self.computing.is_some()
    }

    /// Begins to compute shares, if [`Pool::is_due`]. Copies all members, some ten instructions for each.
    pub fn begin_shares(
        &mut self,
        capacity: u32,
        cycle: Period,
        sharing: &Arc<Sharing>,
    ) -> Option<Computation> {
        if !self.is_due() {
            return None;
        }
        let id = ComputationId::next();
        (self.is_due, self.computing) = (false, Some(id));
        let position = self.position();
        let (members, sharing) = (self.members.row().to_vec(), Arc::clone(sharing));
        Some(Computation { id, members, position, capacity, cycle, sharing })
    }

    /// Installs the shares that this pool has begun last, unless another cycle has begun. Ignores those of other pools.
    pub fn install(&mut self, shares: Shares) {
        if shares.id.is_none() || self.computing != shares.id {
            return;
        }
        self.computing = None;
        if self.cycle == Some(shares.cycle) {
            self.apply(shares);
        }
    }

    /// Checks its sums, for tests.
    pub fn assert_invariants(&self) {
        let (mut kept, mut census) = (0, Census::default());
        for (_, member) in self.members.iter() {
            kept += u64::from(member.kept());
            census.add(member.standing);
        }
        assert_eq!((self.kept, &self.census), (kept, &census));
    }

    fn apply(&mut self, shares: Shares) {
        let Shares { parts, common, census, .. } = shares;
        (self.common, self.census, self.kept) = (common, census, 0);
        let all = parts.len();
        for ((_, member), part) in self.members.iter_mut().zip(parts) {
            member.allow(part.allowance, part.default);
            member.standing = part.standing;
            self.kept += u64::from(member.kept());
        }
        // those that have come since
        for (_, member) in &self.members.row()[all..] {
            self.kept += u64::from(member.kept());
            self.census.add(member.standing);
        }
    }
}
