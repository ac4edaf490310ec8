//! Tries that were given up: their callers wait no longer, but their replies are still expected.

use super::{
    LocalCounter,
    records::PendingDelta,
    talk::{GivenUp, Talk},
};
use crate::{
    limit::{Hits, Timestamp},
    store::coordinated::delivery::{Delivery, SentTry},
};

impl LocalCounter {
    /// Gives up try `id` of `hits`, whose caller waits no longer. Returns whether it was sent: then its outcome is
    /// still expected.
    pub(in super::super) fn give_up(&mut self, id: u32, hits: Hits) -> bool {
        let Some(talk) = self.rare.talk_mut() else { return false };
        let waiting = talk.tries.len();
        talk.tries.retain(|asked| asked.id != id);
        let is_sent = talk.tries.len() == waiting;
        if is_sent {
            talk.given_up.push(GivenUp { id, hits, admitted: None });
        }
        self.end_talk();
        is_sent
    }

    /// Returns whether the outcome of `sent`, which was given up, is known. That of a counter that was evicted will not
    /// be.
    pub(in super::super) fn has_outcome_of(&self, sent: SentTry) -> bool {
        let is_awaited = |talk: &Talk| talk.given_up.iter().any(|given| given.id == sent.id);
        sent.generation == self.numbers.generation.0 && !self.rare.talk().is_some_and(is_awaited)
    }

    /// Returns the hits of tries that were given up and whose outcome is still expected.
    pub(in super::super) fn given_up_hits(&self) -> u64 {
        let given_up = self.rare.talk().into_iter().flat_map(|talk| &talk.given_up);
        given_up.fold(0, |sum, given| sum.saturating_add(given.hits.0))
    }

    /// Returns whether hits were admitted for try `id`, which was given up.
    pub(super) fn is_admitted_meanwhile(&self, id: u32) -> bool {
        let mut given_up = self.rare.talk().into_iter().flat_map(|talk| &talk.given_up);
        given_up.any(|given| given.id == id && given.admitted.is_some())
    }

    /// Notes that `sent`, which was given up, has been answered: as many `hits` were admitted at `at`, and are in the
    /// estimate.
    pub(in super::super) fn answer_given_up(&mut self, sent: SentTry, hits: Hits, at: Timestamp) {
        if sent.generation != self.numbers.generation.0 {
            return;
        }
        let admitted = (hits > Hits(0)).then(|| PendingDelta::taken_at(&self.target, hits, at));
        let given_up = self.rare.talk_mut().map(|talk| &mut talk.given_up);
        if let Some(given) = given_up.and_then(|all| all.iter_mut().find(|given| given.id == sent.id)) {
            given.admitted = admitted;
        }
    }

    /// Notes that hits which the store was asked for, with this `delivery`, were counted here without it. If it may have
    /// counted them too, and no reply will tell, no state of this counter is exact.
    pub(in super::super) fn note_unreported(&mut self, delivery: Delivery) {
        let is_doubtful = match delivery {
            Delivery::NotApplied => false,
            Delivery::OnWay(sent) => sent.generation != self.numbers.generation.0,
            Delivery::Applied | Delivery::Unknown => true,
        };
        if is_doubtful {
            self.lose_versions();
        }
    }

    /// Removes try `id` from those that were given up. Returns the hits that were admitted for it, as what would report
    /// them.
    pub(super) fn take_given_up(&mut self, id: u32) -> Option<PendingDelta> {
        let given_up = &mut self.rare.talk_mut()?.given_up;
        let place = given_up.iter().position(|given| given.id == id)?;
        given_up.swap_remove(place).admitted
    }
}
