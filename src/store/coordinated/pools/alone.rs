//! A pool while the store does not reply: this instance has the N-th part of what is left, and shares it between the members that it sees.

use crate::limit::{
    Timestamp,
    share::{Pool, PoolDecision, PoolRule},
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
        let mut pool = Pool::default();
        for (name, demand) in members {
            pool.seed(rule, name, demand, at);
        }
        Self { pool, part }
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
