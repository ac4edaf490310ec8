//! Counters beside each other: those of the same entries whose limits have other tiers, because a reload or a request
//! brings them. Each reports its own hits. What one knows of a tier all of them know, so that they admit together what
//! the limit of the tier does.

use smallvec::SmallVec;

use super::{LocalCounter, talk::Talk};
use crate::{
    limit::{Period, Timestamp},
    store::remote::{Target, TierSet},
};

/// The time without a check after which a settled counter does not count as one that is asked for.
const LEFT_AFTER: Period = Period::from_secs(10);

impl LocalCounter {
    /// Begins beside `other`, or does so again, with what that knows. While somebody asks for both, neither leases hits
    /// ahead: they would be missing under the other's limit. If it `replaces` the other one after a reload, nobody asks
    /// for that any more.
    pub(in super::super) fn begin_beside(&mut self, other: &mut Self, replaces: bool) {
        if !self.follow(other) {
            return;
        }
        other.return_leases();
        self.return_leases();
        if replaces {
            other.last_check_at = Timestamp::default();
        }
        (self.is_beside, other.is_beside) = (true, true);
    }

    /// Notes whether there may be another one that is asked for.
    pub(in super::super) const fn note_others(&mut self, are_there: bool) {
        self.is_beside &= are_there;
    }

    /// Notes whether nobody asks for it any more, and the store has all that it has counted. If somebody does again, it
    /// [begins](LocalCounter::begin_beside) beside the others again.
    pub(in super::super) fn leave(&mut self, now: Timestamp) -> bool {
        let is_left = now.since(self.last_check_at) >= LEFT_AFTER && self.is_settled();
        if is_left {
            self.last_check_at = Timestamp::default();
            self.is_beside = false;
        }
        is_left
    }

    /// Takes over what `other` knows of tiers that both have. Returns whether there are any.
    pub(in super::super) fn follow(&mut self, other: &Self) -> bool {
        let shared = self.shared_with(other);
        for (own, its) in &shared {
            self.estimate[*own].clone_from(&other.estimate[*its]);
            self.heard.exact.set(*own, other.heard.exact.contains(*its));
        }
        !shared.is_empty()
    }

    /// Adds what `other` has counted and the store has not, where a reply has replaced the estimate of a tier that both
    /// have.
    pub(in super::super) fn add_counted_by(&mut self, other: &Self, now: Timestamp) {
        let adopted = self.heard.adopted;
        for (i, _) in self.shared_with(other).into_iter().filter(|(i, _)| adopted.contains(*i)) {
            let unknown = other.rare.talk().into_iter().flat_map(Talk::admitted);
            for delta in other.unacknowledged.all().iter().chain(unknown) {
                delta.apply(&self.target.tiers[i], &mut self.estimate[i], now);
            }
            // the reply may include them
            let is_guessed = !other.is_silent();
            self.heard.exact.set(i, self.heard.exact.contains(i) && !is_guessed);
        }
    }

    /// Notes that the others know what it knows.
    pub(in super::super) fn end_adoption(&mut self) {
        self.heard.adopted = TierSet::default();
    }

    /// Returns when the oldest of the hits was counted that are to be sent.
    pub(in super::super) fn pending_since(&self) -> Option<Timestamp> {
        self.unacknowledged.pending().first().map(|delta| delta.at)
    }

    /// Returns the places of the tiers that both have, here and there.
    fn shared_with(&self, other: &Self) -> SmallVec<[(usize, usize); 4]> {
        let is_apart = |target: &Target| target.counts_rejected() || target.path != self.target.path;
        if is_apart(&self.target) || is_apart(&other.target) {
            return SmallVec::new();
        }
        let place = |(i, tier)| {
            let tiers = &other.target.tiers;
            Some((i, tiers.iter().position(|its| its.shares_counter(tier))?))
        };
        self.target.tiers.iter().enumerate().filter_map(place).collect()
    }
}
