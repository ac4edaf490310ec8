//! Pools that many instances share: what the store has counted of all members, and the shares that an instance computes
//! from it.

use super::{Account, Borrow, Lend, OTHER, Pool, PoolRule, Terms, census::Standing, member::MemberState};

/// What the store of a pool has counted in one cycle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolTable {
    /// The number of the cycle, counted from the Unix epoch.
    pub cycle: u64,
    /// What was granted to all members. [`Account::granted`] is 0.
    pub account: Account,
    /// The last step for which an instance said what is kept for owners. None in this cycle.
    pub kept_in: Option<u32>,
    /// Whether it has the demand of each member.
    pub has_demands: bool,
    /// Reported hits that were dropped, because they came too late to be demand.
    pub dropped: u64,
    /// The members, in any order.
    pub members: Vec<MemberCounts>,
}

/// What the store has counted of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberCounts {
    /// Its name.
    pub name: Box<str>,
    /// The hits that it asked for in the last cycle; 0 unless the table [has demands](PoolTable::has_demands).
    pub demand: u32,
    /// The hits that it has asked for in this cycle.
    pub asked: u32,
    /// The hits that it was granted in this cycle.
    pub granted: u32,
    /// The last cycle in which it asked for hits.
    pub last_cycle: u64,
    /// Whether this is its first cycle.
    pub is_new: bool,
}

impl Pool {
    /// Returns the pool that `table` describes, as of `step` of its cycle. What this pool knows besides stays: the pace
    /// of its members in the last steps, and the totals.
    #[must_use]
    pub fn adopt(&self, rule: &PoolRule<'_>, table: &PoolTable, step: u32) -> Self {
        let is_same_cycle = self.cycle == Some(table.cycle);
        let step = if is_same_cycle { step.max(self.step) } else { step };
        let later = if is_same_cycle { step - self.step } else { step };
        let mut adopted = Self {
            cycle: Some(table.cycle),
            step,
            granted: table.account.total,
            is_beside: self.is_beside,
            ..Self::default()
        };
        for counts in &table.members {
            let before = self.members.get(&counts.name);
            let known = before.filter(|_| is_same_cycle);
            let mut member = known.cloned().unwrap_or_else(|| MemberState::arriving(table.cycle, step));
            if known.is_none() || later > 0 {
                member.begin_step(later);
                member.past[0] = counts.asked;
            }
            if table.has_demands {
                member.demand = counts.demand;
            }
            (member.asked, member.granted, member.is_new) = (counts.asked, counts.granted, counts.is_new);
            member.last_cycle = counts.last_cycle;
            if let Some(before) = before {
                member.admitted_in_all = before.admitted_in_all;
                member.rejected_in_all = before.rejected_in_all;
            }
            adopted.members.insert(&counts.name, member);
        }
        adopted.allow(rule);
        adopted
    }

    /// Returns the pool at the start of the next cycle, as far as it is known now.
    #[must_use]
    pub fn next(&self, rule: &PoolRule<'_>) -> Self {
        let mut next = Self { computing: None, ..self.clone() };
        if let Some(cycle) = self.cycle {
            next.begin_cycle(rule.sharing.forget_after, cycle + 1, 0);
            next.allow(rule);
        }
        next
    }

    /// Begins `cycle` with the shares of the last one.
    pub fn turn(&mut self, rule: &PoolRule<'_>, cycle: u64) {
        self.begin_cycle(rule.sharing.forget_after, cycle, 0);
    }

    /// Returns what the store is told of the member `name`. A member that is not known yet may have its default at
    /// once, or what [`OTHER`] has if there is no place for it.
    #[must_use]
    pub fn terms(&self, rule: &PoolRule<'_>, name: &str) -> Terms {
        let (capacity, sharing) = (rule.capacity, rule.sharing);
        let lends = sharing.lend == Lend::WithinCycle && sharing.borrow != Borrow::None;
        let max = sharing.max.unwrap_or(u32::MAX);
        let shared = || {
            let has_place = self.has_place(rule, Standing::of(name, sharing));
            if has_place { None } else { self.members.get(OTHER) }
        };
        let known = self.members.get(name).or_else(shared).map(|member| {
            (member.own, member.default, member.allowance.saturating_add(self.common).min(max))
        });
        let (own, default, limit) = known.unwrap_or_else(|| {
            let weight = u64::from(sharing.weight(name));
            let default = u64::from(capacity) * weight / (u64::from(self.weights()) + weight);
            let default = u32::try_from(default).unwrap_or(u32::MAX).max(1).max(sharing.min).min(max);
            (default, default, default)
        });
        if lends {
            Terms { capacity, own, default, limit }
        } else {
            Terms { capacity, own: 0, default: 0, limit }
        }
    }

    /// Returns the hits that are kept for members that have not asked for all of their own part.
    #[must_use]
    pub const fn kept(&self) -> u64 {
        self.kept
    }

    /// Adds hits to what the member `name` has asked for and was granted, if it is known.
    pub fn add(&mut self, name: &str, asked: u32, granted: i64) {
        if let Some(place) = self.members.place(name) {
            let member = self.members.at_mut(place);
            member.asked = member.asked.saturating_add(asked);
            self.grant(place, granted);
        } else {
            let total = i64::from(self.granted).saturating_add(granted).max(0);
            self.granted = u32::try_from(total).unwrap_or(u32::MAX);
        }
    }

    /// Begins with members that had this demand in the last cycle, in the cycle and the step of `at`. They have their
    /// defaults until shares are computed.
    pub fn seed<'a>(
        &mut self,
        rule: &PoolRule<'_>,
        members: impl Iterator<Item = (&'a str, u32)>,
        at: crate::limit::Timestamp,
    ) {
        let (cycle, step) = rule.place(at);
        (self.cycle, self.step) = (Some(cycle), step);
        for (name, demand) in members {
            let standing = Standing::of(name, rule.sharing);
            let arriving = MemberState::arriving(cycle, step);
            let member = MemberState { demand, is_new: false, arrived_in: 0, standing, ..arriving };
            self.members.insert(name, member);
        }
        self.count();
        self.allow_defaults(rule);
        self.share(rule);
    }
}
