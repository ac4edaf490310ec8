//! The pools of the simulated store: what `pools.lua` does in Redis.

use std::collections::{BTreeMap, HashMap};

use smallvec::SmallVec;

use weir_limit::{
    Period, Timestamp,
    share::{Account, MemberCounts, OTHER, PoolTable},
};
use weir_store::pool_command::{
    Leased, MAX_POOL_AHEAD, MemberNews, PoolCommand, PoolMember, PoolOp, PoolOutcome, PoolReport,
};

/// The pools of a store. The caller passes the time.
#[derive(Debug, Default)]
pub struct SimulatedPools {
    pools: HashMap<(Box<str>, Period), StoredPool>,
}

/// A pool: its last two cycles, the next one if a caller whose clock is ahead has begun it, and its members.
#[derive(Debug, Default)]
struct StoredPool {
    cycles: BTreeMap<u64, StoredCycle>,
    members: BTreeMap<Box<str>, SimulatedMembership>,
    places: u32,
    forget_after: u64,
}

#[derive(Debug, Default)]
struct StoredCycle {
    total: u32,
    members: BTreeMap<Box<str>, PoolCounts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct PoolCounts {
    asked: u32,
    granted: u32,
}

#[derive(Clone, Copy, Debug)]
struct SimulatedMembership {
    last: u64,
    since: u64,
}

// === impl SimulatedPools ===

impl SimulatedPools {
    pub fn clear(&mut self) {
        self.pools.clear();
    }

    pub fn execute(&mut self, command: PoolCommand, now: Timestamp) -> PoolOutcome {
        let PoolCommand { target, cycle, places, forget_after, op } = command;
        let period = target.tiers[0].period;
        let pool = self.pools.entry((target.path.clone(), period)).or_default();
        let (length, now) = (period.as_nanos(), now.as_nanos());
        let is_ahead = cycle.saturating_mul(length).saturating_sub(now) <= MAX_POOL_AHEAD.min(length / 10);
        let present = now / length;
        let open = if is_ahead { cycle.max(present) } else { present };
        // not by `open`: callers whose clocks are right still need the demand of the cycle before theirs
        pool.cycles.retain(|stored, _| stored + 1 >= present);
        pool.places = places;
        pool.forget_after = forget_after.into();
        match op {
            _ if cycle != open => PoolOutcome::OtherCycle(open),
            PoolOp::Lease { member, terms, tries, ahead, instances } => {
                let (total, counts) = pool.place(cycle, &member, true);
                let mut account = Account { total: *total, granted: counts.granted };
                let tries =
                    tries.iter().map(|hits| account.take(&terms, *hits)).collect::<SmallVec<[bool; 4]>>();
                let fit = tries.iter().all(|granted| *granted);
                let ahead = if fit { account.take_ahead(&terms, ahead, instances) } else { 0 };
                (*total, counts.granted) = (account.total, account.granted);
                PoolOutcome::Leased(Leased { tries, ahead, granted: account.granted, total: account.total })
            }
            PoolOp::Exchange(reports) => {
                for PoolReport { member, news: MemberNews { late, asked, granted } } in reports {
                    if late > 0 {
                        let (_, counts) = pool.place(cycle.saturating_sub(1), &member, true);
                        counts.asked = counts.asked.saturating_add(late);
                    }
                    let (total, counts) = pool.place(cycle, &member, asked > 0 || granted > 0);
                    counts.asked = counts.asked.saturating_add(asked);
                    for count in [&mut counts.granted, total] {
                        let changed = i64::from(*count).saturating_add(granted).max(0);
                        *count = u32::try_from(changed).unwrap_or(u32::MAX);
                    }
                }
                PoolOutcome::Table(pool.table(cycle))
            }
        }
    }
}

// === impl StoredPool ===

impl StoredPool {
    /// A member that `has_demand` gets a place of its own, if there is one.
    fn place(&mut self, cycle: u64, member: &PoolMember, has_demand: bool) -> (&mut u32, &mut PoolCounts) {
        let known = |name: &str| {
            let member = self.members.get(name);
            member.filter(|member| cycle.saturating_sub(member.last) <= self.forget_after).copied()
        };
        let has_place = known(&member.name).is_some()
            || has_demand && (member.is_named || (self.members.len() as u64) < u64::from(self.places));
        let name = if has_place { &member.name } else { OTHER };
        if has_demand {
            let known = known(name).unwrap_or(SimulatedMembership { last: cycle, since: cycle });
            self.members.insert(name.into(), SimulatedMembership { last: known.last.max(cycle), ..known });
        }
        let StoredCycle { total, members } = self.cycles.entry(cycle).or_default();
        (total, members.entry(name.into()).or_default())
    }

    fn table(&mut self, cycle: u64) -> PoolTable {
        self.members.retain(|_, member| cycle.saturating_sub(member.last) <= self.forget_after);
        let counted = |cycle: Option<u64>, name: &str| {
            let stored = cycle.and_then(|cycle| self.cycles.get(&cycle));
            stored.and_then(|stored| stored.members.get(name)).copied().unwrap_or_default()
        };
        let members = self.members.iter().map(|(name, &SimulatedMembership { last: last_cycle, since })| {
            let PoolCounts { asked, granted } = counted(Some(cycle), name);
            let demand = counted(cycle.checked_sub(1), name).asked;
            MemberCounts { name: name.clone(), demand, asked, granted, last_cycle, is_new: since == cycle }
        });
        let members = members.collect();
        PoolTable { cycle, total: self.cycles.get(&cycle).map_or(0, |stored| stored.total), members }
    }
}
