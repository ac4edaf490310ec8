//! Parts of a limit that follow demand: what a store keeps for one key so that an instance with more callers has more of it.
//!
//! The parts move by heartbeats alone. What an instance loses is free for others only when it has acknowledged that it uses the smaller
//! part, so that all parts in use never exceed the limit, whatever is late or lost.

use std::collections::BTreeMap;

/// The parts below an even one, in how many of an even part an instance keeps at least.
const LEAST: u64 = 40;

/// The parts of one limit. `I` names an instance.
#[derive(Clone, Debug)]
pub struct PartTable<I> {
    /// The hits that all have together.
    limit: u64,
    /// The hits that nobody has.
    free: u64,
    /// The sum of all demands.
    demand: u64,
    members: BTreeMap<I, Member>,
}

/// What the table knows of an instance.
#[derive(Clone, Copy, Debug, Default)]
struct Member {
    part: u64,
    /// Hits that it has lost, and may still use.
    pending: u64,
    /// The version of its part that it has to acknowledge before they are free.
    lowered: u64,
    /// The version of its part.
    version: u64,
    /// The hits that were asked for lately, in a second.
    demand: u64,
}

/// A part, as a reply carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DemandPart {
    /// The hits in each window that begins from now on.
    pub hits: u64,
    /// To be acknowledged when no window is open any more that began under an earlier part.
    pub version: u64,
}

// === impl PartTable ===

impl<I: Ord + Clone> PartTable<I> {
    /// Creates a table of `limit` hits with even parts for `members`, in the order of their ranks.
    #[must_use]
    pub fn new(limit: u32, members: impl IntoIterator<Item = (I, u32)>) -> Self {
        let member = |part: u32| Member { part: part.into(), ..Member::default() };
        let members: BTreeMap<I, Member> =
            members.into_iter().map(|(name, part)| (name, member(part))).collect();
        let given: u64 = members.values().map(|member| member.part).sum();
        let limit = u64::from(limit);
        Self { limit, free: limit.saturating_sub(given), demand: 0, members }
    }

    /// Adds an instance, which has nothing at first.
    pub fn join(&mut self, name: I) {
        self.members.entry(name).or_default();
    }

    /// Removes an instance, when its epoch is over.
    pub fn leave(&mut self, name: &I) {
        if let Some(member) = self.members.remove(name) {
            self.demand -= member.demand;
            self.free += member.part + member.pending;
        }
    }

    /// Returns the part of `name` after its heartbeat, by which it was asked for `demand` hits in the last second and uses the part of
    /// version `acknowledged`. Nothing for an instance that has not joined.
    pub fn heartbeat(&mut self, name: &I, demand: u32, acknowledged: u64) -> DemandPart {
        let instances = self.members.len() as u64;
        let Some(member) = self.members.get_mut(name) else { return DemandPart::default() };
        if member.pending > 0 && acknowledged >= member.lowered {
            self.free += std::mem::take(&mut member.pending);
        }
        let asked = u64::from(demand);
        let before = member.demand;
        member.demand = smoothed(before, asked);
        self.demand = self.demand - before + member.demand;
        let due = due(self.limit, self.demand, member.demand, instances);
        if due < member.part - member.part / 8 {
            member.pending += member.part - due;
            member.part = due;
            member.version += 1;
            member.lowered = member.version;
        } else if asked > member.part && self.free > 0 {
            let more = due.saturating_sub(member.part).max(1 + self.free / instances).min(self.free);
            self.free -= more;
            member.part += more;
            member.version += 1;
        }
        DemandPart { hits: member.part, version: member.version }
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
    let due =
        if all > limit { share().unwrap_or(limit) } else { own + (limit - all) / instances.max(1) };
    due.max(limit / (LEAST * instances.max(1)))
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    impl PartTable<usize> {
        fn sum(&self) -> u64 {
            self.free + self.members.values().map(|member| member.part + member.pending).sum::<u64>()
        }
    }

    /// An instance, which applies a part at the start of the next window.
    #[derive(Clone, Copy, Debug, Default)]
    struct Instance {
        heard: DemandPart,
        used: DemandPart,
    }

    fn even(limit: u32, instances: usize) -> PartTable<usize> {
        let count = u32::try_from(instances).expect("few");
        let part = |i: usize| limit / count + u32::from(i < (limit % count) as usize);
        PartTable::new(limit, (0..instances).map(|i| (i, part(i))))
    }

    fn instances(table: &PartTable<usize>) -> Vec<Instance> {
        let part = |member: &Member| DemandPart { hits: member.part, version: 0 };
        table.members.values().map(part).map(|part| Instance { heard: part, used: part }).collect()
    }

    /// What becomes of a heartbeat.
    #[derive(Clone, Copy, Debug)]
    enum Fate {
        Answered,
        RequestLost,
        ReplyLost,
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        /// Whatever is lost, all parts in use are the limit at most, and the table loses no hit.
        #[test]
        fn parts_in_use_never_exceed_the_limit(
            limit in 0..3_000_u32,
            count in 1..9_usize,
            beats in vec((0..8_usize, 0..4_000_u32, 0..4_u32, any::<bool>()), 1..300),
        ) {
            let mut table = even(limit, count);
            let mut instances = instances(&table);
            for (i, demand, fate, begins) in beats {
                let i = i % count;
                let fate = [Fate::Answered, Fate::Answered, Fate::RequestLost, Fate::ReplyLost][fate as usize];
                if !matches!(fate, Fate::RequestLost) {
                    let reply = table.heartbeat(&i, demand, instances[i].used.version);
                    if matches!(fate, Fate::Answered) {
                        instances[i].heard = reply;
                    }
                }
                if begins {
                    // windows begin by one clock
                    for instance in &mut instances {
                        instance.used = instance.heard;
                    }
                }
                prop_assert_eq!(table.sum(), u64::from(limit));
                let used: u64 = instances.iter().map(|instance| instance.used.hits).sum();
                prop_assert!(used <= u64::from(limit), "{used} of {limit}: {table:?}");
            }
        }

        #[test]
        fn whoever_comes_has_nothing_and_whoever_goes_leaves_all(
            limit in 0..3_000_u32,
            count in 1..9_usize,
            beats in vec((0..12_usize, 0..4_000_u32), 0..100),
        ) {
            let mut table = even(limit, count);
            for (i, demand) in beats {
                match demand % 16 {
                    0 => table.leave(&i),
                    1 => table.join(i),
                    _ => drop(table.heartbeat(&i, demand, 0)),
                }
                prop_assert_eq!(table.sum(), u64::from(limit));
            }
            for i in 0..12 {
                table.leave(&i);
            }
            prop_assert_eq!((table.free, table.demand), (u64::from(limit), 0));
        }
    }

    #[test]
    fn what_an_instance_loses_is_free_when_it_has_acknowledged_that() {
        let mut table = even(100, 2);
        table.heartbeat(&0, 500, 0);
        let lowered = table.heartbeat(&1, 0, 0);
        assert!(lowered.hits < 50 && lowered.version == 1);
        // its smaller part is not in use yet
        assert_eq!(table.heartbeat(&0, 500, 0).hits, 50);
        assert_eq!(table.heartbeat(&1, 0, 0).version, 1);
        assert_eq!(table.heartbeat(&0, 500, 0).hits, 50);
        table.heartbeat(&1, 0, 1);
        assert_eq!(table.heartbeat(&0, 500, 0).hits, 100 - lowered.hits);
    }

    /// A tenth of the instances has 90 % of the demand, which is twice the limit, and after 12 s others have it.
    #[test]
    fn parts_are_where_demand_is_within_six_seconds() {
        for (count, limit) in [(8, 1_000_u32), (8, 100_000), (96, 100_000), (96, 9_600)] {
            let mut table = even(limit, count);
            let mut instances = instances(&table);
            let hot = (count / 10).max(1);
            for second in 0..24 {
                let first = if second < 12 { 0 } else { count / 2 };
                let demand = |i: usize| {
                    let is_hot = (first..first + hot).contains(&i);
                    let (share, of) = if is_hot { (90, hot) } else { (10, count - hot) };
                    u64::from(limit) * 2 * share / 100 / of as u64
                };
                let used: u64 =
                    instances.iter().enumerate().map(|(i, instance)| instance.used.hits.min(demand(i))).sum();
                if (6..12).contains(&second) || second >= 18 {
                    assert!(used * 100 >= u64::from(limit) * 95, "{used} of {limit}, {count}, second {second}");
                }
                for (i, instance) in instances.iter_mut().enumerate() {
                    let demand = u32::try_from(demand(i)).expect("few");
                    instance.heard = table.heartbeat(&i, demand, instance.used.version);
                }
                for instance in &mut instances {
                    instance.used = instance.heard;
                }
            }
        }
    }

    #[test]
    fn demand_rises_at_once_and_sinks_by_halves() {
        assert_eq!([smoothed(10, 90), smoothed(90, 60), smoothed(90, 46), smoothed(90, 45)], [90, 75, 68, 45]);
        assert_eq!((smoothed(1, 0), smoothed(0, 0)), (0, 0));
    }

    #[test]
    fn unused_hits_are_spread_and_nobody_has_less_than_a_fortieth() {
        // 40 of 100 are asked for, and 60 are spread over 4
        assert_eq!(due(100, 40, 10, 4), 25);
        assert_eq!((due(100, 1_000, 900, 4), due(100, 1_000, 1, 4), due(1_000, 9_000, 0, 5)), (90, 1, 5));
        assert_eq!(due(u32::MAX.into(), u64::MAX, u64::MAX, 1), u32::MAX.into());
    }
}
