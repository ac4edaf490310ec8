//! The shares of a pool's members: pure functions in whole numbers. There is no floating point anywhere.
//!
//! Every amount is a whole number over a denominator that all members have in common, until [`whole`] rounds once at
//! the end. With at most 2^10 members, a capacity and demands below 2^32, and a sum of weights (and of minimums divided
//! by what they have in common, where these exceed the capacity) of at most 2^20, no product exceeds 2^128.

use std::collections::BTreeMap;

use super::{
    Borrow,
    fill::{Fractions, Vessel, fill},
};

/// A member of a pool, as far as shares depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim<'a> {
    /// Its name, which breaks ties.
    pub name: &'a str,
    /// 1 to 2^20, all together at most 2^20.
    pub weight: u32,
    pub demand: u32,
    /// The hits that its default is at least, unless the minimums of all exceed the capacity.
    pub min: u32,
    pub max: Option<u32>,
    /// The hits that it was granted already: its allowance is not below them.
    pub granted: u32,
    /// Whether it was not a member in the last cycle. It claims its default, whatever its demand is.
    pub is_new: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    pub borrow: Borrow,
    pub capacity: u32,
    /// The percentage of its default that a member keeps without demand, 0 to 100.
    pub reserve: u32,
    /// The number of the cycle, which turns the order of ties, so that no name always loses.
    pub cycle: u64,
}

/// What follows from the claims alone, in units of `1 / unit` hits.
struct DivisionBasis {
    unit: u128,
    defaults: Vec<u128>,
    reserves: Vec<u128>,
    /// The demand of each member, or its reserve if that is more.
    demands: Vec<u128>,
}

impl Claim<'_> {
    fn least(&self) -> u128 {
        self.max.map_or(self.min, |max| self.min.min(max)).into()
    }
}

impl Division {
    /// Returns the share of each of `claims`, in their order, for the next cycle. The sum is the capacity, or the sum
    /// of all maximums if that is less. [`Claim::granted`] has no effect.
    pub fn shares(&self, claims: &[Claim<'_>]) -> Vec<u32> {
        let exact = match self.borrow {
            _ if claims.is_empty() => return Vec::new(),
            Borrow::None => self.defaults(claims),
            Borrow::ByDemand => self.by_demand(claims),
            Borrow::MaxMin => self.max_min(claims),
        };
        self.whole(&exact, claims)
    }

    /// Returns what each member may have by the end of a cycle in which it asks for [`Claim::demand`] in all. Nobody
    /// gets less than it was [granted](Claim::granted); members above their default lose first. If all demands fit,
    /// they are the sum, and the rest belongs to nobody unless `spread` is set.
    pub fn allowances(&self, claims: &[Claim<'_>], spread: bool) -> Vec<u32> {
        if claims.is_empty() {
            return Vec::new();
        }
        let basis = self.basis(claims, true);
        let unit = basis.unit;
        let ceiling = |claim: &Claim<'_>| claim.max.map(|max| u128::from(max) * unit);
        let granted: Vec<u128> = claims.iter().map(|claim| u128::from(claim.granted) * unit).collect();
        let demands: Vec<u128> = basis.demands.iter().zip(&granted).map(|(a, b)| *a.max(b)).collect();
        let total = u128::from(self.capacity) * unit;
        let fits = demands.iter().sum::<u128>() <= total;
        let Fractions { numerators, denominator } = if self.borrow == Borrow::ByDemand && !fits {
            let needs: Vec<_> = (0..claims.len())
                .map(|i| Need { granted: granted[i], demand: demands[i], default: basis.defaults[i] })
                .collect();
            by_demand_above(&needs, claims, total)
        } else if !fits {
            let floors: Vec<u128> = basis.reserves.iter().zip(&granted).map(|(a, b)| *a.max(b)).collect();
            let floors = if floors.iter().sum::<u128>() <= total { floors } else { granted };
            fill_each(claims, total, |i| (floors[i], Some(demands[i].max(floors[i]))))
        } else if spread && self.borrow != Borrow::None {
            fill_each(claims, total, |i| (demands[i], ceiling(&claims[i]).map(|max| max.max(demands[i]))))
        } else {
            Fractions { numerators: demands, denominator: 1 }
        };
        self.whole(&Fractions { numerators, denominator: unit * denominator }, claims)
    }

    /// Returns the default of each of `claims`, rounded up, but at most its maximum.
    pub fn default_shares(&self, claims: &[Claim<'_>]) -> Vec<u32> {
        let Fractions { numerators, denominator } = self.defaults(claims);
        let up = |default: &u128| u32::try_from(default.div_ceil(denominator)).unwrap_or(u32::MAX);
        claims
            .iter()
            .zip(&numerators)
            .map(|(claim, default)| up(default).min(claim.max.unwrap_or(u32::MAX)))
            .collect()
    }

    /// [`Division::default_shares`] for a member of this `weight`, where `weights` counts the members by weight, and
    /// all have the same bounds. The cost grows with the number of different weights.
    pub(super) fn default_by_weight(
        &self,
        weights: &BTreeMap<u32, u32>,
        weight: u32,
        min: u32,
        max: Option<u32>,
    ) -> u32 {
        let capacity = u128::from(self.capacity);
        let least = u128::from(max.map_or(min, |max| max.min(min)));
        let members: u128 = weights.values().map(|count| u128::from(*count)).sum();
        let up = |amount: u128, parts: u128| {
            let hits = u32::try_from(amount.div_ceil(parts.max(1))).unwrap_or(u32::MAX);
            hits.min(max.unwrap_or(u32::MAX))
        };
        if least * members > capacity {
            return up(capacity, members);
        }
        // all of one weight rise together
        let vessels = weights.iter().map(|(weight, count)| {
            let count = u128::from(*count);
            Vessel {
                weight: u128::from(*weight) * count,
                floor: least * count,
                ceiling: max.map(|max| u128::from(max) * count),
            }
        });
        let Fractions { numerators, denominator } = fill(&vessels.collect::<Vec<_>>(), capacity);
        let found = weights.iter().zip(numerators).find(|((other, _), _)| **other == weight);
        found.map_or(0, |((_, count), amount)| up(amount, denominator * u128::from(*count)))
    }

    /// By weight, between minimum and maximum. Minimums that exceed the capacity together are cut in proportion.
    fn defaults(&self, claims: &[Claim<'_>]) -> Fractions {
        let capacity = u128::from(self.capacity);
        let least: u128 = claims.iter().map(Claim::least).sum();
        if least > capacity {
            let common = claims.iter().map(Claim::least).fold(0, gcd);
            return Fractions {
                numerators: claims.iter().map(|claim| capacity * (claim.least() / common)).collect(),
                denominator: least / common,
            };
        }
        fill_each(claims, capacity, |i| (claims[i].least(), claims[i].max.map(u128::from)))
    }

    /// In units that make all of it whole. In the middle of a cycle, a maximum is at least what was `granted`.
    fn basis(&self, claims: &[Claim<'_>], granted: bool) -> DivisionBasis {
        let Fractions { numerators, denominator } = self.defaults(claims);
        let unit = 100 * denominator;
        let defaults: Vec<u128> = numerators.iter().map(|default| default * 100).collect();
        let reserves: Vec<u128> = claims
            .iter()
            .zip(&defaults)
            .map(|(claim, default)| {
                // whole, since a default is a multiple of 100
                (default * u128::from(self.reserve) / 100).max((u128::from(claim.min) * unit).min(*default))
            })
            .collect();
        let demand = |i: usize| {
            let claim = &claims[i];
            // in the middle of a cycle its forecast says what it will have
            if self.borrow == Borrow::None || claim.is_new && !granted {
                return defaults[i];
            }
            let demand = (u128::from(claim.demand) * unit).max(reserves[i]);
            let max = claim.max.map(|max| if granted { max.max(claim.granted) } else { max });
            max.map_or(demand, |max| demand.min(u128::from(max) * unit))
        };
        let demands = (0..claims.len()).map(demand).collect();
        DivisionBasis { unit, defaults, reserves, demands }
    }

    /// The bank's rule: who is short gets its default and a part of what the others leave, in proportion to what it
    /// lacks; what all leave is divided among those that have it.
    fn by_demand(&self, claims: &[Claim<'_>]) -> Fractions {
        let DivisionBasis { unit, defaults, demands, .. } = self.basis(claims, false);
        let surplus = |i: usize| defaults[i].saturating_sub(demands[i]);
        let need = |i: usize| demands[i].saturating_sub(defaults[i]);
        let all = 0..claims.len();
        let (surpluses, needs) =
            (all.clone().map(surplus).sum::<u128>(), all.clone().map(need).sum::<u128>());
        if surpluses >= needs {
            if surpluses == 0 {
                return Fractions { numerators: demands, denominator: unit };
            }
            let left = surpluses - needs;
            return Fractions {
                numerators: all.map(|i| demands[i] * surpluses + surplus(i) * left).collect(),
                denominator: unit * surpluses,
            };
        }
        let amount = |i: usize| match need(i) {
            0 => demands[i] * needs,
            need => defaults[i] * needs + need * surpluses,
        };
        Fractions { numerators: all.map(amount).collect(), denominator: unit * needs }
    }

    /// Progressive filling by weight, from the reserve up to the demand, or, if all demands fit, from the demand on.
    fn max_min(&self, claims: &[Claim<'_>]) -> Fractions {
        let DivisionBasis { unit, reserves, demands, .. } = self.basis(claims, false);
        let total = u128::from(self.capacity) * unit;
        let is_short = demands.iter().sum::<u128>() > total;
        let Fractions { numerators, denominator } = fill_each(claims, total, |i| {
            if is_short {
                return (reserves[i], Some(demands[i].max(reserves[i])));
            }
            (demands[i], claims[i].max.map(|max| (u128::from(max) * unit).max(demands[i])))
        });
        Fractions { numerators, denominator: unit * denominator }
    }

    /// Rounds down to whole hits, and up for the largest remainders. Ties go by name, turned by the cycle; never by
    /// demand, or a tie could be bought.
    fn whole(&self, exact: &Fractions, claims: &[Claim<'_>]) -> Vec<u32> {
        let Fractions { numerators, denominator } = exact;
        let mut shares: Vec<u128> = numerators.iter().map(|amount| amount / denominator).collect();
        let left = numerators.iter().sum::<u128>() / denominator - shares.iter().sum::<u128>();
        if left > 0 {
            let count = claims.len() as u64;
            let mut ranked: Vec<usize> = (0..claims.len()).collect();
            ranked.sort_unstable_by_key(|i| claims[*i].name);
            let turned = |rank: usize| (rank as u64 + count - self.cycle % count) % count;
            let mut order: Vec<(u128, u64, usize)> = ranked
                .into_iter()
                .enumerate()
                .map(|(rank, i)| (numerators[i] % denominator, turned(rank), i))
                .collect();
            order.sort_unstable_by_key(|(remainder, turned, _)| (std::cmp::Reverse(*remainder), *turned));
            let last = usize::try_from(left).unwrap_or(usize::MAX);
            for (_, _, i) in order.into_iter().take(last) {
                shares[i] += 1;
            }
        }
        shares.into_iter().map(|share| u32::try_from(share).unwrap_or(u32::MAX)).collect()
    }
}

/// What a member has, wants and is due, in the units of a [`DivisionBasis`].
struct Need {
    granted: u128,
    demand: u128,
    default: u128,
}

impl Need {
    /// What it gets before anybody borrows.
    fn base(&self) -> u128 {
        self.granted.max(self.demand.min(self.default))
    }

    fn lacks(&self) -> u128 {
        self.demand.saturating_sub(self.default)
    }
}

/// The bank's rule where the demands exceed `total`, and nobody falls below what it was granted. Defaults are those of
/// the whole pool: defaults of what is left would let a borrower that hurries cut those of all others.
fn by_demand_above(needs: &[Need], claims: &[Claim<'_>], total: u128) -> Fractions {
    let mut keeps = vec![false; needs.len()];
    loop {
        let base: u128 = needs
            .iter()
            .zip(&keeps)
            .map(|(need, keeps)| if *keeps { need.granted } else { need.base() })
            .sum();
        let Some(left) = total.checked_sub(base) else {
            return fill_each(claims, total, |i| (needs[i].granted, Some(needs[i].base())));
        };
        let is_short = |i: usize| !keeps[i] && needs[i].lacks() > 0;
        let lacks: u128 = (0..needs.len()).filter(|i| is_short(*i)).map(|i| needs[i].lacks()).sum();
        // what each of them borrows is in proportion to what it lacks, and no more than that
        let amount = |i: usize| needs[i].default * lacks + needs[i].lacks() * left.min(lacks);
        let above: Vec<usize> = (0..needs.len())
            .filter(|i| is_short(*i))
            .filter(|i| needs[*i].default * lacks + needs[*i].lacks() * left < needs[*i].granted * lacks)
            .collect();
        if above.is_empty() {
            let denominator = lacks.max(1);
            let numerators = (0..needs.len()).map(|i| match (keeps[i], is_short(i)) {
                (true, _) => needs[i].granted * denominator,
                (_, true) => amount(i),
                _ => needs[i].base() * denominator,
            });
            return Fractions { numerators: numerators.collect(), denominator };
        }
        for i in above {
            keeps[i] = true;
        }
    }
}

/// [`fill`] of `claims` by their weights, where `bounds` returns the floor and the ceiling of each.
fn fill_each(claims: &[Claim<'_>], total: u128, bounds: impl Fn(usize) -> (u128, Option<u128>)) -> Fractions {
    let vessel = |(i, claim): (usize, &Claim<'_>)| {
        let (floor, ceiling) = bounds(i);
        Vessel { weight: claim.weight.into(), floor, ceiling }
    };
    fill(&claims.iter().enumerate().map(vessel).collect::<Vec<_>>(), total)
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #[test]
        fn a_default_follows_from_the_weights_alone(
            capacity in prop_oneof![0..60_u32, Just(u32::MAX)],
            weights in vec(1..6_u32, 1..9),
            min in 0..9_u32,
            max in proptest::option::of(0..20_u32),
        ) {
            let division = Division { borrow: Borrow::ByDemand, capacity, reserve: 10, cycle: 0 };
            let claim = |weight: &u32| Claim {
                name: "", weight: *weight, demand: 0, min, max, granted: 0, is_new: false,
            };
            let claims: Vec<Claim<'_>> = weights.iter().map(claim).collect();
            let mut counts = BTreeMap::new();
            for weight in &weights {
                *counts.entry(*weight).or_default() += 1;
            }
            let defaults: Vec<u32> =
                weights.iter().map(|weight| division.default_by_weight(&counts, *weight, min, max)).collect();
            prop_assert_eq!(defaults, division.default_shares(&claims));
        }
    }
}
