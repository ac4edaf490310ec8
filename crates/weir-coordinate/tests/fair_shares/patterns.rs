//! A pool under demand of many kinds: how much of it is used, and what members lose that stay within their default. The
//! bounds are those of the model that the rules were tried in, and a fifth, and a tenth of a percent for other random
//! numbers.

use weir_limit::share::{Borrow, Lend, Sharing};

use crate::arrivals::{
    Arrivals::{self, Burst, Each, Even, From, OnOff, Rises, Spikes, Steady},
    run,
};

const CAPACITY: u32 = 1_000;

/// The pattern, and for each way to lend the least part of the capacity that is used where the demand exceeds it, in
/// tenths of a percent, and the part of the hits within a default that is rejected, in hundredths of a percent.
struct Row {
    name: &'static str,
    members: Vec<(&'static str, Arrivals)>,
    within: (u32, u32),
    next: (u32, u32),
}

fn rows() -> Vec<Row> {
    let around = |own| vec![("A", own), ("B", Steady(240.0)), ("C", Steady(1_500.0)), ("D", Steady(700.0))];
    let row = |name, members, within, next| Row { name, members, within, next };
    vec![
        row(
            "steady, evenly spaced, 2x",
            vec![("A", Even(100)), ("B", Even(245)), ("C", Even(1_300)), ("D", Even(400))],
            (999, 19),
            (1_000, 1),
        ),
        row(
            "steady, random, 2x",
            vec![("A", Steady(100.0)), ("B", Steady(240.0)), ("C", Steady(1_300.0)), ("D", Steady(400.0))],
            (992, 227),
            (936, 372),
        ),
        row(
            "steady, random, 1.02x",
            vec![("A", Steady(60.0)), ("B", Steady(240.0)), ("C", Steady(420.0)), ("D", Steady(300.0))],
            (981, 60),
            (926, 293),
        ),
        row(
            "bursts of ten times",
            vec![("A", Steady(100.0)), ("B", Steady(230.0)), ("C", Spikes(250.0)), ("D", Spikes(200.0))],
            (989, 91),
            (726, 144),
        ),
        row("owner on in every second cycle", around(OnOff(230.0)), (992, 270), (718, 3_627)),
        row("owner rises from an eighth", around(Rises(230.0, 30.0)), (989, 334), (745, 2_077)),
        row(
            "newcomer in mid-cycle",
            vec![
                ("A", Steady(300.0)),
                ("B", Steady(200.0)),
                ("C", Steady(1_500.0)),
                ("D", From(6, 190.0)),
                ("E", From(9, 190.0)),
            ],
            (991, 202),
            (919, 544),
        ),
        row("owner sends all at 80 %", around(Burst(230, Some(0.8))), (993, 4_995), (956, 87)),
        row("owner sends all in half a second", around(Burst(230, None)), (986, 2_334), (955, 99)),
    ]
}

fn check(lend: Lend, bounds: impl Fn(&Row) -> (u32, u32)) {
    for row in rows() {
        for borrow in [Borrow::ByDemand, Borrow::MaxMin] {
            let sharing = Sharing { borrow, lend, ..Sharing::default() };
            let default = CAPACITY / u32::try_from(row.members.len()).expect("few");
            let (mut least, mut lost, mut within) = (1_000, 0_u64, 0_u64);
            for seed in 0..4 {
                let cycles = run(&sharing, CAPACITY, &row.members, 24, seed);
                for (k, cycle) in cycles.iter().enumerate() {
                    let asked: u32 = cycle.iter().map(|(asked, _)| asked).sum();
                    let admitted: u32 = cycle.iter().map(|(_, admitted)| admitted).sum();
                    assert!(admitted <= CAPACITY, "{} {borrow:?} cycle {k}: {admitted}", row.name);
                    if k < 2 {
                        continue;
                    }
                    if asked >= CAPACITY {
                        least = least.min(admitted * 1_000 / CAPACITY);
                    }
                    for (asked, admitted) in cycle.iter().filter(|(asked, _)| *asked <= default) {
                        lost += u64::from(asked - admitted);
                        within += u64::from(*asked);
                    }
                }
            }
            let (used, model) = bounds(&row);
            let unused = (1_000 - used) * 12 / 10 + 1;
            let lost = lost * 10_000 / within.max(1);
            let name = row.name;
            assert!(least + unused >= 1_000, "{name} {borrow:?}: {least} of 1000 used, the model {used}");
            assert!(
                lost <= u64::from(model) * 12 / 10 + 10,
                "{name} {borrow:?}: {lost}/10000 lost, the model {model}"
            );
        }
    }
}

#[test]
fn lending_within_the_cycle_uses_the_capacity_and_keeps_what_owners_need() {
    check(Lend::WithinCycle, |row| row.within);
}

#[test]
fn shares_of_whole_cycles_keep_late_bursts() {
    check(Lend::NextCycle, |row| row.next);
}

/// What a member that needs 400 of its default of 250 gets, if it asks for that or for ten times as much.
#[test]
fn lying_gains_little_under_max_min_and_much_by_demand() {
    let useful = |borrow, asked| {
        let sharing = Sharing { borrow, ..Sharing::default() };
        let members =
            [("A", Steady(100.0)), ("B", Steady(230.0)), ("C", Steady(asked)), ("D", Steady(700.0))];
        let cycles = run(&sharing, CAPACITY, &members, 24, 1);
        let admitted = cycles[3..].iter().map(|cycle| cycle[2].1.min(400));
        admitted.sum::<u32>() / 21
    };
    let honest = useful(Borrow::MaxMin, 400.0);
    assert!((310..=350).contains(&honest), "{honest}");
    let lying = useful(Borrow::MaxMin, 4_000.0);
    assert!(lying <= honest + honest / 20, "{honest} {lying}");
    assert!(useful(Borrow::ByDemand, 4_000.0) >= 380);
}

/// Trusted names are all that helps against invented ones.
#[test]
fn invented_names_share_one_place_if_the_real_ones_are_named() {
    let mut sharing = Sharing { borrow: Borrow::MaxMin, max_members: 4, ..Sharing::default() };
    sharing.weights.extend(["A", "B", "D"].map(|name| (name.into(), 1)));
    let names: Vec<String> = (0..50).map(|i| format!("invented-{i}")).collect();
    let mut members = vec![("A", Steady(100.0)), ("B", Steady(200.0)), ("D", Steady(700.0))];
    members.extend(names.iter().map(|name| (&**name, Steady(40.0))));
    let (mut lost, mut within) = (0, 0);
    for cycle in &run(&Sharing { max_members: 2, ..sharing }, CAPACITY, &members, 24, 1)[3..] {
        for (asked, admitted) in &cycle[..2] {
            (lost, within) = (lost + asked - admitted, within + asked);
        }
    }
    assert!(lost * 100 <= within * 6, "{lost} of {within}");
}

/// Members that ask for nothing, `silent` of them: each has asked for a hit in the first cycle. Returns what the one
/// that asks for twice the capacity was admitted in each cycle after that one.
fn admitted_beside(silent: u32, capacity: u32, sharing: &Sharing) -> Vec<u32> {
    let names: Vec<String> = (0..silent).map(|i| format!("silent-{i}")).collect();
    let mut members: Vec<_> = names.iter().map(|name| (&**name, Each([1, 0, 0, 0, 0]))).collect();
    members.push(("busy", Even(2 * capacity)));
    let cycles = run(sharing, capacity, &members, 4, 1);
    cycles[1..].iter().map(|cycle| cycle[silent as usize].1).collect()
}

#[test]
fn members_that_ask_for_nothing_lend_all_they_have_however_many_they_are() {
    for borrow in [Borrow::ByDemand, Borrow::MaxMin] {
        let sharing = Sharing { borrow, ..Sharing::default() };
        for capacity in [60, 600, 4_000] {
            for silent in [1, 10, 100, 598, 1_000] {
                let admitted = admitted_beside(silent, capacity, &sharing);
                let least = capacity * 9 / 10;
                assert!(
                    admitted.iter().all(|admitted| *admitted >= least),
                    "{borrow:?}: {silent} silent members leave {admitted:?} of {capacity}"
                );
            }
        }
    }
}

/// Many members that each ask for a hit or two in a cycle keep them, beside one that asks for more than there is.
#[test]
fn many_small_members_keep_what_they_ask_for() {
    for hits in [1, 2] {
        for borrow in [Borrow::ByDemand, Borrow::MaxMin] {
            let names: Vec<String> = (0..400).map(|i| format!("small-{i}")).collect();
            let mut members: Vec<_> = names.iter().map(|name| (&**name, Even(hits))).collect();
            members.push(("busy", Even(3_000)));
            for cycle in &run(&Sharing { borrow, ..Sharing::default() }, CAPACITY, &members, 8, 1)[2..] {
                let (small, busy) = cycle.split_at(400);
                let admitted: u32 = small.iter().map(|(_, admitted)| admitted).sum();
                assert!(admitted >= 400 * hits * 90 / 100, "{borrow:?}: {admitted} of {}", 400 * hits);
                assert!(admitted + busy[0].1 >= 950, "{borrow:?}: {admitted} + {}", busy[0].1);
            }
        }
    }
}
