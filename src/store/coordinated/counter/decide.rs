//! Decides by the policy of a mode, and carries out what it answers.

use smallvec::SmallVec;

use super::{
    LocalCounter,
    asks::{Answer, Ask, Asks, Denial},
    tiers::longest_pause,
};
use crate::{
    limit::{
        Basis, Coordination, Decision, Direction, Hits, OverLimitPolicy, Period, Timestamp, decide,
        decision_from_store,
    },
    store::{Decisions, coordinated::link::Link},
};

#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Decided {
    Now(Decision, How),
    Wait(Asks),
}

/// How a decision was made without the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum How {
    Counted,
    /// From a lease.
    Spent,
    /// By what the store's earlier replies have told.
    Denied,
}

/// The age of the last reply from which a request that `interval` rejects asks the store whether hits were given back.
const STALE_REJECTION: Period = Period::from_secs(1);

impl LocalCounter {
    /// What the policy of `mode` says of `ask`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    fn answer(&self, mode: Coordination, ask: &Ask, link: &Link) -> Answer {
        let now = link.time.now;
        match mode {
            Coordination::Lease | Coordination::Strict if ask.direction == Direction::GiveBack => {
                Answer::Count
            }
            Coordination::Lease | Coordination::Strict if ask.hits == Hits(0) => Answer::Wait(Asks::Look),
            Coordination::Lease if !self.fits(ask.hits, now) => Answer::Reject(Denial::Estimate),
            Coordination::Lease if self.leased_hits() >= ask.hits.0 => Answer::Spend,
            Coordination::Lease if self.is_denied(now) => Answer::Reject(Denial::Pause),
            Coordination::Lease => Answer::Wait(Asks::Lease(ask.policy)),
            Coordination::Strict if link.local_cache && self.is_cached(now) => Answer::Reject(Denial::Cached),
            Coordination::Strict => Answer::Wait(Asks::Take(ask.policy)),
            _ => Answer::Count,
        }
    }

    /// Some hits may have been given back since the denial. A strict bucket has to notice every try.
    fn is_cached(&self, now: Timestamp) -> bool {
        let is_strict = self.target.tiers.iter().any(|tier| tier.bucket().strict);
        self.is_denied(now) && !is_strict && !self.fits(Hits(1), now)
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs a hundred instructions")]
    pub(in super::super) fn decide(&mut self, mode: Coordination, ask: &Ask, link: &Link) -> Decided {
        let now = link.time.now;
        let &Ask { direction, hits, policy, .. } = ask;
        if direction == Direction::Take && mode != Coordination::Strict && hits > Hits(0) {
            // more hits than fit are rejected, and predict no need
            self.record_demand(hits, now);
        }
        match self.answer(mode, ask, link) {
            Answer::Count => {
                let decision = self.count(direction, policy, hits, now);
                // the reply to a report of counted hits has the store's count
                if mode == Coordination::Interval && hits == Hits(0) {
                    self.refresh(self.plan.schedule.interval(), now);
                } else if mode == Coordination::Interval && decision.over && !self.is_alone() {
                    self.refresh(STALE_REJECTION, now);
                }
                Decided::Now(decision, How::Counted)
            }
            Answer::Spend => {
                let decision = self.spend(policy, hits, now);
                // the next lease has to arrive before this one is used up
                if self.runs_low(link.round_trip * 2, now) {
                    self.want_lease();
                }
                Decided::Now(decision, How::Spent)
            }
            Answer::Reject(denial) => Decided::Now(self.reject(denial, ask, link), How::Denied),
            Answer::Wait(asks) => Decided::Wait(asks),
        }
    }

    /// Returns the tries of `asks` if one command has to decide them: hits given back are only for the takers beside
    /// them, or `strict` counts `all_or_none`. None if leases cover the hits.
    pub(in super::super) fn tries_together(
        &mut self,
        mode: Coordination,
        asks: &[Ask],
        all_or_none: bool,
        now: Timestamp,
    ) -> Option<SmallVec<[(Hits, Asks); 2]>> {
        let gives_back = |ask: &Ask| ask.direction == Direction::GiveBack && ask.hits > Hits(0);
        let taken = || asks.iter().filter(|ask| ask.direction == Direction::Take);
        let is_asked = match mode {
            Coordination::Strict => true,
            Coordination::Lease => {
                let all = taken().fold(Hits(0), |all, ask| all.plus(ask.hits));
                all_or_none || taken().any(|ask| ask.hits == Hits(0)) || all > Hits(self.leased_hits())
            }
            _ => false,
        };
        if !is_asked || !(all_or_none && mode == Coordination::Strict || asks.iter().any(gives_back)) {
            return None;
        }
        let tries = asks.iter().map(|&Ask { direction, hits, policy, .. }| {
            let asks = match direction {
                _ if hits == Hits(0) => Asks::Look,
                Direction::GiveBack => Asks::GiveBack(now),
                Direction::Take => Asks::Take(policy),
            };
            if mode != Coordination::Strict && matches!(asks, Asks::Take(_)) {
                self.record_demand(hits, now);
            }
            (hits, asks)
        });
        Some(tries.collect())
    }

    /// Decides `asks` by the estimate, without counting anything. None if all are admitted.
    pub(in super::super) fn reject_together(&self, asks: &[Ask], now: Timestamp) -> Option<Decisions> {
        let tiers = &self.target.tiers;
        let mut states = self.estimate.clone();
        let decide = |ask: &Ask| {
            let decision = decide(tiers, &mut states, OverLimitPolicy::Ignore, ask.direction, ask.hits, now);
            // hits that are given back reject no others
            Decision { over: decision.over && ask.direction == Direction::Take, ..decision }
        };
        let mut decisions: Decisions = asks.iter().map(decide).collect();
        if !decisions.iter().any(|decision| decision.over) {
            return None;
        }
        for decision in decisions.iter_mut().filter(|decision| !decision.over) {
            *decision = self.look(Hits(0), now);
        }
        Some(decisions)
    }

    /// Decides from the leases while the store is unavailable. None if they do not cover `ask`.
    pub(in super::super) fn decide_from_held(&mut self, ask: &Ask, link: &Link) -> Option<Decision> {
        let now = link.time.now;
        if ask.direction == Direction::Take && ask.hits > Hits(0) {
            self.record_demand(ask.hits, now);
        }
        let is_covered = self.answer(Coordination::Lease, ask, link) == Answer::Spend;
        let decision = is_covered.then(|| self.spend(ask.policy, ask.hits, now))?;
        self.note_in_fallback(ask.hits, now);
        Some(decision)
    }

    /// `hits` must fit, and the leases must have as many.
    pub(super) fn spend(&mut self, policy: OverLimitPolicy, hits: Hits, now: Timestamp) -> Decision {
        let decision = decide(&self.target.tiers, &mut self.estimate, policy, Direction::Take, hits, now);
        self.spend_held(hits.0);
        decision
    }

    fn reject(&mut self, denial: Denial, ask: &Ask, link: &Link) -> Decision {
        let now = link.time.now;
        let decision = match denial {
            Denial::Cached => {
                // counts no hits
                let policy = OverLimitPolicy::Ignore;
                let decision = self.count(Direction::Take, policy, ask.hits, now);
                self.deny_while_empty(now);
                // another instance may give back what it took for a request that it then rejected
                self.look_for_returned(now);
                return Decision { basis: Basis::LocalCache, ..decision };
            }
            Denial::Estimate => self.count(Direction::Take, ask.policy, ask.hits, now),
            // until there is enough for every instance
            Denial::Pause => {
                let policy = OverLimitPolicy::Ignore;
                decision_from_store(&self.target.tiers, &self.estimate, policy, true, ask.hits, now)
            }
        };
        let decision = self.until_pause_ends(decision, now);
        if self.ends_pause(now) {
            self.want_lease();
        }
        if !self.is_denied(now) {
            self.look_for_returned(now);
        }
        decision
    }

    /// A rejection lasts until the end of the pause: a retry time before the next call would be wrong.
    pub(super) fn until_pause_ends(&self, decision: Decision, now: Timestamp) -> Decision {
        if !decision.over {
            return decision;
        }
        // the clock may have stepped back since the pause began
        let pause = self.plan.denied_until.since(now).min(longest_pause(&self.target.tiers));
        Decision { reset: decision.reset.max(pause), ..decision }
    }

    pub(in super::super) fn deny_while_empty(&mut self, now: Timestamp) {
        let wait = self.wait_for(1, now);
        self.plan.denied_until =
            if wait == Period::default() { Timestamp::default() } else { now.after(wait) };
    }

    /// Returns the time until `hits` fit, if no others are taken.
    pub(super) fn wait_for(&self, hits: u64, now: Timestamp) -> Period {
        let waits = self.estimate.iter().zip(&*self.target.tiers);
        waits.map(|(state, tier)| state.wait(tier, now, Hits(hits))).max().unwrap_or_default()
    }

    pub(in super::super) fn is_denied(&self, now: Timestamp) -> bool {
        now < self.plan.denied_until
    }
}
