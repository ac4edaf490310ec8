//! Counters beside each other: those of the same entries whose limits have other tiers, because a reload or a request
//! brings them. Each reports its own hits. What one knows of a tier all of them know, so that they admit together what
//! the limit of the tier does.

use smallvec::SmallVec;

use super::{LocalCounter, talk::Talk};
use crate::{
    limit::{Period, Timestamp},
    store::remote::{Target, TierSet},
};

/// A settled counter that was not checked for so long does not count as one that is asked for.
const LEFT_AFTER: Period = Period::from_secs(10);

impl LocalCounter {
    /// Begins (again) beside `other`, with what that knows. Neither leases hits ahead, which would be missing under the
    /// other's limit. `replaces`: after a reload, nobody asks for `other` any more.
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

    pub(in super::super) const fn note_others(&mut self, are_there: bool) {
        self.is_beside &= are_there;
    }

    /// If it is settled and nobody asks for it, it leaves until it [begins](LocalCounter::begin_beside) again.
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

    /// Adds hits of `other` that the store lacks to shared tiers whose estimate a reply has replaced.
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

    pub(in super::super) fn end_adoption(&mut self) {
        self.heard.adopted = TierSet::default();
    }

    pub(in super::super) fn pending_since(&self) -> Option<Timestamp> {
        self.unacknowledged.pending().first().map(|delta| delta.at)
    }

    /// Returns the indexes of the tiers that both have, here and in `other`.
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
