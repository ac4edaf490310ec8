//! Parts of a limit that follow demand: what a store keeps of one limit, so that an instance with more callers has more
//! of it.
//!
//! Parts move by heartbeats alone. What an instance loses is free for others only when it has acknowledged that it uses
//! the smaller part, so that all parts in use never exceed the limit, whatever is late or lost. Nobody loses anything
//! that nobody else lacks: otherwise the random changes of demand would keep hits on their way that nobody can use.

use std::collections::BTreeMap;

use super::{
    part::Place,
    units::{Period, Timestamp},
};

/// An instance keeps at least the even part divided by this number, while others lack hits.
const LEAST: u64 = 40;

/// An instance lacks hits if more than its due part divided by this number is missing. A smaller lack is noise.
const TOLERANCE: u64 = 32;

/// The parts of one limit. `I` names an instance.
#[derive(Clone, Debug)]
pub struct DemandParts<I> {
    /// The hits that all have together.
    limit: u32,
    /// The hits that nobody has.
    free: u64,
    /// The hits that instances have lost, and may still use.
    pending: u64,
    /// The sum of all demands.
    demand: u64,
    /// The hits that instances lack.
    lack: u64,
    members: BTreeMap<I, Member>,
}

/// What is known of an instance.
#[derive(Clone, Copy, Debug, Default)]
struct Member {
    part: u64,
    pending: u64,
    /// The version of its part that it has to acknowledge before what is pending is free.
    lowered: u64,
    /// The version of its part.
    version: u64,
    /// The hits that were asked for lately, in a window.
    demand: u64,
    lack: u64,
}

/// A limit whose parts follow demand: one fixed window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowedWindow {
    /// The hits in each window.
    pub limit: u32,
    /// The length of a window, in whole milliseconds.
    pub period: Period,
}

/// What an instance says of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// The hits that were asked for lately, in a window.
    pub hits: u32,
    /// The version of the part in the window that is open; 0 if it is the even part.
    pub acknowledged: u64,
}

/// A part, as the store tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DemandPart {
    /// The hits in each window that begins from now on.
    pub hits: u32,
    /// To be acknowledged in such a window.
    pub version: u64,
}

// === impl FollowedWindow ===

impl FollowedWindow {
    /// Returns the number of the limit of a counter that has the number `counter`. Another limit of it has another
    /// number.
    #[must_use]
    pub const fn key(self, counter: u64) -> u64 {
        // odd, so that each limit has a number of its own
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let numbers = self.period.as_nanos().rotate_left(32) ^ self.limit as u64;
        counter ^ numbers.wrapping_mul(SPREAD)
    }

    /// Returns the start of the window that is open at `at`.
    #[must_use]
    pub const fn start(self, at: Timestamp) -> Timestamp {
        Timestamp::from_nanos(at.as_nanos() - at.as_nanos() % self.period.as_nanos())
    }
}

// === impl DemandParts ===

impl<I: Ord> DemandParts<I> {
    /// Creates even parts of `limit` hits for `members`, in the order of their ranks.
    #[must_use]
    pub fn even(limit: u32, members: Vec<I>) -> Self {
        let instances = u32::try_from(members.len()).unwrap_or(u32::MAX);
        let part = |rank: u32| Place::new(instances, rank).map_or(0, |place| place.of_interval(limit));
        let member = |rank| Member { part: part(rank).into(), ..Member::default() };
        let members: BTreeMap<I, Member> =
            (0..instances).zip(members).map(|(rank, name)| (name, member(rank))).collect();
        let given: u64 = members.values().map(|member| member.part).sum();
        let free = u64::from(limit).saturating_sub(given);
        Self { limit, free, pending: 0, demand: 0, lack: 0, members }
    }

    /// Removes the instances that are no members any more. Others may use their parts.
    pub fn retain(&mut self, is_member: impl Fn(&I) -> bool) {
        for (_, member) in self.members.extract_if(.., |name, _| !is_member(name)) {
            self.free += member.part + member.pending;
            self.pending -= member.pending;
            self.demand -= member.demand;
            self.lack -= member.lack;
        }
    }

    /// Returns whether anybody has asked for hits lately.
    #[must_use]
    pub const fn is_in_demand(&self) -> bool {
        self.demand > 0
    }

    /// Returns whether nobody has more than an even part of `instances`: then all may have one.
    #[must_use]
    pub fn is_even(&self, instances: u32) -> bool {
        let most = u64::from(self.limit / instances.max(1));
        self.pending == 0 && self.members.values().all(|member| member.part <= most)
    }

    /// Returns the part of the member `name` of `instances` after its heartbeat with `demand`. A changed part gets the
    /// version `next`, or a higher one. If the table `closes`, parts above the even one are lowered to it, and none is
    /// raised.
    pub fn heartbeat(
        &mut self,
        name: I,
        instances: u32,
        demand: Demand,
        next: u64,
        closes: bool,
    ) -> DemandPart {
        let (limit, instances) = (u64::from(self.limit), u64::from(instances.max(1)));
        let member = self.members.entry(name).or_default();
        if demand.acknowledged >= member.lowered {
            self.pending -= member.pending;
            self.free += std::mem::take(&mut member.pending);
        }
        let asked = u64::from(demand.hits);
        let before = member.demand;
        member.demand = smoothed(before, asked);
        self.demand = self.demand - before + member.demand;
        self.lack -= std::mem::take(&mut member.lack);
        let due = due(limit, self.demand, member.demand, instances);
        let part = member.part;
        let lost = if closes {
            part.saturating_sub(limit / instances)
        } else {
            part.saturating_sub(due).min(self.lack.saturating_sub(self.free + self.pending))
        };
        if lost > 0 {
            member.part -= lost;
            member.pending += lost;
            self.pending += lost;
        } else if asked > part && !closes {
            let owed = due.saturating_sub(part).min(self.free);
            let spare = (self.free - owed).saturating_sub(self.lack);
            let more = owed + spare.min(asked.saturating_sub(part + owed));
            member.part += more;
            self.free -= more;
            let lack = due.saturating_sub(member.part);
            if lack.saturating_mul(TOLERANCE) > due {
                member.lack = lack;
                self.lack += lack;
            }
        }
        if member.part != part {
            member.version = next.max(member.version + 1);
        }
        if lost > 0 {
            member.lowered = member.version;
        }
        // no part exceeds the limit
        DemandPart { hits: u32::try_from(member.part).unwrap_or(self.limit), version: member.version }
    }
}

/// Returns a demand that rises at once, and sinks by halves, or at once below a half.
fn smoothed(before: u64, asked: u64) -> u64 {
    if asked > before || before - asked >= before / 2 { asked } else { (before + asked).div_ceil(2) }
}

/// Returns the part of `limit` that is due to one of `instances` with the demand `own` of `all`.
fn due(limit: u64, all: u64, own: u64, instances: u64) -> u64 {
    // less than 2^32 times less than 2^64
    let share = || u64::try_from((u128::from(limit) * u128::from(own)).div_ceil(u128::from(all.max(1))));
    let due = if all > limit { share().unwrap_or(limit) } else { own + (limit - all) / instances };
    due.max(limit / (LEAST * instances))
}

#[cfg(test)]
mod tests;
