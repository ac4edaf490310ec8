use proptest::{collection::vec, prelude::*};

use super::*;

impl DemandParts<usize> {
    fn check_invariants(&self) {
        let sum = |of: fn(&Member) -> u64| self.members.values().map(of).sum::<u64>();
        assert_eq!(sum(|member| member.part + member.pending) + self.free, u64::from(self.limit), "{self:?}");
        let sums = (sum(|member| member.pending), sum(|member| member.demand), sum(|member| member.lack));
        assert_eq!(sums, (self.pending, self.demand, self.lack), "{self:?}");
    }
}

/// Instances that apply a part at the start of the next window.
struct Fleet {
    parts: DemandParts<usize>,
    heard: Vec<DemandPart>,
    used: Vec<DemandPart>,
    version: u64,
}

impl Fleet {
    fn new(limit: u32, count: usize) -> Self {
        let parts = DemandParts::even(limit, (0..count).collect());
        let part =
            |member: &Member| DemandPart { hits: u32::try_from(member.part).expect("few"), version: 0 };
        let heard: Vec<DemandPart> = parts.members.values().map(part).collect();
        Self { parts, used: heard.clone(), heard, version: 100 }
    }

    fn beat(&mut self, i: usize, hits: u32, closes: bool) -> DemandPart {
        self.version += 1;
        let demand = Demand { hits, acknowledged: self.used[i].version };
        let instances = u32::try_from(self.used.len()).expect("few");
        let part = self.parts.heartbeat(i, instances, demand, self.version, closes);
        self.parts.check_invariants();
        part
    }

    fn begin_window(&mut self) {
        self.used.clone_from(&self.heard);
        let used: u64 = self.used.iter().map(|part| u64::from(part.hits)).sum();
        assert!(used <= self.parts.limit.into(), "{used}: {:?}", self.parts);
    }
}

/// What becomes of a heartbeat.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Answered,
    RequestLost,
    ReplyLost,
}

fn fates() -> impl Strategy<Value = Fate> {
    prop_oneof![3 => Just(Fate::Answered), 1 => Just(Fate::RequestLost), 1 => Just(Fate::ReplyLost)]
}

/// The hits that each of `count` instances is asked for in a second: a tenth of them has nine tenths.
fn skewed(limit: u32, count: usize, first: usize, tenths: u64) -> impl Fn(usize) -> u32 {
    let hot = (count / 10).max(1);
    move |i| {
        let is_hot = (first..first + hot).contains(&i);
        let (share, of) = if is_hot { (9, hot) } else { (1, count - hot) };
        u32::try_from(u64::from(limit) * tenths * share / 100 / of as u64).expect("few")
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Whatever is lost, all parts in use are the limit at most, and the table loses no hit.
    #[test]
    fn parts_in_use_never_exceed_the_limit(
        limit in 0..3_000_u32,
        count in 1..9_usize,
        beats in vec((0..8_usize, 0..4_000_u32, fates(), any::<bool>(), 0..20_u8), 1..300),
    ) {
        let mut fleet = Fleet::new(limit, count);
        for (i, demand, fate, begins, closes) in beats {
            let i = i % count;
            if !matches!(fate, Fate::RequestLost) {
                let part = fleet.beat(i, demand, closes == 0);
                if matches!(fate, Fate::Answered) {
                    fleet.heard[i] = part;
                }
            }
            if begins {
                fleet.begin_window();
            }
        }
    }

    #[test]
    fn whoever_comes_has_nothing_and_whoever_goes_leaves_all(
        limit in 0..3_000_u32,
        count in 1..9_usize,
        beats in vec((0..12_usize, 0..4_000_u32), 0..100),
    ) {
        let mut parts = DemandParts::even(limit, (0..count).collect());
        for (i, hits) in beats {
            if hits % 16 == 0 {
                parts.retain(|name| *name != i);
            } else {
                let is_new = !parts.members.contains_key(&i);
                let free = parts.free;
                let part = parts.heartbeat(i, 8, Demand { hits, acknowledged: 0 }, 7, false);
                prop_assert!(!is_new || u64::from(part.hits) <= free);
            }
            parts.check_invariants();
        }
        parts.retain(|_| false);
        prop_assert_eq!((parts.free, parts.demand, parts.lack), (u64::from(limit), 0, 0));
    }

    /// When it closes, nobody has more than an even part after each has acknowledged its part.
    #[test]
    fn a_table_that_closes_has_even_parts_at_last(
        limit in 0..3_000_u32,
        count in 1..9_usize,
        beats in vec((0..8_usize, 0..4_000_u32), 0..100),
    ) {
        let mut fleet = Fleet::new(limit, count);
        for (i, demand) in beats {
            fleet.heard[i % count] = fleet.beat(i % count, demand, false);
            fleet.begin_window();
        }
        for _ in 0..3 {
            for i in 0..count {
                fleet.heard[i] = fleet.beat(i, 0, true);
            }
            fleet.begin_window();
        }
        prop_assert!(fleet.parts.is_even(u32::try_from(count).expect("few")));
    }

    /// A tenth of the instances has 90 % of the demand, and after 12 s others have it; heartbeats come in any order,
    /// and demand varies.
    #[test]
    fn parts_are_where_demand_is_within_six_seconds(
        (count, limit) in prop_oneof![Just((8, 1_000_u32)), Just((8, 400)), Just((24, 1_200)), Just((40, 100_000))],
        order in Just((0..40_usize).collect::<Vec<_>>()).prop_shuffle(),
        tenths in 15..60_u64,
        noise in vec(0..11_u32, 40),
    ) {
        let mut fleet = Fleet::new(limit, count);
        for second in 0..24 {
            let demand = skewed(limit, count, if second < 12 { 0 } else { count / 2 }, tenths);
            let demand = |i: usize| demand(i) * (95 + noise[(i + second) % 40]) / 100;
            let used: u64 = (0..count).map(|i| u64::from(fleet.used[i].hits.min(demand(i)))).sum();
            if (6..12).contains(&second) || second >= 18 {
                prop_assert!(used * 100 >= u64::from(limit) * 95, "{used} of {limit}, second {second}");
            }
            for i in order.iter().copied().filter(|i| *i < count) {
                fleet.heard[i] = fleet.beat(i, demand(i), false);
            }
            fleet.begin_window();
        }
    }
}

#[test]
fn what_an_instance_loses_is_free_when_it_has_acknowledged_that() {
    let mut fleet = Fleet::new(100, 2);
    fleet.beat(0, 500, false);
    let lowered = fleet.beat(1, 0, false);
    assert!(lowered.hits < 50 && lowered.version == 102);
    // its smaller part is not in use yet
    assert_eq!(fleet.beat(0, 500, false).hits, 50);
    assert_eq!(fleet.beat(1, 0, false), lowered);
    assert_eq!(fleet.beat(0, 500, false).hits, 50);
    fleet.used[1] = lowered;
    fleet.beat(1, 0, false);
    assert_eq!(fleet.beat(0, 500, false).hits, 100 - lowered.hits);
}

/// Nobody else lacks anything.
#[test]
fn an_idle_instance_keeps_what_nobody_lacks() {
    let mut fleet = Fleet::new(100, 2);
    for hits in [40, 0, 10] {
        assert_eq!((fleet.beat(0, hits, false).hits, fleet.beat(1, 0, false).hits), (50, 50));
    }
}

/// With equal demand everywhere, a newcomer gets an even part, though each of the others has little more than is due.
#[test]
fn a_newcomer_does_not_starve() {
    let mut fleet = Fleet::new(1_000, 8);
    fleet.heard.push(DemandPart::default());
    fleet.used.push(DemandPart::default());
    for _ in 0..12 {
        for i in 0..9 {
            fleet.heard[i] = fleet.beat(i, 250, false);
        }
        fleet.begin_window();
    }
    assert!(fleet.used[8].hits >= 100, "{:?}", fleet.used);
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
    assert_eq!(due(u64::from(u32::MAX), u64::MAX, u64::MAX, 1), u64::from(u32::MAX));
}
