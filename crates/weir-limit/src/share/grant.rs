//! Grants of a pool that many instances share: what the store decides for each of them, by the rule that
//! [`Pool`](super::Pool) has in one memory.

/// The fewest hits that are granted ahead of requests: fewer are not worth what they withhold from other instances.
pub const LEAST_AHEAD: u32 = 3;

/// What a member may have in a cycle, as an instance has computed it from the last [`PoolTable`](super::PoolTable).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    pub capacity: u32,
    /// The hits that are kept for the member although it has not asked for them. 0 if nothing is lent within the cycle.
    pub own: u32,
    /// The most hits that it may have: its default, or its allowance and what nobody is expected to need.
    pub limit: u32,
    /// The total of all members up to which this one may take beyond its own part. The rest is kept for the others.
    pub free: u32,
}

/// What was granted in a cycle: to all members, and to the one that asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    pub total: u32,
    pub granted: u32,
}

// === impl Account ===

impl Account {
    /// Grants `hits` if `terms` allow it, and returns whether they do. The total never exceeds the capacity.
    pub fn take(&mut self, terms: &Terms, hits: u32) -> bool {
        let after = u64::from(self.granted) + u64::from(hits);
        let all = u64::from(self.total) + u64::from(hits);
        let is_own = after <= terms.own.into() && all <= terms.capacity.into();
        let fits = is_own || after <= terms.limit.into() && all <= terms.free.into();
        if fits {
            self.grant(hits);
        }
        fits
    }

    /// Grants up to `wanted` hits that nobody has asked for yet: at most the `2 * instances`-th part of what the member
    /// may still have, so that little is withheld from others, and none below [`LEAST_AHEAD`].
    pub fn take_ahead(&mut self, terms: &Terms, wanted: u32, instances: u32) -> u32 {
        let left = terms.capacity.saturating_sub(self.total);
        let rest = terms.limit.saturating_sub(self.granted).min(left);
        let hits = wanted.min(rest / instances.max(1).saturating_mul(2));
        if hits < LEAST_AHEAD {
            return 0;
        }
        // what is kept for others is left, unless it is its own
        let free =
            terms.free.saturating_sub(self.total).max(terms.own.saturating_sub(self.granted)).min(left);
        let hits = hits.min(free);
        self.grant(hits);
        hits
    }

    const fn grant(&mut self, hits: u32) {
        self.total += hits;
        self.granted += hits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms { capacity: 100, own: 10, limit: 40, free: 61 };

    #[test]
    fn its_own_part_is_granted_although_the_rest_is_kept() {
        let mut account = Account { total: 61, granted: 0 };
        assert!(account.take(&TERMS, 10));
        assert_eq!(account, Account { total: 71, granted: 10 });
        // all of the rest is kept for others
        assert!(!account.take(&TERMS, 1));
        account.total = 60;
        assert!(account.take(&TERMS, 1) && !account.take(&TERMS, 1));
    }

    #[test]
    fn a_member_has_no_more_than_its_limit_and_the_pool_its_capacity() {
        let terms = Terms { free: 100, ..TERMS };
        let mut account = Account::default();
        assert!(!account.take(&terms, 41));
        assert!(account.take(&terms, 40) && !account.take(&terms, 1));
        let mut account = Account { total: 95, granted: 0 };
        assert!(!account.take(&terms, 6) && account.take(&terms, 5) && !account.take(&terms, 1));
        assert!(!account.take(&terms, u32::MAX));
    }

    #[test]
    fn ahead_of_requests_an_instance_has_a_part_of_what_is_left() {
        let mut account = Account::default();
        assert_eq!(account.take_ahead(&TERMS, 100, 2), 10);
        assert_eq!(account.take_ahead(&TERMS, 4, 2), 4);
        assert_eq!(account.take_ahead(&TERMS, 2, 2), 0);
        account.granted = 29;
        assert_eq!(account.take_ahead(&TERMS, 100, 2), 0);
        // nothing that is kept for others, unless it is its own
        let mut account = Account { total: 58, granted: 10 };
        assert_eq!(account.take_ahead(&TERMS, 100, 1), 3);
        let mut account = Account { total: 60, granted: 0 };
        assert_eq!(account.take_ahead(&TERMS, 100, 1), 10);
        assert_eq!(account, Account { total: 70, granted: 10 });
    }
}
