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
    /// Returns whether the try was sent: then its outcome is still expected. `hits` are none if it gives some back.
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

    /// Returns whether hits of this `delivery` are reported: not if the store may have counted them. Those of a try on
    /// its way are once its reply shows that it has not, which it never does for an evicted counter.
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

    pub(in super::super) fn given_up_hits(&self) -> u64 {
        let given_up = self.rare.talk().into_iter().flat_map(Talk::given_up);
        given_up.fold(0, |sum, given| sum.saturating_add(given.hits.0))
    }

    pub(super) fn is_admitted_meanwhile(&self, id: u32) -> bool {
        let mut given_up = self.rare.talk().into_iter().flat_map(Talk::given_up);
        given_up.any(|given| given.id == id && given.admitted.is_some())
    }

    /// The estimate has the `hits`, admitted at `at`. If no reply will tell whether they count twice, it is not exact.
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

    /// Returns the hits that were admitted for try `id` meanwhile.
    pub(super) fn take_given_up(&mut self, id: u32) -> Option<PendingDelta> {
        let given_up = &mut self.rare.talk_mut()?.aside.as_mut()?.given_up;
        let place = given_up.iter().position(|given| given.id == id)?;
        given_up.swap_remove(place).admitted
    }
}
