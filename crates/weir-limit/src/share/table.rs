//! Pools that many instances share: what the store has counted of all members, and the shares that an instance computes
//! from it.

use super::{
    Account, Borrow, Lend, OTHER, Pool, PoolRule, Terms,
    census::{Census, Standing},
    member::MemberState,
};

/// What the store of a pool has counted in one cycle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolTable {
    /// The number of the cycle, counted from the Unix epoch.
    pub cycle: u64,
    pub total: u32,
    pub members: Vec<MemberCounts>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberCounts {
    pub name: Box<str>,
    pub demand: u32,
    pub asked: u32,
    pub granted: u32,
    /// The last cycle in which it asked for hits.
    pub last_cycle: u64,
    pub is_new: bool,
}

impl Pool {
    /// Becomes the pool that `table` describes, in `step`. The members' pace in the last steps and the totals stay.
    pub fn adopt(&mut self, rule: &PoolRule<'_>, table: &PoolTable, step: u32) {
        let step = step.max(self.step);
        let later = step - self.step;
        let before = std::mem::take(&mut self.members);
        (self.cycle, self.step, self.granted) = (Some(table.cycle), step, table.total);
        (self.census, self.kept, self.computing) = (Census::default(), 0, None);
        for counts in &table.members {
            let known = before.get(&counts.name);
            let mut member = known.cloned().unwrap_or_else(|| MemberState::arriving(table.cycle, step));
            if known.is_none() || later > 0 {
                member.begin_step(later);
                member.past[0] = counts.asked;
            }
            (member.demand, member.asked, member.granted) = (counts.demand, counts.asked, counts.granted);
            (member.is_new, member.last_cycle) = (counts.is_new, counts.last_cycle);
            member.standing = Standing::of(&counts.name, rule.sharing);
            self.census.add(member.standing);
            self.kept += u64::from(member.kept());
            self.members.insert(&counts.name, member);
        }
        self.share(rule);
        for place in 0..self.members.len() {
            if self.is_due && before.place(&self.members.row()[place].0).is_none() {
                self.allow_default(rule, place);
            }
        }
    }

    /// Begins `cycle` with the shares that are expected from the last one.
    pub fn turn(&mut self, rule: &PoolRule<'_>, cycle: u64) {
        self.computing = None;
        self.begin_cycle(rule.sharing.forget_after, cycle, 0);
        self.share(rule);
    }

    /// Returns the name of the member that `value` is, or is part of. It becomes one if there is a place for it.
    pub fn name_of<'a>(&mut self, rule: &PoolRule<'_>, value: &'a str) -> &'a str {
        let place = self.place_for(rule, value);
        if *self.members.row()[place].0 == *value { value } else { OTHER }
    }

    /// Returns what the store is told of the member `name`, which becomes one if there is a place for it.
    pub fn terms(&mut self, rule: &PoolRule<'_>, name: &str) -> Terms {
        let (capacity, sharing) = (rule.capacity, rule.sharing);
        let place = self.place_for(rule, name);
        let member = &self.members.row()[place].1;
        let limit = member.allowance.saturating_add(self.common).min(sharing.max.unwrap_or(u32::MAX));
        if sharing.lend == Lend::NextCycle || sharing.borrow == Borrow::None {
            return Terms { capacity, own: 0, limit, free: capacity };
        }
        let kept = u32::try_from(self.kept - u64::from(member.kept())).unwrap_or(u32::MAX);
        let free = capacity.saturating_sub(kept);
        Terms { capacity, own: member.own, limit: limit.max(member.default), free }
    }

    /// Returns what all members, and the one of this `name`, were granted in this cycle.
    pub fn account(&self, name: &str) -> Account {
        let granted = self.members.get(name).map_or(0, |member| member.granted);
        Account { total: self.granted, granted }
    }

    /// Learns what the store has granted in this cycle: to the member `name`, and to all.
    pub fn learn(&mut self, name: &str, granted: u32, total: u32) {
        if let Some(place) = self.members.place(name) {
            let change = i64::from(granted) - i64::from(self.members.at_mut(place).granted);
            self.grant(place, change);
        }
        self.granted = total;
    }

    /// Returns the hits that are kept for members that have not asked for all of their own part.
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
}
