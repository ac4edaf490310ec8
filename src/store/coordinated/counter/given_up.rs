//! Tries that were given up: their callers wait no longer, but their replies are still expected.

use super::{
    LocalCounter,
    records::PendingDelta,
    talk::{GivenUp, Talk},
    tiers::positive,
};
use crate::{
    limit::{Hits, Timestamp},
    store::coordinated::delivery::Delivery,
};

impl LocalCounter {
    /// Gives up try `id` of `hits`, whose caller waits no longer. Returns whether it was sent: then its outcome is
    /// still expected. Hits that are given back are none: they need nobody to wait for them.
    pub(in super::super) fn give_up(&mut self, id: u32, hits: Option<Hits>) -> bool {
        let Some(talk) = self.rare.talk_mut() else { return false };
        let waiting = talk.tries.len();
        talk.tries.retain(|asked| asked.id != id);
        let is_sent = talk.tries.len() == waiting;
        if is_sent && let Some(hits) = hits {
            talk.aside.get_or_insert_default().given_up.push(GivenUp { id, hits, admitted: None });
        }
        self.end_talk();
        is_sent
    }

    /// Returns whether hits of this `delivery` are reported: not those that the store may have counted, and those of a
    /// try that was given up only once it is known that the store has not taken them, which it never is if its counter
    /// was evicted.
    pub(in super::super) fn reports(&self, delivery: Delivery) -> bool {
        match delivery {
            Delivery::NotApplied => true,
            Delivery::OnWay(sent) => {
                let is_awaited = |talk: &Talk| talk.given_up().iter().any(|given| given.id == sent.id);
                sent.generation == self.numbers.generation.0 && !self.rare.talk().is_some_and(is_awaited)
            }
            Delivery::Applied | Delivery::Unknown => false,
        }
    }

    /// Returns the hits of tries that were given up and whose outcome is still expected.
    pub(in super::super) fn given_up_hits(&self) -> u64 {
        let given_up = self.rare.talk().into_iter().flat_map(Talk::given_up);
        given_up.fold(0, |sum, given| sum.saturating_add(given.hits.0))
    }

    /// Returns whether hits were admitted for try `id`, which was given up.
    pub(super) fn is_admitted_meanwhile(&self, id: u32) -> bool {
        let mut given_up = self.rare.talk().into_iter().flat_map(Talk::given_up);
        given_up.any(|given| given.id == id && given.admitted.is_some())
    }

    /// Notes that what was asked of the store, with this `delivery`, has been answered without it: as many `hits` were
    /// admitted at `at`, and are in the estimate. If the store may have counted them too, and no reply will tell, no
    /// state of this counter is exact.
    pub(in super::super) fn note_answer(&mut self, delivery: Delivery, hits: Hits, at: Timestamp) {
        match delivery {
            Delivery::NotApplied => {}
            Delivery::OnWay(sent) if sent.generation == self.numbers.generation.0 => {
                let admitted = (hits > Hits(0)).then(|| PendingDelta::of(positive(hits.0), at));
                let aside = self.rare.talk_mut().and_then(|talk| talk.aside.as_mut());
                let given_up = aside.map(|aside| &mut aside.given_up);
                if let Some(given) = given_up.and_then(|all| all.iter_mut().find(|given| given.id == sent.id))
                {
                    given.admitted = admitted;
                }
            }
            Delivery::OnWay(_) | Delivery::Applied | Delivery::Unknown => self.lose_exactness(),
        }
    }

    /// Removes try `id` from those that were given up. Returns the hits that were admitted for it, as what would report
    /// them.
    pub(super) fn take_given_up(&mut self, id: u32) -> Option<PendingDelta> {
        let given_up = &mut self.rare.talk_mut()?.aside.as_mut()?.given_up;
        let place = given_up.iter().position(|given| given.id == id)?;
        given_up.swap_remove(place).admitted
    }
}
