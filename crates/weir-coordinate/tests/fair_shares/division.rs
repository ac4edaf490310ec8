//! The pure functions: the worked example, properties of random pools, and the counterexamples to stronger claims.

use proptest::{collection::vec, prelude::*};
use weir_limit::share::{Borrow, Claim, Division};

const KINDS: [Borrow; 3] = [Borrow::ByDemand, Borrow::MaxMin, Borrow::None];
const NAMES: [&str; 8] = ["A", "B", "C", "D", "E", "F", "G", "H"];

fn division(borrow: Borrow, capacity: u32) -> Division {
    Division { borrow, capacity, reserve: 10, cycle: 0 }
}

fn claim(name: &'static str, demand: u32) -> Claim<'static> {
    Claim { name, weight: 1, demand, min: 0, max: None, granted: 0, is_new: false }
}

/// The claims of members named in the order of the alphabet.
fn claims(demands: &[u32]) -> Vec<Claim<'static>> {
    demands.iter().zip(NAMES).map(|(demand, name)| claim(name, *demand)).collect()
}

#[test]
fn the_worked_example_comes_out_to_the_number() {
    for (demands, by_demand, max_min) in [
        ([2, 15, 10, 10], [5, 15, 10, 10], [5, 15, 10, 10]),
        ([3, 15, 50, 10], [3, 11, 16, 10], [3, 14, 13, 10]),
        ([0, 15, 50, 5], [1, 12, 22, 5], [1, 15, 19, 5]),
    ] {
        let claims = claims(&demands);
        for (borrow, expected) in
            [(Borrow::ByDemand, by_demand), (Borrow::MaxMin, max_min), (Borrow::None, [10; 4])]
        {
            assert_eq!(division(borrow, 40).shares(&claims), expected, "{borrow:?} {demands:?}");
        }
    }
    // in the tie of B and C, the cycle decides
    let next = Division { cycle: 2, ..division(Borrow::MaxMin, 40) };
    assert_eq!(next.shares(&claims(&[3, 15, 50, 10])), [3, 13, 14, 10]);
}

#[test]
fn small_capacities_go_to_each_in_turn() {
    for borrow in KINDS {
        assert_eq!(division(borrow, 0).shares(&claims(&[1, 2, 3])), [0, 0, 0]);
        let mut wins = [0; 3];
        for cycle in 0..30 {
            let shares = Division { cycle, ..division(borrow, 1) }.shares(&claims(&[5, 5, 5]));
            assert_eq!(shares.iter().sum::<u32>(), 1);
            shares.iter().zip(&mut wins).for_each(|(share, wins)| *wins += share);
        }
        assert_eq!(wins, [10, 10, 10], "{borrow:?}");
        // one hit fewer than members: another one has none each time
        let mut misses: Vec<usize> = (0..3)
            .map(|cycle| {
                let shares = Division { cycle, ..division(borrow, 2) }.shares(&claims(&[5, 5, 5]));
                shares.iter().position(|share| *share == 0).expect("one has none")
            })
            .collect();
        misses.sort_unstable();
        assert_eq!(misses, [0, 1, 2]);
    }
    assert!(division(Borrow::ByDemand, 40).shares(&[]).is_empty());
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    let names: Vec<String> = (0..1_000).map(|i| format!("member-{i}")).collect();
    for borrow in KINDS {
        for (min, weight, demand) in
            [(0, 1, u32::MAX), (u32::MAX, 1, u32::MAX), (0, 1_048, u32::MAX), (7, 3, 0)]
        {
            let claims: Vec<Claim<'_>> = names
                .iter()
                .enumerate()
                .map(|(i, name)| Claim {
                    name,
                    weight,
                    demand: if i == 0 { 0 } else { demand },
                    min,
                    max: None,
                    granted: 0,
                    is_new: false,
                })
                .collect();
            for capacity in [1, 4_000, u32::MAX] {
                let division = division(borrow, capacity);
                let sum = |shares: Vec<u32>| shares.into_iter().map(u64::from).sum::<u64>();
                assert_eq!(
                    sum(division.shares(&claims)),
                    u64::from(capacity),
                    "{borrow:?} {min} {weight} {demand}"
                );
                assert!(sum(division.allowances(&claims, false)) <= u64::from(capacity));
            }
        }
    }
}

/// Each was believed to hold in a stronger form.
#[test]
fn counterexamples_to_stronger_claims() {
    let by_demand = division(Borrow::ByDemand, 1);
    // not below min(demand, default): the default is a half, and the other one gets the whole hit
    let all_reserved = Division { reserve: 100, ..by_demand };
    let both = [
        all_reserved.shares(&claims(&[1, 0])),
        Division { cycle: 1, ..all_reserved }.shares(&claims(&[1, 0])),
    ];
    assert!(both.contains(&vec![0, 1]), "{both:?}");
    // not below the reserve
    assert_eq!(by_demand.shares(&claims(&[0, 0])).iter().filter(|share| **share == 0).count(), 1);
    // others gain a hit when one asks for more: C, in some cycle, when B asks
    let gains = |cycle| {
        let share = |demand| Division { cycle, ..by_demand }.shares(&claims(&[2, demand, 1]))[2];
        share(1) > share(0)
    };
    assert!((0..3).any(gains));
    // asking for more gains by design, at the cost of nobody's default
    let gains = |demand| by_demand.shares(&claims(&[1, demand, 0]))[1];
    assert!(gains(2) >= gains(1));
    // envy beside bounds
    let bounded = [Claim { min: 1, ..claim("A", 1) }, Claim { max: Some(0), ..claim("B", 1) }];
    assert_eq!(division(Borrow::MaxMin, 1).shares(&bounded), [1, 0]);
}

/// A pool of up to eight members.
#[derive(Clone, Debug)]
struct RandomPool {
    division: Division,
    claims: Vec<Claim<'static>>,
}

fn pools(has_bounds: bool) -> impl Strategy<Value = RandomPool> {
    let capacity = prop_oneof![Just(0), 1..4_u32, 5..101_u32, Just(1_000)];
    let member = (0..120_u32, 1..5_u32, 0..20_u32, proptest::option::of(0..60_u32), 0..40_u32);
    (capacity, 0..101_u32, 0..8_u64, vec(member, 1..8)).prop_map(
        move |(capacity, reserve, cycle, members)| {
            let mut left = capacity;
            let claims = members.into_iter().zip(NAMES).map(|((demand, weight, min, max, granted), name)| {
                let max = max.filter(|_| has_bounds);
                let min = if has_bounds { min.min(max.unwrap_or(min)) } else { 0 };
                let granted = granted.min(left).min(max.unwrap_or(granted));
                left -= granted;
                Claim { name, weight, demand, min, max, granted, is_new: false }
            });
            let claims = claims.collect();
            RandomPool { division: Division { borrow: Borrow::None, capacity, reserve, cycle }, claims }
        },
    )
}

impl RandomPool {
    fn of(&self, borrow: Borrow) -> (Division, &[Claim<'static>]) {
        (Division { borrow, ..self.division }, &self.claims)
    }

    fn least(&self) -> u32 {
        self.claims.iter().map(|claim| claim.min.min(claim.max.unwrap_or(u32::MAX))).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_sum_is_the_capacity_and_nobody_falls_below_what_is_certain(pool in pools(true)) {
        for borrow in KINDS {
            let (division, claims) = pool.of(borrow);
            let shares = division.shares(claims);
            let most: Option<u32> = claims.iter().map(|claim| claim.max).sum();
            let sum = division.capacity.min(most.unwrap_or(u32::MAX));
            prop_assert_eq!(shares.iter().sum::<u32>(), sum);
            let floors: Vec<u32> = division.default_shares(claims).iter().map(|up| up.saturating_sub(1)).collect();
            for ((share, claim), floor) in shares.iter().zip(claims).zip(floors) {
                let max = claim.max.unwrap_or(u32::MAX);
                prop_assert!(*share <= max);
                if borrow != Borrow::None {
                    prop_assert!(*share >= claim.demand.min(floor).min(max), "{claim:?} {shares:?}");
                }
                prop_assert!(*share >= (u64::from(floor) * u64::from(division.reserve) / 100) as u32);
                if pool.least() <= division.capacity {
                    prop_assert!(*share >= claim.min.min(max));
                }
            }
        }
    }

    #[test]
    fn the_order_of_the_members_does_not_matter(pool in pools(true), turn in 0..8_usize) {
        for borrow in KINDS {
            let (division, claims) = pool.of(borrow);
            let mut turned = claims.to_vec();
            let turn = turn % claims.len();
            turned.rotate_left(turn);
            let mut shares = division.shares(&turned);
            shares.rotate_right(turn);
            prop_assert_eq!(shares, division.shares(claims));
        }
    }

    #[test]
    fn asking_for_more_never_gets_less(pool in pools(true), i in 0..8_usize, more in 1..200_u32, weight in 1..4_u32) {
        for borrow in KINDS {
            let (division, claims) = pool.of(borrow);
            let i = i % claims.len();
            let share = |change: &dyn Fn(&mut Claim<'static>)| {
                let mut claims = claims.to_vec();
                change(&mut claims[i]);
                division.shares(&claims)[i]
            };
            let before = share(&|_| {});
            prop_assert!(share(&|claim| claim.demand += more) >= before);
            prop_assert!(share(&|claim| claim.weight += weight) >= before);
        }
    }

    /// Within one computation nobody gets more of what it needs by asking for more, or for less.
    #[test]
    fn lying_gains_nothing_under_max_min(pool in pools(true), i in 0..8_usize, lie in 0..300_u32) {
        let (division, claims) = pool.of(Borrow::MaxMin);
        let i = i % claims.len();
        let need = claims[i].demand;
        let mut lying = claims.to_vec();
        lying[i].demand = lie;
        prop_assert!(division.shares(&lying)[i].min(need) <= division.shares(claims)[i].min(need));
    }

    /// Beyond rounding nobody would rather have another one's share, scaled by the weights.
    #[test]
    fn nobody_envies_anybody_under_max_min(pool in pools(false)) {
        let (division, claims) = pool.of(Borrow::MaxMin);
        let shares = division.shares(claims);
        for (claim, share) in claims.iter().zip(&shares) {
            for (other, theirs) in claims.iter().zip(&shares) {
                // below one hit of its own and one of the other's
                let scaled = f64::from(*theirs) * f64::from(claim.weight) / f64::from(other.weight);
                let wanted = f64::from(claim.demand).min(scaled);
                let rounding = 1.0 + f64::from(claim.weight) / f64::from(other.weight);
                prop_assert!(wanted < f64::from(*share) + rounding, "{claim:?} {other:?} {shares:?}");
            }
        }
    }

    #[test]
    fn in_the_middle_of_a_cycle_nobody_loses_what_it_has(pool in pools(true)) {
        for borrow in KINDS {
            for spread in [false, true] {
                let (division, claims) = pool.of(borrow);
                let allowances = division.allowances(claims, spread);
                prop_assert!(allowances.iter().sum::<u32>() <= division.capacity, "{allowances:?}");
                for (allowance, claim) in allowances.iter().zip(claims) {
                    prop_assert!(*allowance >= claim.granted, "{borrow:?} {claim:?} {allowances:?}");
                }
            }
        }
    }

    /// What somebody lacks of its default, others have above theirs, but for a hit of rounding each.
    #[test]
    fn in_the_middle_of_a_cycle_those_above_their_default_lose_first(pool in pools(false)) {
        for borrow in [Borrow::ByDemand, Borrow::MaxMin] {
            let (division, claims) = pool.of(borrow);
            let (allowances, defaults) = (division.allowances(claims, false), division.default_shares(claims));
            let above: u32 =
                claims.iter().zip(&defaults).map(|(claim, default)| claim.granted.saturating_sub(default.saturating_sub(1))).sum();
            for ((allowance, claim), default) in allowances.iter().zip(claims).zip(&defaults) {
                let due = claim.demand.min(default.saturating_sub(1));
                prop_assert!(due.saturating_sub(*allowance) <= above + 1, "{borrow:?} {claim:?} {allowances:?}");
            }
        }
    }
}
