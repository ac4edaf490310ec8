//! Progressive filling: every member gets the same amount for each unit of its weight, between a floor and a ceiling of
//! its own.

use std::cmp::Ordering;

/// Amounts over a common denominator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fractions {
    pub(super) numerators: Vec<u128>,
    /// Above zero.
    pub(super) denominator: u128,
}

/// A member of a filling.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vessel {
    /// 1 to 2^20.
    pub(super) weight: u128,
    pub(super) floor: u128,
    /// At least the floor. None: no ceiling.
    pub(super) ceiling: Option<u128>,
}

/// A level at which a vessel begins or ceases to rise.
struct Bend {
    amount: u128,
    weight: u128,
    /// Whether the vessel is at its ceiling from here on.
    is_ceiling: bool,
}

impl Bend {
    /// By cross products, which are exact.
    fn compare(&self, other: &Self) -> Ordering {
        let levels = (self.amount * other.weight).cmp(&(other.amount * self.weight));
        levels.then(self.is_ceiling.cmp(&other.is_ceiling))
    }
}

/// Returns `level x weight` for each of `vessels`, within its floor and ceiling, at the level at which the sum is
/// `total`; all floors if they exceed that, all ceilings if they are less.
///
/// Each amount is below 2^60, and their sum and the products with the sum of the weights below 2^107.
pub(super) fn fill(vessels: &[Vessel], total: u128) -> Fractions {
    let of_all = |amount: fn(&Vessel) -> u128| Fractions {
        numerators: vessels.iter().map(amount).collect(),
        denominator: 1,
    };
    let floors: u128 = vessels.iter().map(|vessel| vessel.floor).sum();
    if floors >= total {
        return of_all(|vessel| vessel.floor);
    }
    let ceilings: Option<u128> = vessels.iter().map(|vessel| vessel.ceiling).sum();
    if ceilings.is_some_and(|ceilings| ceilings <= total) {
        return of_all(|vessel| vessel.ceiling.unwrap_or(vessel.floor));
    }
    let mut bends: Vec<Bend> = Vec::with_capacity(2 * vessels.len());
    for Vessel { weight, floor, ceiling } in vessels {
        bends.push(Bend { amount: *floor, weight: *weight, is_ceiling: false });
        bends.extend(ceiling.map(|amount| Bend { amount, weight: *weight, is_ceiling: true }));
    }
    bends.sort_by(Bend::compare);
    // at the level L the sum is clamped + L x rising
    let (mut clamped, mut rising) = (floors, 0);
    for bend in &bends {
        if rising > 0 && clamped * bend.weight + bend.amount * rising >= total * bend.weight {
            break;
        }
        if bend.is_ceiling {
            rising -= bend.weight;
            clamped += bend.amount;
        } else {
            rising += bend.weight;
            clamped -= bend.amount;
        }
    }
    let rest = total - clamped;
    let amount = |vessel: &Vessel| {
        let level = (rest * vessel.weight).max(vessel.floor * rising);
        vessel.ceiling.map_or(level, |ceiling| level.min(ceiling.max(vessel.floor) * rising))
    };
    Fractions { numerators: vessels.iter().map(amount).collect(), denominator: rising }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(vessels: &[(u128, u128, Option<u128>)], total: u128) -> (Vec<u128>, u128) {
        let vessels: Vec<_> =
            vessels.iter().map(|&(weight, floor, ceiling)| Vessel { weight, floor, ceiling }).collect();
        let Fractions { numerators, denominator } = fill(&vessels, total);
        (numerators, denominator)
    }

    #[test]
    fn the_level_is_exact() {
        assert_eq!(filled(&[(1, 0, None), (2, 0, None)], 10), (vec![10, 20], 3));
        // the first one stays at its ceiling, the second one at its floor
        assert_eq!(
            filled(&[(1, 0, Some(2)), (1, 9, None), (1, 0, None), (3, 0, None)], 31),
            (vec![8, 36, 20, 60], 4)
        );
    }

    #[test]
    fn floors_and_ceilings_go_before_the_total() {
        assert_eq!(filled(&[(1, 6, None), (1, 5, None)], 10), (vec![6, 5], 1));
        assert_eq!(filled(&[(1, 0, Some(3)), (1, 0, Some(4))], 10), (vec![3, 4], 1));
        assert_eq!(filled(&[], 10), (vec![], 1));
    }
}
