//! The operations that every algorithm implements on its state.

use super::change::CountChange;
use crate::{
    tier::{OverLimitPolicy, Tier},
    units::{Hits, Period, Timestamp},
};

/// A counter's state under one algorithm.
///
/// A decision [probes](AlgorithmState::probe) every tier's state and then, under the same lock, takes or rejects. `now`
/// may step back between calls, since wall clocks do; the state does not follow it back.
pub trait AlgorithmState {
    fn unused(tier: &Tier, now: Timestamp) -> Self;

    /// Tests whether `hits` fit, without counting them. Zero hits fit unless more than the limit is counted.
    fn probe(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Probe;

    /// Counts `hits`, whether or not they fit.
    fn take(&mut self, tier: &Tier, now: Timestamp, hits: Hits);

    /// Records that this tier rejected a request. The request's hits do not count.
    fn reject(&mut self, tier: &Tier, now: Timestamp);

    /// Counts `hits` that are taken now and used by `until`, when the capacity of most algorithms has only grown.
    fn reserve(&mut self, tier: &Tier, now: Timestamp, until: Timestamp, hits: Hits) {
        let _ = until;
        self.take(tier, now, hits);
    }

    /// Gives back `hits`, at most as many as are counted.
    fn give_back(&mut self, tier: &Tier, now: Timestamp, hits: Hits);

    /// Gives back `hits` that were [reserved](Self::reserve) until `until`.
    fn release(&mut self, tier: &Tier, now: Timestamp, until: Timestamp, hits: Hits) {
        let _ = until;
        self.give_back(tier, now, hits);
    }

    /// Gives back unused `hits` that were [taken](Self::take) at `taken_at`, as far as they still count.
    fn put_back(&mut self, tier: &Tier, now: Timestamp, taken_at: Timestamp, hits: Hits);

    /// Applies a `change` decided elsewhere as of `at`, even if it does not fit. Hits too old to matter are ignored.
    fn add(&mut self, tier: &Tier, at: Timestamp, change: CountChange, now: Timestamp);

    fn availability(&self, tier: &Tier, now: Timestamp) -> Availability;

    /// Returns the time until `hits` would fit if no other request takes any; [`Availability::reset`] if they never do.
    fn wait(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Period;

    /// Decides where no other tier has a say: counts `hits` if they fit or the `policy` says so.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    fn decide(&mut self, tier: &Tier, policy: OverLimitPolicy, hits: Hits, now: Timestamp) -> Outcome {
        let Probe { fits, used } = self.probe(tier, now, hits);
        if fits || policy == OverLimitPolicy::Count {
            self.take(tier, now, hits);
        } else {
            self.reject(tier, now);
        }
        let mut available = self.availability(tier, now);
        if !fits {
            available.reset = self.wait(tier, now, hits);
        }
        Outcome { over: !fits, used, available }
    }

    /// Returns the counted hits, which are lost if a store drops the counter early.
    fn used(&self) -> Hits;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    pub fits: bool,
    /// Hits counted so far.
    pub used: Hits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub over: bool,
    /// Hits counted before.
    pub used: Hits,
    /// What is available afterwards. If over, the time is the wait until the hits would fit.
    pub available: Availability,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Availability {
    /// Whole requests that would be admitted now.
    pub remaining: u32,
    /// The time until every hit counted now has expired and the full limit is available.
    pub reset: Period,
}
