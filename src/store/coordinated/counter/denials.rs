//! Denials that the store has sent, and rejections because of them.

use super::{LocalCounter, policy::Scarcity, tiers::longest_pause};
use crate::limit::{Decision, Hits, OverLimitPolicy, Period, Timestamp, decision_from_store};

impl LocalCounter {
    /// Has a rejection last until the end of the pause, if there is one: a retry time before the next call would be
    /// wrong.
    pub(super) fn until_pause_ends(&self, decision: Decision, now: Timestamp) -> Decision {
        if !decision.over {
            return decision;
        }
        // the clock may have stepped back since the pause began
        let pause = self.plan.denied_until.since(now).min(longest_pause(&self.target.tiers));
        Decision { reset: decision.reset.max(pause), ..decision }
    }

    /// Denies all hits that are not leased until another call is worthwhile. The store has just granted all that was
    /// asked for, or only a part.
    pub(super) fn pause_if_scarce(&mut self, is_partial: bool, round_trip: Period, now: Timestamp) {
        let was_scarce = self.leasing().is_some_and(|leasing| leasing.is_scarce);
        let scarcity = self.lease_policy().scarcity(was_scarce, is_partial, round_trip, now);
        let pause = scarcity.and_then(|scarcity| scarcity.pause);
        self.plan.denied_until = pause.map_or(Timestamp::default(), |pause| pause.until);
        if let Some(Scarcity { is_scarce, .. }) = scarcity
            && (is_scarce != was_scarce || pause.is_some())
        {
            let leasing = self.leasing_mut();
            leasing.is_scarce = is_scarce;
            leasing.probe_at = pause.map_or(leasing.probe_at, |pause| pause.call_at);
        }
    }

    /// Returns whether the pause is so nearly over that a lease should be requested for its end.
    pub(in super::super) fn is_pause_ending(&mut self, now: Timestamp) -> bool {
        let denied_until = self.plan.denied_until;
        now < denied_until && self.leasing_mut().ends_pause(denied_until, now)
    }

    /// Notes that the store has admitted hits.
    pub(in super::super) fn note_admission(&mut self) {
        if let Some(leasing) = self.rare.more_mut().and_then(|more| more.leasing.as_deref_mut()) {
            leasing.note_admission();
        }
    }

    /// Wishes to know the store's count from time to time while this instance rejects hits, because another one may
    /// have given some back.
    pub(in super::super) fn look_for_returned(&mut self, now: Timestamp) {
        let interval = self.plan.schedule.interval();
        self.plan.wants_read |= self.plan.instances > 1 && self.leasing_mut().looks(interval, now);
    }

    /// Denies all hits until one fits, if none does now.
    pub(in super::super) fn deny_while_empty(&mut self, now: Timestamp) {
        let wait = self.view().wait_for(1, now);
        self.plan.denied_until =
            if wait == Period::default() { Timestamp::default() } else { now.after(wait) };
    }

    pub(super) fn rejected(&self, hits: Hits, now: Timestamp) -> Decision {
        decision_from_store(&self.target.tiers, &self.estimate, OverLimitPolicy::Ignore, true, hits, now)
    }

    /// Returns whether the store has denied all hits until later than `now`, and neither `hits` nor a single one fit by
    /// the estimate: some may have been given back since.
    pub(in super::super) fn is_cached(&self, hits: Hits, now: Timestamp) -> bool {
        self.is_denied(now) && !self.fits(hits, now) && !self.fits(Hits(1), now)
    }

    /// Returns whether the store has denied all hits until an instant after `now`.
    pub(in super::super) fn is_denied(&self, now: Timestamp) -> bool {
        now < self.plan.denied_until
    }
}
