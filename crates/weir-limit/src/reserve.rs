//! What requests reserve when they begin, for costs that are known at their ends. `docs/design/in-flight.md` has the
//! rules.

use super::{
    place::InFlight,
    units::{Hits, Period},
};

/// What the requests of a rule reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// The hits, beside a request's own.
    pub amount: ReserveAmount,
    /// The age at which a request without an end is given up: what it has reserved is given back.
    pub give_up_after: Period,
    /// Whether nothing is reserved before the rule's first cost, since nobody said that there are any.
    pub awaits_cost: bool,
}

/// The hits that a request reserves: at most what the smallest limit leaves beside its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveAmount {
    /// So many. With 0, costs are only counted.
    Hits(Hits),
    /// What a [`CostEstimate`] says.
    Auto,
}

/// A cost that few requests exceed: the 90th percentile, found in steps, as long as costs are reported at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostEstimate {
    /// In 256ths of a hit.
    quantile: u64,
    /// The number of costs so far, at most 255.
    costs: u8,
    /// The share of requests that were given up instead of having a cost, in 1024ths. Late ones weigh more.
    given_up: u16,
}

// === impl Reserve ===

impl Reserve {
    /// Costs are counted, and nothing is reserved for them.
    pub const NOTHING: Self = Self {
        amount: ReserveAmount::Hits(Hits(0)),
        give_up_after: Period::from_secs(120),
        awaits_cost: false,
    };

    /// Returns whether it reserves hits, at least once costs are known.
    pub fn takes_hits(&self) -> bool {
        self.amount != ReserveAmount::Hits(Hits(0))
    }

    /// Returns the limit on the places that remember its hits: none.
    pub const fn place(&self) -> InFlight {
        InFlight { most: InFlight::UNLIMITED, give_up_after: self.give_up_after }
    }
}

// === impl CostEstimate ===

impl CostEstimate {
    const HIT: u64 = 256;

    const ALL: u16 = 1024;

    /// The greatest quantile: 40 bits.
    const MOST: u64 = (1 << 40) - 1;

    /// So many costs of a counter say more than those of its rule.
    const ENOUGH: u8 = 8;

    /// Until so many costs are known, the steps are large.
    const SETTLED: u8 = 32;

    /// Returns the estimate that [`CostEstimate::bits`] has written. 0 is that without any costs.
    #[expect(clippy::cast_possible_truncation, reason = "each part has these bits")]
    pub const fn of_bits(bits: u64) -> Self {
        Self { quantile: bits >> 24, costs: (bits >> 16) as u8, given_up: bits as u16 }
    }

    /// Returns it as one number.
    pub const fn bits(self) -> u64 {
        self.quantile << 24 | (self.costs as u64) << 16 | self.given_up as u64
    }

    /// Returns whether there was a cost.
    pub const fn has_costs(self) -> bool {
        self.costs > 0
    }

    /// Adds a cost. The first estimate is a hundredth of `limit`.
    pub fn add_cost(&mut self, cost: Hits, limit: Hits) {
        if self.costs == 0 {
            self.quantile = first(limit);
        }
        self.costs = self.costs.saturating_add(1);
        let step = (self.quantile / if self.costs < Self::SETTLED { 8 } else { 32 }).max(1);
        self.quantile = if cost.0.saturating_mul(Self::HIT) > self.quantile {
            self.quantile + step * 9 / 10
        } else {
            self.quantile - step.div_ceil(10)
        };
        self.quantile = self.quantile.clamp(Self::HIT, Self::MOST);
    }

    /// Adds a request that has ended by its cost, or was given up.
    pub fn add_end(&mut self, is_given_up: bool) {
        if is_given_up {
            self.given_up += (Self::ALL - self.given_up).div_ceil(32);
        } else {
            self.given_up -= self.given_up / 32;
        }
    }

    /// Returns the hits to reserve, at least one, of a counter with the estimate `own`, and of its rule, which admits
    /// `limit` hits. While the counter has few costs, those of its rule say more.
    pub fn hits(own: Option<Self>, rule: Self, limit: Hits) -> Hits {
        let is_known = own.is_some_and(|own| own.costs >= Self::ENOUGH);
        let of = if is_known { own.unwrap_or(rule) } else { rule };
        let quantile = if of.has_costs() { of.quantile } else { first(limit) };
        // an eighth of all requests is enough
        let share = u64::from(Self::ALL - own.unwrap_or(rule).given_up) * 8;
        Hits((quantile * share.min(Self::ALL.into()) / u64::from(Self::ALL) / Self::HIT).max(1))
    }
}

fn first(limit: Hits) -> u64 {
    (limit.0 / 100).max(1).saturating_mul(CostEstimate::HIT).min(CostEstimate::MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Hits = Hits(100_000);

    fn learned(costs: impl IntoIterator<Item = u64>) -> CostEstimate {
        let mut estimate = CostEstimate::default();
        for cost in costs {
            estimate.add_cost(Hits(cost), LIMIT);
            estimate.add_end(false);
        }
        estimate
    }

    fn alone(estimate: CostEstimate) -> u64 {
        CostEstimate::hits(None, estimate, LIMIT).0
    }

    #[test]
    fn one_of_ten_costs_is_above() {
        assert_eq!(alone(CostEstimate::default()), 1_000, "a hundredth of the limit");
        let costs = || (0..2_000_u64).map(|i| i * 7_919 % 1_000 + 1);
        let known = alone(learned(costs()));
        assert!((850..960).contains(&known), "{known}");
        // costs that grow are found soon
        let grown = alone(learned(costs().chain(std::iter::repeat_n(9_000, 200))));
        assert!((8_000..10_000).contains(&grown), "{grown}");
    }

    #[test]
    fn a_counter_has_an_estimate_of_its_own_once_it_has_some_costs() {
        let rule = learned([500; 300]);
        let of = |costs| CostEstimate::hits(Some(learned(std::iter::repeat_n(90_000, costs))), rule, LIMIT).0;
        assert_eq!(of(7), alone(rule));
        assert!(of(8) > 2 * alone(rule));
    }

    #[test]
    fn what_nobody_settles_reserves_less_and_less() {
        let mut estimate = learned([2_000; 300]);
        let before = alone(estimate);
        let mut given_up = 0;
        while alone(estimate) > 1 {
            estimate.add_end(true);
            given_up += 1;
        }
        assert!((100..400).contains(&given_up), "{given_up}");
        for _ in 0..5 {
            estimate.add_end(false);
        }
        assert_eq!(alone(estimate), before, "an eighth is enough");
    }

    #[test]
    fn it_is_one_number_whatever_the_costs() {
        for costs in [vec![], vec![1; 400], vec![u64::MAX; 2_000], vec![0; 5_000]] {
            let estimate = learned(costs);
            assert_eq!(CostEstimate::of_bits(estimate.bits()), estimate);
        }
        assert_eq!(CostEstimate::of_bits(0), CostEstimate::default());
        assert_eq!(alone(learned(vec![0; 5_000])), 1);
    }
}
