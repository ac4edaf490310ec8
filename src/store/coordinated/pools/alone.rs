//! A pool while the store does not reply: this instance has the N-th part of what is left, and shares it between the
//! members that it sees.

use std::sync::Arc;

use crate::limit::{
    Period, Timestamp,
    share::{Computation, Pool, PoolDecision, PoolRule, Shares, Sharing},
};

/// A pool without the store, until its cycle ends.
#[derive(Debug)]
pub(super) struct Alone {
    pool: Pool,
    /// The hits that this instance may admit.
    part: u32,
}

// === impl Alone ===

impl Alone {
    /// Creates the pool at the instant `at`, of `part` hits until the cycle ends. `members` have this demand here.
    pub(super) fn new<'a>(
        rule: &PoolRule<'_>,
        part: u32,
        members: impl Iterator<Item = (&'a str, u32)>,
        at: Timestamp,
    ) -> Self {
        let mut pool = Pool::beside();
        pool.seed(&PoolRule { capacity: part, ..*rule }, members, at);
        Self { pool, part }
    }

    pub(super) const fn is_due(&self) -> bool {
        self.pool.is_due()
    }

    pub(super) fn begin_shares(&mut self, cycle: Period, sharing: &Arc<Sharing>) -> Option<Computation> {
        self.pool.begin_shares(self.part, cycle, sharing)
    }

    /// Installs `shares`, if they are those that [`Alone::begin_shares`] has begun. Returns them otherwise.
    pub(super) fn install(&mut self, shares: Shares) -> Option<Shares> {
        if !self.pool.has_begun(&shares) {
            return Some(shares);
        }
        self.pool.install(shares);
        None
    }

    /// Decides about `hits` of `value`.
    pub(super) fn decide(
        &mut self,
        rule: &PoolRule<'_>,
        value: &str,
        hits: u32,
        at: Timestamp,
    ) -> PoolDecision {
        self.pool.decide(&self.part(rule), value, hits, true, at)
    }

    /// Gives `hits` of `value` back.
    pub(super) fn give_back(&mut self, rule: &PoolRule<'_>, value: &str, hits: u32, at: Timestamp) {
        self.pool.give_back(&self.part(rule), value, hits, at);
    }

    const fn part<'a>(&self, rule: &PoolRule<'a>) -> PoolRule<'a> {
        PoolRule { capacity: self.part, ..*rule }
    }
}
