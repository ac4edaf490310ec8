//! The pools of the simulated store: what `pool.lua` does in Redis.

use std::collections::{BTreeMap, HashMap};

use smallvec::SmallVec;

use crate::{
    limit::{
        Period, Timestamp,
        share::{Account, MemberCounts, OTHER, PoolTable},
    },
    store::pool_command::{
        LATE_PART, Leased, MAX_POOL_AHEAD, PoolCommand, PoolMember, PoolOp, PoolOutcome, PoolReport,
    },
};

/// The pools of a store. The caller passes the time.
#[derive(Debug, Default)]
pub struct SimulatedPools {
    pools: HashMap<(Box<str>, Period), StoredPool>,
}

/// A pool: its last two cycles, and its members.
#[derive(Debug, Default)]
struct StoredPool {
    cycles: BTreeMap<u64, StoredCycle>,
    members: BTreeMap<Box<str>, Membership>,
    /// What the last command said.
    places: u32,
    forget_after: u64,
}

#[derive(Debug, Default)]
struct StoredCycle {
    account: Account,
    kept_in: Option<u32>,
    /// Whether members that are forgotten were removed in it.
    is_cleaned: bool,
    members: BTreeMap<Box<str>, Counts>,
}

/// What a member has asked for and was granted in a cycle.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    asked: u32,
    granted: u32,
}

/// When a member had demand.
#[derive(Clone, Copy, Debug)]
struct Membership {
    /// The last cycle with demand.
    last: u64,
    /// The first one.
    since: u64,
}

// === impl SimulatedPools ===

impl SimulatedPools {
    /// Removes all pools.
    pub fn clear(&mut self) {
        self.pools.clear();
    }

    /// Carries out `command` at `now`.
    pub fn execute(&mut self, command: PoolCommand, now: Timestamp) -> PoolOutcome {
        let PoolCommand { target, cycle, places, forget_after, op } = command;
        let period = target.tiers[0].period;
        let pool = self.pools.entry((target.path.clone(), period)).or_default();
        let (length, now) = (period.as_nanos(), now.as_nanos());
        let is_ahead = cycle.saturating_mul(length).saturating_sub(now) <= MAX_POOL_AHEAD.min(length / 10);
        let open = if is_ahead { cycle.max(now / length) } else { now / length };
        let is_late_in_time = now.saturating_sub(open * length) <= length / LATE_PART;
        pool.cycles.retain(|stored, _| stored + 1 >= open);
        pool.places = places;
        pool.forget_after = forget_after.into();
        match op {
            PoolOp::Lease { member, asked, terms, tries, ahead, instances } => {
                if cycle + 1 == open && is_late_in_time {
                    pool.report(cycle, &member, asked, 0);
                }
                if cycle != open {
                    return PoolOutcome::OtherCycle(open);
                }
                let (stored, name) = pool.report(cycle, &member, asked, 0);
                let counts = stored.members.entry(name.into()).or_default();
                let mut account = Account { granted: counts.granted, ..stored.account };
                let tries =
                    tries.iter().map(|hits| account.take(&terms, *hits)).collect::<SmallVec<[bool; 4]>>();
                let fit = tries.iter().all(|granted| *granted);
                let ahead = if fit { account.take_ahead(&terms, ahead, instances) } else { 0 };
                let (granted, total) = (account.granted, account.total);
                counts.granted = granted;
                stored.account = Account { granted: 0, ..account };
                PoolOutcome::Leased(Leased { tries, ahead, granted, total })
            }
            PoolOp::Exchange { reports, late, with_demands } => {
                if cycle != open && cycle + 1 != open {
                    return PoolOutcome::OtherCycle(open);
                }
                let mut dropped = 0;
                for (member, asked) in late {
                    if cycle == open && cycle > 0 && is_late_in_time {
                        pool.report(cycle - 1, &member, asked, 0);
                    } else {
                        dropped += u64::from(asked);
                    }
                }
                for PoolReport { member, asked, granted } in reports {
                    if cycle == open {
                        pool.report(cycle, &member, asked, granted);
                    } else if is_late_in_time {
                        pool.report(cycle, &member, asked, 0);
                    } else {
                        dropped += u64::from(asked);
                    }
                }
                PoolOutcome::Table(PoolTable { dropped, ..pool.table(open, with_demands) })
            }
            PoolOp::Keep { .. } if cycle != open => PoolOutcome::OtherCycle(open),
            PoolOp::Keep { step, kept, from_own } => {
                let stored = pool.cycles.entry(open).or_default();
                if stored.kept_in.is_none_or(|last| last < step) {
                    stored.kept_in = Some(step);
                    stored.account.kept =
                        kept.saturating_sub(stored.account.from_own.saturating_sub(from_own));
                }
                PoolOutcome::Kept
            }
        }
    }
}

// === impl StoredPool ===

impl StoredPool {
    /// Counts what `member` has asked for and was granted in `cycle`. Returns the cycle, and the name of the member's
    /// place.
    fn report<'a>(
        &mut self,
        cycle: u64,
        member: &'a PoolMember,
        asked: u32,
        granted: i64,
    ) -> (&mut StoredCycle, &'a str) {
        let has_demand = asked > 0 || granted > 0;
        let known = |name: &str| {
            let member = self.members.get(name);
            member.filter(|member| cycle.saturating_sub(member.last) <= self.forget_after).copied()
        };
        let has_place = known(&member.name).is_some()
            || has_demand && (member.is_named || (self.members.len() as u64) < u64::from(self.places));
        let name = if has_place { &member.name } else { OTHER };
        if has_demand {
            let known = known(name).unwrap_or(Membership { last: cycle, since: cycle });
            self.members.insert(name.into(), Membership { last: known.last.max(cycle), ..known });
        }
        let stored = self.cycles.entry(cycle).or_default();
        let counts = stored.members.entry(name.into()).or_default();
        let change = |hits: u32| {
            let hits = i64::from(hits).saturating_add(granted);
            u32::try_from(hits.max(0)).unwrap_or(u32::MAX)
        };
        counts.asked = counts.asked.saturating_add(asked);
        counts.granted = change(counts.granted);
        stored.account.total = change(stored.account.total);
        (stored, name)
    }

    fn table(&mut self, cycle: u64, with_demands: bool) -> PoolTable {
        let is_member = |member: &Membership| cycle.saturating_sub(member.last) <= self.forget_after;
        if let Some(stored) = self.cycles.get_mut(&cycle).filter(|stored| !stored.is_cleaned) {
            stored.is_cleaned = true;
            self.members.retain(|_, member| is_member(member));
        }
        let counted = |cycle: Option<u64>, name: &str| {
            let stored = cycle.and_then(|cycle| self.cycles.get(&cycle));
            stored.and_then(|stored| stored.members.get(name)).copied().unwrap_or_default()
        };
        let stored = self.cycles.get(&cycle);
        let members =
            self.members.iter().filter(|(_, member)| is_member(member)).map(|(name, membership)| {
                let Counts { asked, granted } = counted(Some(cycle), name);
                let demand = if with_demands { counted(cycle.checked_sub(1), name).asked } else { 0 };
                let (last_cycle, is_new) = (membership.last, membership.since == cycle);
                MemberCounts { name: name.clone(), demand, asked, granted, last_cycle, is_new }
            });
        PoolTable {
            cycle,
            account: stored.map(|stored| stored.account).unwrap_or_default(),
            kept_in: stored.and_then(|stored| stored.kept_in),
            has_demands: with_demands,
            dropped: 0,
            members: members.collect(),
        }
    }
}
